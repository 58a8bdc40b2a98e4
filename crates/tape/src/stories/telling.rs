//! Turns a plot into a story: draws a cast, walks through the beats, fills the slots.
//!
//! The language of the plots is explained in `plots`; here it is read. A mistake in a plot, such as
//! a slot that nobody fills, is our own and panics with the name of the plot; the tests tell every
//! line of every plot, so that no such mistake leaves the house.

use std::ops::RangeInclusive;

use super::Dice;
use super::grammar;
use super::lexicon::{Character, SETTINGS, Setting, Spot};
use super::plots::{PHRASES, PLOTS, Plot};

/// How long a story is. About one telling in 25 comes out longer, and another one is told.
const LENGTH_WORDS: RangeInclusive<usize> = 80..=160;

/// Tells one story, the one that these dice decide.
pub(super) fn tell(mut dice: Dice) -> String {
    loop {
        let plot = dice.pick(PLOTS);
        let cast = Cast::draw(plot, &mut dice);
        let mut teller = Teller { plot, cast, dice, page: String::with_capacity(1024) };
        teller.tell_plot();
        if LENGTH_WORDS.contains(&teller.page.split_ascii_whitespace().count()) {
            return teller.page;
        }
        dice = teller.dice;
    }
}

/// What stays the same from the first sentence of a story to the last.
struct Cast {
    hero: Character,
    friend: Character,
    setting: &'static Setting,
    /// Where most of it happens, and another spot of the same setting.
    spot: &'static Spot,
    far_spot: &'static Spot,
    /// The row that was drawn from each table of the plot.
    rows: Vec<&'static [&'static str]>,
}

impl Cast {
    fn draw(plot: &Plot, dice: &mut Dice) -> Self {
        let hero = pick_character(plot.heroes, dice);
        // Pronouns mean the hero; they are never those of the friend, which leaves no doubt.
        let friend = loop {
            let friend = pick_character(plot.friends, dice);
            if friend.pronouns != hero.pronouns {
                break friend;
            }
        };
        let setting = loop {
            let setting = dice.pick(SETTINGS);
            if setting.wild || !hero.is_animal {
                break setting;
            }
        };
        let spots = &setting.spots;
        let spot_index = dice.below(spots.len());
        let steps_away = 1 + dice.below(spots.len() - 1);
        Self {
            hero,
            friend,
            setting,
            spot: &spots[spot_index],
            far_spot: &spots[(spot_index + steps_away) % spots.len()],
            rows: plot.tables.iter().map(|table| dice.pick(table.rows)).collect(),
        }
    }
}

fn pick_character(lists: &[&'static [Character]], dice: &mut Dice) -> Character {
    let characters = dice.pick(lists);
    dice.pick(characters)
}

/// A story in the making.
struct Teller {
    plot: &'static Plot,
    cast: Cast,
    dice: Dice,
    page: String,
}

impl Teller {
    fn tell_plot(&mut self) {
        for paragraph in self.plot.text.trim().split("\n\n") {
            let start = self.page.len();
            for beat in beats(paragraph) {
                if beat.optional && self.dice.below(2) == 0 {
                    continue;
                }
                if self.page.len() > start {
                    self.page.push(' ');
                }
                let way = self.dice.pick(&beat.ways);
                self.write(way);
            }
            self.page.push('\n');
        }
    }

    /// Writes template text: plain words, `{slots}` and `[one|other]` alternatives.
    fn write(&mut self, template: &'static str) {
        let mut rest = template;
        while let Some(mark) = rest.find(['{', '[']) {
            grammar::append(&mut self.page, &rest[..mark]);
            let (inside, after) = bracketed(&rest[mark..]);
            if rest[mark..].starts_with('{') {
                self.fill(inside);
            } else {
                let way = self.dice.pick(&alternatives(inside));
                self.write(way);
            }
            rest = after;
        }
        grammar::append(&mut self.page, rest);
    }

    /// Writes what a slot stands for. A capital first letter asks for one, and `.plural` for many.
    fn fill(&mut self, slot: &'static str) {
        let start = self.page.len();
        let name = slot.to_ascii_lowercase();
        if let Some(noun) = name.strip_suffix(".plural") {
            self.write(self.meaning(noun));
            grammar::pluralise_from(&mut self.page, start);
        } else if let Some(ways) = PHRASES.iter().find(|phrase| phrase.name == name) {
            let way = self.dice.pick(ways.ways);
            self.write(way);
        } else {
            self.write(self.meaning(&name));
        }
        if slot.starts_with(|c: char| c.is_ascii_uppercase()) {
            grammar::capitalise_from(&mut self.page, start);
        }
    }

    /// What a slot means throughout this story.
    fn meaning(&self, name: &str) -> &'static str {
        let Cast { hero, friend, setting, spot, far_spot, .. } = &self.cast;
        match name {
            "hero" => hero.name,
            "kind" => hero.kind,
            "home" => hero.home,
            "he" => hero.pronouns.he,
            "him" => hero.pronouns.him,
            "his" => hero.pronouns.his,
            "himself" => hero.pronouns.himself,
            "friend" => friend.name,
            "friend.kind" => friend.kind,
            "friend.home" => friend.home,
            "setting" => setting.phrase,
            "spot" => spot.name,
            "at_spot" => spot.at,
            "hidden" => spot.hidden,
            "far_spot" => far_spot.name,
            _ => self.cell(name).unwrap_or_else(|| {
                panic!("plot `{}` names the unknown slot {{{name}}}", self.plot.name)
            }),
        }
    }

    /// The cell of the drawn row under the column `name`.
    fn cell(&self, name: &str) -> Option<&'static str> {
        self.plot.tables.iter().zip(&self.cast.rows).find_map(|(table, row)| {
            table.columns.iter().position(|column| *column == name).map(|column| row[column])
        })
    }
}

/// One step of a plot and the ways to tell it.
struct Beat {
    optional: bool,
    ways: Vec<&'static str>,
}

/// The beats of a paragraph: a line each, with the lines behind it that begin with a slash.
fn beats(paragraph: &'static str) -> Vec<Beat> {
    let mut beats: Vec<Beat> = Vec::new();
    for line in paragraph.lines() {
        if let Some(way) = line.strip_prefix("/ ") {
            let beat = beats.last_mut().expect("a paragraph does not begin with another way");
            beat.ways.push(way);
        } else if let Some(way) = line.strip_prefix("? ") {
            beats.push(Beat { optional: true, ways: vec![way] });
        } else {
            beats.push(Beat { optional: false, ways: vec![line] });
        }
    }
    beats
}

/// Splits text that begins with a bracket into what the bracket holds and what follows it.
fn bracketed(text: &'static str) -> (&'static str, &'static str) {
    let mut depth = 0;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[1..index], &text[index + 1..]);
        }
    }
    panic!("a bracket of `{text}` is never closed");
}

/// The alternatives between the bars that are not inside further brackets.
fn alternatives(inside: &'static str) -> Vec<&'static str> {
    let mut ways = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    for (index, byte) in inside.bytes().enumerate() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'|' if depth == 0 => {
                ways.push(&inside[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    ways.push(&inside[start..]);
    ways
}
