//! `smoke`: one update on made-up tokens.

use anyhow::{Result, bail};

use crate::args::Smoke;
use crate::output::{self, bytes, grouped, note};
use crate::{settings, table};

pub fn run(args: &Smoke) -> Result<()> {
    let (settings, _) = settings::load(&args.configuration)?;
    let found = trainer::smoke(&settings)?;
    if let Some(folder) = &args.output_dir {
        std::fs::create_dir_all(folder)?;
        let text = format!("{:#}\n", serde_json::to_value(&found)?);
        std::fs::write(folder.join("smoke.json"), text)?;
    }
    if args.json {
        output::json(&serde_json::to_value(&found)?)?;
    }
    note(&table::pairs(&[
        ("device", found.device.clone()),
        ("parameters", grouped(found.parameters)),
        ("optimizer state", format!("{}, {}", found.state_format, bytes(found.state_bytes))),
        ("tokens", grouped(found.tokens)),
        ("uniform loss", format!("{:.4} nats/token", found.uniform_loss_nats)),
        ("loss before", format!("{:.4} nats/token", found.loss_before_nats)),
        ("loss after", format!("{:.4} nats/token", found.loss_after_nats)),
        ("gradient norm", format!("{:.4}", found.gradient_norm)),
        ("not finite", grouped(found.nonfinite)),
    ]));
    if !found.good {
        bail!("the update went wrong: the loss must fall and everything must be finite");
    }
    note("all good");
    Ok(())
}
