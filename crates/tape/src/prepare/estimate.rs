//! What a preparation would make, from a sample of its text.

use super::{BATCH_BYTES, PrepareOptions};
use crate::Error;
use crate::sources::{DocumentSource, next_batch};
use crate::tokenizer::Tokenizer;

/// What a preparation would make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Text that was encoded.
    pub sampled_bytes: u64,
    /// Whether that was all of it, so that the figures are exact.
    pub whole: bool,
    /// Bytes of text there are.
    pub text_bytes: f64,
    /// Documents.
    pub documents: f64,
    /// Tokens, ends of documents included.
    pub tokens: f64,
    /// Bytes of text per token.
    pub bytes_per_token: f64,
    /// Disk for tokens and byte lengths.
    pub disk_bytes: f64,
}

/// Encodes the first `sample_bytes` of text and takes the rest for alike: by the share of the stored bytes
/// that they took. Documents that would be left out as equal are counted; nothing is written.
///
/// # Errors
/// [`Error::EmptyCorpus`], and whatever reading the documents gives.
pub fn estimate(
    documents: &mut impl DocumentSource,
    tokenizer: &Tokenizer,
    options: &PrepareOptions,
    sample_bytes: u64,
) -> Result<Estimate, Error> {
    let (mut count, mut text_bytes, mut tokens) = (0_u64, 0_u64, 0_u64);
    let mut whole = false;
    while text_bytes < sample_bytes && !whole {
        let batch = next_batch(documents, BATCH_BYTES)?;
        whole = batch.is_empty();
        let texts: Vec<&str> = batch.iter().map(|document| document.text.as_str()).collect();
        let ids = tokenizer.encode_batch(&texts);
        count += batch.len() as u64;
        text_bytes += texts.iter().map(|text| text.len() as u64).sum::<u64>();
        tokens += ids.iter().map(|ids| ids.len() as u64 + 1).sum::<u64>();
    }
    if count == 0 {
        return Err(Error::EmptyCorpus);
    }
    let progress = documents.progress();
    let share = match progress.bytes_total {
        Some(total) if !whole => progress.bytes_read as f64 / (total as f64).max(1.0),
        _ => 1.0,
    };
    let scale = 1.0 / share.clamp(f64::MIN_POSITIVE, 1.0);
    let per_token = options.form.element.bytes() + size_of::<u16>();
    Ok(Estimate {
        sampled_bytes: text_bytes,
        whole,
        text_bytes: text_bytes as f64 * scale,
        documents: count as f64 * scale,
        tokens: tokens as f64 * scale,
        bytes_per_token: text_bytes as f64 / tokens as f64,
        disk_bytes: tokens as f64 * scale * per_token as f64,
    })
}
