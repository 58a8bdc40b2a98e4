//! Text into words: the units inside which byte pairs merge.
//!
//! The split is GPT-2's, which is usually written as a pattern of alternatives, tried in order:
//!
//! ```text
//! 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//! ```
//!
//! Here it is a walk over the characters, one step a character, with the same words: a contraction;
//! else a run of letters, of numbers or of other visible characters, each with one space before it if
//! there is one; else a run of white space, whose last character stays for the next word where
//! visible text follows.

use super::classes::{self, Kind};

/// The words of `text`, in order. Put together they are the text.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut position = 0;
    std::iter::from_fn(move || {
        if position == text.len() {
            return None;
        }
        let start = position;
        position = end_of_word(text, start);
        Some(&text[start..position])
    })
}

/// Where the word that begins at `start` ends, which is after it.
///
/// # Panics
/// If `start` is not before the end of `text` and between two characters.
#[inline]
pub(super) fn end_of_word(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    let (kind, length) = classes::at(text, start);
    match kind {
        Kind::Other => {
            let contraction =
                if bytes[start] == b'\'' { contraction(&bytes[start + 1..]) } else { 0 };
            if contraction > 0 {
                return start + 1 + contraction;
            }
            classes::end_of_run(text, start + length, kind)
        }
        Kind::Letter | Kind::Number => classes::end_of_run(text, start + length, kind),
        Kind::Space => {
            let next = start + length;
            if bytes[start] == b' ' && next < bytes.len() {
                let (kind, length) = classes::at(text, next);
                if kind != Kind::Space {
                    return classes::end_of_run(text, next + length, kind);
                }
            }
            let end = classes::end_of_run(text, next, Kind::Space);
            if end == bytes.len() || end == next {
                return end;
            }
            let last = text[next..end].chars().next_back().expect("the run goes on after `next`");
            end - last.len_utf8()
        }
    }
}

/// The length of the contraction that begins after an apostrophe; 0 if there is none.
fn contraction(after: &[u8]) -> usize {
    match after {
        [b's' | b't' | b'm' | b'd', ..] => 1,
        [b'r', b'e', ..] | [b'v', b'e', ..] | [b'l', b'l', ..] => 2,
        _ => 0,
    }
}

/// `text` in pieces of about `piece_bytes` or more, cut only where a word ends whatever follows,
/// so that the words of the pieces are the words of the text.
///
/// Such a place is a space or line break after a visible ASCII character: no word goes on from
/// visible to white, and how a word matches never depends on the text before it.
pub(crate) fn pieces(text: &str, piece_bytes: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let bytes = rest.as_bytes();
        let is_cut = |&at: &usize| {
            matches!(bytes[at], b' ' | b'\n' | b'\r' | b'\t') && bytes[at - 1].is_ascii_graphic()
        };
        let cut = (piece_bytes.max(1)..bytes.len()).find(is_cut).unwrap_or(bytes.len());
        let (piece, after) = rest.split_at(cut);
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    fn split(text: &str) -> Vec<&str> {
        words(text).collect()
    }

    #[test]
    fn words_are_those_of_gpt2() {
        assert_eq!(
            split("It's  two\n\nlines, 42%!"),
            ["It", "'s", " ", " two", "\n", "\n", "lines", ",", " 42", "%!"]
        );
        assert_eq!(split("end   "), ["end", "   "]);
        assert_eq!(split(" \u{3000}x"), [" ", "\u{3000}", "x"]);
        assert_eq!(split(""), [""; 0]);
    }

    #[test]
    fn a_long_run_of_spaces_is_split_like_a_short_one() {
        let text = format!("{}x y", " ".repeat(3_000_000));
        let lengths: Vec<_> = words(&text).map(str::len).collect();
        assert_eq!(lengths, [2_999_999, 2, 2]);
    }

    /// The pattern itself, with white space shortened afterwards: `regex` has no look-ahead.
    fn of_pattern(text: &str) -> Vec<&str> {
        static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
                .expect("a pattern")
        });
        let mut position = 0;
        std::iter::from_fn(|| {
            let found = PATTERN.find_at(text, position)?;
            let mut end = found.end();
            if end < text.len() && found.as_str().ends_with(char::is_whitespace) {
                let last = found.as_str().char_indices().next_back().map_or(0, |(start, _)| start);
                end = if last > 0 { found.start() + last } else { end };
            }
            let word = &text[position..end];
            position = end;
            Some(word)
        })
        .collect()
    }

    proptest! {
        #[test]
        fn words_are_those_of_the_pattern(
            text in "(?s)[ \\n\\t'a-zRE0-9.\u{e9}\u{3000}\u{660}\u{85}]{0,60}|[ 'strevmld]{0,20}|.{0,60}",
        ) {
            prop_assert_eq!(split(&text), of_pattern(&text));
        }

        #[test]
        fn words_put_together_are_the_text(text in "(?s)[ \\n\\t'a-z0-9.\u{e9}\u{3000}]{0,60}|.{0,60}") {
            prop_assert_eq!(words(&text).collect::<String>(), text);
        }

        #[test]
        fn pieces_have_the_words_of_the_text(
            text in "(?s)[ \\n\\t'a-z0-9.\u{e9}\u{3000}]{0,200}|.{0,200}",
            piece_bytes in 1_usize..40,
        ) {
            let of_pieces: Vec<_> = pieces(&text, piece_bytes).flat_map(words).collect();
            prop_assert_eq!(of_pieces, split(&text));
        }
    }
}
