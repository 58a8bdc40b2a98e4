//! What ranks do together, and the communicator of a process that is alone.

use std::ops::Range;

use crate::Error;
use crate::pulse::Pulse;

/// The operations of a job. Every rank calls the same ones in the same order, with arrays of the same lengths; a rank
/// that does not is found by the others.
///
/// After an error nothing else works: the ranks are to end.
pub trait Communicator: Send {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// `values[i] = values of rank 0 [i] + values of rank 1 [i] + ...`, each sum rounded to f32, in the order of ranks:
    /// the same bits on every rank and at every run.
    ///
    /// # Errors
    ///
    /// A rank that is gone, hangs, gave up or does something else.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        let world_size = self.world_size();
        let parts: Vec<Range<usize>> =
            (0..world_size).map(|rank| part_of(values.len(), rank, world_size)).collect();
        self.reduce_scatter(values, &parts)?;
        self.all_gather(values, &parts)
    }

    /// As [`Communicator::all_reduce`], but each rank gets the sums of its own part only, and finds its old values
    /// elsewhere. `parts` has one range for each rank.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::all_reduce`].
    fn reduce_scatter(&mut self, values: &mut [f32], parts: &[Range<usize>]) -> Result<(), Error>;

    /// Brings every rank's own part of `values` to all.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::all_reduce`].
    fn all_gather(&mut self, values: &mut [f32], parts: &[Range<usize>]) -> Result<(), Error>;

    /// Sends `outgoing[rank]` to each rank, and returns what each sent here, this one included.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::all_reduce`].
    ///
    /// # Panics
    ///
    /// If there is not one message for each rank.
    fn all_to_all(&mut self, outgoing: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Error>;

    /// What each rank has to say, in the order of ranks.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::all_reduce`].
    fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error>;

    /// Replaces `bytes` by those of rank `root`.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::all_reduce`].
    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<(), Error>;

    /// Returns once every rank has called it.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::all_reduce`].
    fn barrier(&mut self) -> Result<(), Error>;

    /// Looks whether the others are still there, between operations, without waiting for them.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::all_reduce`].
    fn watch(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Tells the others that this rank gives up, and why, so that they end too.
    fn abort(&mut self, reason: &str);

    /// Ends the job in good order: waits for all ranks to come here. Nothing may follow.
    ///
    /// # Errors
    ///
    /// As for [`Communicator::all_reduce`].
    fn leave(&mut self) -> Result<(), Error> {
        self.barrier()
    }

    /// Where this rank shows that it makes progress between operations.
    fn pulse(&self) -> Pulse;
}

/// The part of `count` things that rank `rank` of `world_size` has: parts follow each other and differ by one at most.
#[must_use]
pub fn part_of(count: usize, rank: usize, world_size: usize) -> Range<usize> {
    let border = |rank: usize| (count as u128 * rank as u128 / world_size as u128) as usize;
    border(rank)..border(rank + 1)
}

/// One process without others: every operation is done at once.
#[derive(Debug, Default)]
pub struct Alone {
    pulse: Pulse,
}

impl Communicator for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn reduce_scatter(&mut self, _: &mut [f32], _: &[Range<usize>]) -> Result<(), Error> {
        Ok(())
    }

    fn all_gather(&mut self, _: &mut [f32], _: &[Range<usize>]) -> Result<(), Error> {
        Ok(())
    }

    fn all_to_all(&mut self, outgoing: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Error> {
        assert_eq!(outgoing.len(), 1, "one message for each rank");
        Ok(outgoing)
    }

    fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Ok(vec![own.to_vec()])
    }

    fn broadcast(&mut self, _: &mut Vec<u8>, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn abort(&mut self, _: &str) {}

    fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_once() {
        for count in [0, 1, 5, 64, 1000] {
            for world_size in [1, 2, 3, 7, 64] {
                let mut end = 0;
                for rank in 0..world_size {
                    let part = part_of(count, rank, world_size);
                    assert_eq!(part.start, end);
                    assert!(part.len().abs_diff(count / world_size) <= 1);
                    end = part.end;
                }
                assert_eq!(end, count);
            }
        }
    }
}
