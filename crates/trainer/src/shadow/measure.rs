//! Sums over the elements of a tensor, from which errors and shares follow; sums of tensors add up.

use formats::{Bias, Format, Lane, Moment};
use optimizer::DecodedMoments;

use super::{ShadowFormat, ShadowRow};

/// What is compared in a tensor.
pub struct Seen<'a> {
    pub step: &'a [f32],
    pub shadow_step: &'a [f32],
    pub before: &'a DecodedMoments,
    pub after: &'a DecodedMoments,
    pub shadow_before: &'a DecodedMoments,
    pub shadow_after: &'a DecodedMoments,
}

/// Counted elements of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    /// Not 0 in f32.
    live: u64,
    subnormal: u64,
    saturated: u64,
    /// Changed in f32.
    changed: u64,
    /// Of these, left as they were.
    stalled: u64,
}

/// A sum of squares of values, and of the errors in them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Squares {
    values: f64,
    errors: f64,
}

/// Sums over elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    elements: u64,
    step: Squares,
    shadow_step: f64,
    product: f64,
    m: Squares,
    r: Squares,
    drift: f64,
    drifting: u64,
    counts: [Counts; 2],
    has_lanes: bool,
}

impl Squares {
    fn take(&mut self, value: f32, found: f32) {
        let (value, error) = (f64::from(value), f64::from(found) - f64::from(value));
        self.values += value * value;
        self.errors += error * error;
    }

    fn add(&mut self, other: Self) {
        self.values += other.values;
        self.errors += other.errors;
    }

    fn relative(self) -> f64 {
        ratio(self.errors, self.values).sqrt()
    }
}

impl Counts {
    fn take(
        &mut self,
        [before, after]: [f32; 2],
        [found_before, found]: [f32; 2],
        ends: Option<Ends>,
    ) {
        if after != 0.0 {
            self.live += 1;
        }
        if let Some(ends) = ends {
            self.subnormal += u64::from(after != 0.0 && found.abs() < ends.smallest_normal);
            self.saturated += u64::from(found.abs() >= ends.largest);
        }
        if before != after {
            self.changed += 1;
            self.stalled += u64::from(found_before == found);
        }
    }

    fn add(&mut self, other: Self) {
        self.live += other.live;
        self.subnormal += other.subnormal;
        self.saturated += other.saturated;
        self.changed += other.changed;
        self.stalled += other.stalled;
    }
}

/// The ends of the normal numbers of a lane, as the value that is compared: v where v is stored, r where r is.
#[derive(Clone, Copy)]
struct Ends {
    smallest_normal: f32,
    largest: f32,
}

impl Ends {
    fn of(lane: Lane, bias: Bias) -> Self {
        let number = lane.number;
        let ends = [number.smallest_normal(bias), number.largest(bias)];
        // Second moments are compared as RMS.
        let [smallest_normal, largest] =
            if lane.moment == Moment::Second { ends.map(f32::sqrt) } else { ends };
        Self { smallest_normal, largest }
    }
}

impl Sums {
    /// The sums of a tensor.
    pub fn of(seen: &Seen<'_>, format: Format, bias: Bias) -> Self {
        let lanes = format.lanes();
        let ends = |index: usize| lanes.map(|lanes| Ends::of(lanes[index], bias));
        let (m_ends, r_ends) = (ends(0), ends(1));
        let mut sums = Self {
            elements: seen.step.len() as u64,
            has_lanes: lanes.is_some(),
            ..Self::default()
        };
        for index in 0..seen.step.len() {
            let (step, found) = (seen.step[index], seen.shadow_step[index]);
            sums.step.take(step, found);
            sums.shadow_step += f64::from(found) * f64::from(found);
            sums.product += f64::from(step) * f64::from(found);

            let m = [seen.before.m[index], seen.after.m[index]];
            let found = [seen.shadow_before.m[index], seen.shadow_after.m[index]];
            sums.m.take(m[1], found[1]);
            sums.counts[0].take(m, found, m_ends);

            let r = [seen.before.v[index], seen.after.v[index]].map(f32::sqrt);
            let found = [seen.shadow_before.v[index], seen.shadow_after.v[index]].map(f32::sqrt);
            sums.r.take(r[1], found[1]);
            sums.counts[1].take(r, found, r_ends);
            if r[1] > 0.0 && found[1] > 0.0 {
                sums.drift += (f64::from(found[1]) / f64::from(r[1])).ln();
                sums.drifting += 1;
            }
        }
        sums
    }

