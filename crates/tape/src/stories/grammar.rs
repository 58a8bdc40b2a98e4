//! The few rules of English that a template cannot spell out by itself.
//!
//! A template says `a {thing}`, `{He}` or `{fruit.plural}`; what these become depends on the word
//! that is drawn. The functions here work on the end of a page that is being written. They know
//! letters and words, and nothing of plots or characters.

/// Words that begin with a vowel letter and a consonant sound: "a useful rope".
const CONSONANT_SOUNDS: &[&str] = &["one", "once", "unicorn", "useful", "usual"];

/// Words that begin with a silent h: "an hour".
const SILENT_H: &[&str] = &["hour", "honest", "honour"];

/// Nouns whose plural follows no rule.
const IRREGULAR_PLURALS: &[(&str, &str)] =
    &[("mouse", "mice"), ("goose", "geese"), ("sheep", "sheep"), ("child", "children")];

/// Writes `words` at the end of `page`. If the page ends with the article "a" and the words begin
/// with a vowel sound, the article becomes "an".
pub(super) fn append(page: &mut String, words: &str) {
    if takes_an(words) && ends_with_article(page) {
        page.pop();
        page.push_str("n ");
    }
    page.push_str(words);
}

/// Makes the first letter from byte `start` on a capital, also behind an opening quotation mark.
pub(super) fn capitalise_from(page: &mut str, start: usize) {
    if let Some(offset) = page[start..].find(|c: char| c.is_ascii_alphabetic()) {
        let letter = start + offset;
        page[letter..=letter].make_ascii_uppercase();
    }
}

/// Turns the last word from byte `start` on, a singular noun, into its plural.
pub(super) fn pluralise_from(page: &mut String, start: usize) {
    let word_start = page[start..].rfind(' ').map_or(start, |space| start + space + 1);
    let plural = plural(&page[word_start..]);
    page.truncate(word_start);
    page.push_str(&plural);
}

/// Whether the article before `words` is "an".
pub(super) fn takes_an(words: &str) -> bool {
    let begins_with = |list: &[&str]| list.iter().any(|head| words.starts_with(head));
    match words.bytes().next() {
        Some(b'a' | b'e' | b'i' | b'o' | b'u') => !begins_with(CONSONANT_SOUNDS),
        Some(b'h') => begins_with(SILENT_H),
        _ => false,
    }
}

/// Whether the last word of `page` is the article "a" or "A", followed by a space.
fn ends_with_article(page: &str) -> bool {
    match page.as_bytes() {
        [.., before, b'a' | b'A', b' '] => !before.is_ascii_alphanumeric() && *before != b'\'',
        [b'a' | b'A', b' '] => true,
        _ => false,
    }
}

fn plural(noun: &str) -> String {
    if let Some((_, plural)) = IRREGULAR_PLURALS.iter().find(|(singular, _)| *singular == noun) {
        return (*plural).to_owned();
    }
    let hisses = ["s", "x", "z", "ch", "sh"].iter().any(|tail| noun.ends_with(tail));
    if hisses || ["potato", "tomato"].contains(&noun) {
        return format!("{noun}es");
    }
    if let Some(stem) = noun.strip_suffix('y')
        && !stem.ends_with(['a', 'e', 'o', 'u'])
    {
        return format!("{stem}ies");
    }
    if let Some(stem) = noun.strip_suffix("af") {
        return format!("{stem}aves");
    }
    format!("{noun}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn articles_follow_the_sound() {
        let with_article = |words| {
            let mut page = "It was a ".to_owned();
            append(&mut page, words);
            page
        };
        for words in ["otter", "old boat", "hour", "honest miller"] {
            assert_eq!(with_article(words), format!("It was an {words}"));
        }
        for words in ["fox", "useful rope", "house", "one-eyed cat"] {
            assert_eq!(with_article(words), format!("It was a {words}"));
        }
    }

    #[test]
    fn only_a_whole_word_is_an_article() {
        for page in ["Mira ", "Then the sea ", "Lena's a-"] {
            let mut told = page.to_owned();
            append(&mut told, "asked");
            assert_eq!(told, format!("{page}asked"));
        }
        let mut told = "A ".to_owned();
        append(&mut told, "otter");
        assert_eq!(told, "An otter");
    }

    #[test]
    fn plurals_follow_the_ending() {
        for (singular, expected) in [
            ("apple", "apples"),
            ("wild cherry", "wild cherries"),
            ("peach", "peaches"),
            ("fox", "foxes"),
            ("donkey", "donkeys"),
            ("loaf", "loaves"),
            ("field mouse", "field mice"),
            ("tomato", "tomatoes"),
        ] {
            let mut page = format!("ripe {singular}");
            pluralise_from(&mut page, 5);
            assert_eq!(page, format!("ripe {expected}"));
        }
    }

    #[test]
    fn capitals_skip_an_opening_quote() {
        let mut page = "so. \"come\"".to_owned();
        capitalise_from(&mut page, 4);
        assert_eq!(page, "so. \"Come\"");
    }
}
