//! Documents to tapes: the whole way, in bounded memory, with the same bytes on every run.
//!
//! One thread reads and parses while the others encode. Documents are taken in batches of a few MiB; a batch
//! is hashed (for the split and for equal texts) and encoded in parallel, then written in order, so neither
//! the number of threads nor the borders of batches show in the result. All files are written aside
//! and named at the very end: an interrupted preparation leaves the earlier tapes, or none that training
//! would take, and the next one starts clean.
//!
//! A finished tape carries a *cache key*, a hash of all that it depends on. Preparing the same again
//! finds the key, verifies the tapes and leaves them as they are ([`Prepared::reused`]); anything else is
//! refused or, on request, replaced.

mod earlier;
mod estimate;
mod splitter;

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc;

use rayon::prelude::*;
use serde_json::json;

use crate::Error;
use crate::checksum::Checksum;
use crate::dedup::SeenTexts;
use crate::layout::{FORMAT_VERSION, Part, PreparationRecord, SourceRecord};
use crate::sources::{Document, DocumentSource, Progress, Skipped, SourceProgress, next_batch};
use crate::tokenizer::{Tokenizer, words};
use crate::writer::{Form, TapeRecord, TapeWriter};
pub use estimate::{Estimate, estimate};
use splitter::Splitter;

/// Text taken in at once.
const BATCH_BYTES: usize = 8 << 20;

/// Long documents are encoded in pieces of this size, in parallel.
const PIECE_BYTES: usize = 64 << 10;

/// About this much text is encoded before its ids are written.
const RUN_BYTES: usize = 16 << 20;

/// What to prepare, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareOptions {
    /// The folder for the tapes; made if absent.
    pub output_dir: PathBuf,
    /// What goes into which tape.
    pub split: Split,
    /// How the tapes are laid out.
    pub form: Form,
    /// Whether a document is left out where an equal one came before.
    pub deduplicate: bool,
    /// Whether earlier tapes of the same parts may be replaced.
    pub overwrite: bool,
}

impl PrepareOptions {
    /// Single files of 32-bit ids, every document, nothing replaced.
    pub fn new(output_dir: impl Into<PathBuf>, split: Split) -> Self {
        let output_dir = output_dir.into();
        Self { output_dir, split, form: Form::default(), deduplicate: false, overwrite: false }
    }
}

/// What goes into which tape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Split {
    /// Everything into one tape, such as validation text that was set apart before.
    Whole(Part),
    /// A train and a validation tape; each document goes by the SHA-256 of its text (see
    /// [`SplitRecord`](crate::layout::SplitRecord)), so equal texts stay together and order and names do
    /// not matter.
    ByHash {
        /// The expected share of validation documents, above 0 and below 1.
        validation_fraction: f64,
    },
}

/// What a preparation made, or found made.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The tapes: train first, then validation.
    pub tapes: Vec<TapeRecord>,
    /// Whether they were there already, made from the same sources with the same options.
    pub reused: bool,
    /// Documents that were left out because they could not be read; empty where tapes are reused.
    pub skipped: Skipped,
}

