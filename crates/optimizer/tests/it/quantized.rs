//! `quantized_adamw_step` against its formula in PyTorch, and its refusals.

use formats::dynamic_map::{signed, unsigned};
use formats::half_floats::bf16_to_f32;
use formats::{Format, Maps};
use optimizer::{Group, QuantizedMoment, quantized_adamw_step};

use crate::pair::group;

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn halves(hex: &str) -> Vec<u16> {
    bytes(hex).as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half)).collect()
}

fn floats(hex: &str) -> Vec<f32> {
    bytes(hex).as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

struct State {
    parameters: Vec<u16>,
    codes: [Vec<u8>; 2],
    absmax: [Vec<f32>; 2],
}

impl State {
    fn step(&mut self, gradients: &[u16], maps: &Maps, block: usize, group: &Group, update: u64) {
        let [m_codes, v_codes] = &mut self.codes;
        let [m_absmax, v_absmax] = &mut self.absmax;
        let first = QuantizedMoment { codes: m_codes, absmax: m_absmax };
        let second = QuantizedMoment { codes: v_codes, absmax: v_absmax };
        let by = (maps, block);
        quantized_adamw_step(&mut self.parameters, gradients, first, second, by, group, update)
            .unwrap();
    }
}

/// The formula in PyTorch takes other roundings by the way, so: parameters within an ulp of bf16 (one in
/// a thousand differs), absmaxes within some ulps of f32, codes but for moments that lie at a middle.
/// Every update begins from the golden state.
#[test]
fn it_agrees_with_the_formula() {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let path = format!("{root}/../reference/tests/it/golden/quantized-adamw-step.txt");
    let golden = std::fs::read_to_string(path).unwrap();
    let maps = Maps::plain(&signed(), &unsigned()).unwrap();
    let mut state =
        State { parameters: vec![], codes: Default::default(), absmax: Default::default() };
    let (mut block, mut settings) = (0, group(Format::E4));
    let (mut elements, mut differing_parameters, mut differing_codes) = (0, 0, 0);
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse::<f64>().unwrap();
        match fields[0] {
            "case" => {
                block = number(2) as usize;
                settings.learning_rate = number(3);
                settings.betas = [number(4), number(5)];
                (settings.eps, settings.weight_decay) = (number(6), number(7));
                let (length, blocks) = (number(1) as usize, (number(1) as usize).div_ceil(block));
                state.codes = [vec![127; length], vec![0; length]];
                state.absmax = [vec![0.0; blocks], vec![0.0; blocks]];
            }
            "start" => state.parameters = halves(fields[1]),
            _ => {
                state.step(&halves(fields[2]), &maps, block, &settings, number(1) as u64);
                let parameters = halves(fields[3]);
                elements += parameters.len();
                for (&found, &expected) in state.parameters.iter().zip(&parameters) {
                    assert!(found.abs_diff(expected) <= 1);
                    differing_parameters += usize::from(found != expected);
                }
                for (half, at) in [(0, 4), (1, 6)] {
                    let (codes, absmax) = (bytes(fields[at]), floats(fields[at + 1]));
                    for (&found, &expected) in state.codes[half].iter().zip(&codes) {
                        assert!(found.abs_diff(expected) <= 1);
                        differing_codes += usize::from(found != expected);
                    }
                    for (&found, &expected) in state.absmax[half].iter().zip(&absmax) {
                        assert!((found / expected - 1.0).abs() < 5e-7);
                    }
                    state.codes[half] = codes;
                    state.absmax[half] = absmax;
                }
                state.parameters = parameters;
            }
        }
    }
    println!("{differing_parameters} parameters and {differing_codes} codes of {elements} differ");
    assert!(elements > 10_000 && differing_parameters * 500 < elements);
    assert!(differing_codes * 500 < 2 * elements);
    assert!(bf16_to_f32(state.parameters[0]).is_finite());
}

#[test]
fn bad_input_is_refused() {
    let maps = Maps::plain(&signed(), &unsigned()).unwrap();
    let refused = |block: usize, codes: usize, absmax: usize, update: u64| {
        let (mut m, mut v) = (vec![0; codes], vec![0; 300]);
        let (mut a, mut b) = (vec![0.0; absmax], vec![0.0; 2]);
        let first = QuantizedMoment { codes: &mut m, absmax: &mut a };
        let second = QuantizedMoment { codes: &mut v, absmax: &mut b };
        let (by, group) = ((&*maps, block), group(Format::E4));
        quantized_adamw_step(&mut [0; 300], &[0; 300], first, second, by, &group, update)
            .unwrap_err()
            .to_string()
    };
    let block = "expected blocks of a power of two from 64 to 4096 elements, found 100";
    assert_eq!(refused(100, 300, 2, 1), block);
    let codes = "codes of the first moment: expected 300 elements, found 299";
    assert_eq!(refused(256, 299, 2, 1), codes);
    let absmax = "absmaxes of the first moment: expected 2 elements, found 3";
    assert_eq!(refused(256, 300, 3, 1), absmax);
    assert_eq!(refused(256, 300, 2, 0), "expected an update number from 1, found 0");
}
