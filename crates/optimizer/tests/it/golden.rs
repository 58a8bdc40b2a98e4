//! What the authority makes of a small model in every format, for tests in other languages: a hash of the parameters
//! after some updates, in `golden/updates.txt`. `UPDATE_GOLDEN=1` writes it anew.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use formats::Format;
use optimizer::{Instructions, Options};

use crate::pair::Setup;

const LENGTHS: [usize; 3] = [1200, 7, 5000];
const UPDATES: u32 = 5;

/// Number `index` of a sequence: from -1 to 1, the same in any language.
fn number(index: usize, salt: u32) -> f32 {
    let mixed =
        (index as u32).wrapping_add(salt.wrapping_mul(0x9E37_79B9)).wrapping_mul(2_654_435_761);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(2_246_822_519);
    (f64::from(mixed) / 2f64.powi(31) - 1.0) as f32
}

/// Fowler, Noll and Vo's hash, 1a, of 64 bits.
fn hash(numbers: impl Iterator<Item = f32>) -> u64 {
    let bytes = numbers.flat_map(f32::to_le_bytes);
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}

#[test]
fn a_small_model_in_every_format() {
    let mut text = String::new();
    for format in Format::ALL {
        let mut setup = Setup::of(format, &LENGTHS);
        setup.options = Options { clip_norm: Some(1.0), seed: 3, ..Options::default() };
        let mut pair = setup.build(Instructions::best());
        let elements = setup.elements();
        pair.parameters = (0..elements).map(|index| number(index, 0)).collect();
        let mut rest = &pair.parameters[..];
        for tensor in &mut pair.authority.tensors {
            let (own, later) = rest.split_at(tensor.parameters.len());
            tensor.parameters.copy_from_slice(own);
            rest = later;
        }
        for update in 1..=UPDATES {
            // The larger half of the gradients is a hundred times the smaller.
            let scale = |index: usize| if index.is_multiple_of(2) { 1e-2 } else { 1e-4 };
            let gradients: Vec<f32> =
                (0..elements).map(|index| number(index, update) * scale(index)).collect();
            pair.step(u64::from(update), &gradients);
        }
        let tensors = pair.authority.tensors.iter();
        let found = hash(tensors.flat_map(|tensor| tensor.parameters.iter().copied()));
        writeln!(text, "{} {found:016x}", format.name()).unwrap();
    }
    let folder = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/it/golden");
    let path = folder.join("updates.txt");
    if env::var("UPDATE_GOLDEN").is_ok_and(|value| value == "1") {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}
