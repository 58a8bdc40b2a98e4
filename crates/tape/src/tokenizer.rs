//! The tokenizer: text to token ids and back, byte for byte.
//!
//! A byte-level BPE with GPT-2's split into words: no normaliser, no prefix space, no unknown
//! token. With `entries` entries the ids are
//!
//! ```text
//! 0 .. entries         entries, each one or more bytes of UTF-8 text (also parts of a character)
//! entries              end of document: stands for no text, and no text encodes to it
//! V = entries + 1      the vocabulary
//! ```
//!
//! The bundled tokenizer has 12,095 entries, so its end of document is 12,095 and V is 12,096.
//! `decode(encode(x)) == x` for every text x. A text such as `<|endoftext|>` is text like any other.
//!
//! The rooms of this module, in reading order:
//!
//! * `classes`, `words`: text into words, the units inside which pairs merge;
//! * `merges`: words into tokens;
//! * `word_cache`: the tokens of words met before;
//! * `alphabet`, `file`: the tokenizer's file, read with suspicion;
//! * `train`: a vocabulary out of text. Here alone the `tokenizers` library works; in the tests it is
//!   the authority that every id is compared with.

mod alphabet;
mod classes;
mod file;
mod merges;
mod train;
mod word_cache;
pub(crate) mod words;

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::checksum::Checksum;
use crate::sources::{DocumentSource, Progress};
use crate::{Error, aside, layout};
use merges::Merges;
use word_cache::WordCache;

/// The most entries a tokenizer may have: 1,048,576.
pub const ENTRIES_MAX: usize = 1 << 20;

/// A file of [`ENTRIES_MAX`] entries takes about 50 MB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A longer word, 1 MiB, is merged in several runs, for merging takes some 30 bytes a byte.
const WORD_RUN_BYTES: usize = 1 << 20;

static BUNDLED: &[u8] = include_bytes!("../../../tokenizer/tokenizer.json");

/// A checked tokenizer.
///
/// # Example
///
/// ```
/// use tape::tokenizer::Tokenizer;
///
/// let tokenizer = Tokenizer::bundled();
/// let ids = tokenizer.encode("Good morning.");
/// assert_eq!(tokenizer.decode(&ids)?, "Good morning.");
/// assert_eq!((tokenizer.end_of_document(), tokenizer.vocabulary()), (12_095, 12_096));
/// # Ok::<(), tape::Error>(())
/// ```
pub struct Tokenizer {
    json: Cow<'static, [u8]>,
    sha256: Checksum,
    merges: Merges,
    /// The bytes of every id; the last one, end of document, has none.
    tokens: Vec<Vec<u8>>,
    byte_lengths: Vec<u16>,
    /// Words met before, one cache for each encoding that runs at the same time.
    caches: Mutex<Vec<WordCache>>,
}

impl Tokenizer {
    /// The tokenizer that comes with this crate.
    pub fn bundled() -> Self {
        Self::new(Cow::Borrowed(BUNDLED), Path::new("tokenizer/tokenizer.json"))
            .expect("the bundled tokenizer is valid, which a test shows")
    }

