//! The corpus contract: what a study fixes about its data, without any data in it.
//!
//! `corpus-contract.json` at the root of the repository says in one page which tokenizer, which
//! tape layout, which split and which unit of length a result refers to. Two results are
//! comparable in bits per byte if their tapes obey one contract. This module is that file as a
//! checked type, and holds tapes and tokenizers against it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::layout::{
    self, BYTE_LENGTHS_ENDING, EndOfDocument, EndOfDocumentPolicy, FORMAT_VERSION, SIDECAR_ENDING,
    Sidecar, TOKENS_ENDING, TokenizerRecord,
};
use crate::tokenizer::Tokenizer;
use crate::{Error, aside};

/// The reference data quantum, RDQ: 1,000,000,000 bytes of source text. This is our definition.
pub const RDQ_SOURCE_BYTES: u64 = 1_000_000_000;

/// No honest contract is longer.
const CONTRACT_BYTES_MAX: u64 = 1 << 20;

/// The whole contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// What the file is.
    pub name: String,
    /// The unit in which amounts of training text are given.
    pub reference_data_quantum: Quantum,
    /// The tokenizer's file, from the root of the repository.
    pub tokenizer_file: String,
    /// The tokenizer.
    pub tokenizer: TokenizerRecord,
    /// What ends a document, and after which documents.
    pub end_of_document: EndOfDocument,
    /// The files of a tape.
    pub tape: TapeLayout,
    /// How documents are divided into training and validation.
    pub validation_split: String,
}

/// A unit of source text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantum {
    /// Its short name.
    pub abbreviation: String,
    /// How many bytes of source text it is.
    pub source_bytes: u64,
    /// What counts as a byte of source text.
    pub definition: String,
}

/// The files of a tape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapeLayout {
    /// The version of the layout, as in sidecars.
    pub format_version: u32,
    /// The token ids.
    pub tokens: ElementLayout,
    /// The byte lengths.
    pub byte_lengths: ElementLayout,
    /// How sidecars' names end.
    pub sidecar_ending: String,
}

/// A headerless file of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ElementLayout {
    /// How the files' names end.
    pub ending: String,
    /// The form of one number.
    pub element: String,
    /// What one number means.
    pub meaning: String,
}

impl Contract {
    /// The contract that this version of the crate keeps with `tokenizer`.
    pub fn with_tokenizer(tokenizer: &Tokenizer) -> Self {
        Self::with_record(TokenizerRecord {
            sha256: tokenizer.sha256(),
            entries: tokenizer.entries(),
            vocabulary: tokenizer.vocabulary(),
        })
    }

    fn with_record(tokenizer: TokenizerRecord) -> Self {
        let element = |ending: &str, element: &str, meaning: &str| ElementLayout {
            ending: ending.to_owned(),
            element: element.to_owned(),
            meaning: meaning.to_owned(),
        };
        Self {
            name: "packed-adamw corpus contract".to_owned(),
            reference_data_quantum: Quantum {
                abbreviation: "RDQ".to_owned(),
                source_bytes: RDQ_SOURCE_BYTES,
                definition: "UTF-8 bytes of source text that the trained targets stand for; \
                             ends of documents stand for none"
                    .to_owned(),
            },
            tokenizer_file: "tokenizer/tokenizer.json".to_owned(),
            end_of_document: EndOfDocument {
                id: tokenizer.entries,
                policy: EndOfDocumentPolicy::AfterEveryDocument,
            },
            tokenizer,
            tape: TapeLayout {
                format_version: FORMAT_VERSION,
                tokens: element(TOKENS_ENDING, "little-endian u32", "one token id"),
                byte_lengths: element(
                    BYTE_LENGTHS_ENDING,
                    "little-endian u16",
                    "bytes of source text that the token at the same position stands for; \
                     0 for an end of document",
                ),
                sidecar_ending: SIDECAR_ENDING.to_owned(),
            },
            validation_split: "a document is validation if bytes 8 to 15 of the SHA-256 of its \
                               UTF-8 text, as a big-endian number, are below \
                               validation_fraction * 2^64"
                .to_owned(),
        }
    }

    /// Reads the contract at `path` and checks that this version of the crate can keep it.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::FileTooLarge`], or [`Error::Contract`] for anything but the
    /// contract of this version with some tokenizer.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let json = layout::read_bounded(path, CONTRACT_BYTES_MAX)?;
        let wrong = |problem: String| Error::Contract { path: path.to_owned(), problem };
        let found: Self =
            serde_json::from_slice(&json).map_err(|error| wrong(error.to_string()))?;
        let ours = Self::with_record(found.tokenizer.clone());
        if ours.tokenizer.entries.checked_add(1) != Some(ours.tokenizer.vocabulary) {
            return Err(wrong("the vocabulary is not the entries and one more".to_owned()));
        }
        let fields = [
            ("name", found.name == ours.name),
            ("reference_data_quantum", found.reference_data_quantum == ours.reference_data_quantum),
            ("tokenizer_file", found.tokenizer_file == ours.tokenizer_file),
            ("end_of_document", found.end_of_document == ours.end_of_document),
            ("tape", found.tape == ours.tape),
            ("validation_split", found.validation_split == ours.validation_split),
        ];
        match fields.into_iter().find(|(_, same)| !same) {
            Some((field, _)) => Err(wrong(format!("{field:?} is not what this version keeps"))),
            None => Ok(found),
        }
    }

    /// Writes the contract to `path` as indented JSON, aside and durable.
    ///
    /// # Errors
    /// [`Error::Write`] if it cannot be written; an earlier file is then still there.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let mut json = serde_json::to_vec_pretty(self).expect("a contract has only plain fields");
        json.push(b'\n');
        aside::write_file(path, &json)
    }

    /// Whether a tape obeys the contract.
    ///
    /// # Errors
    /// [`Error::OutsideContract`] if its tokenizer is another one.
    pub fn check_tape(&self, sidecar: &Sidecar) -> Result<(), Error> {
        self.check_tokenizer(sidecar.tokenizer.sha256)
    }

    /// Whether the tokenizer with this hash is the contract's.
    ///
    /// # Errors
    /// [`Error::OutsideContract`] if it is another one.
    pub fn check_tokenizer(&self, sha256: Checksum) -> Result<(), Error> {
        if sha256 == self.tokenizer.sha256 {
            return Ok(());
        }
        Err(Error::OutsideContract {
            what: "the tokenizer with SHA-256",
            expected: self.tokenizer.sha256.to_string(),
            found: sha256.to_string(),
        })
    }
}
