//! Plots that play under the open sky: a lost treasure, a tree, a lost animal, a race, a fear.

use super::super::lexicon::{CHILDREN, COLOURS, GROWN_UPS, TREASURES, Table};
use super::{EVERYONE, Plot, YOUNG};

pub(super) static LOST: Plot = Plot {
    name: "the lost treasure",
    heroes: EVERYONE,
    friends: EVERYONE,
    tables: &[&TREASURES],
    text: r#"
{opening}
{He} had a {made} {thing} that {he} loved more than anything else.
/ {His} dearest treasure was a {made} {thing}.
/ {He} owned a {made} {thing}, a gift from {his} [grandmother|grandfather|aunt|uncle].
? {He} took it along wherever {he} went.
/ Every evening, {he} laid it beside {his} bed.

But {one_day}, the {thing} was gone.
/ {One_day}, {he} could not find the {thing}.
{He} looked [under the bed|behind the door|on every shelf] and [under the table|in every corner], but it was not there.
/ {He} searched the whole {home}, but the {thing} was not there.
? {sadly}
{Soon}, a {friend.kind} named {friend} came by. "Where did you have it last?" asked {friend}.
/ {He} told a {friend.kind} named {friend} about it. "Where did you have it last?" asked {friend}.
"Yesterday I was {at_spot}," {he} said. "Then let us look there," said {friend}.
/ "I think I had it {at_spot}," {he} said. "Come, I will help you look," said {friend}.

They went to the {spot} together and looked everywhere.
/ So the two of them went to the {spot} and searched with care.
? {He} looked on one side, and {friend} looked on the other.
/ At first they found only [an old shoe|a round stone|a sleepy snail|a broken cup].
"[Look|Come here|I see it]!" called {friend}. The {thing} was lying {hidden}.
/ And there, {hidden}, lay the {made} {thing}.
"Thank you, {friend}!" {he} said, and {he} {enjoyed} all the way home.
/ {He} was so happy that {he} {enjoyed} all the way home.

From that day on, {he} put the {thing} in the same safe place every night.
/ When {friend} lost a [glove|spoon|ribbon|basket] the next week, {he} was the first to help.
/ {He} took good care of the {thing} after that, and {he} never forgot who had helped {him}.
/ Now {hero} had two treasures: a {made} {thing} and a good friend.
/ "Four eyes see more than two," said {friend}, and {he} nodded.
"#,
};

pub(super) static TREE: Plot = Plot {
    name: "up in the tree",
    heroes: &[CHILDREN],
    friends: &[GROWN_UPS, CHILDREN],
    tables: &[
        &COLOURS,
        &Table {
            columns: &["thing", "flight"],
            rows: &[
                &["kite", "a strong wind tore it out of {his} hands"],
                &["hat", "a strong wind lifted it from {his} head"],
                &["ball", "{he} threw it a little too high"],
                &["balloon", "the string slipped out of {his} hand"],
                &["paper bird", "it flew higher than ever before"],
            ],
        },
        &Table {
            columns: &["tree"],
            rows: &[
                &["apple tree"],
                &["tall pine"],
                &["chestnut tree"],
                &["old elm"],
                &["crooked pear tree"],
            ],
        },
        &Table {
            columns: &["tool", "rescue"],
            rows: &[
                &["a long ladder", "brought the {thing} down, step by step"],
                &["a fishing net on a pole", "caught the {thing} in the net"],
                &["a rake", "lifted the {thing} off the branch"],
                &["a rope", "shook the branch with it until the {thing} fell down"],
                &["a broom", "pushed the {thing} out of the leaves"],
            ],
        },
    ],
    text: r#"
{opening}
{One_day}, {he} took {his} {colour} {thing} to the {spot}.
/ {One_day}, {he} was {at_spot} with {his} {colour} {thing}.
/ {One_day}, {he} had a new {colour} {thing}, and {he} took it to the {spot}.

But then {flight}, and it got stuck in a {tree}.
/ All went well until {flight}. It landed in a {tree} and stayed there.
{He} jumped as high as {he} could, but the branch was higher.
/ {He} shook the tree as hard as {he} could, but the {thing} did not fall.
? {He} threw a stick. The stick came down, but the {thing} stayed where it was.
/ "Please come down!" {he} called, but the {thing} did not listen.
/ {sadly}
A {friend.kind} named {friend} saw {him} and stopped. "What is the matter?" asked {friend}.
/ {Soon}, a {friend.kind} named {friend} came by. "Why do you look so sad?" asked {friend}.
"My {thing} is up there, and I am too small," {he} said.
/ "The {tree} has taken my {thing}," {he} said.
{friend} went away, came back with {tool} and {rescue}.
/ "Wait here," said {friend}. The {friend.kind} ran to fetch {tool} and {rescue}.
? A [leaf|feather|twig] fell on {his} nose, and they both laughed.
/ {gladly}

"Would you like to play with me?" {he} asked, and {friend} said yes.
/ "Now you must have a turn," {he} said to {friend}.
The {colour} {thing} never flew into a tree again, because now there were two to catch it.
/ From that day on, {he} looked for trees first and for fun second.
/ "If it gets stuck again, call me," said {friend}. And {he} did.
/ In the evening, {he} took the {thing} home and held it with both hands.
"#,
};

