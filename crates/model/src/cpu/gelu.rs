//! GELU on the CPU, written with one exponential and one division: tanh u = 1 - 2 / (1 + exp(2 u))
//! turns x (1 + tanh u) / 2 into x sigmoid(2 u).

use super::simd::{Chunks, for_each, vector};
use super::{Cpu, Element};
use crate::Error;
use crate::ops::Gelu;
use crate::parts::Part;

/// Elements of one task.
const CHUNK: usize = 1 << 13;

/// sqrt(8 / pi): 2 u = SCALE (x + CUBIC x^3).
const SCALE: f64 = 1.595_769_121_605_730_7;
const CUBIC: f64 = 0.044_715;

impl<T: Element> Gelu for Cpu<T> {
    fn gelu_forward(&self, y: &mut Vec<T>, x: &Vec<T>, length: usize) -> Result<(), Error> {
        self.timed(Part::Gelu, || {
            for_each(Chunks::new(&mut y[..length], CHUNK), |index, y| {
                let x = &x[index * CHUNK..][..y.len()];
                vector(
                    #[inline(always)]
                    || {
                        for (y, &x) in y.iter_mut().zip(x) {
                            *y = x * sigmoid(x).0;
                        }
                    },
                );
            });
        })
    }

    fn gelu_backward(&self, gradient: &mut Vec<T>, x: &Vec<T>, length: usize) -> Result<(), Error> {
        self.timed(Part::Gelu, || {
            for_each(Chunks::new(&mut gradient[..length], CHUNK), |index, gradient| {
                let x = &x[index * CHUNK..][..gradient.len()];
                vector(
                    #[inline(always)]
                    || {
                        for (gradient, &x) in gradient.iter_mut().zip(x) {
                            let (s, rest, slope) = sigmoid(x);
                            *gradient *= s + x * s * rest * slope;
                        }
                    },
                );
            });
        })
    }
}

/// s = sigmoid(2 u), 1 - s, and the slope d(2 u) / dx. 1 - s is computed without cancellation.
#[inline(always)]
fn sigmoid<T: Element>(x: T) -> (T, T, T) {
    let (scale, cubic) = (T::from_f64(SCALE), T::from_f64(SCALE * CUBIC));
    let square = x * x;
    let twice_u = x * (scale + cubic * square);
    let slope = scale + T::from_f64(3.0 * SCALE * CUBIC) * square;
    let exponential = (-twice_u).exp();
    let s = T::ONE / (T::ONE + exponential);
    (s, exponential * s, slope)
}