/// Encodes all of `documents` with `tokenizer` and writes the tapes: train first, then validation.
///
/// After each document stands one end-of-document id. `progress` is told about every batch, and
/// stops the preparation by breaking. Memory: twice the longest document, the window of a decoder, about
/// 100 MB, and up to 300 MB for finding equal texts.
///
/// # Errors
/// [`Error::Exists`] where another tape is in the way, [`Error::Busy`], [`Error::ValidationFraction`],
/// [`Error::EmptyCorpus`], [`Error::EmptyPart`], [`Error::ElementTooSmall`], [`Error::Stopped`],
/// [`Error::Write`], and whatever reading the documents gives. No tape has been written or replaced then,
/// unless the very last step, the renaming, fails; in that case there is no tape that training would take.
pub fn prepare<S: DocumentSource + Send>(
    documents: &mut S,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Prepared, Error> {
    let folder = &options.output_dir;
    let splitter = Splitter::new(options.split)?;
    fs::create_dir_all(folder).map_err(|source| Error::write(folder, source))?;
    let _lock = earlier::lock(folder)?;
    if !options.overwrite
        && let Some(existing) = earlier::files(folder, splitter.parts())?.into_iter().next()
    {
        // A source that cannot be read ahead is none that the tapes there were made of.
        let ahead = documents.records_ahead().ok().flatten();
        let key = ahead.map(|records| cache_key(documents, tokenizer, options, &records));
        let found = key.and_then(|key| earlier::with_key(folder, splitter.parts(), key));
        let tapes = found.ok_or(Error::Exists { path: existing })?;
        return Ok(Prepared { tapes, reused: true, skipped: Skipped::default() });
    }

    let create = |&part: &Part| TapeWriter::create(folder, part, options.form, tokenizer);
    let mut work = Work {
        tokenizer,
        splitter,
        writers: splitter.parts().iter().map(create).collect::<Result<_, _>>()?,
        seen: options.deduplicate.then(|| SeenTexts::new(folder)),
        duplicates: 0,
        total: Progress::default(),
    };
    for_each_batch(documents, &mut |batch, source| {
        work.take(&batch, source)?;
        if progress(work.total).is_break() { Err(Error::Stopped) } else { Ok(()) }
    })?;
    let Work { writers, duplicates, .. } = work;
    splitter.check_parts(&writers)?;

    // Every tape is whole on the disk before the first one gets its name.
    let records = documents.records();
    let skipped = documents.skipped().clone();
    let preparation = PreparationRecord {
        cache_key: cache_key(documents, tokenizer, options, &records),
        skipped_documents: skipped.count,
        duplicate_documents: duplicates,
    };
    let mut sealed = Vec::new();
    for (writer, &part) in writers.into_iter().zip(splitter.parts()) {
        sealed.push(writer.seal(splitter.record(part), preparation.clone(), records.clone())?);
    }
    let tapes = earlier::replace(folder, splitter.parts(), sealed)?;
    Ok(Prepared { tapes, reused: false, skipped })
}

/// A hash of all that the tapes depend on: sources, tokenizer, options, and the version of the format.
fn cache_key(
    documents: &impl DocumentSource,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
    sources: &[SourceRecord],
) -> Checksum {
    let key = json!({
        "format_version": FORMAT_VERSION,
        "tokenizer": tokenizer.sha256(),
        "split": format!("{:?}", options.split),
        "form": format!("{:?}", options.form),
        "deduplicate": options.deduplicate,
        "reading": documents.reading(),
        "sources": sources,
    });
    Checksum::of(key.to_string().as_bytes())
}

/// Reads batches on a thread of their own and hands them over, each with how far the reading was after it.
fn for_each_batch<S: DocumentSource + Send>(
    documents: &mut S,
    take: &mut dyn FnMut(Vec<Document>, SourceProgress) -> Result<(), Error>,
) -> Result<(), Error> {
    std::thread::scope(|scope| {
        // Without room in the channel, one batch is being read while one is being worked on.
        let (sender, receiver) = mpsc::sync_channel(0);
        scope.spawn(move || {
            loop {
                let batch = next_batch(documents, BATCH_BYTES);
                let is_last = batch.as_ref().map_or(true, Vec::is_empty);
                let sent = sender.send((batch, documents.progress()));
                // Nobody listens any more after an error of the work.
                if is_last || sent.is_err() {
                    break;
                }
            }
        });
        for (batch, progress) in receiver {
            let batch = batch?;
            if batch.is_empty() {
                break;
            }
            take(batch, progress)?;
        }
        Ok(())
    })
}

/// What turns batches into tapes.
struct Work<'t> {
    tokenizer: &'t Tokenizer,
    splitter: Splitter,
    writers: Vec<TapeWriter<'t>>,
    seen: Option<SeenTexts>,
    duplicates: u64,
    total: Progress,
}

/// A run of text that is encoded by itself.
struct Piece<'b> {
    text: &'b str,
    /// The index of the tape it goes into.
    part: usize,
    ends_document: bool,
}

impl Work<'_> {
    /// Encodes a batch in parallel and appends it in order.
    fn take(&mut self, batch: &[Document], source: SourceProgress) -> Result<(), Error> {
        let pieces = self.pieces(batch)?;
        // A batch may be one very long document; only the ids of one run are in memory.
        let mut rest = pieces.as_slice();
        while !rest.is_empty() {
            let mut room = RUN_BYTES;
            let has_room = |piece: &&Piece<'_>| {
                let had_room = room > 0;
                room = room.saturating_sub(piece.text.len());
                had_room
            };
            let (run, after) = rest.split_at(rest.iter().take_while(has_room).count());
            let texts: Vec<&str> = run.iter().map(|piece| piece.text).collect();
            for (ids, piece) in self.tokenizer.encode_batch(&texts).iter().zip(run) {
                self.writers[piece.part].write(ids)?;
                if piece.ends_document {
                    self.writers[piece.part].end_document()?;
                }
            }
            rest = after;
        }
        self.total.documents += batch.len() as u64;
        self.total.text_bytes +=
            batch.iter().map(|document| document.text.len() as u64).sum::<u64>();
        self.total.tokens = self.writers.iter().map(TapeWriter::count).sum();
        self.total.source = source;
        Ok(())
    }

    /// The pieces of those documents that are kept.
    fn pieces<'b>(&mut self, batch: &'b [Document]) -> Result<Vec<Piece<'b>>, Error> {
        let hashes: Option<Vec<Checksum>> = (self.splitter.wants_hashes() || self.seen.is_some())
            .then(|| batch.par_iter().map(|d| Checksum::of(d.text.as_bytes())).collect());
        let mut pieces = Vec::new();
        for (index, document) in batch.iter().enumerate() {
            let hash = hashes.as_ref().map(|hashes| hashes[index]);
            if let (Some(seen), Some(hash)) = (&mut self.seen, hash)
                && !seen.add(hash.first_half())?
            {
                self.duplicates += 1;
                continue;
            }
            let part = self.splitter.part_of(hash);
            let mut texts = words::pieces(&document.text, PIECE_BYTES).peekable();
            // A document without text has an end too.
            loop {
                let text = texts.next().unwrap_or("");
                let ends_document = texts.peek().is_none();
                pieces.push(Piece { text, part, ends_document });
                if ends_document {
                    break;
                }
            }
        }
        Ok(pieces)
    }
}
