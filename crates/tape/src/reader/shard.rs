//! One file of tokens with its companions: what is known of it, and its files when they are read.

use std::path::Path;

use super::check::{self, Findings};
use crate::Error;
use crate::blocks::BlockFile;
use crate::checksum::Checksum;
use crate::layout::set::TapeSet;
use crate::layout::{Element, FileRecord, Sidecar, TapeFiles};

/// What is known of one file of tokens and its companions.
#[derive(Debug)]
pub(super) struct Shard {
    files: TapeFiles,
    element: Element,
    sidecar: Option<Sidecar>,
    count: u64,
    /// Hashes of the blocks of tokens and of byte lengths.
    hashes: Option<[Vec<Checksum>; 2]>,
}

/// The files of a shard.
#[derive(Debug)]
pub(super) struct OpenShard {
    pub(super) tokens: BlockFile,
    pub(super) byte_lengths: Option<BlockFile>,
}

impl OpenShard {
    fn open(files: &TapeFiles, element: Element) -> Result<Self, Error> {
        let tokens = BlockFile::open(&files.tokens, element.bytes())?;
        let lengths = files.byte_lengths.as_deref();
        let byte_lengths =
            lengths.map(|path| BlockFile::open(path, size_of::<u16>())).transpose()?;
        if let Some(lengths) = &byte_lengths
            && lengths.count() != tokens.count()
        {
            return Err(Error::TapeCounts {
                tokens_path: files.tokens.clone(),
                tokens: tokens.count(),
                byte_lengths_path: lengths.path().to_owned(),
                byte_lengths: lengths.count(),
            });
        }
        Ok(Self { tokens, byte_lengths })
    }
}

impl Shard {
    /// Looks at the files and the sidecar; the content is not read yet.
    pub(super) fn open(files: TapeFiles, element: Element) -> Result<Self, Error> {
        let sidecar = files.sidecar.as_deref().map(Sidecar::load).transpose()?;
        let open = OpenShard::open(&files, element)?;
        let count = open.tokens.count();
        let mut hashes = None;
        if let (Some(sidecar), Some(path)) = (&sidecar, &files.sidecar) {
            if sidecar.element != element {
                let (expected, found) = (sidecar.element.bytes(), element.bytes());
                let what = "the size of an id by its name";
                return Err(mismatch(&files.tokens, path, what, expected, found));
            }
            check_count(&files.tokens, path, &sidecar.tokens, count)?;
            if let Some(lengths) = &files.byte_lengths {
                check_count(lengths, path, &sidecar.byte_lengths, count)?;
            }
            let blocks = [&sidecar.tokens, &sidecar.byte_lengths].map(|file| file.blocks.clone());
            hashes = Some(blocks).filter(|blocks| blocks.iter().all(|hashes| !hashes.is_empty()));
        }
        Ok(Self { files, element, sidecar, count, hashes })
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn sidecar(&self) -> Option<&Sidecar> {
        self.sidecar.as_ref()
    }

    /// Whether blocks can be verified before the whole has been read.
    pub(super) fn has_hashes(&self) -> bool {
        self.hashes.is_some()
    }

    /// Opens the files for reading.
    pub(super) fn files_open(&self) -> Result<OpenShard, Error> {
        let mut open = OpenShard::open(&self.files, self.element)?;
        if open.tokens.count() != self.count {
            let (path, offset) = (self.files.tokens.clone(), 0);
            let (found, expected) = (open.tokens.count(), self.count);
            let problem = format!("it has {found} tokens, expected {expected}");
            return Err(Error::TapeChanged { path, offset, problem });
        }
        let [tokens, lengths] = self.hashes.clone().expect("hashes are known after opening");
        open.tokens.set_hashes(tokens);
        if let Some(file) = &mut open.byte_lengths {
            file.set_hashes(lengths);
        }
        Ok(open)
    }

    /// Reads and checks everything; afterwards the hashes of all blocks are known.
    pub(super) fn check(&mut self, vocabulary: Option<u32>) -> Result<Findings, Error> {
        let open = OpenShard::open(&self.files, self.element)?;
        let pass = check::Pass {
            open: &open,
            element: self.element,
            sidecar: self.files.sidecar.as_deref().zip(self.sidecar.as_ref()),
            vocabulary,
        };
        let (findings, hashes) = pass.run()?;
        self.hashes = Some(hashes);
        Ok(findings)
    }

    /// What the sidecar says, where its hashes will be held against what is read.
    pub(super) fn trusted(&self) -> Findings {
        let sidecar = self.sidecar.as_ref().expect("hashes stand in a sidecar");
        let source_bytes = self.files.byte_lengths.as_ref().map(|_| sidecar.source_bytes);
        Findings { checksum: sidecar.tokens.sha256, source_bytes }
    }

    /// A model may know more ids than the tape (a padded vocabulary), never fewer.
    pub(super) fn check_vocabulary(&self, vocabulary: Option<u32>) -> Result<(), Error> {
        let (Some(expected), Some(sidecar)) = (vocabulary, &self.sidecar) else { return Ok(()) };
        let found = sidecar.tokenizer.vocabulary;
        if found <= expected {
            return Ok(());
        }
        let path = self.files.sidecar.clone().expect("the sidecar came from there");
        Err(Error::Vocabulary { path, expected, found })
    }

    /// Whether this is file number `index` of the set.
    pub(super) fn check_listed(
        &self,
        list: &Path,
        set: &TapeSet,
        index: usize,
    ) -> Result<(), Error> {
        let path = self.files.sidecar.clone().expect("files of a set have sidecars");
        let sidecar = self.sidecar.as_ref().expect("files of a set have sidecars");
        let record = &set.shards[index];
        let rules = [
            ("the count", record.count.to_string(), sidecar.tokens.count.to_string()),
            ("the SHA-256", record.sha256.to_string(), sidecar.tokens.sha256.to_string()),
            (
                "the tokenizer",
                set.tokenizer.sha256.to_string(),
                sidecar.tokenizer.sha256.to_string(),
            ),
            (
                "the vocabulary",
                set.tokenizer.vocabulary.to_string(),
                sidecar.tokenizer.vocabulary.to_string(),
            ),
        ];
        match rules.into_iter().find(|(_, expected, found)| expected != found) {
            Some((what, expected, found)) => {
                Err(Error::NotOfTheSet { path, list: list.to_owned(), what, expected, found })
            }
            None => Ok(()),
        }
    }
}

fn check_count(path: &Path, sidecar: &Path, record: &FileRecord, found: u64) -> Result<(), Error> {
    if record.count == found {
        return Ok(());
    }
    Err(mismatch(path, sidecar, "the count", record.count, found))
}

/// [`Error::TapeMismatch`].
pub(super) fn mismatch(
    path: &Path,
    sidecar: &Path,
    what: &'static str,
    expected: impl ToString,
    found: impl ToString,
) -> Error {
    Error::TapeMismatch {
        path: path.to_owned(),
        sidecar: sidecar.to_owned(),
        what,
        expected: expected.to_string(),
        found: found.to_string(),
    }
}
