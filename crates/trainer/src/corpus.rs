//! What a run learns from: tapes to train on, one to validate on, and the tokenizer that made them.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tape::layout::{Part, TapeFiles};
use tape::prepare::{PrepareOptions, Split, prepare};
use tape::reader::{Tape, TapeSource, Verify};
use tape::sources::InMemory;
use tape::stories::Stories;
use tape::tokenizer::Tokenizer;

use crate::config::{DataSection, Source};
use crate::error::Error;
use crate::events::{Event, Observer};

/// Bytes of stories that their tokenizer is trained on, enough for every word to be common.
const TOKENIZER_BYTES: u64 = 1_000_000;

/// Bytes of training stories for every byte of validation stories.
const STORIES_PER_VALIDATION: u64 = 40;

/// Tapes and their tokenizer.
#[derive(Debug)]
pub struct Corpus {
    /// What is trained on: one tape, or the tapes of a mixture.
    pub train: Vec<Arc<Tape>>,
    /// What is validated on.
    pub validation: Tape,
    /// What made both.
    pub tokenizer: Tokenizer,
}

impl Corpus {
    /// Opens the tapes, or makes stories and their tapes in `folder` where they are not there yet.
    ///
    /// # Errors
    ///
    /// Files that are missing, damaged or made with another tokenizer, and what the file system refuses.
    pub fn open(
        data: &DataSection,
        folder: &Path,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        let named = data.tokenizer.as_deref().map(Tokenizer::load).transpose()?;
        match &data.source {
            Source::Tapes { train, validation } => {
                let tokenizer = named.unwrap_or_else(Tokenizer::bundled);
                Self::from_tapes(train, validation, tokenizer, data.verify)
            }
            &Source::Stories { bytes, vocabulary, seed } => {
                let stories = StoryText { bytes, seed };
                let tokenizer = match named {
                    Some(tokenizer) => tokenizer,
                    None => stories.tokenizer(vocabulary, folder)?,
                };
                stories.tapes(tokenizer, folder, observer)
            }
        }
    }

    fn from_tapes(
        train: &[TapeSource],
        validation: &TapeSource,
        tokenizer: Tokenizer,
        verify: Verify,
    ) -> Result<Self, Error> {
        let open = |source: &TapeSource| open_tape(source, &tokenizer, verify);
        let train = train.iter().map(|source| open(source).map(Arc::new));
        Ok(Self {
            train: train.collect::<Result<_, _>>()?,
            validation: open(validation)?,
            tokenizer,
        })
    }

    /// What a run that goes on must share of its data.
    pub fn identity(&self) -> [(String, String); 3] {
        let train: Vec<String> =
            self.train.iter().map(|tape| tape.checksum().to_string()).collect();
        [
            ("data.train_sha256".into(), train.join(" ")),
            ("data.validation_sha256".into(), self.validation.checksum().to_string()),
            ("data.tokenizer_sha256".into(), self.tokenizer.sha256().to_string()),
        ]
    }
}

/// Opens one tape and checks that `tokenizer` made it, as far as a sidecar tells.
///
/// # Errors
///
/// A tape that is missing, damaged, or made with another tokenizer.
pub fn open_tape(
    source: &TapeSource,
    tokenizer: &Tokenizer,
    verify: Verify,
) -> Result<Tape, Error> {
    let tape = Tape::open_with(source, Some(tokenizer.vocabulary()), verify)?;
    match tape.tokenizer() {
        Some(record) if record.sha256 != tokenizer.sha256() => Err(Error::OtherTokenizer {
            tape: source.path().to_owned(),
            expected: tokenizer.sha256().to_string(),
            found: record.sha256.to_string(),
        }),
        _ => Ok(tape),
    }
}

/// The stories of a run, which depend on nothing but their seed and size.
struct StoryText {
    bytes: u64,
    seed: u64,
}

impl StoryText {
    /// Stories of `seed` until `bytes` are reached.
    fn documents(seed: u64, bytes: u64) -> InMemory<impl Iterator<Item = String>> {
        let mut told = 0;
        let stories = Stories::new(seed).take_while(move |story| {
            let more = told < bytes;
            told += story.len() as u64;
            more
        });
        InMemory::new(format!("stories, seed {seed}"), stories)
    }

    /// The tokenizer of the stories: the one in `folder` if it is there, else a newly trained one.
    fn tokenizer(&self, entries: usize, folder: &Path) -> Result<Tokenizer, Error> {
        let path = folder.join("tokenizer.json");
        if path.exists() {
            return Ok(Tokenizer::load(&path)?);
        }
        let mut documents = Self::documents(self.seed, self.bytes.min(TOKENIZER_BYTES));
        let tokenizer =
            Tokenizer::train(&mut documents, entries, &mut |_| ControlFlow::Continue(()))?;
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        tokenizer.save(&path)?;
        Ok(tokenizer)
    }

    /// Opens the two tapes in `folder`, which are made where they are not there.
    fn tapes(
        &self,
        tokenizer: Tokenizer,
        folder: &Path,
        observer: &mut dyn Observer,
    ) -> Result<Corpus, Error> {
        // Validation has a seed of its own, so that no story of it is trained on but by chance.
        let splits = [
            (Part::Train, self.seed, self.bytes),
            (Part::Validation, !self.seed, self.bytes / STORIES_PER_VALIDATION),
        ];
        let bytes_total = splits.iter().map(|&(_, _, bytes)| bytes).sum();
        let mut bytes_before = 0;
        for (part, seed, bytes) in splits {
            if !TapeFiles::in_folder(folder, part).tokens.exists() {
                let options = PrepareOptions {
                    overwrite: true,
                    ..PrepareOptions::new(folder, Split::Whole(part))
                };
                prepare(&mut Self::documents(seed, bytes), &tokenizer, &options, &mut |done| {
                    let bytes = bytes_before + done.text_bytes;
                    observer.observe(&Event::Preparing { bytes, bytes_total });
                    ControlFlow::Continue(())
                })?;
            }
            bytes_before += bytes;
        }
        let [train, validation] = [Part::Train, Part::Validation]
            .map(|part| TapeSource::Files(TapeFiles::in_folder(folder, part)));
        Corpus::from_tapes(&[train], &validation, tokenizer, Verify::Now)
    }
}
