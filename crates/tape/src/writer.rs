//! Writing one tape: ids and byte lengths go out as they come, hashed on the way.
//!
//! All files are written aside. [`SealedTape::commit`] names what vouches before what is vouched for
//! in a single tape (sidecar, byte lengths, tokens) and the list of a set after all its files, so whoever
//! finds a file of tokens, or a list, finds the rest: after an interruption in between, a file is missing
//! or a hash differs, and the tape is refused.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::aside::{AsideFile, SealedFile};
use crate::blocks::BlockHasher;
use crate::checksum::{Checksum, Hasher};
use crate::layout::set::{ShardRecord, TapeSet};
use crate::layout::{
    Element, EndOfDocument, EndOfDocumentPolicy, FORMAT_VERSION, FileRecord, Part,
    PreparationRecord, Sidecar, SourceRecord, SplitRecord, TapeFiles, TokenizerRecord,
};
use crate::reader::TapeSource;
use crate::tokenizer::Tokenizer;

/// Ids are turned into bytes in runs of this many, in a buffer that stays in the cache.
const RUN_TOKENS: usize = 1 << 16;

/// How a tape is laid out on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// How an id is stored.
    pub element: Element,
    /// A set of files of this many tokens, the last one shorter; `None` for a single file.
    pub shard_tokens: Option<u64>,
}

/// A tape being written.
pub struct TapeWriter<'t> {
    folder: PathBuf,
    part: Part,
    tokenizer: &'t Tokenizer,
    form: Form,
    shard: ShardWriter,
    sealed: Sealed,
    /// Ids that no shard has yet.
    pending: Vec<u32>,
    /// Documents that have ended.
    documents: u64,
    /// Of the tokens of all shards; of a single file its own hash is enough.
    whole: Hasher,
    totals: Totals,
}

/// Sums over tokens.
#[derive(Clone, Copy, Default)]
struct Totals {
    count: u64,
    documents: u64,
    source_bytes: u64,
}

impl Totals {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.documents += other.documents;
        self.source_bytes += other.source_bytes;
    }
}

impl<'t> TapeWriter<'t> {
    /// Begins the tape of `part` in `folder`, which must exist. Nothing has its name yet.
    ///
    /// # Errors
    /// [`Error::ElementTooSmall`] if the tokenizer's ids do not fit, [`Error::Write`] if a file cannot be
    /// created.
    ///
    /// # Panics
    /// If shards are to have no tokens.
    pub fn create(
        folder: &Path,
        part: Part,
        form: Form,
        tokenizer: &'t Tokenizer,
    ) -> Result<Self, Error> {
        assert_ne!(form.shard_tokens, Some(0), "a shard has tokens");
        let (found, most) = (tokenizer.vocabulary(), form.element.vocabulary_max());
        if u64::from(found) > most {
            return Err(Error::ElementTooSmall { bytes: form.element.bytes(), most, found });
        }
        Ok(Self {
            folder: folder.to_owned(),
            part,
            tokenizer,
            form,
            shard: ShardWriter::create(folder, &stem(part, form, 0), form.element)?,
            sealed: Sealed::default(),
            pending: Vec::new(),
            documents: 0,
            whole: Hasher::default(),
            totals: Totals::default(),
        })
    }

    /// Appends ids of the current document, which the tokenizer has made.
    ///
    /// # Errors
    /// [`Error::Write`], for instance on a full disk.
    ///
    /// # Panics
    /// If an id is outside the tokenizer's vocabulary.
    pub fn write(&mut self, ids: &[u32]) -> Result<(), Error> {
        self.pending.extend_from_slice(ids);
        if self.pending.len() >= RUN_TOKENS {
            self.flush()?;
        }
        Ok(())
    }

    /// Ends the current document with the end-of-document id.
    ///
    /// # Errors
    /// As for [`TapeWriter::write`].
    pub fn end_document(&mut self) -> Result<(), Error> {
        self.documents += 1;
        self.write(&[self.tokenizer.end_of_document()])
    }

    /// Hands the pending ids to their shards.
    fn flush(&mut self) -> Result<(), Error> {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        while !rest.is_empty() {
            let mut room = RUN_TOKENS as u64;
            if let Some(shard_tokens) = self.form.shard_tokens {
                if self.shard.totals.count == shard_tokens {
                    let stem = stem(self.part, self.form, self.sealed.shards.len() + 1);
                    let next = ShardWriter::create(&self.folder, &stem, self.form.element)?;
                    let full = std::mem::replace(&mut self.shard, next);
                    self.sealed.add(full, self.tokenizer)?;
                }
                room = room.min(shard_tokens - self.shard.totals.count);
            }
            let (run, after) = rest.split_at(rest.len().min(room as usize));
            self.totals.add(self.shard.write(run, self.tokenizer)?);
            if self.form.shard_tokens.is_some() {
                self.whole.update(&self.shard.run);
            }
            rest = after;
        }
        self.pending = pending;
        self.pending.clear();
        Ok(())
    }