    /// Reads and checks the tokenizer file at `path`.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::FileTooLarge`], or [`Error::Tokenizer`] for anything but a
    /// byte-level BPE as this crate writes it.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let json = layout::read_bounded(path, FILE_BYTES_MAX)?;
        Self::new(Cow::Owned(json), path)
    }

    /// Checks a tokenizer file that was read before; `path` names it in errors.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] as for [`Tokenizer::load`].
    pub fn from_json(json: Vec<u8>, path: &Path) -> Result<Self, Error> {
        Self::new(Cow::Owned(json), path)
    }

    /// Trains a tokenizer of exactly `entries` entries on all of `documents`.
    ///
    /// The result depends on the text alone, not on its order or the number of threads. Words
    /// longer than 256 bytes are left out. `progress` is told about every batch of documents, and
    /// stops the training by breaking; finding the merges, after the last batch, is silent.
    ///
    /// # Errors
    /// [`Error::EntryCount`], [`Error::EmptyCorpus`], [`Error::EntriesNotReached`] where the text
    /// has too little variety, [`Error::TrainingTextTooLong`] beyond 2 GiB, [`Error::Stopped`],
    /// and whatever reading the documents gives.
    pub fn train(
        documents: &mut impl DocumentSource,
        entries: usize,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Self, Error> {
        let bpe = train::train(documents, entries, progress)?;
        let json = file::write(&bpe).map_err(|e| Error::Training { problem: e.to_string() })?;
        Self::new(Cow::Owned(json), Path::new("the trained tokenizer"))
    }

    fn new(json: Cow<'static, [u8]>, path: &Path) -> Result<Self, Error> {
        let file::Parsed { merges, mut tokens } = file::parse(&json, path)?;
        tokens.push(Vec::new());
        let length = |token: &Vec<u8>| u16::try_from(token.len()).expect("checked by the parser");
        let byte_lengths = tokens.iter().map(length).collect();
        let sha256 = Checksum::of(&json);
        Ok(Self { json, sha256, merges, tokens, byte_lengths, caches: Mutex::default() })
    }

    /// Writes the tokenizer file to `path`, aside and durable.
    ///
    /// # Errors
    /// [`Error::Write`] if it cannot be written; an earlier file is then still there.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        aside::write_file(path, &self.json)
    }

    /// The tokenizer's file.
    pub fn json(&self) -> &[u8] {
        &self.json
    }

    /// The SHA-256 of the tokenizer's file: what tapes and checkpoints know it by.
    pub fn sha256(&self) -> Checksum {
        self.sha256
    }

    /// Entries of the BPE, without the end of document.
    pub fn entries(&self) -> u32 {
        self.vocabulary() - 1
    }

    /// V: entries + 1.
    pub fn vocabulary(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("the parser bounds the entries")
    }

    /// The id that ends a document, `entries`. It stands for no bytes.
    pub fn end_of_document(&self) -> u32 {
        self.entries()
    }

    /// For every id, the bytes of text that it stands for; 0 for the end of document alone.
    pub fn byte_lengths(&self) -> &[u16] {
        &self.byte_lengths
    }

    /// The bytes of `id`, perhaps only a part of a character; `None` outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).map(Vec::as_slice)
    }

    /// The ids of `text`. Never holds the end of document.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        if text.is_empty() {
            return ids;
        }
        let lock = || self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cache = lock().pop().unwrap_or_default();
        let bytes = text.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            let end = words::end_of_word(text, start);
            match word_cache::key(bytes, start, end) {
                Some(key) => {
                    if !cache.append(key, &mut ids) {
                        let before = ids.len();
                        self.merges.merge(&bytes[start..end], &mut ids);
                        cache.keep(key, &ids[before..]);
                    }
                }
                None => {
                    for run in bytes[start..end].chunks(WORD_RUN_BYTES) {
                        self.merges.merge(run, &mut ids);
                    }
                }
            }
            start = end;
        }
        lock().push(cache);
        ids
    }

    /// The ids of each of `texts`, computed in rayon's current pool: what [`Tokenizer::encode`]
    /// gives, for any number of threads.
    pub fn encode_batch(&self, texts: &[impl AsRef<str> + Sync]) -> Vec<Vec<u32>> {
        texts.par_iter().map(|text| self.encode(text.as_ref())).collect()
    }

    /// The text of `ids`. Ends of documents give nothing. Where the bytes are no UTF-8, as when
    /// `ids` begin or end inside a character, U+FFFD stands in their place.
    ///
    /// # Errors
    /// [`Error::UnknownId`] for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for (position, &id) in ids.iter().enumerate() {
            let vocabulary = self.vocabulary();
            let token = self.token_bytes(id);
            bytes.extend(token.ok_or(Error::UnknownId { id, position, vocabulary })?);
        }
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Tokenizer");
        shown.field("entries", &self.entries()).field("sha256", &self.sha256).finish()
    }
}
