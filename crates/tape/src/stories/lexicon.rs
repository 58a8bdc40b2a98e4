//! Who may appear in a story and where it may happen: typed word lists.
//!
//! Words that belong together stand together, so that a story stays true to itself: a name comes
//! with its pronouns, an animal with its home, a spot with a place to hide something there, a
//! treasure with what one does with it. A new word is one line here and needs no other change.
//! What happens to whom is told in `plots`.

/// The words that stand for a character after the name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pronouns {
    pub he: &'static str,
    pub him: &'static str,
    pub his: &'static str,
    pub himself: &'static str,
    /// What a child with these pronouns is called.
    pub child: &'static str,
}

pub(super) const SHE: &Pronouns =
    &Pronouns { he: "she", him: "her", his: "her", himself: "herself", child: "girl" };
pub(super) const HE: &Pronouns =
    &Pronouns { he: "he", him: "him", his: "his", himself: "himself", child: "boy" };

/// Somebody with a name. The same characters come back in many stories and are always themselves:
/// one name, one kind, one set of pronouns. No name ends with s, so that possessives are regular.
#[derive(Clone, Copy, Debug)]
pub(super) struct Character {
    pub name: &'static str,
    pub pronouns: &'static Pronouns,
    /// The noun that says what the character is: "girl", "baker", "otter".
    pub kind: &'static str,
    /// The noun for where the character lives: "cottage", "burrow".
    pub home: &'static str,
    pub is_animal: bool,
}

const fn child(name: &'static str, pronouns: &'static Pronouns) -> Character {
    Character { name, pronouns, kind: pronouns.child, home: "house", is_animal: false }
}

const fn grown_up(
    name: &'static str,
    pronouns: &'static Pronouns,
    trade: &'static str,
) -> Character {
    Character { name, pronouns, kind: trade, home: "cottage", is_animal: false }
}

const fn animal(
    name: &'static str,
    pronouns: &'static Pronouns,
    kind: &'static str,
    home: &'static str,
) -> Character {
    Character { name, pronouns, kind, home, is_animal: true }
}

pub(super) const CHILDREN: &[Character] = &[
    child("Mira", SHE),
    child("Zoe", SHE),
    child("Ella", SHE),
    child("Priya", SHE),
    child("Tom", HE),
    child("Omar", HE),
    child("Leo", HE),
    child("Kofi", HE),
];

pub(super) const GROWN_UPS: &[Character] = &[
    grown_up("Nora", SHE, "carpenter"),
    grown_up("Amara", SHE, "doctor"),
    grown_up("Ruth", SHE, "sailor"),
    grown_up("Rosa", SHE, "painter"),
    grown_up("Otto", HE, "baker"),
    grown_up("Hugo", HE, "weaver"),
    grown_up("Ravi", HE, "gardener"),
    grown_up("Ivan", HE, "teacher"),
];

pub(super) const ANIMALS: &[Character] = &[
    animal("Hazel", SHE, "squirrel", "nest"),
    animal("Tansy", SHE, "rabbit", "burrow"),
    animal("Juniper", SHE, "otter", "den"),
    animal("Bramble", SHE, "bear", "cave"),
    animal("Rusty", HE, "fox", "den"),
    animal("Pip", HE, "hedgehog", "nest"),
    animal("Bruno", HE, "badger", "burrow"),
    animal("Tuck", HE, "beaver", "lodge"),
];

/// One place of a setting, always in the open air.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spot {
    /// Follows "the": "harbour".
    pub name: &'static str,
    /// Answers "where?": "at the harbour".
    pub at: &'static str,
    /// Where something small may lie hidden there: "behind a coil of rope".
    pub hidden: &'static str,
}

const fn spot(name: &'static str, at: &'static str, hidden: &'static str) -> Spot {
    Spot { name, at, hidden }
}

/// The region in which a whole story plays.
#[derive(Debug)]
pub(super) struct Setting {
    /// Answers "where did they live?".
    pub phrase: &'static str,
    /// Whether animals may live here.
    pub wild: bool,
    pub spots: [Spot; 4],
}

