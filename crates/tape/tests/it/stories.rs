//! The stories as a reader sees them: the same for ever, and in good English.
//!
//! `UPDATE_GOLDEN=1` rewrites the golden file; read the difference before you keep it.

use std::collections::{HashMap, HashSet};

use tape::checksum::Checksum;
use tape::stories::{Stories, story};

/// How many stories the laws of English are held against.
const READ: usize = 5_000;

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphabetic() && c != '\'').filter(|word| !word.is_empty())
}

/// The sentences of a paragraph. A question or an exclamation in quotes goes on when a small
/// letter follows, as in `"Why?" asked Mira.`
fn sentences(paragraph: &str) -> Vec<&str> {
    let bytes = paragraph.as_bytes();
    let mut sentences = Vec::new();
    let mut start = 0;
    for (space, _) in paragraph.match_indices(' ') {
        let (quoted, last) = match &bytes[..space] {
            [.., last, b'"'] => (true, *last),
            [.., last] => (false, *last),
            [] => continue,
        };
        let goes_on = quoted && last != b'.' && bytes[space + 1].is_ascii_lowercase();
        if matches!(last, b'.' | b'!' | b'?') && !goes_on {
            sentences.push(&paragraph[start..space]);
            start = space + 1;
        }
    }
    sentences.push(&paragraph[start..]);
    sentences
}

#[test]
fn golden_stories_never_change() {
    let mut text = String::new();
    for (seed, index) in [(0, 0), (1, 0), (1, 1), (2_026, 1_000_000), (u64::MAX, u64::MAX)] {
        text += &format!("# seed {seed}, story {index}\n{}\n", story(seed, index));
    }
    let thousand: String = Stories::new(1).take(1_000).collect();
    text += "# seed 1, stories 0 to 999: bytes, SHA-256\n";
    text += &format!("{} {}\n", thousand.len(), Checksum::of(thousand.as_bytes()));

    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let path = format!("{root}/tests/it/golden/stories.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap());
}

#[test]
fn random_access_equals_iteration() {
    for seed in [0, 1, 77, u64::MAX] {
        for (index, text) in (0..200).zip(Stories::new(seed)) {
            assert_eq!(text, story(seed, index));
        }
    }
}

#[test]
fn hardly_two_stories_are_alike() {
    let of_many_seeds: HashSet<String> = (0..10_000).map(|seed| story(seed, 0)).collect();
    assert!(of_many_seeds.len() > 9_990, "{} of 10000 seeds differ", of_many_seeds.len());
    let of_one_seed: HashSet<String> = Stories::new(0).take(10_000).collect();
    assert!(of_one_seed.len() > 9_990, "{} of 10000 stories differ", of_one_seed.len());
    assert!(of_one_seed.intersection(&of_many_seeds).count() < 20);
}

#[test]
fn lengths_keep_their_bounds() {
    for text in Stories::new(11).take(READ) {
        let count = text.split_whitespace().count();
        assert!((80..=160).contains(&count), "{count} words: {text}");
        assert!((2..=5).contains(&text.lines().count()), "{text}");
        assert!(text.is_ascii() && text.ends_with('\n') && !text.contains("\n\n"), "{text}");
    }
}

#[test]
fn the_vocabulary_is_small() {
    let all: String = Stories::new(12).take(10_000).collect();
    let distinct: HashSet<String> = words(&all).map(str::to_ascii_lowercase).collect();
    assert!((600..=1_200).contains(&distinct.len()), "{} distinct words", distinct.len());
}

#[test]
fn sentences_are_whole_and_short() {
    let mut lengths = Vec::new();
    for text in Stories::new(13).take(READ) {
        for sentence in text.lines().flat_map(sentences) {
            let first = sentence.trim_start_matches('"').bytes().next();
            assert!(first.is_some_and(|b| b.is_ascii_uppercase()), "`{sentence}` in: {text}");
            let last = sentence.trim_end_matches('"').bytes().last();
            assert!(matches!(last, Some(b'.' | b'!' | b'?')), "`{sentence}` in: {text}");
            lengths.push(words(sentence).count());
        }
    }
    lengths.sort_unstable();
    let (median, longest) = (lengths[lengths.len() / 2], lengths[lengths.len() - 1]);
    assert!((5..=14).contains(&median), "median {median} words");
    assert!(longest <= 30, "longest {longest} words");
}

#[test]
fn quotation_marks_open_and_close() {
    for text in Stories::new(14).take(READ) {
        for paragraph in text.lines() {
            let mut open = false;
            for (at, _) in paragraph.match_indices('"') {
                let before = paragraph[..at].bytes().last();
                let after = paragraph[at + 1..].bytes().next();
                if open {
                    assert!(matches!(before, Some(b'.' | b',' | b'!' | b'?')), "{paragraph}");
                    assert!(matches!(after, None | Some(b' ')), "{paragraph}");
                } else {
                    assert!(matches!(before, None | Some(b' ')), "{paragraph}");
                    assert!(after.is_some_and(|b| b.is_ascii_alphabetic()), "{paragraph}");
                }
                open = !open;
            }
            assert!(!open, "{paragraph}");
        }
    }
}

#[test]
fn nothing_is_doubled_or_left_over() {
    for text in Stories::new(15).take(READ) {
        for mark in ["  ", " .", " ,", " \n", "..", ",,", ",.", "{", "}", "[", "]", "|", "/"] {
            assert!(!text.contains(mark), "`{mark}` in: {text}");
        }
        let tokens: Vec<String> = text.split_whitespace().map(str::to_ascii_lowercase).collect();
        for pair in tokens.windows(2) {
            let second = pair[1].trim_end_matches(|c: char| !c.is_ascii_alphabetic());
            assert_ne!(pair[0], second, "{text}");
        }
    }
}

#[test]
fn articles_follow_the_sound() {
    // No word of the stories has a silent h or a vowel that sounds like a consonant.
    for text in Stories::new(16).take(READ) {
        let all: Vec<&str> = words(&text).collect();
        for pair in all.windows(2) {
            let vowel = pair[1].to_ascii_lowercase().starts_with(['a', 'e', 'i', 'o', 'u']);
            match pair[0] {
                "a" | "A" => assert!(!vowel, "`{} {}` in: {text}", pair[0], pair[1]),
                "an" | "An" => assert!(vowel, "`{} {}` in: {text}", pair[0], pair[1]),
                _ => {}
            }
        }
    }
}

#[test]
fn pronouns_agree_with_the_hero_throughout() {
    let texts: Vec<String> = Stories::new(17).take(READ).collect();
    let named = texts.iter().flat_map(|text| text.split(" named ").skip(1));
    let names: HashSet<&str> = named.filter_map(|rest| words(rest).next()).collect();

    let mut is_she: HashMap<&str, bool> = HashMap::new();
    for text in &texts {
        let hero = words(text).find(|word| names.contains(word)).unwrap();
        let first = sentences(text)[0];
        for word in words(text) {
            let she = match word.to_ascii_lowercase().as_str() {
                "she" | "her" | "herself" => true,
                "he" | "him" | "his" | "himself" => false,
                "girl" if first.contains(" girl") => true,
                "boy" if first.contains(" boy") => false,
                _ => continue,
            };
            assert_eq!(*is_she.entry(hero).or_insert(she), she, "{hero}, `{word}` in: {text}");
        }
    }
    assert_eq!(is_she.len(), 24, "{is_she:?}");
}
