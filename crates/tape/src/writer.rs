//! Writing one tape: ids and byte lengths go out as they come, hashed on the way.
//!
//! All files are written aside. [`SealedTape::commit`] names sidecar, byte lengths and tokens in
//! this order, so whoever finds a file of tokens finds the sidecar that vouches for it: after an
//! interruption in between, a file is missing or a hash differs, and the tape is refused.

use std::path::Path;

use crate::Error;
use crate::aside::AsideFile;
use crate::checksum::Hasher;
use crate::layout::{
    EndOfDocument, EndOfDocumentPolicy, FORMAT_VERSION, FileRecord, Part, Sidecar, SourceRecord,
    SplitRecord, TapeFiles, TokenizerRecord,
};
use crate::tokenizer::Tokenizer;

/// Ids are turned into bytes in runs of this many, in a buffer that stays in the cache.
const RUN_TOKENS: usize = 4096;

/// A tape being written.
pub struct TapeWriter<'t> {
    tokenizer: &'t Tokenizer,
    tokens: HashedFile,
    byte_lengths: HashedFile,
    sidecar: AsideFile,
    count: u64,
    documents: u64,
    source_bytes: u64,
}

impl<'t> TapeWriter<'t> {
    /// Begins the tape of `part` in `folder`, which must exist. Nothing has its name yet.
    ///
    /// # Errors
    /// [`Error::Write`] if a file cannot be created.
    pub fn create(folder: &Path, part: Part, tokenizer: &'t Tokenizer) -> Result<Self, Error> {
        let TapeFiles { tokens, byte_lengths, sidecar } = TapeFiles::in_folder(folder, part);
        let byte_lengths = byte_lengths.expect("in_folder names all three files");
        let sidecar = sidecar.expect("in_folder names all three files");
        Ok(Self {
            tokenizer,
            tokens: HashedFile::create(&tokens)?,
            byte_lengths: HashedFile::create(&byte_lengths)?,
            sidecar: AsideFile::create(&sidecar)?,
            count: 0,
            documents: 0,
            source_bytes: 0,
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
        let lengths = self.tokenizer.byte_lengths();
        for run in ids.chunks(RUN_TOKENS) {
            let length_of = |&id: &u32| lengths[id as usize];
            self.tokens.write(run.iter().flat_map(|id| id.to_le_bytes()))?;
            self.byte_lengths.write(run.iter().flat_map(|id| length_of(id).to_le_bytes()))?;
            self.source_bytes += run.iter().map(|id| u64::from(length_of(id))).sum::<u64>();
        }
        self.count += ids.len() as u64;
        Ok(())
    }

    /// Ends the current document with the end-of-document id.
    ///
    /// # Errors
    /// [`Error::Write`], for instance on a full disk.
    pub fn end_document(&mut self) -> Result<(), Error> {
        self.documents += 1;
        self.write(&[self.tokenizer.end_of_document()])
    }

    /// How many documents have ended.
    pub fn documents(&self) -> u64 {
        self.documents
    }

    /// How many ids have been written, ends of documents included.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Writes the sidecar and makes all three files durable, still without their names.
    ///
    /// # Errors
    /// [`Error::Write`] if a step fails; a full disk shows here at the latest.
    pub fn seal(
        mut self,
        split: Option<SplitRecord>,
        sources: Vec<SourceRecord>,
    ) -> Result<SealedTape, Error> {
        let record = Sidecar {
            format_version: FORMAT_VERSION,
            tokens: self.tokens.record(self.count),
            byte_lengths: self.byte_lengths.record(self.count),
            tokenizer: TokenizerRecord {
                sha256: self.tokenizer.sha256(),
                entries: self.tokenizer.entries(),
                vocabulary: self.tokenizer.vocabulary(),
            },
            end_of_document: EndOfDocument {
                id: self.tokenizer.end_of_document(),
                policy: EndOfDocumentPolicy::AfterEveryDocument,
            },
            documents: self.documents,
            source_bytes: self.source_bytes,
            split,
            sources,
        };
        self.sidecar.write(&record.to_json())?;
        let mut files = [self.sidecar, self.byte_lengths.file, self.tokens.file];
        files.iter_mut().try_for_each(AsideFile::sync)?;
        Ok(SealedTape { record, files })
    }
}

/// A whole tape on disk that only lacks its names. Dropped, it is removed.
pub struct SealedTape {
    record: Sidecar,
    /// Sidecar, byte lengths, tokens: the order of naming.
    files: [AsideFile; 3],
}

impl SealedTape {
    /// Gives the three files their names, replacing earlier ones.
    ///
    /// # Errors
    /// [`Error::Write`] if a rename fails.
    pub fn commit(self) -> Result<Sidecar, Error> {
        self.files.into_iter().try_for_each(AsideFile::commit)?;
        Ok(self.record)
    }
}

/// A file written aside and hashed on the way.
struct HashedFile {
    name: String,
    file: AsideFile,
    hasher: Hasher,
    run: Vec<u8>,
}

impl HashedFile {
    fn create(path: &Path) -> Result<Self, Error> {
        let name = path.file_name().expect("a tape file has a name").to_string_lossy().into_owned();
        let file = AsideFile::create(path)?;
        Ok(Self { name, file, hasher: Hasher::default(), run: Vec::new() })
    }

    fn write(&mut self, bytes: impl Iterator<Item = u8>) -> Result<(), Error> {
        self.run.clear();
        self.run.extend(bytes);
        self.hasher.update(&self.run);
        self.file.write(&self.run)
    }

    fn record(&self, count: u64) -> FileRecord {
        FileRecord { file: self.name.clone(), count, sha256: self.hasher.clone().finish() }
    }
}
