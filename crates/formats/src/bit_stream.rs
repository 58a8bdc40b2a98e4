//! Codes of a few bits in bytes: code i lies in the bits from `i * width` on of a stream whose first
//! bit is the lowest of its first byte.

/// Bytes of `count` codes of `width` bits.
#[must_use]
pub const fn bytes(count: u64, width: u32) -> u64 {
    (count * width as u64).div_ceil(8)
}

/// The code at `index`. Codes have at most 8 bits.
///
/// # Panics
///
/// If the stream ends before the code.
#[inline(always)]
#[must_use]
pub const fn get(stream: &[u8], index: usize, width: u32) -> u32 {
    let bit = index * width as usize;
    let (byte, shift) = (bit / 8, bit % 8);
    let low = stream[byte] as u32;
    let high = if shift + width as usize > 8 { stream[byte + 1] as u32 } else { 0 };
    ((low | high << 8) >> shift) & ((1 << width) - 1)
}

/// Overwrites the code at `index`.
///
/// # Panics
///
/// If the stream ends before the code.
pub const fn set(stream: &mut [u8], index: usize, width: u32, code: u32) {
    let bit = index * width as usize;
    let (byte, shift) = (bit / 8, bit % 8);
    let mask = ((1u32 << width) - 1) << shift;
    let bits = code << shift;
    stream[byte] = stream[byte] & !(mask as u8) | bits as u8;
    if shift + width as usize > 8 {
        stream[byte + 1] = stream[byte + 1] & !((mask >> 8) as u8) | (bits >> 8) as u8;
    }
}
