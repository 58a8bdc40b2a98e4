//! What a run learns from: two tapes and the tokenizer that made them.

use std::ops::ControlFlow;
use std::path::Path;

use tape::layout::{Part, TapeFiles};
use tape::prepare::{PrepareOptions, Split, prepare};
use tape::reader::Tape;
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

/// Two tapes and their tokenizer.
#[derive(Debug)]
pub struct Corpus {
    /// What is trained on.
    pub train: Tape,
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
                Self::from_tapes(train, validation, named.unwrap_or_else(Tokenizer::bundled))
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
        train: &TapeFiles,
        validation: &TapeFiles,
        tokenizer: Tokenizer,
    ) -> Result<Self, Error> {
        let open = |files: &TapeFiles| open_tape(files, &tokenizer);
        Ok(Self { train: open(train)?, validation: open(validation)?, tokenizer })
    }
}

/// Opens one tape and checks that `tokenizer` made it, as far as a sidecar tells.
///
/// # Errors
///
/// A tape that is missing, damaged, or made with another tokenizer.
pub fn open_tape(files: &TapeFiles, tokenizer: &Tokenizer) -> Result<Tape, Error> {
    let tape = Tape::open(files, Some(tokenizer.vocabulary()))?;
    match tape.sidecar() {
        Some(sidecar) if sidecar.tokenizer.sha256 != tokenizer.sha256() => {
            Err(Error::OtherTokenizer {
                tape: files.tokens.clone(),
                expected: tokenizer.sha256().to_string(),
                found: sidecar.tokenizer.sha256.to_string(),
            })
        }
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
                let output_dir = folder.to_owned();
                let options =
                    PrepareOptions { output_dir, split: Split::Whole(part), overwrite: true };
                prepare(&mut Self::documents(seed, bytes), &tokenizer, &options, &mut |done| {
                    let bytes = bytes_before + done.text_bytes;
                    observer.observe(&Event::Preparing { bytes, bytes_total });
                    ControlFlow::Continue(())
                })?;
            }
            bytes_before += bytes;
        }
        let [train, validation] =
            [Part::Train, Part::Validation].map(|part| TapeFiles::in_folder(folder, part));
        Corpus::from_tapes(&train, &validation, tokenizer)
    }
}
