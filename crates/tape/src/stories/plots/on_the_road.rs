//! Plots of coming and going: a cart in trouble, a shared meal, a parcel, a guest in the storm.

use super::super::lexicon::Table;
use super::{EVERYONE, Plot, TRADES_AND_ANIMALS, YOUNG};

pub(super) static CART: Plot = Plot {
    name: "the cart",
    heroes: TRADES_AND_ANIMALS,
    friends: YOUNG,
    tables: &[
        &Table {
            columns: &["good"],
            rows: &[
                &["apple"],
                &["pumpkin"],
                &["clay pot"],
                &["cheese"],
                &["cabbage"],
                &["basket"],
                &["peach"],
                &["loaf"],
                &["brush"],
                &["wild cherry"],
            ],
        },
        &Table {
            columns: &["trouble", "idea"],
            rows: &[
                &["a wheel sank into the mud", "laid flat stones under the wheel"],
                &["a wheel came off", "looked in the grass and found the lost pin"],
                &["the cart got stuck between two rocks", "used a long branch to lift it"],
                &["{his} donkey stopped and would not move", "held a carrot in front of its nose"],
                &["the cart rolled into a ditch", "tied the cart to a tree with a strong rope"],
            ],
        },
    ],
    text: r#"
{opening}
{One_day}, {he} loaded {his} cart with {good.plural} and set off for the market.
/ {One_day}, {he} had to take a cart full of {good.plural} to the market.
? The road was long, and the sun was hot.
/ {He} whistled a tune, and the birds whistled back.

Near the {spot}, {trouble}. {He} pulled and pushed, but the cart did not move.
/ Not far from the {spot}, {trouble}. {He} pushed with all {his} strength, but nothing moved at all.
A rider came by. "I am in a hurry," said the rider and was gone.
/ Then came two merchants. "We do not want to get our shoes dirty," they said.
/ Then came three soldiers. "Good luck!" they said and marched on.
? {sadly}
At last came a {friend.kind} named {friend}. "I am not very strong," said {friend}, "but I have an idea."
/ {Soon}, a {friend.kind} named {friend} came along the road. "May I try something?" asked {friend}.
The {friend.kind} {idea}. {He} pushed once more, and the cart rolled.
/ The {friend.kind} {idea}. With a creak and a jump, the cart was back on the road.

{hero} sold {good.plural} until noon, and {he} kept the biggest {good} for {friend}.
/ By noon nearly all the {good.plural} were sold. {He} gave the last {good} to {friend}.
"Strong arms are good," {he} said, "but a good idea is better."
/ On the way home, they saw a stranger with a broken cart, and they stopped at once to help.
/ Since that day, {friend} rides along to every market, and the cart is never stuck for long.
/ "Next time, I will stop for others too," {he} said, and {he} kept {his} word.
"#,
};

pub(super) static SHARE: Plot = Plot {
    name: "the shared meal",
    heroes: EVERYONE,
    friends: EVERYONE,
    tables: &[
        &Table {
            columns: &["meal"],
            rows: &[
                &["pear"],
                &["apple"],
                &["honey roll"],
                &["piece of bread"],
                &["slice of cheese"],
                &["oat cake"],
                &["boiled egg"],
                &["plum dumpling"],
            ],
        },
        &Table {
            columns: &["danger", "rescue"],
            rows: &[
                &["a thick fog came down", "knew every stone and led {him} home"],
                &["the bridge was under water", "showed {him} a row of dry stones"],
                &["{he} slipped into a deep ditch", "let down a rope and pulled {him} out"],
                &["{he} lost the way in the dark", "came with a lantern and lit the path"],
                &["the rain had washed the path away", "knew a dry way over the hill"],
            ],
        },
    ],
    text: r#"
{opening}
{One_day}, {he} had to walk a long way, and all {he} had to eat was a {meal}.
/ {One_day}, {he} walked to the {spot} with a {meal} in {his} bag. It was all {he} had.
Beside the road sat a {friend.kind} named {friend}, who looked tired and thin.
/ On the way, {he} met a {friend.kind} named {friend}, who was sitting on a stone.
"I have not eaten since yesterday," said {friend}.
/ "Do you have something to eat?" asked {friend} in a low voice.
? {He} looked at {his} {meal}. {He} was very hungry too.
/ "The {meal} is so small," {he} thought.
{He} cut the {meal} in two and gave {friend} the bigger half.
/ {He} sat down beside {friend} and said, "Half of my {meal} is for you."
"I will not forget this," said {friend}.
/ "Thank you," said {friend} with bright eyes.

Late in the day, {hero} wanted to go home, but {danger}.
/ In the evening, when {he} was on {his} way home, {danger}.
"Help!" {he} called. "Is anybody there?"
/ "Hello!" {he} called. "Can anybody hear me?"
Then a voice called back, and it was {friend}, who {rescue}!
/ "I am coming!" called somebody. It was {friend}, who {rescue}.
? Before midnight, {he} was safe and warm in {his} {home}.

"It was only half a {meal}," {he} said, "and look how much came back."
/ Since then, {he} always packs enough for two.
/ "Now we have shared a {meal} and a danger," said {friend}. "Now we are friends."
/ And the next {meal} that {he} had, {he} shared with {friend} again.
"#,
};

