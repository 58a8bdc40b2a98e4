//! The fused multiply-add of f32, with or without the standard library.
//!
//! `x y + z` rounded once is exact arithmetic and so has the same bits everywhere. The standard library's
//! function becomes one instruction in code compiled for processors that have it; with the feature
//! `std` that is what the codecs call. Without, they call [`in_double`], some ten operations.

/// `x y + z`, rounded once to nearest, ties to even.
#[cfg(feature = "std")]
#[inline(always)]
#[must_use]
pub fn fused(x: f32, y: f32, z: f32) -> f32 {
    x.mul_add(y, z)
}

/// `x y + z`, rounded once to nearest, ties to even.
#[cfg(not(feature = "std"))]
#[inline(always)]
#[must_use]
pub const fn fused(x: f32, y: f32, z: f32) -> f32 {
    in_double(x, y, z)
}

/// The same by sums and one product of f64.
///
/// The product of two f32 is an f64. Its sum with z is rounded to odd: where it is not exact, its last bit
/// becomes 1. With 53 bits that rounds to f32, later, as the exact sum would.
#[inline]
#[must_use]
pub const fn in_double(x: f32, y: f32, z: f32) -> f32 {
    let (product, z) = (x as f64 * y as f64, z as f64);
    let sum = product + z;
    // What the sum lost, exactly.
    let of_z = sum - product;
    let error = (product - (sum - of_z)) + (z - of_z);
    let bits = sum.to_bits();
    if error == 0.0 || !sum.is_finite() || bits & 1 == 1 {
        return sum as f32;
    }
    let is_longer = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if is_longer { bits + 1 } else { bits - 1 }) as f32
}
