//! Laws of the word lists and of the plots, which only this module can see whole. What can be
//! read off the finished stories is tested from outside, in `tests/it/stories.rs`.

use std::collections::HashSet;

use super::lexicon::{ANIMALS, CHILDREN, Character, GROWN_UPS, SETTINGS, Table};
use super::plots::{PHRASES, PLOTS};
use super::{Dice, Stories, grammar};

/// Every template text of the plots with a name for messages.
fn templates() -> Vec<(&'static str, &'static str)> {
    let mut all = Vec::new();
    for plot in PLOTS {
        all.extend(
            plot.text.lines().map(|line| (plot.name, line.trim_start_matches(['?', '/', ' ']))),
        );
        for table in plot.tables {
            all.extend(table.rows.iter().flat_map(|row| row.iter()).map(|cell| (plot.name, *cell)));
        }
    }
    for phrase in PHRASES {
        all.extend(phrase.ways.iter().map(|way| (phrase.name, *way)));
    }
    all
}

/// The plain words of a template: what is left when slots and the marks of alternatives go.
fn literals(template: &'static str) -> Vec<&'static str> {
    let mut pieces = Vec::new();
    for (index, part) in template.split(['{', '}']).enumerate() {
        if index % 2 == 0 {
            pieces.extend(part.split(['[', '|', ']']).filter(|piece| !piece.trim().is_empty()));
        }
    }
    pieces
}

fn characters() -> impl Iterator<Item = &'static Character> {
    [CHILDREN, GROWN_UPS, ANIMALS].into_iter().flatten()
}

#[test]
fn every_table_is_a_rectangle_with_columns_of_its_own() {
    for plot in PLOTS {
        let mut columns = HashSet::new();
        for Table { columns: names, rows } in plot.tables {
            for name in *names {
                let slot = format!("{{{name}");
                assert!(columns.insert(*name), "plot `{}` has two columns `{name}`", plot.name);
                let is_used = plot.text.contains(&slot) || plot.text.contains(&capitalised(&slot));
                assert!(is_used, "plot `{}` never uses its column `{name}`", plot.name);
            }
            for row in *rows {
                assert_eq!(row.len(), names.len(), "plot `{}`, row {row:?}", plot.name);
            }
        }
    }
}

fn capitalised(text: &str) -> String {
    let mut text = text.to_owned();
    grammar::capitalise_from(&mut text, 0);
    text
}

#[test]
fn pronouns_stand_in_slots_only() {
    // So they agree with their character by construction.
    let pronouns = ["he", "him", "his", "himself", "she", "her", "hers", "herself"];
    for (name, template) in templates() {
        for piece in literals(template) {
            for word in piece.split(|c: char| !c.is_ascii_alphabetic()) {
                let word = word.to_ascii_lowercase();
                assert!(!pronouns.contains(&word.as_str()), "`{name}` says `{word}`: {template}");
            }
        }
    }
}

#[test]
fn names_are_unique_and_have_a_regular_possessive() {
    let mut seen = HashSet::new();
    for name in characters().map(|character| character.name) {
        assert!(seen.insert(name), "two characters are named {name}");
        assert!(!name.ends_with('s'), "{name}'s possessive is irregular");
    }
}

#[test]
fn every_word_is_told() {
    let told: String = Stories::new(5).take(30_000).collect();
    let told = told.to_ascii_lowercase();
    let is_told = |words: &str| told.contains(&words.to_ascii_lowercase());
    for (name, template) in templates() {
        for piece in literals(template) {
            let piece = piece.strip_suffix(" a ").unwrap_or(piece);
            assert!(is_told(piece), "`{name}` never tells `{piece}`");
        }
    }
    let people = characters().flat_map(|one| [one.name, one.kind, one.home]);
    let places = SETTINGS.iter().flat_map(|setting| {
        let spots = setting.spots.iter().flat_map(|spot| [spot.name, spot.at, spot.hidden]);
        spots.chain([setting.phrase])
    });
    for word in people.chain(places) {
        assert!(is_told(word), "`{word}` is never told");
    }
}

#[test]
fn dice_are_fair_and_start_anew_for_every_story() {
    let mut counts = [0_u32; 6];
    for index in 0..6_000 {
        counts[Dice::new(1, index).below(6)] += 1;
    }
    // Six standard deviations of a binomial count are 173.
    assert!(counts.iter().all(|count| count.abs_diff(1_000) < 173), "{counts:?}");
}
