//! The gradients of an update as one tree of pairs of micro-batches, added up where they are: on devices.
//!
//! Every rank adds up the subtrees of its own micro-batches, in as many buffers as wait for a partner at the same time.
//! Then each part of the gradients goes to one rank, which adds up there what all ranks have of it; so the sum has the
//! same bits for any number of ranks, one included.

use std::ops::Range;

use model::ops::Operations;
use ranks::{Node, TreeSum, nodes_of, part_of};

use crate::error::Error;
use crate::world::Share;

/// Buffers for trees of up to so many micro-batches.
pub struct DeviceTree<D: Operations> {
    /// Beside the gradients' own, which is number 0.
    more: Vec<D::Floats>,
    /// What comes from other ranks.
    incoming: D::Floats,
    /// Which part each rank adds up.
    parts: Vec<Range<usize>>,
    share: Share,
}

/// How many floats a tree of `micro_batches` takes beside the gradients: what is added up here, and what comes from others.
#[must_use]
pub fn floats_beside(micro_batches: usize, parts: &[Range<usize>], share: Share) -> [usize; 2] {
    let all = parts.last().map_or(0, |last| last.end);
    let most = |of: &dyn Fn(usize) -> usize| (1..=micro_batches).map(of).max().unwrap_or(0);
    let buffers = most(&|count| slots(share.part_of(count)).1);
    let incoming = most(&|count| {
        let others = (0..share.world_size).filter(|&rank| rank != share.rank);
        others.map(|rank| nodes_of(part_of(count, rank, share.world_size)).len()).sum()
    });
    [buffers.saturating_sub(1) * all, incoming * parts[share.rank].len()]
}

impl<D: Operations> DeviceTree<D> {
    /// Buffers for updates of up to `micro_batches`, of which rank r adds up `parts[r]`.
    ///
    /// # Errors
    ///
    /// What the device refuses, such as memory that it does not have.
    pub fn new(
        device: &D,
        micro_batches: usize,
        parts: Vec<Range<usize>>,
        share: Share,
    ) -> Result<Self, Error> {
        let all = parts.last().map_or(0, |last| last.end);
        let [beside, incoming] = floats_beside(micro_batches, &parts, share);
        let more = (0..beside / all.max(1)).map(|_| device.floats(all));
        let more = more.collect::<Result<_, _>>()?;
        Ok(Self { more, incoming: device.floats(incoming)?, parts, share })
    }

    /// Adds up an update of `count` micro-batches: `pass(number, buffer)` overwrites a buffer with the gradients of one of
    /// this rank's. The own part of `gradients` then has the sum over all; with `shares` all parts have it.
    ///
    /// # Errors
    ///
    /// What `pass` and the device refuse.
    pub fn sum(
        &mut self,
        device: &D,
        gradients: &mut D::Floats,
        count: usize,
        shares: bool,
        mut pass: impl FnMut(usize, &mut D::Floats) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let own = self.share.part_of(count);
        let mut buffers: Vec<&mut D::Floats> =
            std::iter::once(&mut *gradients).chain(&mut self.more).collect();
        for (number, leaf) in own.clone().zip(slots(own).0) {
            pass(number, buffers[leaf.slot])?;
            for [left, right] in leaf.pairs {
                let [left, right] = buffers.get_disjoint_mut([left, right]).expect("two buffers");
                device.add(left, right)?;
            }
        }
        device.stop_watch()?;
        let sum = self.sum_of_part(device, gradients, count)?;
        let part = self.parts[self.share.rank].clone();
        let mut place = device.part(gradients, part)?;
        device.copy(&mut place, &sum)?;
        if shares && self.share.world_size > 1 {
            let owners: Vec<_> = self.parts.iter().cloned().enumerate().collect();
            device.share_parts(gradients, &owners)?;
            device.finish_exchange()?;
        }
        Ok(())
    }

