//! `replay`: one update of a run from inside, tensor by tensor.

use anyhow::Result;
use trainer::TensorNorms;

use crate::args::Replay;
use crate::output::{self, grouped, note};
use crate::{settings, table};

pub fn run(args: &Replay) -> Result<()> {
    let mut settings = settings::of_run(&args.run)?;
    settings.set_text("run.device", &args.device, "--device")?;
    let found = trainer::replay(&settings, &args.run, args.update)?;
    if args.json {
        return output::json(&serde_json::to_value(&found)?);
    }
    let from = match found.checkpoint_update {
        0 => "the start of the run".to_owned(),
        update => format!("the checkpoint of update {}", grouped(update)),
    };
    note(&table::pairs(&[
        ("update", format!("{}, from {from}", grouped(found.update))),
        ("tokens", format!("{} from {}", grouped(found.tokens), grouped(found.cursor))),
        ("loss", format!("{:.6} nats/token", found.loss_nats)),
    ]));
    let head = ["tensor", "elements", "parameters", "gradients", "largest", "not finite"];
    let rows: Vec<_> = found.tensors.iter().map(cells).collect();
    note("");
    output::data(&format!("{}\n", table::columns(&head, &rows)))
}

fn cells(tensor: &TensorNorms) -> Vec<String> {
    vec![
        tensor.name.clone(),
        grouped(tensor.elements),
        format!("{:.4e}", tensor.parameter_norm),
        format!("{:.4e}", tensor.gradient_norm),
        format!("{:.4e}", tensor.gradient_max),
        grouped(tensor.nonfinite_gradients + tensor.nonfinite_parameters),
    ]
}
