//! The number formats as the design states them, in f64, from no code of the
//! crate: what every other module compares with.

use formats::{Bias, NumberFormat};

/// A minifloat by its three numbers.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    pub fraction_bits: u32,
    pub bias: i32,
    pub code_max: u32,
}

/// Biases that tests of whole code spaces run at: both ends, the default, and
/// some between.
pub const BIASES: [u32; 7] = [0, 7, 15, 16, 20, 24, 40];

/// The three 16-bit number formats at all of [`BIASES`], where they have one.
pub fn lanes() -> Vec<(NumberFormat, Bias, Definition)> {
    let mut lanes = vec![(NumberFormat::Binary16, Bias::DEFAULT, Definition::new(10, 15, 0x7BFF))];
    for bias in BIASES {
        let checked = Bias::new(bias).unwrap();
        let bias = bias as i32;
        lanes.push((NumberFormat::E4M11, checked, Definition::new(11, bias, 0x7FFF)));
        lanes.push((NumberFormat::E4M12, checked, Definition::new(12, bias, 0xFFFF)));
    }
    lanes
}

impl Definition {
    pub fn new(fraction_bits: u32, bias: i32, code_max: u32) -> Definition {
        Definition { fraction_bits, bias, code_max }
    }

    /// The value of a code without sign.
    pub fn decode(self, code: u32) -> f64 {
        let fraction = f64::from(code & ((1 << self.fraction_bits) - 1));
        let exponent_field = (code >> self.fraction_bits) as i32;
        let units = 2f64.powi(self.fraction_bits as i32);
        if exponent_field == 0 {
            fraction / units * 2f64.powi(1 - self.bias)
        } else {
            (1.0 + fraction / units) * 2f64.powi(exponent_field - self.bias)
        }
    }

    /// The code nearest to a finite `x >= 0`, ties to even, and whether it had to
    /// be clamped.
    pub fn encode(self, x: f64) -> (u32, bool) {
        let (lower, rest) = self.split(x);
        let rounds_up = rest > 0.5 || (rest == 0.5 && lower % 2 == 1);
        let code = lower + u64::from(rounds_up);
        (code.min(self.code_max.into()) as u32, code > self.code_max.into())
    }

    /// The largest code, as if exponents had no end, whose value is at most `x`,
    /// and how far `x` lies towards the next one, from 0 to 1: both exact.
    pub fn split(self, x: f64) -> (u64, f64) {
        let subnormal_exponent = 1 - self.bias;
        let exponent = if x == 0.0 { i32::MIN } else { floor_log2(x) }.max(subnormal_exponent);
        let steps = x * 2f64.powi(self.fraction_bits as i32 - exponent);
        let binades_up = (exponent - subnormal_exponent) as u64;
        ((binades_up << self.fraction_bits) + steps.floor() as u64, steps.fract())
    }
}

/// `floor(log2(x))` of a normal f64.
fn floor_log2(x: f64) -> i32 {
    ((x.to_bits() >> 52) & 0x7FF) as i32 - 1023
}
