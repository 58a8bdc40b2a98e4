//! Codes with a scale for every block: 8 bits of bitsandbytes, 8 bits, 4 bits and fp8 of torchao.

use safetensors::tensor::Dtype;

use super::entries::Entries;
use crate::error::Error;

/// Entries of an 8-bit map, and of a 4-bit one.
const MAP_ENTRIES: [usize; 2] = [256, 16];
/// Sizes of blocks: of today, and of versions before 0.44.
const BITSANDBYTES_BLOCKS: [usize; 2] = [256, 2048];

/// A moment of bitsandbytes, `1` or `2`: codes of a map times the largest magnitude of a block, or f32.
pub(super) fn of_bitsandbytes(entries: &Entries<'_>, number: &str) -> Result<Vec<f32>, Error> {
    let state = format!("state{number}");
    if entries.dtype(&state)? != Dtype::U8 {
        return entries.numbers(&state);
    }
    let length = entries.length();
    let codes = entries.bytes(&state, &[Dtype::U8], length)?;
    let map = entries.numbers_of(&format!("qmap{number}"), MAP_ENTRIES[0])?;
    let absmax_entry = format!("absmax{number}");
    let absmax = entries.any_numbers(&absmax_entry)?;
    let fits = |block: &usize| length.div_ceil(*block) == absmax.len();
    let Some(block) = BITSANDBYTES_BLOCKS.into_iter().find(fits) else {
        let counts = BITSANDBYTES_BLOCKS.map(|block| length.div_ceil(block).to_string());
        let expected = format!("{} elements, one for a block", counts.join(" or "));
        return Err(entries.wrong(&absmax_entry, expected, absmax.len().to_string()));
    };
    let value = |(index, &code): (usize, &u8)| map[usize::from(code)] * absmax[index / block];
    Ok(codes.iter().enumerate().map(value).collect())
}

/// A moment of torchao: codes of a map of 256 or, two in a byte, of 16 entries, or E4M3 numbers; times the scale of
/// a block. Tensors that it keeps as they are have no codes.
pub(super) fn of_torchao(entries: &Entries<'_>, name: &str) -> Result<Vec<f32>, Error> {
    let of = |entry: &str| format!("{name}.{entry}");
    let codes_entry = of("codes");
    if !entries.has(&codes_entry) {
        return entries.numbers(name);
    }
    let (length, scale) = (entries.length(), entries.any_numbers(&of("scale"))?);
    if scale.is_empty() || !length.is_multiple_of(scale.len()) {
        let expected = format!("as many elements as {length} has blocks of one size");
        return Err(entries.wrong(&of("scale"), expected, scale.len().to_string()));
    }
    let block = length / scale.len();
    let values: Vec<f32> = if entries.dtype(&codes_entry)? == Dtype::F8_E4M3 {
        let codes = entries.bytes(&codes_entry, &[Dtype::F8_E4M3], length)?;
        codes.iter().map(|&code| e4m3(code)).collect()
    } else {
        let map = entries.any_numbers(&of("qmap"))?;
        if !MAP_ENTRIES.contains(&map.len()) {
            let expected = "a map of 256 or 16 entries".into();
            return Err(entries.wrong(&of("qmap"), expected, map.len().to_string()));
        }
        if map.len() == MAP_ENTRIES[0] {
            let codes = entries.bytes(&codes_entry, &[Dtype::U8], length)?;
            codes.iter().map(|&code| map[usize::from(code)]).collect()
        } else {
            if !length.is_multiple_of(2) {
                let expected = "an even number of elements in 4 bits".into();
                return Err(entries.wrong(&codes_entry, expected, length.to_string()));
            }
            let codes = entries.bytes(&codes_entry, &[Dtype::U8], length / 2)?;
            // The first of two is in the upper half.
            codes
                .iter()
                .flat_map(|&byte| [byte >> 4, byte & 15])
                .map(|c| map[usize::from(c)])
                .collect()
        }
    };
    Ok(values.iter().enumerate().map(|(index, value)| value * scale[index / block]).collect())
}

/// An E4M3 number without infinities.
fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * 2f32.powi(-9),
        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}