    /// Gives the other ranks what this one has of their parts, and adds up what all have of its own.
    fn sum_of_part(
        &mut self,
        device: &D,
        gradients: &D::Floats,
        count: usize,
    ) -> Result<D::Floats, Error> {
        let Self { more, incoming, parts, share } = self;
        let Share { rank: own, world_size, .. } = *share;
        let kept = |slot: usize| if slot == 0 { gradients } else { &more[slot - 1] };
        let own_slots = roots(share.part_of(count));
        let mut outgoing = Vec::new();
        for rank in (0..world_size).filter(|&rank| rank != own) {
            for &slot in &own_slots {
                outgoing.push((rank, device.part(kept(slot), parts[rank].clone())?));
            }
        }
        let length = parts[own].len();
        let (mut from, mut nodes) = (Vec::new(), Vec::new());
        for rank in 0..world_size {
            for (index, [start, leaves]) in
                nodes_of(part_of(count, rank, world_size)).into_iter().enumerate()
            {
                let value = if rank == own {
                    device.part(kept(own_slots[index]), parts[own].clone())?
                } else {
                    let place = from.len() * length;
                    from.push((rank, device.part(incoming, place..place + length)?));
                    device.part(incoming, place..place + length)?
                };
                nodes.push(Node { start, leaves, value });
            }
        }
        if world_size > 1 {
            device.swap(&outgoing, &mut from)?;
        }
        let mut refused = None;
        let mut add = |mut left: D::Floats, right: D::Floats| {
            if refused.is_none() {
                refused = device.add(&mut left, &right).err();
            }
            left
        };
        let mut tree = TreeSum::default();
        nodes.into_iter().for_each(|node| tree.push(node, &mut add));
        let sum = tree.finish(&mut add).expect("an update has micro-batches");
        refused.map_or(Ok(sum), |error| Err(error.into()))
    }
}

/// A micro-batch of a run.
#[derive(Debug, PartialEq, Eq)]
struct Leaf {
    /// The buffer that it is computed in.
    slot: usize,
    /// Which buffers are added after it, the right one to the left one.
    pairs: Vec<[usize; 2]>,
}

/// The leaves of a run, and how many buffers they take. The first one's is 0.
fn slots(run: Range<usize>) -> (Vec<Leaf>, usize) {
    let (mut tree, mut free) = (TreeSum::default(), Vec::new());
    let (mut leaves, mut count) = (Vec::new(), 0);
    for start in run {
        let slot = free.pop().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        let mut pairs = Vec::new();
        tree.push(Node { start, leaves: 1, value: slot }, |left, right| {
            pairs.push([left, right]);
            free.push(right);
            left
        });
        leaves.push(Leaf { slot, pairs });
    }
    (leaves, count)
}

/// The buffers of the subtrees that a run leaves, in order.
fn roots(run: Range<usize>) -> Vec<usize> {
    let mut tree = TreeSum::default();
    for (start, leaf) in run.clone().zip(slots(run).0) {
        tree.push(Node { start, leaves: 1, value: leaf.slot }, |left, _| left);
    }
    tree.into_nodes().into_iter().map(|node| node.value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_takes_few_buffers() {
        // The gradients' own, and one for each level that has a sum waiting.
        for (run, buffers) in [(0..1, 1), (0..2, 2), (0..4, 3), (0..8, 4), (3..6, 3), (0..0, 0)] {
            assert_eq!(slots(run.clone()).1, buffers, "{run:?}");
        }
        let (leaves, _) = slots(0..4);
        let leaf = |slot, pairs: &[[usize; 2]]| Leaf { slot, pairs: pairs.to_vec() };
        let expected = [leaf(0, &[]), leaf(1, &[[0, 1]]), leaf(1, &[]), leaf(2, &[[1, 2], [0, 1]])];
        assert_eq!(leaves, expected);
        assert_eq!(roots(0..7), [0, 1, 2]);
        assert_eq!(roots(3..6), [0, 1]);
    }

    #[test]
    fn room_is_counted_for_the_worst_update() {
        let parts = [0..6, 6..10];
        let share = |rank| Share { rank, world_size: 2 };
        // Of four micro-batches each rank has two, one subtree; of three the second has two that are none together.
        assert_eq!(floats_beside(4, &parts, share(0)), [10, 2 * 6]);
        assert_eq!(floats_beside(4, &parts, share(1)), [10, 4]);
        assert_eq!(floats_beside(1, &parts[..1], Share { rank: 0, world_size: 1 }), [0, 0]);
    }
}
