//! Sampling text from a network, token by token, with a key/value cache.

use formats::RandomStream;
use model::Decoder;
use model::ops::Operations;
use tape::tokenizer::Tokenizer;

use crate::error::Error;

/// How to sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Tokens at most, without the prompt.
    pub tokens: usize,
    /// Divides the logits; 0 always takes the likeliest token.
    pub temperature: f64,
    /// Only the `k` likeliest tokens are drawn from; 0 draws from all.
    pub top_k: usize,
    /// Seed of the draws. Draw `i` depends on nothing but the seed and `i`.
    pub seed: u64,
}

/// Samples a continuation of `prompt` and hands over what is drawn, without the prompt, piece by piece. Ends at an
/// end-of-document token, after [`Sampling::tokens`] tokens, when the context is full, or when `take` says no. Returns
/// the number of tokens drawn.
///
/// An empty prompt starts a new document.
///
/// # Errors
///
/// What the device refuses, and a prompt that fills the context.
pub fn sample<D: Operations>(
    decoder: &mut Decoder<D>,
    parameters: &D::Floats,
    tokenizer: &Tokenizer,
    prompt: &str,
    sampling: &Sampling,
    take: &mut dyn FnMut(&str) -> bool,
) -> Result<usize, Error> {
    check_prompt(prompt, tokenizer, decoder.config().context())?;
    decoder.reset();
    let mut shown = Shown::default();
    let mut next = tokenizer.end_of_document();
    let mut pick = Picker::new(sampling);
    let mut prompt = tokenizer.encode(prompt).into_iter();
    let mut drawn = 0;
    while decoder.position() < decoder.config().context() {
        let logits = decoder.step(parameters, next)?;
        if let Some(token) = prompt.next() {
            next = token;
            continue;
        }
        if drawn == sampling.tokens {
            break;
        }
        drawn += 1;
        next = pick.token(logits);
        if next == tokenizer.end_of_document() {
            break;
        }
        if !shown.push(next, tokenizer, take) {
            return Ok(drawn);
        }
    }
    shown.finish(take);
    Ok(drawn)
}

/// Whether a prompt leaves room for a token behind the end of document that it stands after.
///
/// # Errors
///
/// [`Error::PromptTooLong`] if it does not.
pub fn check_prompt(prompt: &str, tokenizer: &Tokenizer, context: usize) -> Result<(), Error> {
    let tokens = tokenizer.encode(prompt).len();
    if tokens < context { Ok(()) } else { Err(Error::PromptTooLong { tokens, context }) }
}

/// Text that was handed over, and bytes that are not yet a whole character.
#[derive(Default)]
struct Shown {
    pending: Vec<u8>,
}

impl Shown {
    fn push(
        &mut self,
        token: u32,
        tokenizer: &Tokenizer,
        take: &mut dyn FnMut(&str) -> bool,
    ) -> bool {
        // A model may have more rows than the tokenizer has ids; those stand for nothing.
        self.pending.extend_from_slice(tokenizer.token_bytes(token).unwrap_or_default());
        let whole = match std::str::from_utf8(&self.pending) {
            Ok(text) => text.len(),
            // An incomplete character at the end waits for its other bytes.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => self.pending.len(),
        };
        let bytes: Vec<u8> = self.pending.drain(..whole).collect();
        bytes.is_empty() || take(&String::from_utf8_lossy(&bytes))
    }

    fn finish(&mut self, take: &mut dyn FnMut(&str) -> bool) {
        if !self.pending.is_empty() {
            take(&String::from_utf8_lossy(&self.pending));
        }
    }
}

/// Draws tokens from logits.
struct Picker<'a> {
    sampling: &'a Sampling,
    stream: RandomStream,
    draws: u32,
    order: Vec<u32>,
    weights: Vec<f64>,
}

impl<'a> Picker<'a> {
    fn new(sampling: &'a Sampling) -> Self {
        // Sampling has no update and no tensor; these counters keep its words apart from all others.
        let stream = RandomStream::new(sampling.seed, u64::MAX, u32::MAX, u32::MAX);
        Self { sampling, stream, draws: 0, order: Vec::new(), weights: Vec::new() }
    }

    /// Draws from the softmax of `logits / temperature` over the `top_k` likeliest tokens. Equal logits
    /// count by their token id, so that the draw depends on nothing else.
    fn token(&mut self, logits: &[f32]) -> u32 {
        let logit = |token: u32| f64::from(logits[token as usize]);
        self.order.clear();
        self.order.extend(0..logits.len() as u32);
        self.order.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)).then(a.cmp(&b)));
        if self.sampling.temperature == 0.0 {
            return self.order[0];
        }
        if self.sampling.top_k > 0 {
            self.order.truncate(self.sampling.top_k);
        }
        let largest = logit(self.order[0]);
        self.weights.clear();
        let weight = |&token: &u32| ((logit(token) - largest) / self.sampling.temperature).exp();
        self.weights.extend(self.order.iter().map(weight));
        let mut left = self.uniform() * self.weights.iter().sum::<f64>();
        for (&token, &weight) in self.order.iter().zip(&self.weights) {
            left -= weight;
            if left < 0.0 {
                return token;
            }
        }
        self.order[self.order.len() - 1]
    }

    /// A uniform number in `[0, 1)`.
    fn uniform(&mut self) -> f64 {
        let word = self.stream.word(self.draws);
        self.draws += 1;
        f64::from(word) / 4_294_967_296.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(temperature: f64, top_k: usize, seed: u64, logits: &[f32], count: usize) -> Vec<u32> {
        let sampling = Sampling { tokens: count, temperature, top_k, seed };
        let mut picker = Picker::new(&sampling);
        (0..count).map(|_| picker.token(logits)).collect()
    }

    #[test]
    fn temperature_zero_takes_the_likeliest_and_the_first_of_equals() {
        assert_eq!(draw(0.0, 0, 1, &[0.0, 3.0, 3.0, 1.0], 3), [1, 1, 1]);
    }

    #[test]
    fn top_k_draws_from_no_other_token() {
        let drawn = draw(1.0, 2, 5, &[0.0, 0.1, 0.2, 0.3], 500);
        assert!(drawn.iter().all(|&token| token >= 2));
        assert!(drawn.contains(&2) && drawn.contains(&3));
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0, f32::ln(3.0)];
        let ones = draw(1.0, 0, 7, &logits, 20_000).iter().filter(|&&token| token == 1).count();
        // 15,000 expected; five standard deviations are 306.
        assert!(ones.abs_diff(15_000) < 306, "{ones}");
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let logits = [0.5, 0.4, 0.3, 0.2, 0.1];
        assert_eq!(draw(1.0, 0, 9, &logits, 50), draw(1.0, 0, 9, &logits, 50));
        assert_ne!(draw(1.0, 0, 9, &logits, 50), draw(1.0, 0, 10, &logits, 50));
    }
}
