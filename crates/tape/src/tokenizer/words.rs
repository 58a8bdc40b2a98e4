//! Text into words: the units inside which byte pairs merge.
//!
//! The split is GPT-2's. Its pattern ends in two alternatives for white space, the first with a
//! look-ahead, which says: of a run of white space before other text, the last character stays for
//! the next word. Here one run is matched as a whole and shortened afterwards, so the pattern is
//! free of look-ahead, runs in linear time on any input, and gives the same words.

use std::sync::LazyLock;

use regex::Regex;

static WORD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
        .expect("the pattern is constant and tested")
});

/// The words of `text`, in order. Put together they are the text.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut position = 0;
    std::iter::from_fn(move || {
        let found = WORD.find_at(text, position)?;
        let word = found.as_str();
        let mut end = found.end();
        if end < text.len() && word.ends_with(char::is_whitespace) {
            // Only a run of white space ends in white space; what follows it is something else.
            let last = word.char_indices().next_back().map_or(0, |(start, _)| start);
            if last > 0 {
                end = found.start() + last;
            }
        }
        let word = &text[position..end];
        position = end;
        Some(word)
    })
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
    use proptest::prelude::*;

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

    proptest! {
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
