//! What happens: the plots, each a page of text with slots and alternatives.
//!
//! To add a plot, write one more `Plot` in the file it fits and name it in `PLOTS`. Nothing else.
//! Its text is read like this:
//!
//! ```text
//! {opening}                                       a phrase of this file, told in one of its ways
//! {One_day}, {hero} found a {colour} {thing}.     a beat: always told, one line
//! / {He} owned a [big|small] {thing}.             another way to tell the beat above
//! ? {He} was very proud of it.                    a beat told in one story out of two
//!                                                 an empty line begins a new paragraph
//! "I want to see {him}," said {friend}.
//! ```
//!
//! | slot | stands for |
//! |---|---|
//! | `hero kind home` | the hero's name, kind ("girl", "baker", "fox") and kind of home |
//! | `he him his himself` | the hero's pronouns |
//! | `friend friend.kind friend.home` | the same for the second character |
//! | `setting` | where the story plays: "on a little green island" |
//! | `spot at_spot hidden` | a spot there ("mill"), at it, and hidden at it |
//! | `far_spot` | another spot of the setting |
//! | a column of a table | the cell of the row that was drawn for this story |
//! | a phrase | one of its ways, drawn anew each time |
//!
//! `{He}` is `{he}` with a capital, `{good.plural}` makes a noun plural, and "a" becomes "an" by
//! itself before a slot. "He" and "she" always mean the hero: the friend goes by name or kind, and
//! would have the other pronoun. So there is never a doubt who is meant, which a small model needs
//! even more than a reader does. For the same reason the hero's name is rare after the opening.
//! Pronouns of characters are always slots; a test forbids them in plain text.

mod at_home;
mod on_the_road;
mod outdoors;

use super::lexicon::{ANIMALS, CHILDREN, Character, GROWN_UPS, Table};

/// A plot and who may play in it.
#[derive(Debug)]
pub(super) struct Plot {
    pub name: &'static str,
    /// The lists from which the hero is drawn, each as likely as the others; so for the friend.
    pub heroes: &'static [&'static [Character]],
    pub friends: &'static [&'static [Character]],
    pub tables: &'static [&'static Table],
    pub text: &'static str,
}

/// A slot that several plots use and that is told in another way each time.
#[derive(Debug)]
pub(super) struct Phrase {
    pub name: &'static str,
    pub ways: &'static [&'static str],
}

/// All plots; each is as likely as the others.
pub(super) static PLOTS: &[&Plot] = &[
    &at_home::BROKEN,
    &at_home::SEED,
    &at_home::FEAST,
    &at_home::NOISE,
    &at_home::MUSIC,
    &outdoors::LOST,
    &outdoors::TREE,
    &outdoors::LITTLE_ONE,
    &outdoors::RACE,
    &outdoors::FEAR,
    &on_the_road::CART,
    &on_the_road::SHARE,
    &on_the_road::PARCEL,
    &on_the_road::STORM,
];

const EVERYONE: &[&[Character]] = &[CHILDREN, GROWN_UPS, ANIMALS];
const YOUNG: &[&[Character]] = &[CHILDREN, ANIMALS];
const TRADES_AND_ANIMALS: &[&[Character]] = &[GROWN_UPS, ANIMALS];

/// Phrases for every plot.
pub(super) static PHRASES: &[Phrase] = &[
    Phrase {
        name: "opening",
        ways: &[
            "Once upon a time, there was a {nature} {kind} named {hero}. {He} lived {setting}.",
            "Once there was a {nature} {kind} named {hero}, who lived {setting}.",
            "{hero} was a {nature} {kind} who lived {setting}.",
            "{Setting} lived a {nature} {kind} named {hero}.",
            "Long ago, a {nature} {kind} named {hero} lived {setting}.",
            "There was once a {kind} named {hero}. {He} was {nature}, and {he} lived {setting}.",
            "A {kind} named {hero} lived {setting}. {He} was very {nature}.",
            "This is the story of {hero}, a {nature} {kind} who lived {setting}.",
            "Have you heard of {hero}, the {nature} {kind}? {He} lived {setting}.",
            "{hero} lived in a [snug|tidy|cosy] {home} {setting}. {He} was a {nature} {kind}.",
            "Everyone knew {hero}, the {nature} {kind} who lived {setting}.",
            "\"Good morning, world!\" said {hero}, as always. {He} was a {nature} {kind} who lived {setting}.",
        ],
    },
    Phrase {
        name: "nature",
        ways: &[
            "[cheerful|curious|gentle|clever|quiet|kind|lively|merry|friendly|thoughtful|helpful|eager]",
        ],
    },
    Phrase {
        name: "one_day",
        ways: &[
            "one day",
            "one [bright|windy|cool|warm|grey|quiet|misty|fresh] [morning|afternoon]",
            "one [morning|day|afternoon] in [spring|summer|autumn]",
        ],
    },
    Phrase {
        name: "soon",
        ways: &["soon", "just then", "before long", "after a while", "a little later"],
    },
    Phrase {
        name: "sadly",
        ways: &[
            "{He} [felt very sad|wanted to cry|sat down and sighed|hung {his} head].",
            "\"Oh [dear|no]! What shall I do?\" {he} said.",
            "{He} did not know what to do.",
        ],
    },
    Phrase {
        name: "gladly",
        ways: &[
            "{He} was so [happy|glad] that {he} [danced|jumped|laughed out loud|began to sing].",
            "{He} [smiled|laughed] with joy.",
            "\"[Hurrah|How wonderful|Oh, thank you]!\" {he} [cried|called].",
        ],
    },
];
