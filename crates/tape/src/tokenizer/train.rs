//! Training a byte-level BPE: words are counted here, merges are found by the `tokenizers` library.
//!
//! The result depends on the text alone. Word counts are sums, so neither the order of documents
//! nor the number of threads shows in them; the library takes the most frequent pair, of equal
//! ones the pair of the smaller ids.

use std::collections::HashMap;
use std::ops::ControlFlow;

use rayon::prelude::*;
use tokenizers::models::bpe::{BPE, BpeTrainer};

use super::{ENTRIES_MAX, alphabet, words};
use crate::Error;
use crate::sources::{Document, DocumentSource, Progress, next_batch};

/// Longer words (tables, rules of dashes, encoded data) teach nothing and cost much.
const WORD_BYTES_MAX: usize = 256;

/// The library counts pairs in 32 bits; with no more text than this no count can overflow.
const TEXT_BYTES_MAX: u64 = i32::MAX as u64;

/// Documents are counted in batches of about this much text.
const BATCH_BYTES: usize = 8 << 20;

type Counts = HashMap<String, u64>;

/// Trains a model of exactly `entries` entries; see [`super::Tokenizer::train`].
pub(super) fn train(
    documents: &mut impl DocumentSource,
    entries: usize,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<BPE, Error> {
    if !(256..=ENTRIES_MAX).contains(&entries) {
        return Err(Error::EntryCount { found: entries, most: ENTRIES_MAX });
    }
    let counts = count_words(documents, progress)?;
    let alphabet = (0..=u8::MAX).map(alphabet::character).collect();
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(entries)
        .initial_alphabet(alphabet)
        .build();
    let spelled = counts
        .iter()
        .map(|(word, &count)| (alphabet::spell(word.as_bytes()).as_str().into(), count));
    let mut bpe = BPE::default();
    trainer
        .do_train(&spelled.collect(), &mut bpe)
        .map_err(|error| Error::Training { problem: error.to_string() })?;
    let found = bpe.get_vocab().len();
    if found != entries {
        return Err(Error::EntriesNotReached { expected: entries, found });
    }
    Ok(bpe)
}

/// How often each word occurs.
fn count_words(
    documents: &mut impl DocumentSource,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Counts, Error> {
    let mut counts = Counts::new();
    let mut total = Progress::default();
    loop {
        let batch = next_batch(documents, BATCH_BYTES)?;
        if batch.is_empty() {
            break;
        }
        total.documents += batch.len() as u64;
        total.text_bytes += batch.iter().map(|document| document.text.len() as u64).sum::<u64>();
        if total.text_bytes > TEXT_BYTES_MAX {
            return Err(Error::TrainingTextTooLong { bytes_max: TEXT_BYTES_MAX });
        }
        count_batch(&batch, &mut counts);
        total.source = documents.progress();
        if progress(total).is_break() {
            return Err(Error::Stopped);
        }
    }
    if total.documents == 0 { Err(Error::EmptyCorpus) } else { Ok(counts) }
}

fn count_batch(batch: &[Document], counts: &mut Counts) {
    let per_thread = batch.len().div_ceil(rayon::current_num_threads());
    let parts: Vec<HashMap<&str, u64>> = batch
        .par_chunks(per_thread)
        .map(|documents| {
            let mut counts = HashMap::new();
            for word in documents.iter().flat_map(|document| words::words(&document.text)) {
                if word.len() <= WORD_BYTES_MAX {
                    *counts.entry(word).or_default() += 1;
                }
            }
            counts
        })
        .collect();
    for (word, count) in parts.into_iter().flatten() {
        match counts.get_mut(word) {
            Some(sum) => *sum += count,
            None => _ = counts.insert(word.to_owned(), count),
        }
    }
}
