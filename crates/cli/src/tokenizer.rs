//! `tokenizer train | encode | decode | info`.

use std::io::Read as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use serde_json::json;
use tape::sources::{DocumentSource as _, Sources};
use tape::tokenizer::Tokenizer;

use crate::args::{
    Tokenizer as Command, TokenizerDecode, TokenizerEncode, TokenizerInfo, TokenizerTrain,
};
use crate::output::{self, Usage, duration, grouped, note};
use crate::prepare::ReadingBar;
use crate::{prepare, signals, table};

pub fn run(command: &Command) -> Result<()> {
    match command {
        Command::Train(args) => train(args),
        Command::Encode(args) => encode(args),
        Command::Decode(args) => decode(args),
        Command::Info(args) => info(args),
    }
}

fn train(args: &TokenizerTrain) -> Result<()> {
    let stop = signals::stop_flag()?;
    let mut sources = Sources::open(&args.input, prepare::source_options(&args.reading))?;
    let begun = Instant::now();
    let mut bar = ReadingBar::new();
    let tokenizer = Tokenizer::train(&mut sources, args.vocabulary, &mut |progress| {
        bar.at(progress);
        signals::go_on(&stop)
    })?;
    bar.clear();
    prepare::note_skipped(sources.skipped());
    tokenizer.save(&args.output)?;
    note(&format!(
        "{} entries in {}, SHA-256 {}\n{}",
        grouped(u64::from(tokenizer.entries())),
        duration(begun.elapsed().as_secs_f64()),
        tokenizer.sha256(),
        args.output.display()
    ));
    Ok(())
}

fn encode(args: &TokenizerEncode) -> Result<()> {
    let tokenizer = open(args.tokenizer.as_deref())?;
    let text = match &args.text {
        Some(text) => text.clone(),
        None => standard_input()?,
    };
    let ids = tokenizer.encode(&text);
    if args.json {
        let piece = |&id: &u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            json!({ "id": id, "text": String::from_utf8_lossy(bytes), "bytes": bytes.len() })
        };
        return output::json(&ids.iter().map(piece).collect());
    }
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    output::data(&format!("{}\n", ids.join(" ")))
}

fn decode(args: &TokenizerDecode) -> Result<()> {
    let tokenizer = open(args.tokenizer.as_deref())?;
    let ids = if args.ids.is_empty() {
        let parse = |word: &str| {
            let wrong = |_| anyhow!(Usage(format!("expected token ids, found `{word}`")));
            word.parse::<u32>().map_err(wrong)
        };
        standard_input()?.split_whitespace().map(parse).collect::<Result<_>>()?
    } else {
        args.ids.clone()
    };
    output::data(&tokenizer.decode(&ids)?)
}

fn info(args: &TokenizerInfo) -> Result<()> {
    let tokenizer = open(args.tokenizer.as_deref())?;
    let lengths = tokenizer.byte_lengths();
    let text_entries = &lengths[..lengths.len() - 1];
    let longest = text_entries.iter().copied().max().unwrap_or(0);
    let mean = text_entries.iter().map(|&n| f64::from(n)).sum::<f64>() / text_entries.len() as f64;
    if args.json {
        return output::json(&json!({
            "entries": tokenizer.entries(),
            "vocabulary": tokenizer.vocabulary(),
            "end_of_document": tokenizer.end_of_document(),
            "sha256": tokenizer.sha256().to_string(),
            "entry_bytes_mean": mean,
            "entry_bytes_max": longest,
        }));
    }
    let lines = [
        ("kind", "byte-level BPE".to_owned()),
        ("entries", grouped(u64::from(tokenizer.entries()))),
        ("vocabulary", grouped(u64::from(tokenizer.vocabulary()))),
        ("end of document", tokenizer.end_of_document().to_string()),
        ("entry length", format!("{mean:.2} bytes on average, {longest} at most")),
        ("SHA-256", tokenizer.sha256().to_string()),
    ];
    output::data(&format!("{}\n", table::pairs(&lines)))
}

/// The tokenizer in a file, or the bundled one.
pub fn open(path: Option<&Path>) -> Result<Tokenizer> {
    Ok(path.map(Tokenizer::load).transpose()?.unwrap_or_else(Tokenizer::bundled))
}

fn standard_input() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read standard input as UTF-8")?;
    Ok(text)
}
