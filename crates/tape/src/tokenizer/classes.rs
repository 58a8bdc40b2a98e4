//! What kind of character a character is, as far as splitting text into words asks.
//!
//! The kinds are Unicode's: letters `\p{L}`, numbers `\p{N}`, white space `\s`, and all others. The
//! tables are those of the `regex` crate, so the split is that of the pattern that it stands for.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// The kind of a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Other,
    Letter,
    Number,
    Space,
}

/// The kinds of the characters below 128.
static ASCII: [Kind; 128] = {
    let mut kinds = [Kind::Other; 128];
    let mut byte = 0;
    while byte < 128 {
        kinds[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Kind::Letter,
            b'0'..=b'9' => Kind::Number,
            b' ' | 0x09..=0x0D => Kind::Space,
            _ => Kind::Other,
        };
        byte += 1;
    }
    kinds
};

/// The kinds of all characters: one byte each, 1.1 MB, made at the first text beyond ASCII.
static ALL: LazyLock<Box<[Kind]>> = LazyLock::new(|| {
    let mut kinds = vec![Kind::Other; char::MAX as usize + 1];
    for (pattern, kind) in
        [(r"\p{L}", Kind::Letter), (r"\p{N}", Kind::Number), (r"\s", Kind::Space)]
    {
        let class = regex_syntax::parse(pattern).expect("the patterns are constant and tested");
        let HirKind::Class(Class::Unicode(class)) = class.kind() else {
            unreachable!("each pattern is one class")
        };
        for range in class.iter() {
            kinds[range.start() as usize..=range.end() as usize].fill(kind);
        }
    }
    kinds.into()
});

/// The kind of the character that begins at `position`, and its length in bytes.
///
/// # Panics
/// If no character begins there.
#[inline]
pub(super) fn at(text: &str, position: usize) -> (Kind, usize) {
    match ASCII.get(usize::from(text.as_bytes()[position])) {
        Some(&kind) => (kind, 1),
        None => beyond_ascii(text, position),
    }
}

#[cold]
fn beyond_ascii(text: &str, position: usize) -> (Kind, usize) {
    let character = text[position..].chars().next().expect("a character begins here");
    (ALL[character as usize], character.len_utf8())
}

/// The end of the run of characters of `kind` that begins at `position`, perhaps there.
#[inline]
pub(super) fn end_of_run(text: &str, mut position: usize, kind: Kind) -> usize {
    let bytes = text.as_bytes();
    while position < bytes.len() {
        let (found, length) = match ASCII.get(usize::from(bytes[position])) {
            Some(&found) => (found, 1),
            None => beyond_ascii(text, position),
        };
        if found != kind {
            break;
        }
        position += length;
    }
    position
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_the_regex_crate() {
        let is = |pattern: &str| regex::Regex::new(&format!("^{pattern}$")).expect("a pattern");
        let (letter, number, space) = (is(r"\p{L}"), is(r"\p{N}"), is(r"\s"));
        let mut buffer = [0; 4];
        for character in '\0'..=char::MAX {
            let text: &str = character.encode_utf8(&mut buffer);
            let (kind, length) = at(text, 0);
            assert_eq!(length, text.len());
            let expected = if letter.is_match(text) {
                Kind::Letter
            } else if number.is_match(text) {
                Kind::Number
            } else if space.is_match(text) {
                Kind::Space
            } else {
                Kind::Other
            };
            assert_eq!(kind, expected, "{character:?}");
        }
    }
}
