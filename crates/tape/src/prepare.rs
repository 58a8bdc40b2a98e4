//! Documents to tapes: the whole way, in bounded memory, with the same bytes on every run.
//!
//! Documents are taken in batches of a few MiB. A batch is hashed (for the split) and encoded in
//! parallel, then written in order, so neither the number of threads nor the borders of batches
//! show in the result. All files are written aside and named at the very end: an interrupted
//! preparation leaves the earlier tapes, or none that training would take.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::Error;
use crate::aside::PARTIAL_ENDING;
use crate::checksum::Checksum;
use crate::layout::{Part, Sidecar, SplitRecord, TapeFiles};
use crate::sources::{Document, DocumentSource, Progress, next_batch};
use crate::tokenizer::{Tokenizer, words};
use crate::writer::{SealedTape, TapeWriter};

/// Text taken in at once.
const BATCH_BYTES: usize = 4 << 20;

/// Long documents are encoded in pieces of this size, in parallel.
const PIECE_BYTES: usize = 64 << 10;

/// About this much text is encoded before its ids are written.
const RUN_BYTES: usize = 8 << 20;

/// The file that keeps two preparations out of one folder. It is empty and stays.
const LOCK_NAME: &str = ".prepare.lock";

/// What to prepare, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareOptions {
    /// The folder for the tapes; made if absent.
    pub output_dir: PathBuf,
    /// What goes into which tape.
    pub split: Split,
    /// Whether earlier tapes of the same names may be replaced.
    pub overwrite: bool,
}

/// What goes into which tape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Split {
    /// Everything into one tape, such as validation text that was set apart before.
    Whole(Part),
    /// A train and a validation tape; each document goes by the SHA-256 of its text (see
    /// [`SplitRecord`]), so equal texts stay together and order and names do not matter.
    ByHash {
        /// The expected share of validation documents, above 0 and below 1.
        validation_fraction: f64,
    },
}

/// One finished tape.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedTape {
    /// Which part it is.
    pub part: Part,
    /// Where its files are.
    pub files: TapeFiles,
    /// What its sidecar says.
    pub sidecar: Sidecar,
}

impl PreparedTape {
    /// Bytes of text per token, ends of documents counted as tokens.
    pub fn bytes_per_token(&self) -> f64 {
        self.sidecar.source_bytes as f64 / self.sidecar.tokens.count as f64
    }
}

/// Encodes all of `documents` with `tokenizer` and writes the tapes: train first, then validation.
///
/// After each document stands one end-of-document id. `progress` is told about every batch, and
/// stops the preparation by breaking. Memory: the longest document, the window of a decoder, and
/// about 50 MB.
///
/// # Errors
/// [`Error::Exists`] where a tape is in the way, [`Error::Busy`], [`Error::ValidationFraction`],
/// [`Error::EmptyCorpus`], [`Error::EmptyPart`], [`Error::Stopped`], [`Error::Write`], and whatever
/// reading the documents gives. No tape has been written or replaced then, unless the very last
/// step, the renaming, fails; in that case there is no tape that training would take.
pub fn prepare(
    documents: &mut impl DocumentSource,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Vec<PreparedTape>, Error> {
    let folder = &options.output_dir;
    let splitter = Splitter::new(options.split)?;
    fs::create_dir_all(folder).map_err(|source| Error::write(folder, source))?;
    let _lock = lock(folder)?;
    if !options.overwrite {
        refuse_existing(folder, splitter.parts())?;
    }

    let create = |&part: &Part| TapeWriter::create(folder, part, tokenizer);
    let mut writers = splitter.parts().iter().map(create).collect::<Result<Vec<_>, _>>()?;
    let mut total = Progress::default();
    loop {
        let batch = next_batch(documents, BATCH_BYTES)?;
        if batch.is_empty() {
            break;
        }
        write_batch(&batch, tokenizer, splitter, &mut writers)?;
        total.documents += batch.len() as u64;
        total.text_bytes += batch.iter().map(|document| document.text.len() as u64).sum::<u64>();
        total.tokens = writers.iter().map(TapeWriter::count).sum();
        total.source = documents.progress();
        if progress(total).is_break() {
            return Err(Error::Stopped);
        }
    }
    splitter.check_parts(&writers)?;

    // Every tape is whole on the disk before the first one gets its name.
    let records = documents.records();
    let mut sealed = Vec::new();
    for (writer, &part) in writers.into_iter().zip(splitter.parts()) {
        sealed.push((part, writer.seal(splitter.record(part), records.clone())?));
    }
    name_tapes(folder, sealed)
}

/// Gives all tapes their names. A set of old and new tapes is never there to be trained on: the
/// old tokens go first, so that in between some tape has none.
fn name_tapes(folder: &Path, sealed: Vec<(Part, SealedTape)>) -> Result<Vec<PreparedTape>, Error> {
    for (part, _) in &sealed {
        let tokens = TapeFiles::in_folder(folder, *part).tokens;
        match fs::remove_file(&tokens) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(Error::write(&tokens, source));
            }
            _ => {}
        }
    }
    let finish = |(part, tape): (Part, SealedTape)| {
        let files = TapeFiles::in_folder(folder, part);
        Ok(PreparedTape { part, files, sidecar: tape.commit()? })
    };
    sealed.into_iter().map(finish).collect()
}

