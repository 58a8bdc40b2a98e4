//! Which document goes into which tape.

use super::Split;
use crate::Error;
use crate::checksum::Checksum;
use crate::layout::{Part, SplitRecord};
use crate::writer::TapeWriter;

/// A checked [`Split`].
#[derive(Clone, Copy)]
pub(super) struct Splitter {
    split: Split,
    /// Hashes below are validation.
    threshold: u64,
}

impl Splitter {
    pub(super) fn new(split: Split) -> Result<Self, Error> {
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
    pub(super) fn parts(&self) -> &'static [Part] {
        match self.split {
            Split::Whole(Part::Train) => &[Part::Train],
            Split::Whole(Part::Validation) => &[Part::Validation],
            Split::ByHash { .. } => &[Part::Train, Part::Validation],
        }
    }

    /// Whether the split goes by the hashes of texts.
    pub(super) fn wants_hashes(&self) -> bool {
        matches!(self.split, Split::ByHash { .. })
    }

    /// The index of the tape that a text with this SHA-256 goes into.
    pub(super) fn part_of(&self, hash: Option<Checksum>) -> usize {
        match self.split {
            Split::Whole(_) => 0,
            Split::ByHash { .. } => {
                let hash = hash.expect("texts are hashed for a split by hash");
                usize::from(hash.split_key() < self.threshold)
            }
        }
    }

    /// The split in a sidecar.
    pub(super) fn record(&self, part: Part) -> Option<SplitRecord> {
        match self.split {
            Split::Whole(_) => None,
            Split::ByHash { validation_fraction } => {
                Some(SplitRecord { part, validation_fraction })
            }
        }
    }

    /// No tape may be empty: a run could not be trained on it, or not be measured.
    pub(super) fn check_parts(&self, writers: &[TapeWriter<'_>]) -> Result<(), Error> {
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
