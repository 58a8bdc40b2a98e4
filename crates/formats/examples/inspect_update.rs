//! One update of one parameter by hand: what the two moments are, what is stored of them, and what comes back.
//!
//! `cargo run -p formats --example inspect_update`

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use formats::{Bias, E4Word, Format, Moments, WordCodec as _};

const BETA1: f32 = 0.9;
const BETA2: f32 = 0.999;

fn main() {
    let codec = E4Word::new(Bias::DEFAULT);
    let mut word = 0; // A fresh state is all zero bits.
    println!(
        "{:>8} {:>12} {:>12} {:>10} {:>12} {:>12}",
        "gradient", "m", "r", "word", "m stored", "r stored"
    );
    for gradient in [0.02_f32, -0.01, 0.03, 0.0] {
        let before = codec.decode(word);
        let m = BETA1.mul_add(before.m, (1.0 - BETA1) * gradient);
        let v = BETA2.mul_add(before.r * before.r, (1.0 - BETA2) * gradient * gradient);
        let packed = codec.encode(Moments { m, r: v.sqrt() }, 0);
        let after = codec.decode(packed.word);
        println!(
            "{gradient:>8} {m:>12.4e} {:>12.4e} {:#010x} {:>12.4e} {:>12.4e}",
            v.sqrt(),
            packed.word,
            after.m,
            after.r
        );
        word = packed.word;
    }
    let bytes = Format::E4.state_bytes(1_000_000);
    println!(
        "a million parameters take {bytes} bytes of state; fp32 takes {}",
        Format::Fp32.state_bytes(1_000_000)
    );
}