    /// How many documents have ended.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// How many ids have been written, ends of documents included.
    pub fn count(&self) -> u64 {
        self.totals.count + self.pending.len() as u64
    }

    /// Writes the sidecar or the list and makes all files durable, still without their names.
    ///
    /// # Errors
    /// [`Error::Write`] if a step fails; a full disk shows here at the latest.
    ///
    /// # Panics
    /// If nothing was written: no tape is empty.
    pub fn seal(
        mut self,
        split: Option<SplitRecord>,
        preparation: PreparationRecord,
        sources: Vec<SourceRecord>,
    ) -> Result<SealedTape, Error> {
        self.flush()?;
        let Self { folder, part, tokenizer, form, shard, mut sealed, whole, totals, .. } = self;
        let Totals { count, documents, source_bytes } = totals;
        assert!(count > 0, "a tape holds tokens");
        let (source, sha256);
        if let Some(shard_tokens) = form.shard_tokens {
            sealed.add(shard, tokenizer)?;
            sha256 = whole.finish();
            let set = TapeSet {
                format_version: FORMAT_VERSION,
                element: form.element,
                count,
                sha256,
                tokenizer: tokenizer_record(tokenizer),
                documents,
                source_bytes,
                split,
                preparation: preparation.clone(),
                shard_tokens,
                shards: sealed.shards,
                sources: sources.clone(),
            };
            let list = TapeSet::in_folder(&folder, part);
            let mut file = AsideFile::create(&list)?;
            file.write(&set.to_json())?;
            sealed.files.push(file.seal()?);
            source = TapeSource::Set(list);
        } else {
            let preparation = Some(preparation.clone());
            let (sidecar, files) = shard.seal(tokenizer, split, preparation, sources.clone())?;
            sealed.files.extend(files);
            sha256 = sidecar.tokens.sha256;
            let files = TapeFiles::with_stem(&folder, part.name(), form.element);
            source = TapeSource::Files(files);
        }
        let record = TapeRecord {
            part,
            source,
            form,
            count,
            sha256,
            documents,
            source_bytes,
            split,
            preparation,
            sources,
        };
        Ok(SealedTape { record, files: sealed.files })
    }
}

/// Shards of a set that are whole.
#[derive(Default)]
struct Sealed {
    files: Vec<SealedFile>,
    shards: Vec<ShardRecord>,
}

impl Sealed {
    fn add(&mut self, shard: ShardWriter, tokenizer: &Tokenizer) -> Result<(), Error> {
        let stem = shard.stem.clone();
        let (sidecar, files) = shard.seal(tokenizer, None, None, Vec::new())?;
        let FileRecord { count, sha256, .. } = sidecar.tokens;
        self.shards.push(ShardRecord { stem, count, sha256 });
        self.files.extend(files);
        Ok(())
    }
}

/// What is known of a tape that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct TapeRecord {
    /// Which part it is.
    pub part: Part,
    /// Where it is.
    pub source: TapeSource,
    /// How it is laid out.
    pub form: Form,
    /// Tokens, ends of documents included.
    pub count: u64,
    /// The SHA-256 of all tokens.
    pub sha256: Checksum,
    /// Documents.
    pub documents: u64,
    /// The sum of all byte lengths.
    pub source_bytes: u64,
    /// The split, if the corpus was split.
    pub split: Option<SplitRecord>,
    /// How it was prepared.
    pub preparation: PreparationRecord,
    /// Everything that was read.
    pub sources: Vec<SourceRecord>,
}

impl TapeRecord {
    /// Bytes of text per token, ends of documents counted as tokens.
    pub fn bytes_per_token(&self) -> f64 {
        self.source_bytes as f64 / self.count as f64
    }
}

/// A whole tape on disk that only lacks its names. Dropped, it is removed.
pub struct SealedTape {
    record: TapeRecord,
    /// In the order of naming.
    files: Vec<SealedFile>,
}

impl SealedTape {
    /// The names that its files will have.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(SealedFile::target)
    }

    /// Gives the files their names, replacing earlier ones.
    ///
    /// # Errors
    /// [`Error::Write`] if a rename fails.
    pub fn commit(self) -> Result<TapeRecord, Error> {
        self.files.into_iter().try_for_each(SealedFile::commit)?;
        Ok(self.record)
    }
}

