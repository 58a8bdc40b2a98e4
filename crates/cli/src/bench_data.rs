//! `bench data`: the way from text to batches, stage by stage.
//!
//! | stage | what is measured |
//! |---|---|
//! | `read` | unpacking and parsing the input |
//! | `encode` | text in memory to ids |
//! | `prepare` | everything: reading, encoding, hashing, writing, making durable |
//! | `verify` | opening a tape with all its checks |
//! | `sequential` | a tape read in order, update by update |
//! | `shuffled` | windows out of ranges read ahead |
//! | `resume` | opening a tape block-wise and bringing the first batch at 95% of it |

use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::json;
use tape::layout::Part;
use tape::loader::Loader;
use tape::order::OrderOptions;
use tape::prepare::{PrepareOptions, Split, prepare};
use tape::reader::{Tape, TapeSource, Verify};
use tape::sources::{SourceOptions, Sources};
use tape::stories::Stories;
use tape::tokenizer::Tokenizer;
use tape::writer::{Form, TapeRecord, TapeWriter};
use trainer::in_pool;

use crate::args::BenchData;
use crate::output::{self, bytes, grouped, note};
use crate::{table, tokenizer};

/// Bytes of stories where no input is named.
const STORIES_BYTES: usize = 60_000_000;

/// Windows of an update in the stages that read a tape.
const ROWS: u64 = 32;

/// The context of these windows.
const CONTEXT: usize = 1024;

/// One stage.
struct Row {
    stage: &'static str,
    seconds: f64,
    /// Bytes of text, or of ids in memory.
    bytes: u64,
    tokens: Option<u64>,
    peak_bytes: Option<u64>,
}