pub(super) static SETTINGS: &[&Setting] = &[
    &Setting {
        phrase: "in a small village by the sea",
        wild: false,
        spots: [
            spot("beach", "on the beach", "under a heap of shells"),
            spot("harbour", "at the harbour", "behind a coil of rope"),
            spot("lighthouse", "by the lighthouse", "on the lowest step"),
            spot("pier", "on the pier", "under a fishing net"),
        ],
    },
    &Setting {
        phrase: "beside a wide, slow river",
        wild: true,
        spots: [
            spot("bridge", "by the bridge", "between two stones"),
            spot("mill", "at the mill", "behind a sack of flour"),
            spot("meadow", "in the meadow", "in the tall grass"),
            spot("ferry", "at the ferry", "under an old bench"),
        ],
    },
    &Setting {
        phrase: "at the edge of a great forest",
        wild: true,
        spots: [
            spot("clearing", "in the clearing", "under a fern"),
            spot("stream", "by the stream", "among the reeds"),
            spot("old oak", "under the old oak", "between the roots"),
            spot("berry patch", "in the berry patch", "under a thorny bush"),
        ],
    },
    &Setting {
        phrase: "on a farm among green hills",
        wild: false,
        spots: [
            spot("hay field", "in the hay field", "under a bundle of hay"),
            spot("orchard", "in the orchard", "under a plum tree"),
            spot("pond", "by the pond", "behind a big stone"),
            spot("well", "by the well", "beside the bucket"),
        ],
    },
    &Setting {
        phrase: "in a busy little town",
        wild: false,
        spots: [
            spot("park", "in the park", "under a bench"),
            spot("square", "on the square", "beside the fountain"),
            spot("market", "at the market", "behind a row of baskets"),
            spot("town gate", "by the town gate", "in a dark corner"),
        ],
    },
    &Setting {
        phrase: "in a valley between two mountains",
        wild: true,
        spots: [
            spot("waterfall", "by the waterfall", "behind a wet rock"),
            spot("pine wood", "in the pine wood", "under a low branch"),
            spot("stone wall", "by the stone wall", "in a gap in the wall"),
            spot("spring", "by the spring", "on a bed of moss"),
        ],
    },
    &Setting {
        phrase: "on the shore of a clear lake",
        wild: true,
        spots: [
            spot("boathouse", "by the boathouse", "under an old boat"),
            spot("jetty", "on the jetty", "behind a wooden post"),
            spot("willow tree", "under the willow tree", "in a hollow trunk"),
            spot("sandy bay", "by the sandy bay", "between two rocks"),
        ],
    },
    &Setting {
        phrase: "on a little green island",
        wild: true,
        spots: [
            spot("windmill", "by the windmill", "behind a barrel"),
            spot("garden", "in the garden", "under a cabbage leaf"),
            spot("cliff", "on the cliff", "in a crack in the rock"),
            spot("landing place", "at the landing place", "under a pile of wood"),
        ],
    },
];

/// Words that are drawn together: one row for each story, one slot for each column.
#[derive(Debug)]
pub(super) struct Table {
    pub columns: &'static [&'static str],
    /// Every row is as long as `columns`. A cell may hold slots and alternatives of its own.
    pub rows: &'static [&'static [&'static str]],
}

pub(super) static COLOURS: Table = Table {
    columns: &["colour"],
    rows: &[&["red"], &["blue"], &["yellow"], &["green"], &["orange"], &["white"], &["purple"]],
};

/// Small things that one can love and lose; `enjoyed` goes with "all the way home".
pub(super) static TREASURES: Table = Table {
    columns: &["thing", "made", "enjoyed"],
    rows: &[
        &["whistle", "wooden", "blew it"],
        &["bell", "silver", "rang it"],
        &["key", "golden", "held it tight"],
        &["scarf", "woollen", "wore it"],
        &["hat", "straw", "wore it"],
        &["marble", "glass", "held it tight"],
        &["button", "copper", "held it tight"],
        &["feather", "long white", "waved it"],
        &["book", "picture", "hugged it"],
        &["horse", "toy", "carried it in {his} arms"],
        &["drum", "tin", "played it"],
        &["flute", "bamboo", "played it"],
        &["umbrella", "striped", "twirled it"],
        &["lantern", "paper", "swung it"],
        &["mirror", "round", "carried it with care"],
    ],
};
