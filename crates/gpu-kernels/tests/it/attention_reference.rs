//! Causal attention in f64, and how far a device may be from it: each bound follows the roundings of
//! a precision through the formula, to first order.

use gpu_kernels::{AttentionShape, Precision};

/// What both passes give, and how far off each number may be.
pub struct Expected {
    pub out: Bounded,
    pub d_qkv: Bounded,
}

/// Numbers, and the largest error of each.
#[derive(Clone)]
pub struct Bounded {
    pub numbers: Vec<f64>,
    pub bounds: Vec<f64>,
}

impl Bounded {
    fn zeros(length: usize) -> Bounded {
        Bounded { numbers: vec![0.0; length], bounds: vec![0.0; length] }
    }

    fn add(&mut self, index: usize, number: f64, bound: f64) {
        self.numbers[index] += number;
        self.bounds[index] += bound;
    }

    /// The largest error, as a share of its bound. NaN is infinitely wrong.
    pub fn worst(&self, found: &[f32]) -> f64 {
        assert_eq!(found.len(), self.numbers.len());
        let shares =
            self.numbers.iter().zip(&self.bounds).zip(found).map(|((n, bound), &found)| {
                let share = (f64::from(found) - n).abs() / (bound + 1e-30);
                if share.is_nan() { f64::INFINITY } else { share }
            });
        shares.fold(0.0, f64::max)
    }

    /// The error of the whole, by root mean squares.
    pub fn relative(&self, found: &[f32]) -> f64 {
        let square = |x: f64| x * x;
        let off: f64 = self.numbers.iter().zip(found).map(|(n, &f)| square(n - f64::from(f))).sum();
        let whole: f64 = self.numbers.iter().map(|&n| square(n)).sum();
        (off / whole.max(1e-300)).sqrt()
    }
}

/// Roundings of a precision, relative.
struct Roundings {
    /// Of numbers in memory as they enter a product.
    input: f64,
    /// Of probabilities and their gradients as they enter one.
    middle: f64,
    /// Of results.
    output: f64,
    /// Of a sum in f32: to nearest, or toward zero on the tensor cores.
    sum: f64,
}

impl Roundings {
    fn of(precision: Precision) -> Roundings {
        let unit = 2f64.powi(-24);
        match precision {
            Precision::Fp32 => Roundings { input: 0.0, middle: 0.0, output: unit, sum: unit },
            // Upper bits count: what enters a product is rounded toward zero.
            Precision::Tf32 => {
                let cut = 2f64.powi(-10);
                Roundings { input: cut, middle: cut, output: unit, sum: 2.0 * unit }
            }
            Precision::Bf16 => {
                let half = 2f64.powi(-8);
                Roundings { input: 0.0, middle: half, output: half, sum: 2.0 * unit }
            }
        }
    }
}

/// Both passes, of inputs as the device has them.
pub fn expected(
    precision: Precision,
    shape: AttentionShape,
    qkv: &[f32],
    d_out: &[f32],
) -> Expected {
    let mut expected =
        Expected { out: Bounded::zeros(d_out.len()), d_qkv: Bounded::zeros(qkv.len()) };
    for window in 0..shape.batch {
        for head in 0..shape.heads {
            let mut pass = Head::new(precision, shape, (window, head), qkv, d_out);
            for t in 0..shape.time {
                pass.row(t, &mut expected);
            }
        }
    }
    // What is stored is rounded last.
    let output = Roundings::of(precision).output;
    for bounded in [&mut expected.out, &mut expected.d_qkv] {
        for (number, bound) in bounded.numbers.iter().zip(&mut bounded.bounds) {
            *bound += output * number.abs();
        }
    }
    expected
}

/// One head of one window.
struct Head<'a> {
    roundings: Roundings,
    shape: AttentionShape,
    window: usize,
    head: usize,
    qkv: &'a [f32],
    d_out: &'a [f32],
}

