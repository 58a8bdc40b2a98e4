//! Plots that play in and around a house: a broken thing, a seed, a feast, a noise, a tune.

use super::super::lexicon::{GROWN_UPS, Table};
use super::{EVERYONE, Plot, TRADES_AND_ANIMALS, YOUNG};

pub(super) static BROKEN: Plot = Plot {
    name: "the broken thing",
    heroes: YOUNG,
    friends: &[GROWN_UPS],
    tables: &[&Table {
        columns: &["thing", "made"],
        rows: &[
            &["jug", "blue"],
            &["vase", "tall"],
            &["bowl", "painted"],
            &["plate", "flowered"],
            &["teapot", "round"],
            &["lamp", "glass"],
            &["urn", "old"],
        ],
    }],
    text: r#"
{opening}
Next door lived {friend} the {friend.kind}, who had a {made} {thing} on the table.
/ {He} often visited {friend} the {friend.kind}, who had a {made} {thing} from far away.
/ {He} loved to visit {friend} the {friend.kind}, whose dearest treasure was a {made} {thing}.

{One_day}, while {friend} was in the garden, {he} danced around the table. The {thing} fell down and broke.
/ {One_day}, while {friend} was feeding the hens, {he} played beside the table. The {thing} fell down and broke.
/ {One_day}, {friend} went out to fetch some wood. {He} bumped into the table, and the {thing} broke.
Quickly, {he} hid the pieces under [a cloth|the bench|a basket|the rug].
? "Nobody saw me," {he} thought, but {his} heart was as heavy as a stone.
/ Nobody had seen it, but {he} felt cold and small inside.
When {friend} came back, {he} took a deep breath. "I broke your {thing}," {he} said. "I am so sorry."
/ {Soon}, {friend} came back. {He} looked at the floor. "Your {thing} is broken," {he} said, "and I did it."
? {friend} was silent for a moment.
"Thank you for telling me the truth," said {friend}. "We will mend it together."
/ "That was hard to say," said {friend}. "A {thing} can be mended. Come and help me."

They glued the pieces together, one by one.
/ So they sat side by side and glued piece to piece.
? It took the whole afternoon, and {friend} told a story while they worked.
/ One small piece was missing, so {he} made a new one out of clay.
/ In the end there was a thin line down the side, like a little river.
{hero} walked home with a light heart, and {he} sang louder than the birds.
/ Whenever {he} saw the {thing} after that, {he} remembered that the truth can mend things too.
/ "I like it even better now," said {friend}, "because we mended it together."
/ The {thing} still stands on {friend}'s table, and there are always flowers beside it.
"#,
};

pub(super) static SEED: Plot = Plot {
    name: "the seed",
    heroes: EVERYONE,
    friends: TRADES_AND_ANIMALS,
    tables: &[
        &Table {
            columns: &["plant", "grown", "shared"],
            rows: &[
                &["sunflower", "stood taller than the door", "gave the seeds to the birds"],
                &["pumpkin", "was as big as a barrel", "cooked soup for all the neighbours"],
                &["melon", "was as round as the moon", "cut a slice for every neighbour"],
                &["rose bush", "was full of flowers", "gave a rose to everyone who came by"],
                &["bean plant", "reached the roof", "filled a basket for every neighbour"],
                &["tomato plant", "was heavy with fruit", "shared it with the neighbours"],
                &["strawberry plant", "was full of sweet berries", "invited everyone to eat"],
            ],
        },
        &Table {
            columns: &["trouble", "care"],
            rows: &[
                &["a hot, dry week came", "carried water from the well every evening"],
                &["a cold night came", "covered the plant with straw"],
                &["hungry crows came", "made a scarecrow out of an old coat"],
                &["a strong wind came", "tied the plant to a stick"],
                &["hungry snails came", "carried them all across the path"],
            ],
        },
    ],
    text: r#"
{opening}
One spring [day|morning], a {friend.kind} named {friend} gave {him} a [tiny|small] [brown|black|grey] seed.
/ One spring [day|morning], {his} friend {friend} the {friend.kind} brought {him} a [tiny|small] [brown|black|grey] seed.
"This will be a {plant}," said {friend}, "if you can wait."
/ "Inside it sleeps a {plant}," said {friend}. "Be good to it."

{He} planted the seed [beside|behind|in front of] {his} {home} and watered it every [day|morning].
/ {He} made a hole in the earth, put the seed in it and gave it some water.
? {He} waited for [three days|a week|two weeks], but nothing happened.
/ "Please hurry up," {he} told the seed.
/ {He} sang to it. {He} even told it a story.
"It does not grow," {he} said to {friend}. "Shall I dig it up?"
/ "I think it is asleep forever," {he} said to {friend}.
"Give it time," said {friend}. "The roots grow first, where nobody can see them."
/ "The best things are slow," said {friend} with a smile.
So {he} waited, and one morning a green leaf looked out of the earth.
/ So {he} waited, while the rain fell and the sun shone. Then, one morning, there was a green leaf.
? {gladly}

? Then {trouble}, but {he} {care}.
At the end of the summer, the {plant} {grown}, and {hero} {shared}.
/ The {plant} grew and grew, until it {grown}. {He} {shared}.
"You see?" said {friend}. "You only had to wait."
/ "I did not make it grow," {he} said. "I only waited and took care."
/ {He} kept one seed in a little box. "For someone who can wait," {he} said.
/ And in the autumn, {he} had a whole handful of new seeds to give away.
"#,
};

