//! `generate`: continues a text.

use std::time::Instant;

use anyhow::{Error, Result, anyhow};
use serde_json::json;
use trainer::{Device, Restored, Sampling};

use crate::args::Generate;
use crate::output::{self, Usage, note};
use crate::settings;

pub fn run(args: &Generate) -> Result<()> {
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        let found = args.temperature;
        return Err(anyhow!(Usage(format!("--temperature must be 0 or more, found {found}"))));
    }
    let device = Device::choose(&args.device, settings::precision(&args.precision)?)?;
    let model = Restored::open(&args.checkpoint)?;
    let sampling = Sampling {
        tokens: args.max_tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
    };
    let mut text = args.prompt.clone();
    let mut failed: Option<Error> = None;
    if !args.json {
        output::data(&text)?;
    }
    let begun = Instant::now();
    let tokens = model.sample(&device, &args.prompt, &sampling, &mut |piece| {
        text.push_str(piece);
        if !args.json {
            failed = output::data(piece).err();
        }
        failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let rate = tokens as f64 / begun.elapsed().as_secs_f64();
    if args.json {
        return output::json(&json!({
            "prompt": args.prompt,
            "text": text,
            "tokens": tokens,
            "seed": args.seed,
            "temperature": args.temperature,
            "top_k": args.top_k,
        }));
    }
    output::data("\n")?;
    note(&format!("{tokens} tokens, {rate:.0} tokens/s"));
    Ok(())
}
