//! `inspect` on a tape: counts, the commonest tokens, the longest document, the verdict of its hashes.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tape::layout::Element;
use tape::layout::set::SET_ENDING;
use tape::reader::{Tape, TapeSource, Verify};
use tape::tokenizer::Tokenizer;

use crate::args::Inspect;
use crate::output::{self, grouped};
use crate::{table, tokenizer};

/// Tokens of the first and last text shown.
const SHOWN_TOKENS: u64 = 40;

/// Tokens at the head of the histogram.
const COMMONEST: usize = 12;

/// Whether the name is that of a tape or a set.
pub fn is_tape(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let endings = Element::ALL.map(Element::tokens_ending);
    name.ends_with(SET_ENDING) || endings.into_iter().any(|ending| name.ends_with(ending))
}

/// What one pass over a tape finds.
struct Found {
    /// How often each id occurs.
    counts: Vec<u64>,
    documents: u64,
    longest: Longest,
    /// The first token whose byte length is not the tokenizer's.
    wrong_length: Option<u64>,
}

/// The document of most tokens, its end included.
#[derive(Clone, Copy, Default)]
struct Longest {
    start: u64,
    tokens: u64,
}

pub fn show(args: &Inspect) -> Result<()> {
    let tokenizer = tokenizer::open(args.tokenizer.as_deref())?;
    let source = TapeSource::at(&args.path);
    // What differs is reported, not refused, unless a verdict was asked for.
    let whole = trainer::open_tape(&source, &tokenizer, Verify::Now);
    let (tape, verdict) = match whole {
        Ok(tape) => {
            let verdict = if tape.tokenizer().is_some() { "all hashes hold" } else { "no sidecar" };
            (tape, verdict.to_owned())
        }
        Err(error) if args.verify => return Err(error.into()),
        Err(error) => {
            let tape = trainer::open_tape(&source, &tokenizer, Verify::WhenRead);
            (tape.map_err(|_| error)?, "DIFFERS; --verify says where".to_owned())
        }
    };
    let found = look(&tape, &tokenizer)
        .with_context(|| format!("{} cannot be read to its end", args.path.display()))?;
    if args.verify {
        verify(&tape, &tokenizer, &found)?;
    }
    let verdict =
        if args.verify { format!("{verdict}; everything is as it should be") } else { verdict };
    let view = View::new(&tape, &tokenizer, &found, &verdict)?;
    if args.json {
        output::json(&as_json(&tape, &found, &view))
    } else {
        output::data(&as_text(&tape, &found, &view))
    }
}

fn look(tape: &Tape, tokenizer: &Tokenizer) -> Result<Found> {
    let end = tokenizer.end_of_document();
    let lengths = tokenizer.byte_lengths();
    let mut found = Found {
        counts: vec![0; lengths.len()],
        documents: 0,
        longest: Longest::default(),
        wrong_length: None,
    };
    let mut start = 0;
    tape.for_each_run::<anyhow::Error>(|position, ids, of_tape| {
        for (&id, position) in ids.iter().zip(position..) {
            let Some(count) = found.counts.get_mut(id as usize) else {
                bail!("id {id} at position {position} is outside the vocabulary of the tokenizer");
            };
            *count += 1;
            if id == end {
                let tokens = position + 1 - start;
                if tokens > found.longest.tokens {
                    found.longest = Longest { start, tokens };
                }
                found.documents += 1;
                start = position + 1;
            }
        }
        if let (Some(of_tape), None) = (of_tape, found.wrong_length) {
            let wrong = ids.iter().zip(of_tape).position(|(&id, &n)| lengths[id as usize] != n);
            found.wrong_length = wrong.map(|at| position + at as u64);
        }
        Ok(())
    })?;
    Ok(found)
}

/// What the checks at opening leave out: each byte length is the tokenizer's, and each document is text.
fn verify(tape: &Tape, tokenizer: &Tokenizer, found: &Found) -> Result<()> {
    if tape.tokenizer().is_none() {
        bail!("{}: there is no sidecar to hold it against", tape.path().display());
    }
    if let Some(position) = found.wrong_length {
        bail!(
            "{}: the byte length of the token at position {position} is not the tokenizer's",
            tape.path().display()
        );
    }
    let (end, mut start, mut document) = (tokenizer.end_of_document(), 0, Vec::new());
    tape.for_each_run::<anyhow::Error>(|position, ids, _| {
        for (&id, position) in ids.iter().zip(position..) {
            if id != end {
                document.extend_from_slice(tokenizer.token_bytes(id).unwrap_or_default());
                continue;
            }
            if let Err(error) = std::str::from_utf8(&document) {
                bail!(
                    "{}: the document at position {start} is not UTF-8 at its byte {}",
                    tape.path().display(),
                    error.valid_up_to()
                );
            }
            document.clear();
            start = position + 1;
        }
        Ok(())
    })
}

