//! Sums and maxima over slices, in one fixed order that a vector unit can follow: sixteen running
//! values, element i in value i mod 16, folded in halves at the end. All are meant to be inlined
//! into a loop that runs under `simd::vector`.

use super::element::Element;

/// Running values of one sum; sixteen `f32` fill the widest vector register.
const LANES: usize = 16;

/// sum x.
#[inline(always)]
pub(super) fn sum<T: Element>(x: &[T]) -> T {
    sum_of(x, x, x, |x, _, _| x)
}

/// sum x y.
#[inline(always)]
pub(super) fn dot<T: Element>(x: &[T], y: &[T]) -> T {
    sum_of(x, y, y, |x, y, _| x * y)
}

/// sum f(x, y, z) over three slices of one length.
#[inline(always)]
pub(super) fn sum_of<T: Element>(x: &[T], y: &[T], z: &[T], f: impl Fn(T, T, T) -> T) -> T {
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    let (y_lanes, y_rest) = y.as_chunks::<LANES>();
    let (z_lanes, z_rest) = z.as_chunks::<LANES>();
    let mut sums = [T::ZERO; LANES];
    for ((x, y), z) in x_lanes.iter().zip(y_lanes).zip(z_lanes) {
        for lane in 0..LANES {
            sums[lane] += f(x[lane], y[lane], z[lane]);
        }
    }
    for (sum, ((&x, &y), &z)) in sums.iter_mut().zip(x_rest.iter().zip(y_rest).zip(z_rest)) {
        *sum += f(x, y, z);
    }
    fold(sums)
}

/// Replaces each x by f(x) and returns the sum of the new values.
#[inline(always)]
pub(super) fn map_and_sum<T: Element>(x: &mut [T], f: impl Fn(T) -> T) -> T {
    let (x_lanes, x_rest) = x.as_chunks_mut::<LANES>();
    let mut sums = [T::ZERO; LANES];
    for x in x_lanes {
        for lane in 0..LANES {
            x[lane] = f(x[lane]);
            sums[lane] += x[lane];
        }
    }
    for (sum, x) in sums.iter_mut().zip(x_rest) {
        *x = f(*x);
        *sum += *x;
    }
    fold(sums)
}

/// max x, passing over NaN; minus infinity for an empty slice.
#[inline(always)]
pub(super) fn maximum<T: Element>(x: &[T]) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    let mut largest = [T::NEGATIVE_INFINITY; LANES];
    for x in x_lanes {
        for lane in 0..LANES {
            largest[lane] = larger(largest[lane], x[lane]);
        }
    }
    let largest = largest.into_iter().fold(T::NEGATIVE_INFINITY, larger);
    x_rest.iter().copied().fold(largest, larger)
}

#[inline(always)]
fn fold<T: Element>(mut sums: [T; LANES]) -> T {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::{dot, map_and_sum, maximum, sum};
    use crate::cpu::element::Element;
    use crate::cpu::simd::vector;

    #[inline(always)]
    fn all<T: Element>(x: &[T], y: &mut [T]) -> [f64; 4] {
        let sums = [sum(x), dot(x, y), maximum(x), map_and_sum(y, Element::exp)];
        sums.map(Element::to_f64)
    }

    #[test]
    fn the_width_of_vectors_changes_no_bit() {
        for length in [0, 1, 15, 16, 17, 64, 1000, 1031] {
            let x: Vec<f32> = (0..length).map(|i| (i * i % 97) as f32 * 0.37 - 11.0).collect();
            let (mut narrow, mut wide) = (x.clone(), x.clone());
            let narrow_sums = all(&x, &mut narrow);
            let wide_sums = vector(
                #[inline(always)]
                || all(&x, &mut wide),
            );
            assert_eq!(narrow_sums, wide_sums, "{length} elements");
            assert_eq!(narrow, wide, "{length} elements");
        }
    }

    #[test]
    fn maximum_passes_over_nan() {
        let mut x = vec![f32::NAN; 40];
        assert_eq!(maximum(&x), f32::NEG_INFINITY);
        x[21] = -3.0;
        x[37] = -2.0;
        assert_eq!(maximum(&x), -2.0);
    }
}
