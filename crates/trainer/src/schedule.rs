//! The learning rate as a function of progress.
//!
//! An update covers the span from `start` to `end` of the run, counted in updates or in tokens. The
//! rise is taken at the end of the span and the fall at its start, so the first update never has
//! learning rate zero, the peak is reached exactly at the end of the warm-up, and the last update
//! still moves. With a warm-up of 2 and 10 updates in all, a linear schedule gives
//! 1/2, 1, 1, 7/8, 6/8, ..., 1/8 of the peak.

/// The shape of a schedule after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Falls in a straight line from the peak to the final fraction.
    Linear,
    /// Falls along half a cosine from the peak to the final fraction.
    Cosine,
    /// Stays at the peak.
    Constant,
    /// Stays at the peak, then falls in a straight line over the last `decay` units.
    WarmupStableDecay {
        /// Length of the final fall, in the schedule's unit.
        decay: u64,
    },
}

/// What a schedule counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Updates.
    Updates,
    /// Training tokens.
    Tokens,
}

/// A learning-rate schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The peak learning rate.
    pub peak: f64,
    /// The shape after the warm-up.
    pub shape: Shape,
    /// What `warmup`, a shape's `decay` and the span of an update count.
    pub unit: Unit,
    /// Length of the linear rise from zero to the peak.
    pub warmup: u64,
    /// The learning rate that the fall tends to, as a fraction of the peak.
    pub final_fraction: f64,
}

/// The part of the run that one update covers, in the schedule's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Units done before the update.
    pub start: u64,
    /// Units done after it.
    pub end: u64,
    /// Units in the whole run.
    pub total: u64,
}

impl Schedule {
    /// The learning rate of the update that covers `span`.
    #[must_use]
    pub fn learning_rate(&self, span: Span) -> f64 {
        self.peak * self.fraction(span)
    }

    /// The fraction of the peak: `end / warmup` while rising; after that
    /// `final + (1 - final) * fall(x)`, where `x` in `[0, 1)` is the share of the fall that lies before
    /// the update.
    fn fraction(&self, span: Span) -> f64 {
        if span.start < self.warmup {
            return span.end.min(self.warmup) as f64 / self.warmup as f64;
        }
        let from = match self.shape {
            Shape::WarmupStableDecay { decay } => span.total.saturating_sub(decay).max(self.warmup),
            Shape::Linear | Shape::Cosine | Shape::Constant => self.warmup,
        };
        if span.start <= from {
            return 1.0;
        }
        // `from < start < total`, so the length of the fall is at least one unit.
        let x = (span.start - from) as f64 / (span.total - from) as f64;
        let height = match self.shape {
            Shape::Linear | Shape::WarmupStableDecay { .. } => 1.0 - x,
            Shape::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * x).cos()),
            Shape::Constant => 1.0,
        };
        self.final_fraction + (1.0 - self.final_fraction) * height
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fractions(shape: Shape, warmup: u64, total: u64) -> Vec<f64> {
        let schedule =
            Schedule { peak: 1.0, shape, unit: Unit::Updates, warmup, final_fraction: 0.0 };
        (0..total)
            .map(|start| schedule.learning_rate(Span { start, end: start + 1, total }))
            .collect()
    }

    #[test]
    fn linear_reaches_the_peak_and_never_zero() {
        let expected = [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125];
        assert_eq!(fractions(Shape::Linear, 2, 10), expected);
    }

    #[test]
    fn a_decay_of_zero_divides_by_nothing() {
        let shape = Shape::WarmupStableDecay { decay: 0 };
        assert_eq!(fractions(shape, 4, 6), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn warmup_stable_decay_falls_over_the_last_units() {
        let shape = Shape::WarmupStableDecay { decay: 4 };
        assert_eq!(fractions(shape, 2, 8), [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]);
    }

    #[test]
    fn a_warmup_longer_than_the_run_only_rises() {
        assert_eq!(fractions(Shape::Cosine, 8, 3), [0.125, 0.25, 0.375]);
    }

    #[test]
    fn cosine_is_half_way_down_in_the_middle() {
        let schedule = Schedule {
            peak: 2.0,
            shape: Shape::Cosine,
            unit: Unit::Tokens,
            warmup: 0,
            final_fraction: 0.5,
        };
        let middle = schedule.learning_rate(Span { start: 500, end: 510, total: 1000 });
        assert!((middle - 1.5).abs() < 1e-12, "{middle}");
    }

    #[test]
    fn constant_stays() {
        assert_eq!(fractions(Shape::Constant, 1, 3), [1.0, 1.0, 1.0]);
    }
}