pub(super) static PARCEL: Plot = Plot {
    name: "the parcel",
    heroes: EVERYONE,
    friends: EVERYONE,
    tables: &[
        &Table {
            columns: &["item", "delight"],
            rows: &[
                &["letter", "It was full of good news"],
                &["jar of honey", "It was just right for the tea"],
                &["warm coat", "It fitted perfectly"],
                &["basket of eggs", "Not one of them was broken"],
                &["bag of seeds", "It was just in time for planting"],
                &["bottle of medicine", "It was needed that very night"],
                &["ball of wool", "It was just the right colour"],
            ],
        },
        &Table {
            columns: &["receiver"],
            rows: &[
                &["{his} grandmother"],
                &["{his} grandfather"],
                &["{his} old aunt"],
                &["the music teacher"],
                &["the village nurse"],
            ],
        },
        &Table {
            columns: &["barrier", "help"],
            rows: &[
                &["the bridge was gone", "took {him} across in a small boat"],
                &["a tree lay across the road", "showed {him} a way around it"],
                &["the road was lost in the fog", "walked in front and rang a little bell"],
                &["the stream was too wide to jump", "laid a long board across it"],
                &["the gate was locked", "showed {him} a hole in the hedge"],
            ],
        },
    ],
    text: r#"
{opening}
{One_day}, {he} had to bring a {item} to {receiver}, who lived behind the hills.
/ {One_day}, {he} promised to carry a {item} to {receiver}, who lived far away.
? "It must be there before dark," said {his} [mother|father|sister|brother].
/ It had to be there before the sun went down.

{He} passed the {spot}, but then {he} had to stop. Ahead of {him}, {barrier}.
/ All went well until {he} had passed the {far_spot}. There {barrier}.
? {He} walked up and down, but {he} found no way.
/ "If I turn back now, it will be too late," {he} said to {himself}.
/ {sadly}
"Can I help you?" asked a {friend.kind} named {friend}, who {help}.
/ {Soon}, a {friend.kind} named {friend} saw {his} sad face. The {friend.kind} {help}.
"How can I thank you?" {he} asked. "Just wave when you come back," said {friend}.
/ {He} thanked {friend} with all {his} heart and hurried on.

Just before dark, {he} knocked at the door.
/ The sun was almost down when {he} saw a light in a window.
"You came all this way with the {item}!" said {receiver}. {Delight}.
/ {Receiver} took the {item} with both hands. {Delight}.
? There was a warm supper, and there was a bed for the night.
On the way back, {he} waved to {friend} for a long, long time.
/ The next day, {he} brought {friend} a piece of cake, and they ate it together.
/ "I had help," {he} said, and {he} told the story of {friend}.
/ "I was almost too late," {he} said, "but on every road there is a friend."
"#,
};

pub(super) static STORM: Plot = Plot {
    name: "the storm",
    heroes: EVERYONE,
    friends: EVERYONE,
    tables: &[
        &Table {
            columns: &["damage", "repair"],
            rows: &[
                &["the wind tore a hole in my roof", "put new boards on the roof"],
                &["a branch fell through my window", "put new glass in the window"],
                &["the water ran into my kitchen", "dried the floor with old towels"],
                &["the wind blew down my chimney", "built the chimney up again"],
                &["the wind broke my door", "made a new door out of oak"],
                &["a tree fell on my fence", "made the fence straight again"],
            ],
        },
        &Table {
            columns: &["supper"],
            rows: &[
                &["bowl of hot soup"],
                &["cup of sweet tea"],
                &["baked apple"],
                &["plate of warm porridge"],
                &["mug of hot cocoa"],
                &["omelette"],
            ],
        },
    ],
    text: r#"
{opening}
One [autumn|winter|spring|summer] evening, black clouds came over the {spot}, and {he} lit the fire.
/ One evening, the sky over the {spot} grew dark, and {he} closed the windows.
? The rain beat on the roof, and the wind howled.

Then somebody knocked. Outside stood {friend}, a {friend.kind}, wet from head to toe.
/ There was a knock at the door. It was a {friend.kind} named {friend}, cold and wet.
"Please let me in," said {friend}. "There was a crash, and {damage}."
/ "May I come in?" asked {friend}. "I was asleep when {damage}."
"Come in, come in!" {he} said. {He} gave {friend} a dry blanket and a {supper}.
/ {He} pulled {friend} inside and made a {supper}.
? There was only one bed, so {he} slept on the rug.
/ There was only one chair, so they took turns.
/ They told each other stories, and the storm seemed far away.
/ They talked until late, and they did not hear the thunder any more.

In the morning, the sky was blue again.
/ When they woke up, the storm was over, and the sun was shining.
{hero} took {his} tools. "Now let us look at your {friend.home}," {he} said.
/ "You cannot go back like this," {he} said. "I am coming with you."
Together they {repair}, and by [noon|evening] all was well again.
/ It was hard work, but the two of them {repair} before [noon|evening].
? "Alone, I would have needed a week," said {friend}.
From then on, when the sky grew dark, there were always two cups on {hero}'s table.
/ "A storm is not so bad," said {friend}, "when it brings you a friend."
/ When the next storm came, it was {friend} who opened the door for {hero}.
/ {friend} never forgot that night, and every autumn {friend} brought {hero} a basket of [apples|mushrooms|nuts].
"#,
};
