//! The two ways out: data on standard output, text for people on standard error; and numbers as people read
//! them.

use std::fmt;
use std::io::{self, Write as _};

use anyhow::{Error, Result};
use serde_json::Value;

/// A mistake in how the program was called, which ends with exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Writes data to standard output, as it is.
pub fn data(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes a JSON value and a newline to standard output.
pub fn json(value: &Value) -> Result<()> {
    data(&format!("{value:#}\n"))
}

/// How to call this program, for what is proposed to be called next: as it was called itself where that was by a path, such
/// as cargo's, and by its name where a shell found it.
pub fn program() -> String {
    let called = std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned();
    if called.contains(std::path::MAIN_SEPARATOR) { called } else { "packed-adamw".into() }
}

/// Writes a line for people to standard error.
pub fn note(line: &str) {
    // There is nobody left to tell when this fails.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// What went wrong, and why, in one sentence. Many errors say themselves why, so a cause that was told is not told again.
pub fn sentence(error: &Error) -> String {
    let mut sentence = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !sentence.contains(&cause) {
            sentence.push_str(": ");
            sentence.push_str(&cause);
        }
    }
    sentence
}

/// Whether the error is that nobody reads standard output any more.
pub fn is_broken_pipe(error: &Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// A whole number with its thousands apart, such as `11,637,760`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of threads in words, such as `2 threads`.
pub fn threads(number: usize) -> String {
    if number == 1 { "1 thread".into() } else { format!("{number} threads") }
}

/// A number of bytes with a binary prefix, such as `44.4 MiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{number} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A duration in its two largest units, such as `1 h 04 min` or `12.3 s`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        3600..86400 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {:02} h", whole / 86400, whole % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 11_637_760].map(grouped), ["0", "999", "1,000", "11,637,760"]);
        assert_eq!(
            [0, 1023, 1024, 46_551_040].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "44.4 MiB"]
        );
        assert_eq!(
            [0.04, 59.0, 75.0, 3_840.0, 180_000.0].map(duration),
            ["0.0 s", "59.0 s", "1 min 15 s", "1 h 04 min", "2 d 02 h"]
        );
    }
}
