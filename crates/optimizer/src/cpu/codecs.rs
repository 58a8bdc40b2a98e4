//! The one place that picks the codec of a format of blocks, for whoever has work for it.

use formats::Rules;

use super::arrays::ArraysMut;
use super::block8::Block8Codec;
use super::blocks::BlockCodec;
use super::maps::MapTables;
use super::n4l4::N4l4Codec;
use super::random::BlockRandom;
use super::ustate1q::{Spread, UState1QCodec, is_usual};
use crate::groups::Layout;
use crate::scalars::{BlockScalars, Scalars};

/// Work for any codec.
pub(crate) trait Task {
    type Output;

    fn run(self, codec: &mut impl BlockCodec) -> Self::Output;
}

/// What codecs read besides the arrays.
#[derive(Clone, Copy)]
pub(crate) struct CodecContext<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) scalars: Scalars,
    pub(crate) block_scalars: BlockScalars,
    pub(crate) random: BlockRandom,
}

impl<'a> CodecContext<'a> {
    /// Does `task` with the codec of `arrays`, which are those of a format of blocks. Returns too how
    /// far first moments of `ustate1q` lie from their means, if they were encoded.
    pub(crate) fn run<T: Task>(self, arrays: ArraysMut<'_>, task: T) -> (T::Output, Spread) {
        let scalars = self.block_scalars;
        match arrays {
            ArraysMut::Block8(arrays) => {
                let rules = arrays.options.rules;
                let maps: &'a MapTables = self.layout.maps_of(rules);
                let output = match rules {
                    Rules::Repaired => task.run(&mut Block8Codec::<true> { arrays, maps, scalars }),
                    Rules::Published => {
                        task.run(&mut Block8Codec::<false> { arrays, maps, scalars })
                    }
                };
                (output, Spread::NONE)
            }
            ArraysMut::UState1Q { options, first, second } => {
                macro_rules! run {
                    ($repaired:literal, $usual:literal) => {{
                        let mut codec = UState1QCodec::<$repaired, $usual> {
                            options,
                            first,
                            second,
                            scalars: self.scalars,
                            block_scalars: scalars,
                            random: self.random,
                            spread: Spread::NONE,
                        };
                        (task.run(&mut codec), codec.spread)
                    }};
                }
                match options.rules {
                    Rules::Repaired if is_usual(options) => run!(true, true),
                    Rules::Repaired => run!(true, false),
                    Rules::Published => run!(false, false),
                }
            }
            ArraysMut::N4l4(arrays) => {
                (task.run(&mut N4l4Codec { arrays, scalars, random: self.random }), Spread::NONE)
            }
            ArraysMut::Moments { .. } | ArraysMut::Words(_) => {
                unreachable!("their elements stand alone")
            }
        }
    }
}
