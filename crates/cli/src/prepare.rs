//! `prepare`: text to tapes.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use tape::layout::Part;
use tape::prepare::{PrepareOptions, PreparedTape, Split, prepare};
use tape::sources::{Progress, SourceOptions, Sources};
use trainer::in_pool;

use crate::args::Prepare;
use crate::output::{self, bytes, duration, grouped, note};
use crate::progress::Bar;
use crate::{signals, table, tokenizer};

pub fn run(args: &Prepare) -> Result<()> {
    let stop = signals::stop_flag()?;
    let tokenizer = tokenizer::open(args.tokenizer.as_deref())?;
    let work = if !args.validation_input.is_empty() {
        vec![
            (&args.input, Split::Whole(Part::Train)),
            (&args.validation_input, Split::Whole(Part::Validation)),
        ]
    } else if args.validation_fraction == 0.0 {
        vec![(&args.input, Split::Whole(Part::Train))]
    } else {
        vec![(&args.input, Split::ByHash { validation_fraction: args.validation_fraction })]
    };
    let begun = Instant::now();
    let mut tapes = Vec::new();
    for (paths, split) in work {
        let options = SourceOptions { field: args.field.clone(), ..SourceOptions::default() };
        let mut sources = Sources::open(paths, options)?;
        let options = PrepareOptions {
            output_dir: args.output_dir.clone(),
            split,
            overwrite: args.overwrite,
        };
        let mut bar = ReadingBar::new();
        tapes.extend(in_pool(args.threads, || {
            prepare(&mut sources, &tokenizer, &options, &mut |progress| {
                bar.at(progress);
                signals::go_on(&stop)
            })
        })?);
        bar.clear();
    }
    show(&tapes, begun.elapsed().as_secs_f64(), args)
}

fn show(tapes: &[PreparedTape], seconds: f64, args: &Prepare) -> Result<()> {
    if args.json {
        let tape = |tape: &PreparedTape| {
            json!({
                "part": tape.part.name(),
                "tokens_file": tape.files.tokens,
                "tokens": tape.sidecar.tokens.count,
                "documents": tape.sidecar.documents,
                "source_bytes": tape.sidecar.source_bytes,
                "bytes_per_token": tape.bytes_per_token(),
                "sha256": tape.sidecar.tokens.sha256.to_string(),
            })
        };
        let tapes: Vec<_> = tapes.iter().map(tape).collect();
        return output::json(&json!({ "seconds": seconds, "tapes": tapes }));
    }
    let row = |tape: &PreparedTape| {
        vec![
            tape.part.name().to_owned(),
            grouped(tape.sidecar.documents),
            grouped(tape.sidecar.source_bytes),
            grouped(tape.sidecar.tokens.count),
            format!("{:.3}", tape.bytes_per_token()),
        ]
    };
    let rows: Vec<_> = tapes.iter().map(row).collect();
    note(&table::columns(&["tape", "documents", "bytes", "tokens", "bytes/token"], &rows));
    let total: u64 = tapes.iter().map(|tape| tape.sidecar.source_bytes).sum();
    let rate = total as f64 / 1e6 / seconds;
    note(&format!("{} in {}, {rate:.1} MB/s", bytes(total), duration(seconds)));
    note(&format!("tapes are in {}", args.output_dir.display()));
    Ok(())
}

/// Progress by bytes read from the sources.
pub struct ReadingBar {
    bar: Option<Bar>,
    begun: Instant,
}

impl ReadingBar {
    pub fn new() -> Self {
        Self { bar: None, begun: Instant::now() }
    }

    pub fn at(&mut self, progress: Progress) {
        let Progress { documents, text_bytes, source, .. } = progress;
        let total = source.bytes_total.unwrap_or(source.bytes_read);
        let bar = self.bar.get_or_insert_with(|| Bar::new(total / 1000, 0, "kB"));
        let rate = text_bytes as f64 / 1e6 / self.begun.elapsed().as_secs_f64();
        bar.at(source.bytes_read / 1000, || {
            format!("{} documents  {rate:.1} MB of text/s", grouped(documents))
        });
    }

    pub fn clear(self) {
        if let Some(bar) = self.bar {
            bar.clear();
        }
    }
}