pub(super) static FEAST: Plot = Plot {
    name: "the feast",
    heroes: EVERYONE,
    friends: &[GROWN_UPS],
    tables: &[
        &Table {
            columns: &["dish", "missing"],
            rows: &[
                &["apple cake", "flour"],
                &["berry pie", "butter"],
                &["pumpkin soup", "cream"],
                &["plum cake", "sugar"],
                &["onion soup", "salt"],
                &["cheese pie", "milk"],
                &["nut cake", "honey"],
                &["potato stew", "cream"],
                &["pear pie", "sugar"],
            ],
        },
        &Table {
            columns: &["chore", "chore_done"],
            rows: &[
                &["sweep the yard", "swept the yard"],
                &["stack the wood", "stacked the wood"],
                &["wash the windows", "washed the windows"],
                &["feed the goats", "fed the goats"],
                &["pick the pears", "picked the pears"],
                &["dig the garden", "dug the garden"],
            ],
        },
        &Table {
            columns: &["feast"],
            rows: &[
                &["the harvest feast"],
                &["the spring feast"],
                &["{his} mother's birthday"],
                &["the last night of the year"],
                &["the first day of summer"],
            ],
        },
    ],
    text: r#"
{opening}
For {feast}, {he} wanted to make a {dish}.
/ It was {feast}, and {he} had promised to make a {dish}.
? {He} lit the fire and took out the biggest bowl.
/ {He} put on {his} apron and began to hum.

But when {he} opened the cupboard, there was no {missing}.
/ But in the whole {home}, there was not a bit of {missing}.
? "Without {missing}, there will be no {dish}," {he} sighed.
/ {sadly}
So {he} [went|ran|hurried] to {friend} the {friend.kind}, who lived near the {spot}.
/ Then {he} remembered {friend}, a {friend.kind} near the {spot}, and ran there at once.
"I have plenty of {missing}," said {friend}, "but first I must {chore}."
/ "You may have some {missing}," said {friend}, "but I still have to {chore}."
"Sit down and rest," {he} said. "I will do it for you."
/ "Let me do that for you," {he} said at once.
{He} {chore_done}, and {friend} gave {him} more {missing} than {he} needed.
/ {He} {chore_done} until {his} arms were tired. "Take as much as you need," said {friend}.

{hero} hurried home, and soon the {home} smelled wonderful.
/ Back at home, {he} mixed and stirred, and soon a good smell came out of the window.
In the evening, all the neighbours came, and {friend} got the best chair.
/ That evening there were [six|seven|eight|nine] guests at the table, and one of them was {friend}.
? "This is the best {dish} I have ever eaten," said {friend}.
/ They ate until the bowl was empty.
"Half of it is yours," {he} said with a smile.
/ "It has your {missing} and my work in it," {he} said. "That is why it tastes so good."
/ When the guests had gone, {friend} stayed and helped {him} to wash the plates.
/ From then on, {hero} and {friend} cooked together every year.
"#,
};

