//! How two runs of f32 numbers differ: bits, ulps, and where first.

/// Where two slices differ first, and by how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The position.
    pub index: usize,
    /// The number in the first slice.
    pub left: f32,
    /// The number in the second slice.
    pub right: f32,
    /// Their distance, see [`ulp_distance`].
    pub ulps: u32,
}

/// The first position where the bits of two slices differ. NaNs are equal when
/// their bits are; zeros of different sign are not.
///
/// # Panics
///
/// If the slices have different lengths.
#[must_use]
pub fn first_difference(left: &[f32], right: &[f32]) -> Option<Difference> {
    assert_eq!(left.len(), right.len(), "only slices of one length can be compared");
    let mut pairs = left.iter().zip(right).enumerate();
    pairs.find(|(_, (left, right))| left.to_bits() != right.to_bits()).map(
        |(index, (&left, &right))| Difference {
            index,
            left,
            right,
            ulps: ulp_distance(left, right),
        },
    )
}

/// How many f32 numbers lie from `left` to `right`, one end included: 0 for equal
/// numbers, 1 for neighbours. Both zeros count as one number. `u32::MAX` if one of
/// them is NaN and the bits differ.
#[must_use]
pub fn ulp_distance(left: f32, right: f32) -> u32 {
    if left.to_bits() == right.to_bits() {
        0
    } else if left.is_nan() || right.is_nan() {
        u32::MAX
    } else {
        ladder_position(left).abs_diff(ladder_position(right))
    }
}

/// The distance of two numbers in units of the f32 spacing at `magnitude`: for a
/// result of a sum that may cancel, where the terms set the scale of rounding.
///
/// Infinite if one of the two is not finite and they differ.
#[must_use]
pub fn ulps_at(magnitude: f32, left: f32, right: f32) -> f64 {
    if left.to_bits() == right.to_bits() {
        return 0.0;
    }
    let magnitude = magnitude.abs();
    let spacing = f64::from(magnitude.next_up()) - f64::from(magnitude);
    let distance = (f64::from(left) - f64::from(right)).abs();
    if distance.is_finite() { distance / spacing } else { f64::INFINITY }
}

/// The position of a number among all f32 numbers, zero at 0.
fn ladder_position(number: f32) -> i32 {
    let magnitude = (number.to_bits() & 0x7FFF_FFFF) as i32;
    if number.is_sign_negative() { -magnitude } else { magnitude }
}
