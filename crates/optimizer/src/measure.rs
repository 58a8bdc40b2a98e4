//! What a state format keeps of moments, measured on an optimizer: bits, errors, the distance of levels, and where
//! second moments stall. For tables; training has no use for it.
//!
//! All of it is deterministic: numbers follow from a format alone, at the default bias.

use formats::Format;

use crate::{AdamW as _, CpuAdamW, DecodedMoments, Error, Group, Options, TensorSpec};

/// Elements whose bits are counted.
const COUNTED_ELEMENTS: usize = 1 << 20;
/// Elements of the other measurements.
const ELEMENTS: usize = 1 << 14;
/// The update that the moments are of.
const UPDATE: u64 = 10_000;
/// The shares of the second moment that survive an update, for which stalling is measured.
pub const BETAS2: [f64; 3] = [0.95, 0.99, 0.999];
/// The RMS beside which dead coordinates fade.
pub const LIVE_RMS: f64 = 1e-3;
/// The magnitudes of r, each with the decade below, at which errors are measured.
pub const MAGNITUDES: [f64; 3] = [1e-1, 1e-3, 1e-5];

/// What was measured of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FormatMeasures {
    /// Bits of state a parameter, of a tensor of 2^20.
    pub bits: f64,
    /// The root mean square of `(r' - r) / r` in a tensor whose r, evenly spread in their logarithms, lie between
    /// 1e-6 and 1e-1: in the decades below [`MAGNITUDES`].
    pub rms_errors: [f64; 3],
    /// The same of `(m' - m) / r`, for m of both signs up to r.
    pub first_errors: [f64; 3],
    /// By what share neighbouring r differ, the smallest and the largest, in a block that spans a factor of 100.
    pub steps: [f64; 2],
    /// For [`BETAS2`], the largest r beside an RMS of [`LIVE_RMS`] that in `1 / (1 - beta2)` updates without a
    /// gradient keeps nine tenths, where exact ones keep six; none if there is no such r above 1e-9.
    pub stalls: [Option<f64>; 3],
}

/// Measures a format.
///
/// # Errors
///
/// If the format has no optimizer with the usual hyperparameters.
pub fn measure(format: Format) -> Result<FormatMeasures, Error> {
    let counted = optimizer(format, COUNTED_ELEMENTS, 0.999)?;
    let (rms_errors, first_errors) = errors(format)?;
    let mut stalls = [None; 3];
    for (stall, beta2) in stalls.iter_mut().zip(BETAS2) {
        *stall = stall_below(format, beta2)?;
    }
    Ok(FormatMeasures {
        bits: counted.state_bytes() as f64 * 8.0 / COUNTED_ELEMENTS as f64,
        rms_errors,
        first_errors,
        steps: steps(format)?,
        stalls,
    })
}

fn optimizer(format: Format, length: usize, beta2: f64) -> Result<CpuAdamW, Error> {
    let group = Group { betas: [0.9, beta2], learning_rate: 0.0, format, ..Group::default() };
    CpuAdamW::new(&[TensorSpec::new("tensor", length, 0)], &[group], Options::default())
}

/// Numbers from 0 to 1, evenly spread however they are cut.
fn spread(index: usize) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    (index as f64 * GOLDEN).fract()
}

/// What is read back of moments that are stored.
fn stored(optimizer: &mut CpuAdamW, m: Vec<f32>, r: &[f64]) -> Result<DecodedMoments, Error> {
    let v = r.iter().map(|r| (r * r) as f32).collect();
    optimizer.set_moments(0, UPDATE, &DecodedMoments { m, v })?;
    optimizer.moments(0)
}

