//! `export` and `import`: weights out to other programs, and in from them.

use anyhow::Result;
use serde_json::json;
use trainer::Restored;

use crate::args::{Export, Import};
use crate::output::{self, grouped, note};
use crate::table;

pub fn export(args: &Export) -> Result<()> {
    let model = Restored::open(&args.checkpoint)?;
    trainer::export(&model, &args.output)?;
    note(&format!(
        "{} parameters in {}; in Python: AutoModelForCausalLM.from_pretrained({:?})",
        grouped(model.network().parameters() as u64),
        args.output.display(),
        args.output.display().to_string(),
    ));
    Ok(())
}

pub fn import(args: &Import) -> Result<()> {
    let imported = trainer::import(&args.input, &args.output)?;
    if args.json {
        return output::json(&json!({
            "checkpoint": imported.checkpoint,
            "tokenizer": imported.tokenizer,
            "settings": imported.settings,
            "model": imported.shape,
        }));
    }
    note(&table::pairs(&[
        ("model", imported.shape.to_string()),
        ("checkpoint", imported.checkpoint.display().to_string()),
        ("tokenizer, for prepare", imported.tokenizer.display().to_string()),
        ("settings, for train --config", imported.settings.display().to_string()),
    ]));
    Ok(())
}
