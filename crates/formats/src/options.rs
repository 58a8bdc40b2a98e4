//! The options of a format as text: `ustate1q:v_bits=3,block=256`.

use alloc::string::ToString;
use core::ops::RangeInclusive;

use crate::Error;

/// Reads a whole number.
pub(crate) fn whole(name: &str, value: &str) -> Result<u32, Error> {
    value.parse().map_err(|_| wrong(name, "a whole number below 2^32", value))
}

/// Reads a power of two in `range`, which is one of those below.
pub(crate) fn power_of_two(
    name: &str,
    value: &str,
    range: RangeInclusive<u32>,
) -> Result<u32, Error> {
    let expected = match (*range.start(), *range.end()) {
        (64, 4096) => "a power of two from 64 to 4096",
        (32, 1024) => "a power of two from 32 to 1024",
        (16, 256) => "a power of two from 16 to 256",
        _ => "a power of two in range",
    };
    let number = value.parse().ok().filter(|number: &u32| number.is_power_of_two());
    number.filter(|number| range.contains(number)).ok_or_else(|| wrong(name, expected, value))
}

/// The complaint about a value.
pub(crate) fn wrong(name: &str, expected: &'static str, found: &str) -> Error {
    Error::OptionValue { option: name.to_string(), expected, found: found.to_string() }
}