pub fn run(args: &BenchData) -> Result<()> {
    let tokenizer = tokenizer::open(args.tokenizer.as_deref())?;
    let folder = tempfile::tempdir_in(&args.work_dir)
        .with_context(|| format!("cannot work in {}", args.work_dir.display()))?;
    let threads = in_pool(args.threads, rayon::current_num_threads);
    let rows = in_pool(args.threads, || {
        let mut rows = of_text(args, &tokenizer, folder.path())?;
        rows.extend(of_tape(args, &tokenizer, folder.path())?);
        Ok::<_, anyhow::Error>(rows)
    })?;
    let per_s = |row: &Row, count: u64| count as f64 / row.seconds;
    if args.json {
        let row = |row: &Row| {
            json!({
                "stage": row.stage,
                "threads": threads,
                "mb_per_s": per_s(row, row.bytes) / 1e6,
                "tokens_per_s": row.tokens.map(|tokens| per_s(row, tokens)),
                "peak_bytes": row.peak_bytes,
                "seconds": row.seconds,
            })
        };
        return output::json(&rows.iter().map(row).collect());
    }
    let cells = |row: &Row| {
        let unknown = || "unknown".to_owned();
        vec![
            row.stage.to_owned(),
            format!("{:.3}", row.seconds),
            format!("{:.1}", per_s(row, row.bytes) / 1e6),
            row.tokens.map_or_else(String::new, |tokens| grouped(per_s(row, tokens) as u64)),
            row.peak_bytes.map_or_else(unknown, bytes),
        ]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let head = ["stage", "seconds", "MB/s", "tokens/s", "peak memory"];
    output::data(&format!("{}\n", table::columns(&head, &rows)))?;
    note(
        "MB are of text up to `prepare`, then of ids in memory; peaks include what the stage was given",
    );
    Ok(())
}

/// The best of `repeats` runs of `work`, which gives bytes and tokens, with the peak of all.
fn best(
    stage: &'static str,
    repeats: usize,
    mut work: impl FnMut() -> Result<(u64, Option<u64>)>,
) -> Result<Row> {
    reset_peak();
    let mut best: Option<Row> = None;
    for _ in 0..repeats {
        let begun = Instant::now();
        let (bytes, tokens) = work()?;
        let seconds = begun.elapsed().as_secs_f64();
        if best.as_ref().is_none_or(|best| seconds < best.seconds) {
            best = Some(Row { stage, seconds, bytes, tokens, peak_bytes: None });
        }
    }
    let mut row = best.context("nothing was measured")?;
    row.peak_bytes = trainer::peak_bytes();
    Ok(row)
}

fn of_text(args: &BenchData, tokenizer: &Tokenizer, folder: &Path) -> Result<Vec<Row>> {
    let mut inputs = args.input.clone();
    if inputs.is_empty() {
        let mut text = String::new();
        let mut stories = Stories::new(1);
        while text.len() < STORIES_BYTES {
            let story = stories.next().expect("stories have no end");
            text.push_str(&json!({ "text": story }).to_string());
            text.push('\n');
        }
        let path = folder.join("stories.jsonl");
        std::fs::write(&path, text)?;
        inputs.push(path);
    }
    let sources = || Sources::open(&inputs, SourceOptions::default());
    let read = best("read", args.repeats, || {
        let mut bytes = 0;
        for document in sources()? {
            bytes += document?.text.len() as u64;
        }
        Ok((bytes, None))
    })?;
    let texts = sources()?.map(|document| Ok(document?.text)).collect::<Result<Vec<String>>>()?;
    // A few large texts as many small ones: what counts is the text, not its borders.
    let encode = best("encode", args.repeats, || {
        let ids = black_box(tokenizer.encode_batch(&texts));
        let tokens = ids.iter().map(|ids| ids.len() as u64).sum();
        Ok((texts.iter().map(|text| text.len() as u64).sum(), Some(tokens)))
    })?;
    drop(texts);
    let options = PrepareOptions {
        overwrite: true,
        ..PrepareOptions::new(folder, Split::Whole(Part::Train))
    };
    let whole = best("prepare", args.repeats, || {
        let go_on = &mut |_| ControlFlow::Continue(());
        let prepared = prepare(&mut sources()?, tokenizer, &options, go_on)?;
        let tape = &prepared.tapes[0];
        Ok((tape.source_bytes, Some(tape.count)))
    })?;
    Ok(vec![read, encode, whole])
}

/// A tape of made-up tokens, or the one that was named.
fn tape_of(args: &BenchData, tokenizer: &Tokenizer, folder: &Path) -> Result<TapeSource> {
    if let Some(path) = &args.tape {
        return Ok(TapeSource::at(path));
    }
    let mut writer = TapeWriter::create(folder, Part::Validation, Form::default(), tokenizer)?;
    let mut state = 1_u64;
    let mut ids = vec![0; 1 << 16];
    while writer.count() < args.tape_tokens {
        for id in &mut ids {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let below = u64::from(tokenizer.entries());
            *id = (((state >> 32) * below) >> 32) as u32;
        }
        writer.write(&ids)?;
    }
    writer.end_document()?;
    let preparation = tape::layout::PreparationRecord {
        cache_key: tokenizer.sha256(),
        skipped_documents: 0,
        duplicate_documents: 0,
    };
    let TapeRecord { source, .. } = writer.seal(None, preparation, Vec::new())?.commit()?;
    Ok(source)
}

fn of_tape(args: &BenchData, tokenizer: &Tokenizer, folder: &Path) -> Result<Vec<Row>> {
    let source = tape_of(args, tokenizer, folder)?;
    let in_memory = |tokens: u64| (4 * tokens, Some(tokens));
    let verify = best("verify", 1, || {
        let tape = Tape::open_with(&source, Some(tokenizer.vocabulary()), Verify::Now)?;
        Ok(in_memory(tape.len()))
    })?;
    let open = || Tape::open_with(&source, Some(tokenizer.vocabulary()), Verify::WhenRead);
    let tape = open()?;
    let step = ROWS * CONTEXT as u64;
    let sequential = best("sequential", args.repeats, || {
        let (mut cursor, mut ids) = (0, Vec::new());
        while cursor + step < tape.len() {
            tape.read(cursor..cursor + step + 1, &mut ids)?;
            black_box(tape.source_bytes_of(cursor + 1..cursor + step + 1)?);
            cursor += step;
        }
        Ok(in_memory(cursor))
    })?;
    drop(tape);
    let options = OrderOptions {
        context: CONTEXT,
        range_tokens: args.range_tokens,
        seed: 1,
        weights: Vec::new(),
    };
    // As a trainer takes them: copied row by row.
    let mut rows: Vec<u32> = Vec::new();
    let shuffled = best("shuffled", args.repeats, || {
        let mut loader = Loader::new(vec![Arc::new(open()?)], &options, true)?;
        let windows = loader.order().windows_for(loader.order().epoch_tokens());
        let mut tokens = 0;
        for update in 0..windows / ROWS {
            rows.clear();
            loader.read(update * ROWS..(update + 1) * ROWS, &mut |row| {
                rows.extend_from_slice(row.inputs);
                rows.extend_from_slice(row.targets);
                tokens += row.targets.len() as u64;
            })?;
            black_box(&rows);
        }
        Ok(in_memory(tokens))
    })?;
    let resume = best("resume", args.repeats, || {
        let mut loader = Loader::new(vec![Arc::new(open()?)], &options, true)?;
        let windows = loader.order().windows_for(loader.order().epoch_tokens());
        let start = windows / 20 * 19;
        let mut tokens = 0;
        loader.read(start..(start + ROWS).min(windows), &mut |row| {
            tokens += row.targets.len() as u64;
        })?;
        Ok(in_memory(tokens))
    })?;
    Ok(vec![verify, sequential, shuffled, resume])
}

/// Forgets the peak of resident memory, where the system can.
fn reset_peak() {
    // Without it, a peak may be that of an earlier stage: too high, never too low.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
