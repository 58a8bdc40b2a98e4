//! Scoring a network on a tape: nats per token, perplexity and bits per byte.
//!
//! The tape is cut into windows of T tokens that do not overlap; each window starts without context. Every
//! token but the tape's first is a target exactly once. The last window may be shorter and the last batch
//! may have fewer windows; what is missing there counts for nothing.

use model::Gpt;
use model::ops::Operations;
use tape::reader::Tape;

use crate::batch::{Batch, Tokens, pieces};
use crate::error::Error;
use crate::world::World;

/// The score of a network on a tape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Summed next-token loss, in nats.
    pub nats: f64,
    /// Targets.
    pub tokens: u64,
    /// Source bytes that the targets stand for; absent without byte lengths.
    pub source_bytes: Option<u64>,
    /// Whether these are all targets of the tape.
    pub whole: bool,
}

impl Evaluation {
    /// Mean loss, in nats a token.
    #[must_use]
    pub fn loss_nats(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// `exp(mean loss)`.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.loss_nats().exp()
    }

    /// Summed loss in bits over source bytes; absent without byte lengths, or when there are no bytes.
    #[must_use]
    pub fn bpb(&self) -> Option<f64> {
        self.source_bytes.and_then(|bytes| bits_per_byte(self.nats, bytes))
    }
}

/// Nats to bits, over a number of bytes; nothing over no bytes.
#[must_use]
pub fn bits_per_byte(nats: f64, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| nats / std::f64::consts::LN_2 / bytes as f64)
}

/// The batch that `windows` windows are scored in, or a tape of any length, where a device wants more at once than `batch`
/// has; batches come out nearly even.
pub fn scoring_batch<D: Operations>(
    device: &D,
    batch: model::Batch,
    windows: Option<u64>,
) -> Option<model::Batch> {
    let rows = scoring_rows(device.scoring_tokens() / batch.time.max(1), windows);
    (rows > batch.rows).then_some(model::Batch { rows, ..batch })
}

/// Windows of a batch of at most `most`.
fn scoring_rows(most: usize, windows: Option<u64>) -> usize {
    match windows.and_then(|windows| usize::try_from(windows).ok()) {
        Some(windows) if most > 0 => windows.div_ceil(windows.div_ceil(most).max(1)),
        _ => most,
    }
}

/// Scores `gpt` with `parameters` on the first `windows` windows of `tape`, or all of it.
///
/// Ranks take batches in turn, and their losses are added in the order of batches, so that any number of them finds
/// the same.
///
/// After every batch, `go_on(windows done, windows in all)` is asked; when it says no, there is no
/// result. Ranks that share the work go on in any case.
///
/// # Errors
///
/// A tape without a single target or that has changed, and what the device refuses.
pub fn evaluate<D: Operations>(
    gpt: &mut Gpt<D>,
    parameters: &D::Floats,
    tape: &Tape,
    windows: Option<u64>,
    world: &World,
    go_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Option<Evaluation>, Error> {
    let time = gpt.batch().time as u64;
    let held = tape.len().saturating_sub(1);
    if held == 0 {
        return Err(Error::TapeTooShort { tape: tape.path().to_owned(), needed: 1, held });
    }
    let tokens = windows.map_or(held, |windows| held.min(windows.saturating_mul(time)));
    let mut batch = Batch::new(gpt.batch());
    let mut run = Tokens::default();
    let (share, mut own) = (world.share(), Vec::new());
    let all = pieces(0..tokens, batch.size());
    for piece in all.skip(share.rank).step_by(share.world_size) {
        let done = piece.end.div_ceil(time);
        run.read(tape, piece)?;
        batch.fill(&run);
        gpt.upload(&batch.tokens, &batch.targets, 0.0)?;
        gpt.forward(parameters)?;
        own.push(gpt.loss()?.nats);
        world.beat();
        if !go_on(done, tokens.div_ceil(time)) && world.is_alone() {
            return Ok(None);
        }
    }
    Ok(Some(Evaluation {
        nats: in_turn(&world.numbers(&own)?),
        tokens,
        source_bytes: tape.source_bytes_of(1..tokens + 1)?,
        whole: tokens == held,
    }))
}

/// The sum of numbers that were dealt out in turn, in their order.
fn in_turn(dealt: &[Vec<f64>]) -> f64 {
    let rounds = dealt.iter().map(Vec::len).max().unwrap_or(0);
    let round = |round: usize| dealt.iter().filter_map(move |own| own.get(round));
    (0..rounds).flat_map(round).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_windows_come_out_even() {
        for (most, windows, expected) in [
            (7, Some(64), 7),
            (7, Some(8), 4),
            (7, Some(7), 7),
            (7, Some(3), 3),
            (7, Some(0), 0),
            (7, None, 7),
            (0, Some(64), 0),
        ] {
            assert_eq!(scoring_rows(most, windows), expected, "{windows:?} by {most}");
        }
    }
}
