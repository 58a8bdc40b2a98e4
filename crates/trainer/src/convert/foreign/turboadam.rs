//! The state of turboadam 0.2: 2-bit codes of the normalised update about bf16 means, and second moments on grids
//! of logarithms between f16 endpoints; or either of them as f32.

use formats::bit_stream;
use formats::ustate::CODE_BITS;
use optimizer::DecodedMoments;
use safetensors::tensor::Dtype;

use super::entries::Entries;
use crate::error::Error;

/// Bits that a code of the second moment can have.
const V_BITS: [u64; 5] = [2, 3, 4, 6, 8];
/// Largest block.
const BLOCK_MAX: u64 = 1 << 20;

/// Both moments, of a state after `step` updates.
pub(super) fn decode(entries: &Entries<'_>, step: u64) -> Result<DecodedMoments, Error> {
    let v = if entries.has("v_state.indices") {
        second(entries)?
    } else {
        entries.numbers("exp_avg_sq")?
    };
    let m = if entries.has("ustate.codes") {
        first(entries, &v, step)?
    } else {
        entries.numbers("exp_avg")?
    };
    Ok(DecodedMoments { m, v })
}

/// `v = exp(lo + k / (2^K - 1) * (hi - lo))`
fn second(entries: &Entries<'_>) -> Result<Vec<f32>, Error> {
    let length = entries.length();
    let block = block_size(entries, "v_state.block_size")?;
    let bits = entries.whole("v_state.n_bits")?;
    if !V_BITS.contains(&bits) {
        return Err(entries.wrong(
            "v_state.n_bits",
            format!("one of {V_BITS:?}"),
            bits.to_string(),
        ));
    }
    let blocks = length.div_ceil(block);
    let bytes = bit_stream::bytes((blocks * block) as u64, bits as u32) as usize;
    let codes = entries.bytes("v_state.indices", &[Dtype::U8], bytes)?;
    let endpoints = entries.numbers_of("v_state.scales", 2 * blocks)?;
    let value = |index: usize| {
        let (lo, hi) = (endpoints[2 * (index / block)], endpoints[2 * (index / block) + 1]);
        let code = bit_stream::get(codes, index, bits as u32);
        (lo + code as f32 / ((1 << bits) - 1) as f32 * (hi - lo)).exp()
    };
    Ok((0..length).map(value).collect())
}

/// `m = (mean + step_size (c - average of the block's c)) (1 - beta1^t) (sqrt(v) / sqrt(1 - beta2^t) + eps)`
fn first(entries: &Entries<'_>, v: &[f32], step: u64) -> Result<Vec<f32>, Error> {
    let length = entries.length();
    let storage = block_size(entries, "ustate.storage_block_size")?;
    let block = block_size(entries, "ustate.mean_block_size")?;
    let bytes = bit_stream::bytes((length.div_ceil(storage) * storage) as u64, CODE_BITS) as usize;
    let codes = entries.bytes("ustate.codes", &[Dtype::U8], bytes)?;
    let means = entries.numbers_of("ustate.means", length.div_ceil(block))?;
    let scale = entries.number("ustate.decode_step")? as f32;
    let [beta1, beta2] = betas(entries)?;
    let eps = entries.number("eps")? as f32;
    let power = i32::try_from(step).unwrap_or(i32::MAX);
    let correction = (1.0 - beta1.powi(power)) as f32;
    let root = (1.0 - beta2.powi(power)).sqrt() as f32;
    let mut m = vec![0.0; length];
    if step == 0 {
        return Ok(m);
    }
    for (number, own) in m.chunks_mut(block).enumerate() {
        let start = number * block;
        let raw = |offset: usize| {
            (bit_stream::get(codes, start + offset, CODE_BITS) as f32 - 1.5) * scale
        };
        let average = (0..own.len()).map(raw).sum::<f32>() / own.len() as f32;
        for (offset, m) in own.iter_mut().enumerate() {
            let q = means[number] + raw(offset) - average;
            *m = q * correction * (v[start + offset].max(0.0).sqrt() / root + eps);
        }
    }
    Ok(m)
}

fn betas(entries: &Entries<'_>) -> Result<[f64; 2], Error> {
    let numbers = [entries.number("beta1")?, entries.number("beta2")?];
    for (name, beta) in ["beta1", "beta2"].into_iter().zip(numbers) {
        if !(0.0..1.0).contains(&beta) {
            return Err(entries.wrong(name, "at least 0 and below 1".into(), beta.to_string()));
        }
    }
    Ok(numbers)
}

fn block_size(entries: &Entries<'_>, entry: &str) -> Result<usize, Error> {
    let size = entries.whole(entry)?;
    if size.is_power_of_two() && (4..=BLOCK_MAX).contains(&size) {
        return Ok(size as usize);
    }
    Err(entries.wrong(entry, format!("a power of two from 4 to {BLOCK_MAX}"), size.to_string()))
}
