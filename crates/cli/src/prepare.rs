//! `prepare`: text to tapes.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use tape::layout::Part;
use tape::prepare::{PrepareOptions, PreparedTape, Split, prepare};
use tape::sources::{
    Boundary, DocumentSource as _, Kind, OnError, Progress, Skipped, SourceOptions, Sources,
};
use trainer::in_pool;

use crate::args::{self, Prepare, Reading, StandardInput};
use crate::output::{self, bytes, duration, grouped, note};
use crate::progress::Bar;
use crate::{signals, table, tokenizer};

/// Messages shown of documents that were left out.
const SKIPPED_SHOWN: usize = 10;

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
    let mut skipped = Skipped::default();
    for (paths, split) in work {
        let mut sources = Sources::open(paths, source_options(&args.reading))?;
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
        note_skipped(sources.skipped());
        skipped.count += sources.skipped().count;
        skipped.first.extend_from_slice(&sources.skipped().first);
    }
    show(&tapes, &skipped, begun.elapsed().as_secs_f64(), args)
}

/// How files become documents.
pub fn source_options(args: &Reading) -> SourceOptions {
    let boundary = match (&args.document_start, &args.document_end) {
        (Some(pattern), _) => Boundary::StartsAt(pattern.clone()),
        (None, Some(line)) => Boundary::EndsAt(line.clone()),
        (None, None) => Boundary::AsStored,
    };
    SourceOptions {
        field: args.field.clone(),
        boundary,
        on_error: match args.on_error {
            args::OnError::Stop => OnError::Stop,
            args::OnError::Skip => OnError::Skip,
        },
        standard_input: match args.stdin {
            StandardInput::Text => Kind::Text,
            StandardInput::Jsonl => Kind::Lines,
        },
        ..SourceOptions::default()
    }
}

/// Names what was left out, the first of many.
pub fn note_skipped(skipped: &Skipped) {
    if skipped.count == 0 {
        return;
    }
    note(&format!("left out, because they cannot be read: {}", grouped(skipped.count)));
    for message in skipped.first.iter().take(SKIPPED_SHOWN) {
        note(&format!("  {message}"));
    }
    if skipped.count > SKIPPED_SHOWN as u64 {
        note("  and others; the report of --json names more");
    }
}

fn show(tapes: &[PreparedTape], skipped: &Skipped, seconds: f64, args: &Prepare) -> Result<()> {
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
        return output::json(&json!({
            "seconds": seconds,
            "tapes": tapes,
            "skipped": skipped.count,
            "skipped_first": skipped.first,
        }));
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