fn stem(part: Part, form: Form, index: usize) -> String {
    match form.shard_tokens {
        None => part.name().to_owned(),
        Some(_) => TapeSet::stem(part, index),
    }
}

fn tokenizer_record(tokenizer: &Tokenizer) -> TokenizerRecord {
    TokenizerRecord {
        sha256: tokenizer.sha256(),
        entries: tokenizer.entries(),
        vocabulary: tokenizer.vocabulary(),
    }
}

/// One file of tokens with its companions, being written.
struct ShardWriter {
    stem: String,
    element: Element,
    tokens: HashedFile,
    byte_lengths: HashedFile,
    sidecar: AsideFile,
    totals: Totals,
    /// The bytes of the ids that were written last.
    run: Vec<u8>,
    lengths_run: Vec<u8>,
}

impl ShardWriter {
    fn create(folder: &Path, stem: &str, element: Element) -> Result<Self, Error> {
        let files = TapeFiles::with_stem(folder, stem, element);
        let byte_lengths = files.byte_lengths.expect("with_stem names all three files");
        let sidecar = files.sidecar.expect("with_stem names all three files");
        Ok(Self {
            stem: stem.to_owned(),
            element,
            tokens: HashedFile::create(&files.tokens)?,
            byte_lengths: HashedFile::create(&byte_lengths)?,
            sidecar: AsideFile::create(&sidecar)?,
            totals: Totals::default(),
            run: Vec::new(),
            lengths_run: Vec::new(),
        })
    }

    /// Appends at most [`RUN_TOKENS`] ids; returns what they add to the sums.
    fn write(&mut self, ids: &[u32], tokenizer: &Tokenizer) -> Result<Totals, Error> {
        let lengths = tokenizer.byte_lengths();
        let length_of = |&id: &u32| lengths[id as usize];
        self.run.clear();
        match self.element {
            Element::U16 => self.run.extend(ids.iter().flat_map(|&id| (id as u16).to_le_bytes())),
            Element::U32 => self.run.extend(ids.iter().flat_map(|id| id.to_le_bytes())),
        }
        self.lengths_run.clear();
        self.lengths_run.extend(ids.iter().flat_map(|id| length_of(id).to_le_bytes()));
        let end = tokenizer.end_of_document();
        let added = Totals {
            count: ids.len() as u64,
            documents: ids.iter().filter(|&&id| id == end).count() as u64,
            source_bytes: ids.iter().map(|id| u64::from(length_of(id))).sum(),
        };
        let (of_tokens, of_lengths) = rayon::join(
            || self.tokens.write(&self.run),
            || self.byte_lengths.write(&self.lengths_run),
        );
        of_tokens.and(of_lengths)?;
        self.totals.add(added);
        Ok(added)
    }

    /// Writes the sidecar; the files in the order of naming: sidecar, byte lengths, tokens.
    fn seal(
        mut self,
        tokenizer: &Tokenizer,
        split: Option<SplitRecord>,
        preparation: Option<PreparationRecord>,
        sources: Vec<SourceRecord>,
    ) -> Result<(Sidecar, [SealedFile; 3]), Error> {
        let Totals { count, documents, source_bytes } = self.totals;
        let (tokens, tokens_file) = self.tokens.seal(count)?;
        let (byte_lengths, lengths_file) = self.byte_lengths.seal(count)?;
        let sidecar = Sidecar {
            format_version: FORMAT_VERSION,
            element: self.element,
            tokens,
            byte_lengths,
            tokenizer: tokenizer_record(tokenizer),
            end_of_document: EndOfDocument {
                id: tokenizer.end_of_document(),
                policy: EndOfDocumentPolicy::AfterEveryDocument,
            },
            documents,
            source_bytes,
            split,
            preparation,
            sources,
        };
        self.sidecar.write(&sidecar.to_json())?;
        Ok((sidecar, [self.sidecar.seal()?, lengths_file, tokens_file]))
    }
}

/// A file written aside and hashed on the way.
struct HashedFile {
    name: String,
    file: AsideFile,
    hasher: BlockHasher,
}

impl HashedFile {
    fn create(path: &Path) -> Result<Self, Error> {
        let name = path.file_name().expect("a tape file has a name").to_string_lossy().into_owned();
        Ok(Self { name, file: AsideFile::create(path)?, hasher: BlockHasher::default() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Self { file, hasher, .. } = self;
        let ((), written) = rayon::join(|| hasher.update(bytes), || file.write(bytes));
        written
    }

    fn seal(self, count: u64) -> Result<(FileRecord, SealedFile), Error> {
        let (sha256, blocks) = self.hasher.finish();
        Ok((FileRecord { file: self.name, count, sha256, blocks }, self.file.seal()?))
    }
}
