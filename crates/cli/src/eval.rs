//! `eval`: scores a checkpoint on a tape.

use anyhow::Result;
use serde_json::json;
use tape::reader::TapeSource;
use trainer::{Device, Restored, in_pool};

use crate::args::Eval;
use crate::output::{self, grouped, note};
use crate::progress::Bar;
use crate::{settings, table};

pub fn run(args: &Eval) -> Result<()> {
    let device = Device::choose(&args.device, settings::precision(&args.precision)?)?;
    let model = Restored::open(&args.checkpoint)?;
    let mut source = TapeSource::at(&args.tokens);
    if let (TapeSource::Files(files), Some(byte_lengths)) = (&source, &args.byte_lengths) {
        source = TapeSource::Files(files.clone().with_byte_lengths(byte_lengths));
    }
    let mut bar = None;
    let found = in_pool(args.threads, || {
        model.evaluate(&device, &source, usize::from(args.batch), &mut |done, total| {
            let bar = bar.get_or_insert_with(|| Bar::new(total, 0, "windows"));
            bar.at(done, || "scoring".to_owned());
        })
    })?;
    if let Some(bar) = bar {
        bar.clear();
    }
    if args.json {
        return output::json(&json!({
            "update": model.manifest.progress.update,
            "loss_nats": found.loss_nats(),
            "perplexity": found.perplexity(),
            "bpb": found.bpb(),
            "tokens": found.tokens,
            "source_bytes": found.source_bytes,
        }));
    }
    let unknown = || "unknown: the tape has no byte lengths".to_owned();
    note(&table::pairs(&[
        ("checkpoint", format!("update {}", grouped(model.manifest.progress.update))),
        ("tokens", grouped(found.tokens)),
        ("source bytes", found.source_bytes.map_or_else(unknown, grouped)),
        ("loss", format!("{:.6} nats/token", found.loss_nats())),
        ("perplexity", format!("{:.4}", found.perplexity())),
        ("bits/byte", found.bpb().map_or_else(unknown, |bpb| format!("{bpb:.6}"))),
    ]));
    Ok(())
}