impl<'a> Head<'a> {
    fn new(
        precision: Precision,
        shape: AttentionShape,
        (window, head): (usize, usize),
        qkv: &'a [f32],
        d_out: &'a [f32],
    ) -> Head<'a> {
        Head { roundings: Roundings::of(precision), shape, window, head, qkv, d_out }
    }

    /// Where the third's channels of a row begin in `qkv`.
    fn third(&self, third: usize, t: usize) -> usize {
        let row = (self.window * self.shape.time + t) * 3 + third;
        row * self.shape.channels() + self.head * self.shape.head_size
    }

    fn qkv(&self, third: usize, t: usize) -> &'a [f32] {
        &self.qkv[self.third(third, t)..][..self.shape.head_size]
    }

    /// Adds what query t gives.
    fn row(&mut self, t: usize, expected: &mut Expected) {
        let Roundings { input, middle, output, sum } = self.roundings;
        let (size, scale) = (self.shape.head_size, 1.0 / (self.shape.head_size as f64).sqrt());
        let (depth, length) = (size as f64, (t + 2) as f64);
        let out_at = (self.window * self.shape.time + t) * self.shape.channels() + self.head * size;
        let d_out = &self.d_out[out_at..][..size];
        let q = self.qkv(0, t);

        let scores: Vec<(f64, f64)> = (0..=t).map(|u| dot(q, self.qkv(1, u), scale)).collect();
        let largest = scores.iter().map(|score| score.0).fold(f64::NEG_INFINITY, f64::max);
        let magnitude = scores.iter().map(|score| score.1).fold(0.0, f64::max);
        let total: f64 = scores.iter().map(|score| (score.0 - largest).exp()).sum();
        // A score is off by its products, and by the rounding of the shift below it.
        let of_score = magnitude * (2.0 * input + (depth + 6.0) * sum);
        let of_p = 2.0 * of_score + (length + 12.0) * sum;
        let p: Vec<f64> = scores.iter().map(|s| (s.0 - largest).exp() / total).collect();

        // The output.
        let mut out = vec![(0.0, 0.0); size];
        for (u, &p) in p.iter().enumerate() {
            for (out, &v) in out.iter_mut().zip(self.qkv(2, u)) {
                let product = p * f64::from(v);
                out.0 += product;
                out.1 += product.abs() * (of_p + middle + input + length * sum);
            }
        }
        for (d, out) in out.iter().enumerate() {
            expected.out.add(out_at + d, out.0, out.1);
        }

        // The gradients.
        let o: f64 = out.iter().zip(d_out).map(|(out, &g)| out.0 * f64::from(g)).sum();
        let of_o: f64 = out
            .iter()
            .zip(d_out)
            .map(|(out, &g)| {
                let of_out = out.1 + (output + depth * sum) * out.0.abs();
                of_out * f64::from(g).abs()
            })
            .sum();
        let rows = (self.shape.time - t) as f64 + length;
        for (u, &p) in p.iter().enumerate() {
            let (dp, dp_magnitude) = dot(d_out, self.qkv(2, u), 1.0);
            let ds = p * (dp - o) * scale;
            let of_dp = dp_magnitude * (2.0 * input + depth * sum);
            let of_ds = (ds.abs() * (of_p + middle + input + 4.0 * sum + rows * sum))
                + p * scale * (of_dp + of_o);
            let (at_q, at_k, at_v) = (self.third(0, t), self.third(1, u), self.third(2, u));
            for d in 0..size {
                let (q, k) = (f64::from(q[d]), f64::from(self.qkv[at_k + d]));
                let g = f64::from(d_out[d]);
                expected.d_qkv.add(at_q + d, ds * k, of_ds * k.abs());
                expected.d_qkv.add(at_k + d, ds * q, of_ds * q.abs());
                let of_product = of_p + middle + input + rows * sum;
                expected.d_qkv.add(at_v + d, p * g, (p * g).abs() * of_product);
            }
        }
    }
}

/// The product of two rows times a factor, and that of their magnitudes.
fn dot(a: &[f32], b: &[f32], factor: f64) -> (f64, f64) {
    let products = || a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b) * factor);
    (products().sum(), products().map(f64::abs).sum())
}