pub(super) static LITTLE_ONE: Plot = Plot {
    name: "the little one",
    heroes: EVERYONE,
    friends: EVERYONE,
    tables: &[
        &Table {
            columns: &["young", "cry", "mother"],
            rows: &[
                &["duckling", "peep, peep", "duck"],
                &["kitten", "mew, mew", "cat"],
                &["lamb", "baa, baa", "sheep"],
                &["puppy", "yip, yip", "dog"],
                &["chick", "cheep, cheep", "hen"],
                &["gosling", "honk, honk", "goose"],
                &["piglet", "oink, oink", "pig"],
            ],
        },
        &Table {
            columns: &["heard"],
            rows: &[
                &["behind the hill"],
                &["near the white fence"],
                &["on the other side of the wood"],
                &["by the old church"],
                &["behind the stable"],
            ],
        },
    ],
    text: r#"
{opening}
{One_day}, {he} was on {his} way to the {spot} when {he} heard a small voice.
/ {One_day}, {he} was resting {at_spot} when {he} heard something.
"{Cry}!" There, {hidden}, sat a [tiny|little] {young}, all alone.
/ "{Cry}!" it went. {Hidden}, {he} found a [tiny|little] {young}, and it was [cold|wet|shivering].

"Where is your mother?" {he} asked. "{Cry}," said the {young}.
/ "Are you lost, little one?" {he} asked. "{Cry}," said the {young}.
{He} wrapped it in {his} [scarf|coat|shawl] and carried it to the {far_spot}, but there was no {mother} there.
/ Together they went to the {far_spot}, but there was no {mother} to be seen.
? They asked [an old donkey|a crow on a fence|a snail on a stone|a frog in the grass], but nobody knew anything.
/ {He} was tired, and the {young} was heavy, but {he} did not give up.
/ The {young} began to cry, so {he} sang to it.
{Soon}, they met a {friend.kind} named {friend}. "Have you seen a {mother}?" {he} asked.
/ Then they met {friend}, a {friend.kind} with a [big basket|warm smile|green hat]. "Have you seen a {mother}?" {he} asked.
"I heard one calling {heard}," said {friend}.
/ "There is a sad {mother} {heard}," said {friend}. "Follow me!"

They ran there, and the {young} jumped down and ran to its mother.
/ And there stood the {mother}! In a moment, the {young} was warm and safe beside its mother.
? The {mother} looked at {hero} and {friend} for a long time.
/ Four brothers and sisters came out of the grass to say hello.
{hero} walked home alone, but {he} did not feel alone at all.
/ Whenever {he} came to the {spot} after that, the {young} ran up to meet {him}.
/ "You carried it all that way," said {friend}. "It was not heavy," {he} said with a smile.
/ That night, {he} heard a happy voice from far away: "{Cry}!"
"#,
};

