//! `convert`: the optimizer state of a run in another format, and how exactly.

use anyhow::Result;
use trainer::{Conversion, Converted, Distance};

use crate::args::Convert;
use crate::output::{self, bytes, grouped, note};
use crate::table;

pub fn run(args: &Convert) -> Result<()> {
    let state = args.state.iter().map(|state| format!("optimizer.state=\"{state}\""));
    let bias = args.bias.iter().map(|bias| format!("optimizer.bias={bias}"));
    let conversion = Conversion {
        run: &args.run,
        moments: args.moments.as_deref(),
        changes: &state.chain(bias).collect::<Vec<_>>(),
        output: args.output_dir.as_deref(),
    };
    let converted = trainer::convert(&conversion)?;
    if args.json {
        return output::json(&serde_json::to_value(&converted)?);
    }
    output::data(&text(&converted))?;
    match &args.output_dir {
        Some(folder) => note(&format!(
            "go on with: {} train --resume --output-dir {}",
            output::program(),
            folder.display()
        )),
        None => note("nothing was written; name a new run folder by --output-dir"),
    }
    Ok(())
}

fn text(converted: &Converted) -> String {
    let size = match converted.bytes_before {
        Some(before) => format!("{} before, {} now", bytes(before), bytes(converted.bytes_after)),
        None => bytes(converted.bytes_after),
    };
    let facts = table::pairs(&[
        ("moments", format!("{} to {}", converted.from, converted.to)),
        ("update", grouped(converted.update)),
        ("state", size),
    ]);
    let all = [("all".to_owned(), converted.all)];
    let rows: Vec<_> = converted.roles.iter().chain(&all).map(row).collect();
    let head = ["tensors", "elements", "m", "sqrt(v)", "direction"];
    format!("{facts}\n\nrelative error\n{}\n", table::columns(&head, &rows))
}

fn row((name, distance): &(String, Distance)) -> Vec<String> {
    let Distance { elements, first, rms, direction } = *distance;
    let errors = [first, rms, direction].map(|error| format!("{error:.2e}"));
    [name.clone(), grouped(elements)].into_iter().chain(errors).collect()
}