/// A run of text that is encoded by itself.
struct Piece<'t> {
    text: &'t str,
    /// The index of the tape it goes into.
    part: usize,
    ends_document: bool,
}

/// Encodes a batch in parallel and appends it in order.
fn write_batch(
    batch: &[Document],
    tokenizer: &Tokenizer,
    splitter: Splitter,
    writers: &mut [TapeWriter<'_>],
) -> Result<(), Error> {
    let parts: Vec<usize> =
        batch.par_iter().map(|document| splitter.part_of(&document.text)).collect();
    let mut pieces = Vec::new();
    for (document, part) in batch.iter().zip(parts) {
        let texts = words::pieces(&document.text, PIECE_BYTES);
        pieces.extend(texts.map(|text| Piece { text, part, ends_document: false }));
        // The end is a piece of its own, so that a document without text has one too.
        pieces.push(Piece { text: "", part, ends_document: true });
    }
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
        for (ids, piece) in tokenizer.encode_batch(&texts).iter().zip(run) {
            writers[piece.part].write(ids)?;
            if piece.ends_document {
                writers[piece.part].end_document()?;
            }
        }
        rest = after;
    }
    Ok(())
}

/// Which document goes into which tape.
#[derive(Clone, Copy)]
struct Splitter {
    split: Split,
    /// Hashes below are validation.
    threshold: u64,
}

impl Splitter {
    fn new(split: Split) -> Result<Self, Error> {
        let threshold = match split {
            Split::Whole(_) => 0,
            Split::ByHash { validation_fraction: found } => {
                if !(found > 0.0 && found < 1.0) {
                    return Err(Error::ValidationFraction { found });
                }
                // The product is exact, and below 2^64 because the fraction is below 1.
                (found * 2_f64.powi(64)) as u64
            }
        };
        Ok(Self { split, threshold })
    }

    /// The tapes, in the order of their indices.
    fn parts(&self) -> &'static [Part] {
        match self.split {
            Split::Whole(Part::Train) => &[Part::Train],
            Split::Whole(Part::Validation) => &[Part::Validation],
            Split::ByHash { .. } => &[Part::Train, Part::Validation],
        }
    }

    /// The index of the tape that `text` goes into.
    fn part_of(&self, text: &str) -> usize {
        match self.split {
            Split::Whole(_) => 0,
            Split::ByHash { .. } => {
                usize::from(Checksum::of(text.as_bytes()).split_key() < self.threshold)
            }
        }
    }

    fn record(&self, part: Part) -> Option<SplitRecord> {
        match self.split {
            Split::Whole(_) => None,
            Split::ByHash { validation_fraction } => {
                Some(SplitRecord { part, validation_fraction })
            }
        }
    }

    /// No tape may be empty: a run could not be trained on it, or not be measured.
    fn check_parts(&self, writers: &[TapeWriter<'_>]) -> Result<(), Error> {
        let documents = writers.iter().map(TapeWriter::documents).sum();
        if documents == 0 {
            return Err(Error::EmptyCorpus);
        }
        let empty = writers.iter().zip(self.parts()).find(|(writer, _)| writer.documents() == 0);
        match (empty, self.split) {
            (Some((_, part)), Split::ByHash { validation_fraction }) => {
                Err(Error::EmptyPart { part: part.name(), documents, validation_fraction })
            }
            _ => Ok(()),
        }
    }
}

fn refuse_existing(folder: &Path, parts: &[Part]) -> Result<(), Error> {
    let files = parts.iter().map(|&part| TapeFiles::in_folder(folder, part)).flat_map(|files| {
        [Some(files.tokens), files.byte_lengths, files.sidecar].into_iter().flatten()
    });
    match files.into_iter().find(|path| path.exists()) {
        Some(path) => Err(Error::Exists { path }),
        None => Ok(()),
    }
}

/// Keeps other preparations out of `folder` as long as the file is open, and removes what an
/// interrupted one left behind.
fn lock(folder: &Path) -> Result<File, Error> {
    let wrong = |source| Error::write(folder, source);
    let file = File::create(folder.join(LOCK_NAME)).map_err(wrong)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            return Err(Error::Busy { path: folder.to_owned() });
        }
        Err(fs::TryLockError::Error(source)) => return Err(wrong(source)),
    }
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(PARTIAL_ENDING) {
            fs::remove_file(entry.path()).map_err(wrong)?;
        }
    }
    Ok(file)
}
