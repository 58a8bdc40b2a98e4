//! The byte alphabet: how a tokenizer file, which is text, names tokens that are bytes.
//!
//! Each byte has one character. The 188 visible characters of Latin-1 stand for themselves; the
//! other 68 bytes, in order, are the characters from U+0100 on. This is GPT-2's table, which all
//! byte-level tokenizer files share.

use std::collections::HashMap;
use std::sync::LazyLock;

static CHARACTERS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut beyond = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        visible @ (b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) => char::from(visible),
        _ => beyond.next().expect("there are far more characters than bytes"),
    })
});

static BYTES: LazyLock<HashMap<char, u8>> =
    LazyLock::new(|| (0..=u8::MAX).map(|byte| (character(byte), byte)).collect());

/// The character that stands for `byte`.
pub(super) fn character(byte: u8) -> char {
    CHARACTERS[usize::from(byte)]
}

/// The name of the token that is `bytes`.
pub(super) fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| character(byte)).collect()
}

/// The bytes of the token named `name`, or `None` if a character stands for no byte.
pub(super) fn unspell(name: &str) -> Option<Vec<u8>> {
    name.chars().map(|character| BYTES.get(&character).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_the_one_of_byte_level_tokenizers() {
        let ours: std::collections::HashSet<_> = (0..=u8::MAX).map(character).collect();
        let theirs = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert_eq!(ours, theirs.into_iter().collect());
        assert_eq!(spell(b" a\n\xC3\xA9"), "\u{120}a\u{10A}\u{C3}\u{A9}");
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(unspell(&spell(&all)), Some(all));
        assert_eq!(unspell("\u{200}"), None);
    }
}