pub(super) static NOISE: Plot = Plot {
    name: "the noise in the night",
    heroes: YOUNG,
    friends: YOUNG,
    tables: &[
        &Table {
            columns: &["sound", "cause", "cure"],
            rows: &[
                &["tap, tap", "a branch that knocked on the wall", "tied up the branch"],
                &[
                    "scratch, scratch",
                    "a kitten that wanted to come in",
                    "gave the kitten some milk",
                ],
                &["bang, bang", "a shutter that moved in the wind", "closed the shutter"],
                &["drip, drip", "water that fell into a bucket", "turned the bucket over"],
                &["hoo, hoo", "an owl that sang to the moon", "wished the owl a good night"],
                &["bump, bump", "ripe apples that fell from a tree", "ate the two best apples"],
                &["ting, ting", "a bell that swung in the wind", "took the bell inside"],
                &["rustle, rustle", "a toad in the dry leaves", "let the toad hop away"],
            ],
        },
        &Table {
            columns: &["monster"],
            rows: &[&["ghost"], &["giant"], &["dragon"], &["troll"], &["ogre"]],
        },
    ],
    text: r#"
{opening}
One [dark|windy|cold|long] night, {his} friend {friend} came to stay with {him}.
/ One night, a {friend.kind} named {friend} came to sleep in {his} {home}.
? They [drank warm milk|played a game|told stories] and went to bed late.
/ The moon was hidden, and it was as dark as the inside of a boot.

They were almost asleep when something went "{sound}!"
/ They had just gone to bed when they heard a noise. "{Sound}!" it went.
"What is that?" whispered {friend}. "Maybe it is a {monster}!"
/ "There is a {monster} outside," whispered {friend}.
? {He} pulled the blanket over {his} head.
/ {He} held {his} breath and listened.
/ "{Sound}!" There it was again.
"A {monster} would be louder," {he} said. "Let us go and look."
/ "I am afraid too," {he} said, "but I want to know what it is."
{He} lit the lantern, and {friend} stayed close behind {him}.
/ {He} took the lantern, and {friend} took a broom, just in case.
? The floor creaked, and they both jumped.
{He} counted to three and opened the door. It was only {cause}!
/ Slowly, {he} opened the door. There was {cause}, and nothing else.

They laughed until they had to sit down.
/ "So that is our {monster}!" said {friend}, and they both began to laugh.
Then they {cure} and went back to bed.
/ Then they {cure}, and soon they were warm in their beds again.
"Most monsters grow small when you bring a light," {he} said.
/ After that night, {hero} always went to look before {he} was afraid.
/ "Good night, {monster}," said {friend}, and then they slept until the sun came up.
/ When they told the story the next day, the {monster} got a little bigger each time.
"#,
};

pub(super) static MUSIC: Plot = Plot {
    name: "the tune",
    heroes: EVERYONE,
    friends: TRADES_AND_ANIMALS,
    tables: &[&Table {
        columns: &["instrument", "bad", "good"],
        rows: &[
            &["fiddle", "it squeaked like a rusty gate", "it sang like a bird"],
            &["flute", "it hissed like an angry goose", "it sounded like wind in the leaves"],
            &["horn", "it groaned like a tired cow", "it rang as clear as a bell"],
            &["drum", "it rattled like a cart on stones", "it beat like a happy heart"],
            &["accordion", "it wheezed like an old goat", "it hummed like a whole choir"],
            &["harp", "it clattered like a box of spoons", "it sounded like rain on water"],
        ],
    }],
    text: r#"
{opening}
In a dusty box, {he} found an old {instrument}.
/ {One_day}, {his} [grandmother|grandfather|aunt|uncle] gave {him} an old {instrument}.
"I will play it at the [summer|harvest|spring|winter] dance," {he} said.
/ {He} wanted to play it at the [summer|harvest|spring|winter] dance.

But when {he} tried it, {bad}.
/ {He} tried it at once, but {bad}.
? [The cat ran out of the room|The hens ran away|The neighbours closed their windows|A dog began to howl].
"I will never learn it," {he} sighed.
/ {sadly}
{friend} the {friend.kind} heard it and knocked at the door.
/ Then {friend} the {friend.kind}, who lived next door, came over.
"Play one note at a time," said {friend}, "and play it every day."
/ "It was the same with me," said {friend}. "Begin with one note a day."

So {hero} practised every [morning|evening]: first one note, then three, then a whole song.
/ Every [morning|evening], {he} practised with {friend}, and {he} did not give up.
? Some days it went well, and some days it did not.
/ {friend} beat the time with a wooden spoon.
On the night of the dance, {he} took a deep breath and played, and {good}.
/ Then the night of the dance came. {His} knees shook, but {he} played, and {good}.
Old and young began to dance [under the lamps|around the fire|until the stars came out].
/ One by one, the people stood up and danced.
"How did you learn that?" asked a child. "One note at a time," {he} said.
/ "That was beautiful," said {friend}. "It is your song too," {he} said.
/ The next day, {he} began to learn a new song, and {friend} hummed along.
/ And when a child wanted to learn it too, {he} said: "One note at a time."
"#,
};