/// A tape as it is shown.
struct View {
    files: usize,
    per_token: Option<f64>,
    verdict: String,
    commonest: Vec<Common>,
    unused: u64,
    longest: Longest,
    longest_text: String,
    first: String,
    last: String,
}

/// One of the commonest tokens.
struct Common {
    id: u32,
    text: String,
    count: u64,
}

impl View {
    fn new(tape: &Tape, tokenizer: &Tokenizer, found: &Found, verdict: &str) -> Result<Self> {
        let text = |start: u64, count: u64| -> Result<String> {
            let mut ids = Vec::new();
            tape.read(start..tape.len().min(start + count), &mut ids)?;
            Ok(tokenizer.decode(&ids)?)
        };
        let longest = found.longest;
        Ok(Self {
            files: tape.set().map_or(1, |set| set.shards.len()),
            per_token: tape.source_bytes().map(|bytes| bytes as f64 / tape.len() as f64),
            verdict: verdict.to_owned(),
            commonest: commonest(tokenizer, &found.counts),
            unused: found.counts.iter().filter(|&&count| count == 0).count() as u64,
            longest,
            longest_text: text(longest.start, SHOWN_TOKENS.min(longest.tokens))?,
            first: text(0, SHOWN_TOKENS)?,
            last: text(tape.len().saturating_sub(SHOWN_TOKENS), SHOWN_TOKENS)?,
        })
    }
}

fn commonest(tokenizer: &Tokenizer, counts: &[u64]) -> Vec<Common> {
    let mut order: Vec<u32> = (0..tokenizer.vocabulary()).collect();
    order.sort_by_key(|&id| (std::cmp::Reverse(counts[id as usize]), id));
    let common = |id: u32| Common {
        id,
        text: if id == tokenizer.end_of_document() {
            "end of document".to_owned()
        } else {
            String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
        },
        count: counts[id as usize],
    };
    order.into_iter().take(COMMONEST).map(common).filter(|common| common.count > 0).collect()
}

fn as_json(tape: &Tape, found: &Found, view: &View) -> Value {
    let common =
        |Common { id, text, count }: &Common| json!({ "id": id, "text": text, "count": count });
    json!({
        "kind": "tape",
        "files": view.files,
        "token_bytes": tape.element().bytes(),
        "tokens": tape.len(),
        "documents": found.documents,
        "source_bytes": tape.source_bytes(),
        "bytes_per_token": view.per_token,
        "sha256": tape.checksum().to_string(),
        "verdict": view.verdict,
        "commonest": view.commonest.iter().map(common).collect::<Value>(),
        "unused_entries": view.unused,
        "longest_document": {
            "start": view.longest.start,
            "tokens": view.longest.tokens,
            "text": view.longest_text,
        },
        "sidecar": tape.sidecar(),
        "first": view.first,
        "last": view.last,
    })
}

fn as_text(tape: &Tape, found: &Found, view: &View) -> String {
    let unknown = || "unknown".to_owned();
    let Longest { start, tokens } = view.longest;
    let longest =
        format!("{} tokens from {}: {:?}", grouped(tokens), grouped(start), view.longest_text);
    let lines = [
        ("files", format!("{}, {} bytes an id", view.files, tape.element().bytes())),
        ("tokens", grouped(tape.len())),
        ("documents", grouped(found.documents)),
        ("source bytes", tape.source_bytes().map_or_else(unknown, grouped)),
        ("bytes/token", view.per_token.map_or_else(unknown, |mean| format!("{mean:.3}"))),
        ("SHA-256", tape.checksum().to_string()),
        ("verdict", view.verdict.clone()),
        ("longest document", longest),
        ("entries never used", grouped(view.unused)),
        ("first text", format!("{:?}", view.first)),
        ("last text", format!("{:?}", view.last)),
    ];
    let row = |Common { id, text, count }: &Common| {
        let share = *count as f64 / tape.len() as f64 * 100.0;
        vec![format!("{text:?}"), id.to_string(), grouped(*count), format!("{share:.2}%")]
    };
    let rows: Vec<_> = view.commonest.iter().map(row).collect();
    let head = ["token", "id", "count", "share"];
    format!("{}\n\n{}\n", table::pairs(&lines), table::columns(&head, &rows))
}