pub(super) static RACE: Plot = Plot {
    name: "the race",
    heroes: YOUNG,
    friends: YOUNG,
    tables: &[
        &Table {
            columns: &["race", "mishap", "help"],
            rows: &[
                &["running race", "had tripped over a root", "helped {friend} up"],
                &["sack race", "had fallen into the mud", "pulled {friend} out of the mud"],
                &["cart race", "had lost a wheel", "put the wheel back on"],
                &["sled race", "had tipped over in the snow", "lifted the sled up again"],
                &["barrel race", "was stuck in a ditch", "pushed the barrel out of it"],
                &["egg race", "had dropped the egg", "found another egg"],
            ],
        },
        &Table {
            columns: &["prize"],
            rows: &[
                &["honey cake"],
                &["basket of pears"],
                &["jar of cherries"],
                &["bag of nuts"],
                &["apple pie"],
                &["box of sweets"],
            ],
        },
    ],
    text: r#"
{opening}
Every year there was a {race} to the {far_spot}, and the winner got a big {prize}.
/ Soon there would be a {race} from the {spot} to the {far_spot}. The prize was a big {prize}.
{He} wanted to win more than anything.
/ "This time I will be the first," {he} said.
? {He} practised for many weeks, in sun and in rain.
/ At night, {he} dreamed of the {prize}.

A bell rang, and off they went! Soon {he} was far in front.
/ The great day came. {He} was as quick as the wind, and soon {he} was far in front.
Then {he} heard a cry behind {him}. {His} friend {friend} {mishap}.
/ Then somebody called for help. It was {friend}, the {friend.kind} from next door, who {mishap}.
? {He} looked at the {far_spot}. It was so close.
/ {He} could almost taste the {prize}.
"I can win next year," {he} thought. {He} turned back and {help}.
/ {He} turned around at once, went back and {help}.

"Why did you stop?" asked {friend}. "Because you are my friend," {he} said.
/ "Now you will not win," said {friend}. "A race is no fun without you," {he} said.
They came in last, but the people cheered louder for them than for the winner.
/ Together they went on, and together they came in last. But everyone clapped and cheered.
? The winner shared the {prize} with them, and it tasted better than ever.
"You were the last," said {friend}, "but you were the best."
/ {He} went home without a prize, but with a friend.
/ And the next year, they won the {race} together, at the very same moment.
/ That night, nobody went to bed happier than {hero} and {friend}.
"#,
};

pub(super) static FEAR: Plot = Plot {
    name: "the fear",
    heroes: YOUNG,
    friends: EVERYONE,
    tables: &[&Table {
        columns: &["fear", "others", "advice", "test", "deed", "reward"],
        rows: &[
            &[
                "the dark",
                "played outside at night",
                "Look up, and count the stars",
                "the lamp went out on the way home",
                "looked up and counted the stars",
                "There were so many that the dark seemed full of light",
            ],
            &[
                "thunder",
                "watched a storm from the window",
                "Count from the flash to the thunder",
                "a great storm came up",
                "counted from the flash to the thunder",
                "Each time {he} could count a little further, and then the storm was gone",
            ],
            &[
                "deep water",
                "swam in the summer",
                "Lie on your back and look at the sky",
                "{he} fell out of a boat",
                "lay on {his} back and looked at the sky",
                "The water carried {him} as gently as a bed",
            ],
            &[
                "the high bridge",
                "ran across the high bridge",
                "Look at the other side and take small steps",
                "{he} had to cross the high bridge alone",
                "looked at the other side and took small steps",
                "After twenty steps, {he} was across",
            ],
            &[
                "the big dog on the corner",
                "walked past the big dog",
                "Stand still and speak softly",
                "the big dog ran up to {him}",
                "stood still and spoke softly",
                "The dog sat down and gave {him} its paw",
            ],
            &[
                "singing in front of others",
                "sang in front of everyone",
                "Look for one friendly face and sing for it",
                "{he} was called to the front to sing",
                "found one friendly face and sang for it",
                "When the song was over, everyone clapped",
            ],
        ],
    }],
    text: r#"
{opening}
There was only one thing that {he} was afraid of: {fear}.
/ {He} could do many things, but {he} was afraid of {fear}.
? When the others {others}, {he} stayed behind.
/ When the others {others}, {he} always found a reason to stay at home.

{One_day}, {he} told {friend}, a {friend.kind} who lived near the {spot}, all about it.
/ {One_day}, a {friend.kind} named {friend} asked what was wrong. "I am afraid of {fear}," {he} said.
? {friend} did not laugh.
"I was afraid too, once," said {friend}. "{Advice}. That helped me."
/ "Do you know what helps?" said {friend}. "{Advice}."

[The very next evening|A few days later|Before the week was over], {test}.
{His} heart beat fast, and {he} wanted to run away.
/ {His} knees shook, and {he} could hardly breathe.
Then {he} remembered the words of {friend}. {He} {deed}.
/ "What did {friend} say?" {he} thought. And {he} {deed}.
{Reward}.
? "I did it!" {he} called, and {he} laughed out loud.
/ {He} ran straight to {friend} to tell the whole story.

"To be brave is to be afraid and to try all the same," said {friend}.
/ {He} was still a little afraid, but now the fear was small, and {he} was big.
/ The next time the others {others}, {he} went with them.
/ Today, when a little one is afraid, {he} says: "Listen, I know what helps."
"#,
};
