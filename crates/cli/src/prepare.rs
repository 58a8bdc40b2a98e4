//! `prepare`: text to tapes.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use tape::layout::{Element, Part};
use tape::prepare::{Estimate, PrepareOptions, Prepared, Split, estimate, prepare};
use tape::sources::{Boundary, Kind, OnError, Progress, Skipped, SourceOptions, Sources};
use tape::writer::{Form, TapeRecord};
use trainer::in_pool;

use crate::args::{self, Prepare, Reading, StandardInput, TokenType};
use crate::output::{self, bytes, duration, grouped, note};
use crate::progress::Bar;
use crate::{signals, table, tokenizer};

/// Messages shown of documents that were left out.
const SKIPPED_SHOWN: usize = 10;

/// Text that an estimate encodes.
const SAMPLE_BYTES: u64 = 32 << 20;

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
    let mut all = Prepared { tapes: Vec::new(), reused: true, skipped: Skipped::default() };
    let mut estimates = Vec::new();
    for (paths, split) in work {
        let mut sources = Sources::open(paths, source_options(&args.reading))?;
        let options = prepare_options(args, split);
        if args.dry_run {
            let found = in_pool(args.threads, || {
                estimate(&mut sources, &tokenizer, &options, SAMPLE_BYTES)
            })?;
            estimates.push(found);
            continue;
        }
        let mut bar = ReadingBar::new();
        let prepared = in_pool(args.threads, || {
            prepare(&mut sources, &tokenizer, &options, &mut |progress| {
                bar.at(progress);
                signals::go_on(&stop)
            })
        })?;
        bar.clear();
        note_skipped(&prepared.skipped);
        all.tapes.extend(prepared.tapes);
        all.reused &= prepared.reused;
        all.skipped.count += prepared.skipped.count;
        all.skipped.first.extend(prepared.skipped.first);
    }
    if args.dry_run {
        return show_estimates(&estimates, args);
    }
    show(&all, begun.elapsed().as_secs_f64(), args)
}

fn prepare_options(args: &Prepare, split: Split) -> PrepareOptions {
    let element = match args.token_type {
        TokenType::U16 => Element::U16,
        TokenType::U32 => Element::U32,
    };
    PrepareOptions {
        output_dir: args.output_dir.clone(),
        split,
        form: Form { element, shard_tokens: args.shard_tokens },
        deduplicate: args.deduplicate,
        overwrite: args.overwrite,
    }
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

fn show_estimates(estimates: &[Estimate], args: &Prepare) -> Result<()> {
    let sum = |of: fn(&Estimate) -> f64| estimates.iter().map(of).sum::<f64>();
    let (tokens, text_bytes) = (sum(|e| e.tokens), sum(|e| e.text_bytes));
    let (documents, disk_bytes) = (sum(|e| e.documents), sum(|e| e.disk_bytes));
    let sampled: u64 = estimates.iter().map(|e| e.sampled_bytes).sum();
    let whole = estimates.iter().all(|e| e.whole);
    if args.json {
        return output::json(&json!({
            "exact": whole,
            "sampled_bytes": sampled,
            "documents": documents as u64,
            "source_bytes": text_bytes as u64,
            "tokens": tokens as u64,
            "bytes_per_token": text_bytes / tokens,
            "disk_bytes": disk_bytes as u64,
        }));
    }
    let about = if whole { "" } else { "about " };
    let count = |number: f64| format!("{about}{}", grouped(number as u64));
    note(&table::pairs(&[
        ("sampled", bytes(sampled)),
        ("documents", count(documents)),
        ("bytes of text", count(text_bytes)),
        ("tokens", count(tokens)),
        ("bytes/token", format!("{about}{:.3}", text_bytes / tokens)),
        ("disk", format!("{about}{}", bytes(disk_bytes as u64))),
    ]));
    note("nothing was written");
    Ok(())
}

fn show(prepared: &Prepared, seconds: f64, args: &Prepare) -> Result<()> {
    let Prepared { tapes, reused, skipped } = prepared;
    let duplicates = tapes.first().map_or(0, |tape| tape.preparation.duplicate_documents);
    if args.json {
        let tape = |tape: &TapeRecord| {
            json!({
                "part": tape.part.name(),
                "tokens_file": tape.source.path(),
                "tokens": tape.count,
                "documents": tape.documents,
                "source_bytes": tape.source_bytes,
                "bytes_per_token": tape.bytes_per_token(),
                "sha256": tape.sha256.to_string(),
            })
        };
        let tapes: Vec<_> = tapes.iter().map(tape).collect();
        return output::json(&json!({
            "seconds": seconds,
            "reused": reused,
            "tapes": tapes,
            "duplicates": duplicates,
            "skipped": skipped.count,
            "skipped_first": skipped.first,
        }));
    }
    let row = |tape: &TapeRecord| {
        vec![
            tape.part.name().to_owned(),
            grouped(tape.documents),
            grouped(tape.source_bytes),
            grouped(tape.count),
            format!("{:.3}", tape.bytes_per_token()),
        ]
    };
    let rows: Vec<_> = tapes.iter().map(row).collect();
    note(&table::columns(&["tape", "documents", "bytes", "tokens", "bytes/token"], &rows));
    if duplicates > 0 {
        note(&format!("left out, because they are equal to others: {}", grouped(duplicates)));
    }
    if *reused {
        note(&format!(
            "the same was prepared before and is whole: nothing to do, tapes are in {}",
            args.output_dir.display()
        ));
        return Ok(());
    }
    let total: u64 = tapes.iter().map(|tape| tape.source_bytes).sum();
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
            let skipped = match source.skipped {
                0 => String::new(),
                skipped => format!("  {} left out", grouped(skipped)),
            };
            format!("{} documents  {rate:.1} MB of text/s{skipped}", grouped(documents))
        });
    }

    pub fn clear(self) {
        if let Some(bar) = self.bar {
            bar.clear();
        }
    }
}
