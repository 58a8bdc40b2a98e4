//! Which rank has which part of the optimizer's state, where that is divided over ranks.
//!
//! The flat buffer of parameters is cut into one range for each rank, about equally long. Cuts lie where no bit depends
//! on them: between tensors, or in a tensor at multiples of 16,384 elements, which are also multiples of every block;
//! and at multiples of four elements of the flat buffer, where devices read them at once.

use std::ops::Range;

use formats::{Format, Section};
use model::{Layout, Slot};
use optimizer::TensorSpec;

/// Elements between cuts of a tensor: the chunks in which its norm is added up.
const CHUNK: usize = 16_384;
/// Elements of a wide access.
const WIDE: usize = 4;

/// The ranges of all ranks, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards(Vec<Range<usize>>);

impl Shards {
    /// The shards of a network among `ranks` ranks; some are empty where it has fewer places to cut.
    #[must_use]
    pub fn new(layout: &Layout, ranks: usize) -> Self {
        let all = layout.parameters();
        let cut = |rank: usize| {
            let wish = (all as u128 * rank as u128 / ranks as u128) as usize;
            if rank == ranks { all } else { nearest_cut(layout, wish) }
        };
        Self((0..ranks).map(|rank| cut(rank)..cut(rank + 1)).collect())
    }

    /// The ranges of all ranks.
    #[must_use]
    pub fn ranges(&self) -> &[Range<usize>] {
        &self.0
    }

    /// That of one.
    #[must_use]
    pub fn of(&self, rank: usize) -> Range<usize> {
        self.0[rank].clone()
    }

    /// Which parts of a range of the flat buffer are whose; empty ones left out.
    #[must_use]
    pub fn within(&self, range: &Range<usize>) -> Vec<(usize, Range<usize>)> {
        let parts = self.0.iter().map(|own| own.start.max(range.start)..own.end.min(range.end));
        parts.enumerate().filter(|(_, part)| !part.is_empty()).collect()
    }

    /// The parts of all tensors that a rank has.
    #[must_use]
    pub fn tensors(&self, layout: &Layout, tensors: &[TensorSpec], rank: usize) -> Vec<TensorSpec> {
        let own = self.of(rank);
        TensorSpec::parts(tensors, |position, _| part_of(&layout.slots()[position], &own))
    }

    /// Bytes of the state of each rank.
    #[must_use]
    pub fn state_bytes(&self, layout: &Layout, format: Format) -> Vec<u64> {
        let bytes = |own: &Range<usize>| {
            let part = |slot: &Slot| {
                let length = part_of(slot, own).len() as u64;
                let arrays = format.for_length(slot.length as u64).arrays(length);
                arrays.map(Section::bytes).sum::<u64>()
            };
            layout.slots().iter().map(part).sum()
        };
        self.0.iter().map(bytes).collect()
    }
}

/// What of a tensor lies in a range of the flat buffer, counted from where the tensor begins.
fn part_of(slot: &Slot, own: &Range<usize>) -> Range<usize> {
    let within = slot.range();
    let start = own.start.clamp(within.start, within.end);
    let end = own.end.clamp(start, within.end);
    if start == end { 0..0 } else { start - within.start..end - within.start }
}

/// The place to cut that is nearest to `wish`, of those that its tensor has; else the last one before.
fn nearest_cut(layout: &Layout, wish: usize) -> usize {
    let slots = layout.slots();
    let index = slots.partition_point(|slot| slot.range().end <= wish);
    let Some(slot) = slots.get(index) else { return layout.parameters() };
    let Range { start, end } = slot.range();
    let inner = start + (wish - start) / CHUNK * CHUNK;
    let places = [start, inner, inner + CHUNK, end].map(|place| place.min(end));
    let good = places.into_iter().filter(|place| place.is_multiple_of(WIDE));
    let found = good.min_by_key(|place| place.abs_diff(wish));
    let before = || {
        slots[..index].iter().rev().map(|slot| slot.offset).find(|place| place.is_multiple_of(WIDE))
    };
    found.or_else(before).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use model::{Config, Dimensions};

    use super::*;

    fn layout([vocabulary, context, channels, layers, heads]: [usize; 5]) -> Layout {
        let dimensions = Dimensions { vocabulary, context, channels, layers, heads };
        Layout::new(Config::new(dimensions).unwrap())
    }

    #[test]
    fn every_element_is_one_ranks_and_cuts_lie_at_borders() {
        for shape in [
            [50_304, 1_024, 768, 12, 12],
            [12_096, 1_152, 320, 6, 5],
            [301, 7, 6, 3, 2],
            [5, 2, 1, 1, 1],
        ] {
            let layout = layout(shape);
            for ranks in 1..=9 {
                let shards = Shards::new(&layout, ranks);
                let mut end = 0;
                for own in shards.ranges() {
                    assert_eq!(own.start, end, "{shape:?} {ranks}");
                    assert!(own.end >= own.start);
                    end = own.end;
                    let slot =
                        layout.slots().iter().rfind(|slot| slot.offset <= own.start).unwrap();
                    let inner = own.start - slot.offset;
                    assert!(
                        inner.is_multiple_of(CHUNK) || inner >= slot.length,
                        "{shape:?} {inner}"
                    );
                    assert!(own.start.is_multiple_of(WIDE) || own.start == layout.parameters());
                }
                assert_eq!(end, layout.parameters());
            }
        }
    }

    #[test]
    fn shards_of_large_models_are_about_equal() {
        let layout = layout([50_304, 1_024, 768, 12, 12]);
        for ranks in [2, 3, 8] {
            let shards = Shards::new(&layout, ranks);
            for (own, bytes) in shards.ranges().iter().zip(shards.state_bytes(&layout, Format::E4))
            {
                assert!(own.len().abs_diff(layout.parameters() / ranks) <= CHUNK);
                assert_eq!(bytes, 4 * own.len() as u64);
            }
        }
    }

    #[test]
    fn parts_of_pieces_are_those_of_their_owners() {
        let shards = Shards(vec![0..10, 10..10, 10..30]);
        assert_eq!(shards.within(&(5..20)), [(0, 5..10), (2, 10..20)]);
        assert_eq!(shards.within(&(12..20)), [(2, 12..20)]);
    }
}