fn errors(format: Format) -> Result<([f64; 3], [f64; 3]), Error> {
    let mut optimizer = optimizer(format, ELEMENTS, 0.999)?;
    let r: Vec<f64> = (0..ELEMENTS).map(|index| 10f64.powf(-1.0 - 5.0 * spread(index))).collect();
    // Apart from how r is spread.
    let m: Vec<f64> = (0..ELEMENTS).map(|i| r[i] * (2.0 * spread(i * i % 65_537) - 1.0)).collect();
    let given = m.iter().map(|&m| m as f32).collect();
    let found = stored(&mut optimizer, given, &r)?;
    let error_in = |largest: f64, of: &dyn Fn(usize) -> f64| {
        let own = (0..ELEMENTS).filter(|&i| r[i] <= largest && r[i] > largest / 10.0);
        let (mut sum, mut count) = (0.0, 0);
        own.for_each(|index| {
            sum += of(index) * of(index);
            count += 1;
        });
        (sum / f64::from(count)).sqrt()
    };
    let rms = |i: usize| (f64::from(found.v[i]).sqrt() - r[i]) / r[i];
    let first = |i: usize| (f64::from(found.m[i]) - m[i]) / r[i];
    let errors_of = |of: &dyn Fn(usize) -> f64| MAGNITUDES.map(|largest| error_in(largest, of));
    Ok((errors_of(&rms), errors_of(&first)))
}

/// The smallest and the largest share by which neighbouring levels of r differ.
fn steps(format: Format) -> Result<[f64; 2], Error> {
    if let Some([_, second]) = format.lanes() {
        // A binade of as many steps; v as f32 makes finer ones of r.
        let step = 2f64.powi(-(second.number.fraction_bits() as i32));
        let half = if format == Format::Fp32 { 0.5 } else { 1.0 };
        return Ok([step * half / 2.0, step * half]);
    }
    let mut optimizer = optimizer(format, ELEMENTS, 0.999)?;
    let r: Vec<f64> = (0..ELEMENTS).map(|index| 10f64.powf(-2.0 - 2.0 * spread(index))).collect();
    let found = stored(&mut optimizer, vec![0.0; ELEMENTS], &r)?;
    let mut levels = found.v[..format.block_elements() as usize].to_vec();
    levels.retain(|&v| v > 0.0);
    levels.sort_by(f32::total_cmp);
    levels.dedup();
    let shares =
        levels.windows(2).map(|pair| (f64::from(pair[1]) / f64::from(pair[0])).sqrt() - 1.0);
    let ends = (f64::INFINITY, 0.0);
    let (low, high) = shares.fold(ends, |(low, high): (f64, f64), s| (low.min(s), high.max(s)));
    Ok([low, high])
}

/// See [`FormatMeasures::stalls`].
fn stall_below(format: Format, beta2: f64) -> Result<Option<f64>, Error> {
    // A dead coordinate among so many, of each of as many magnitudes in turn.
    const APART: usize = 64;
    let dead = |index: usize| index.is_multiple_of(APART);
    let magnitude = |index: usize| LIVE_RMS * 10f64.powf(-6.0 * spread(index / APART));
    let r: Vec<f64> =
        (0..ELEMENTS).map(|index| if dead(index) { magnitude(index) } else { LIVE_RMS }).collect();
    let mut optimizer = optimizer(format, ELEMENTS, beta2)?;
    let before = stored(&mut optimizer, vec![0.0; ELEMENTS], &r)?;
    let gradient = |index: usize| {
        let sign = if index.is_multiple_of(2) { 1.0 } else { -1.0 };
        if dead(index) { 0.0 } else { sign * LIVE_RMS as f32 }
    };
    let gradients: Vec<f32> = (0..ELEMENTS).map(gradient).collect();
    let mut parameters = vec![0.0; ELEMENTS];
    let updates = (1.0 / (1.0 - beta2)).round() as u64;
    for _ in 0..updates {
        optimizer.set_next_update()?;
        optimizer.step(&mut parameters, &gradients)?;
    }
    let after = optimizer.moments(0)?;
    let keeps = |index: &usize| {
        let (before, after) = (before.v[*index].sqrt(), after.v[*index].sqrt());
        dead(*index) && before > 0.0 && after >= 0.9 * before
    };
    // A few of many keep it by chance where codes are drawn: one in eight of a decade is no stall.
    let count = |low: f64, high: f64| {
        let own = || (0..ELEMENTS).filter(|&i| dead(i) && r[i] > low && r[i] <= high);
        (own().filter(keeps).count(), own().count())
    };
    let decade = 10f64.powf(0.25);
    let mut top = LIVE_RMS;
    while top > 1e-9 {
        let (kept, all) = count(top / decade, top);
        if all > 0 && 2 * kept > all {
            return Ok(Some(top));
        }
        top /= decade;
    }
    Ok(None)
}