    /// Adds the sums of another tensor of the same format.
    pub fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.step.add(other.step);
        self.shadow_step += other.shadow_step;
        self.product += other.product;
        self.m.add(other.m);
        self.r.add(other.r);
        self.drift += other.drift;
        self.drifting += other.drifting;
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts) {
            mine.add(theirs);
        }
    }

    /// What the sums say.
    pub fn row(&self, update: u64, fed: u64, shadow: &ShadowFormat, role: &str) -> ShadowRow {
        let share = |part: u64, all: u64| ratio(part as f64, all as f64);
        let of_lane = |share: f64| self.has_lanes.then_some(share);
        let [m, r] = self.counts;
        ShadowRow {
            update,
            fed,
            format: shadow.name.clone(),
            role: role.to_owned(),
            elements: self.elements,
            direction_error: self.step.relative(),
            direction_cosine: ratio(self.product, (self.step.values * self.shadow_step).sqrt()),
            m_error: self.m.relative(),
            r_error: self.r.relative(),
            r_drift: ratio(self.drift, self.drifting as f64),
            subnormal_m: of_lane(share(m.subnormal, m.live)),
            subnormal_r: of_lane(share(r.subnormal, r.live)),
            saturated_m: of_lane(share(m.saturated, self.elements)),
            saturated_r: of_lane(share(r.saturated, self.elements)),
            stalled_m: share(m.stalled, m.changed),
            stalled_r: share(r.stalled, r.changed),
        }
    }
}

/// A ratio; 0 of nothing.
fn ratio(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(m: &[f32], r: &[f32]) -> DecodedMoments {
        DecodedMoments { m: m.to_vec(), v: r.iter().map(|r| r * r).collect() }
    }

    #[test]
    fn errors_and_shares_of_known_elements() {
        let bias = Bias::DEFAULT;
        let smallest = Format::E4.lanes().unwrap()[1].number.smallest_normal(bias);
        let (before, after) = (
            moments(&[0.0, 1.0, 2.0], &[1.0, 1.0, 1.0]),
            moments(&[3.0, 1.0, 4.0], &[2.0, 2.0, 1.0]),
        );
        let shadow_before = moments(&[0.0, 1.0, 2.0], &[1.0, 1.0, 1.0]);
        let shadow_after = moments(&[3.0, 1.0, 2.0], &[2.0, 1.0, smallest / 2.0]);
        let seen = Seen {
            step: &[3.0, 0.0, 4.0],
            shadow_step: &[3.0, 0.0, 0.0],
            before: &before,
            after: &after,
            shadow_before: &shadow_before,
            shadow_after: &shadow_after,
        };
        let shadow = ShadowFormat::parse("e4").unwrap();
        let row = Sums::of(&seen, Format::E4, bias).row(10, 5, &shadow, "mlp");
        assert!((row.direction_error - 0.8).abs() < 1e-12);
        assert!((row.direction_cosine - 0.6).abs() < 1e-12);
        assert!((row.m_error - 2.0 / 26f64.sqrt()).abs() < 1e-12);
        // Two first moments changed and one stayed; two RMS changed and one stayed.
        assert_eq!((row.stalled_m, row.stalled_r), (0.5, 0.5));
        assert_eq!((row.subnormal_m, row.subnormal_r), (Some(0.0), Some(1.0 / 3.0)));
        assert_eq!(row.saturated_m, Some(1.0), "all are beyond the largest of bias 16");
        let mut twice = Sums::of(&seen, Format::E4, bias);
        twice.add(&Sums::of(&seen, Format::E4, bias));
        let twice = twice.row(10, 5, &shadow, "mlp");
        assert_eq!(twice.elements, 6);
        assert!((twice.direction_error - row.direction_error).abs() < 1e-12);
    }
}
