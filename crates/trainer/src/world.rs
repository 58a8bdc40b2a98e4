//! The ranks that share a run, as the trainer sees them.
//!
//! What ranks do together is in crate `ranks`; here is what it means for a run: which micro-batches are whose, how
//! gradients become one, what all must have in common, and that all stop together.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use optimizer::{Location, Report};
use ranks::{Alone, Busy, Communicator, Node, Place, Pulse, TreeSum, Waiting, nodes_of, part_of};

use crate::error::Error;
use crate::guard::Guard;

/// A rank among all of a run; clones are the same one.
#[derive(Clone)]
pub struct World {
    communicator: Arc<Mutex<Box<dyn Communicator>>>,
    share: Share,
    local: Local,
    pulse: Pulse,
    /// Whether this rank was asked to stop.
    wish: Arc<AtomicBool>,
    /// Whether all stop.
    stops: Arc<AtomicBool>,
    guard: Guard,
}

/// Which part of an update a rank takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The number of the rank, from 0.
    pub rank: usize,
    /// How many there are.
    pub world_size: usize,
}

/// A rank on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Its number there.
    pub rank: usize,
    /// How many the host has, if that is known.
    pub world_size: Option<usize>,
}

/// What ranks tell each other about an update.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// The summed loss, in nats, micro-batch after micro-batch.
    pub nats: f64,
    /// The time that each rank computed, in milliseconds.
    pub rank_ms: Vec<f64>,
}

impl Share {
    /// The whole.
    pub const WHOLE: Self = Self { rank: 0, world_size: 1 };

    /// `count` things in as many parts as ranks, which follow each other and differ by one at most.
    #[must_use]
    pub fn equal_parts(self, count: usize) -> Vec<Range<usize>> {
        (0..self.world_size).map(|rank| part_of(count, rank, self.world_size)).collect()
    }

    /// Which of `count` things in a row are this rank's.
    #[must_use]
    pub fn part_of(self, count: usize) -> Range<usize> {
        part_of(count, self.rank, self.world_size)
    }
}

impl World {
    /// A process without others.
    #[must_use]
    pub fn alone() -> Self {
        Self::new(Alone::default(), Local { rank: 0, world_size: Some(1) })
    }

    /// A rank that joined the others.
    #[must_use]
    pub fn of(communicator: impl Communicator + 'static, place: &Place) -> Self {
        let local = Local { rank: place.local_rank, world_size: place.local_world_size };
        Self::new(communicator, local)
    }

    fn new(communicator: impl Communicator + 'static, local: Local) -> Self {
        let (rank, world_size) = (communicator.rank(), communicator.world_size());
        Self {
            share: Share { rank, world_size },
            local,
            pulse: communicator.pulse(),
            communicator: Arc::new(Mutex::new(Box::new(communicator))),
            wish: Arc::default(),
            stops: Arc::default(),
            guard: Guard::default(),
        }
    }

    /// Who ends this process if it does not end by itself some seconds after a rank was found to be gone, as may happen
    /// where a device waits for that rank.
    pub fn set_last_resort(&self, end: impl Fn(&ranks::Error) + Send + Sync + 'static) {
        self.guard.set_last_resort(end);
    }

    /// Watches over the others also between operations, while devices wait for each other. `check` looks whether their
    /// common work has failed, and `cut` breaks it off once a rank is found to be gone.
    ///
    /// # Errors
    ///
    /// A thread that cannot be started.
    pub fn watch(
        &self,
        check: impl Fn() -> Result<(), String> + Send + 'static,
        cut: impl Fn() + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let rank = self.share.rank;
        let communicator = Arc::downgrade(&self.communicator);
        let look =
            move || {
                let communicator = communicator.upgrade()?;
                // Whoever is in an operation finds out there.
                let watched = communicator.try_lock().map_or(Ok(()), |mut ranks| ranks.watch());
                Some(watched.and_then(|()| {
                    check().map_err(|message| ranks::Error::Device { rank, message })
                }))
            };
        self.guard.start(look, cut)
    }

    /// What was found to be wrong with the ranks while a device waited for them; told once.
    #[must_use]
    pub fn fault(&self) -> Option<ranks::Error> {
        self.guard.fault()
    }

    /// Whether something was.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.guard.is_cut()
    }

    /// Tells the others that this rank waits, for a device that may wait for them.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        self.pulse.waiting()
    }

    /// Which part is this rank's.
    #[must_use]
    pub fn share(&self) -> Share {
        self.share
    }

    /// Where it is on its host.
    #[must_use]
    pub fn local(&self) -> Local {
        self.local
    }

    /// Whether there are no others.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.share.world_size == 1
    }

    /// Whether this is the rank that speaks and writes.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.share.rank == 0
    }

    /// Shows the others that this rank gets somewhere.
    pub fn beat(&self) {
        self.pulse.beat();
    }

    /// Tells the others that this rank works at something long.
    #[must_use]
    pub fn busy(&self) -> Busy {
        self.pulse.busy()
    }

    /// Waits for all.
    ///
    /// # Errors
    ///
    /// A rank that is gone; as for all that ranks do together.
    pub fn barrier(&self) -> Result<(), Error> {
        self.with(|ranks| ranks.barrier())
    }

    /// The text of rank 0.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn text_of_first(&self, text: String) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(&self.bytes_of_first(text.into_bytes())?).into_owned())
    }

    /// The bytes of rank 0.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn bytes_of_first(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        self.with(|ranks| ranks.broadcast(&mut bytes, 0))?;
        Ok(bytes)
    }

    /// The bytes of every rank, on rank 0; nothing of the others elsewhere.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn bytes_to_first(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        let mut outgoing = vec![Vec::new(); self.share.world_size];
        outgoing[0] = own;
        self.with(|ranks| ranks.all_to_all(outgoing))
    }

    /// The numbers of all ranks, rank after rank.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn numbers(&self, own: &[f64]) -> Result<Vec<Vec<f64>>, Error> {
        let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
        let all = self.with(|ranks| ranks.gather(&bytes))?;
        let number = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
        Ok(all.iter().map(|bytes| bytes.as_chunks().0.iter().map(number).collect()).collect())
    }

    /// Compares named values with those of rank 0; all ranks name the same difference.
    ///
    /// # Errors
    ///
    /// [`Error::RanksDiffer`], and a rank that is gone.
    pub fn must_agree(&self, values: &[(String, String)]) -> Result<(), Error> {
        self.must_agree_by(values, |first, other| first == other)
    }

    /// The same, where texts stand for values and `is_same` says which stand for the same one.
    ///
    /// # Errors
    ///
    /// [`Error::RanksDiffer`], and a rank that is gone.
    pub(crate) fn must_agree_by(
        &self,
        values: &[(String, String)],
        is_same: impl Fn(&str, &str) -> bool,
    ) -> Result<(), Error> {
        let differ = |(first, other): &((String, String), (String, String))| {
            first.0 != other.0 || !is_same(&first.1, &other.1)
        };
        let text = serde_json::to_vec(values).expect("pairs of texts are JSON");
        let all = self.with(|ranks| ranks.gather(&text))?;
        let read = |text: &Vec<u8>| -> Vec<(String, String)> {
            serde_json::from_slice(text).unwrap_or_default()
        };
        let first = read(&all[0]);
        for (rank, values) in all.iter().enumerate().skip(1) {
            let values = read(values);
            let missing = || ("number of values".to_owned(), values.len().to_string());
            let other = values.iter().cloned().chain((values.len() < first.len()).then(missing));
            if let Some(((key, expected), (_, found))) =
                first.iter().cloned().zip(other).find(differ)
            {
                return Err(Error::RanksDiffer { rank, key, expected, found });
            }
        }
        Ok(())
    }

    /// Adds the gradients of all ranks, in their order.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn sum(&self, gradients: &mut [f32]) -> Result<(), Error> {
        self.with(|ranks| ranks.all_reduce(gradients))
    }

    /// Adds up numbers in the order of ranks.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn sum_numbers(&self, numbers: &mut [f64]) -> Result<(), Error> {
        let all = self.numbers(numbers)?;
        for (index, number) in numbers.iter_mut().enumerate() {
            *number = all.iter().map(|own| own[index]).sum();
        }
        Ok(())
    }

    /// Adds the gradients of all ranks, each range on the rank that it is given for.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn sum_parts(&self, gradients: &mut [f32], parts: &[Range<usize>]) -> Result<(), Error> {
        self.with(|ranks| ranks.reduce_scatter(gradients, parts))
    }

    /// Brings every rank's range to all.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn share_parts(&self, values: &mut [f32], parts: &[Range<usize>]) -> Result<(), Error> {
        self.with(|ranks| ranks.all_gather(values, parts))
    }

    /// Equal ranges of so many values, one for each rank.
    #[must_use]
    pub fn equal_parts(&self, count: usize) -> Vec<Range<usize>> {
        self.share.equal_parts(count)
    }

    /// Adds the gradients of `count` micro-batches, of which `own` has the subtrees of this rank, to `sum`: in the
    /// order of one tree, whoever has which. Each rank gets the range of `parts` that it is given for.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    ///
    /// # Panics
    ///
    /// Without a micro-batch.
    pub fn sum_tree(
        &self,
        own: TreeSum<Vec<f32>>,
        count: usize,
        sum: &mut [f32],
        parts: &[Range<usize>],
    ) -> Result<(), Error> {
        let world_size = self.share.world_size;
        let nodes = own.into_nodes();
        let outgoing = parts.iter().map(|part| {
            let pieces = nodes.iter().map(|node| &node.value[part.clone()]);
            pieces.flat_map(bytemuck::cast_slice::<f32, u8>).copied().collect()
        });
        let incoming = self.with(|ranks| ranks.all_to_all(outgoing.collect()))?;
        let part = parts[self.share.rank].clone();
        let mut all = TreeSum::default();
        for (rank, content) in incoming.iter().enumerate() {
            let shape = nodes_of(part_of(count, rank, world_size));
            let bytes = part.len() * size_of::<f32>();
            assert_eq!(content.len(), shape.len() * bytes, "ranks agree on the update");
            for (index, [start, leaves]) in shape.into_iter().enumerate() {
                let words = content[index * bytes..][..bytes].as_chunks().0.iter();
                let value = words.map(|word| f32::from_ne_bytes(*word)).collect();
                all.push(Node { start, leaves, value }, plus);
            }
        }
        sum[part].copy_from_slice(&all.finish(plus).expect("an update has micro-batches"));
        Ok(())
    }

    /// Ends an update: the losses of all micro-batches, the times of all ranks, and whether any was asked to stop.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn finish_update(&self, nats: &[f64], own_ms: f64) -> Result<Together, Error> {
        let wish = f64::from(u8::from(self.wish.load(Ordering::Relaxed)));
        let all = self.numbers(&[&[own_ms, wish], nats].concat())?;
        if all.iter().any(|own| own[1] > 0.0) {
            self.stops.store(true, Ordering::Relaxed);
        }
        Ok(Together {
            nats: all.iter().flat_map(|own| &own[2..]).sum(),
            rank_ms: all.iter().map(|own| own[0]).collect(),
        })
    }

    /// What all ranks found of an update together, where each reports of its own part only.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn whole_report(&self, own: Report) -> Result<Report, Error> {
        let first = own.first_nonfinite.map(|first| [first.tensor as f64, first.index as f64]);
        let [tensor, index] = first.unwrap_or([f64::INFINITY; 2]);
        let counts = [own.nonfinite, own.saturated_m, own.saturated_r].map(|count| count as f64);
        let skipped = f64::from(u8::from(own.skipped));
        let all = self.numbers(&[&counts[..], &[skipped, tensor, index]].concat())?;
        let count = |place: usize| all.iter().map(|rank| rank[place] as u64).sum();
        let places =
            all.iter().map(|rank| [rank[4], rank[5]]).filter(|[tensor, _]| tensor.is_finite());
        let first = places
            .min_by(|one, other| one[0].total_cmp(&other[0]).then(one[1].total_cmp(&other[1])));
        Ok(Report {
            nonfinite: count(0),
            saturated_m: count(1),
            saturated_r: count(2),
            skipped: all.iter().any(|rank| rank[3] > 0.0),
            first_nonfinite: first
                .map(|[tensor, index]| Location { tensor: tensor as usize, index: index as usize }),
            ..own
        })
    }

    /// Whether to stop here, where this rank `wants` to or not: alone at once, else when all have heard of it, which is
    /// after an update.
    pub fn stops(&self, wants: bool) -> bool {
        self.wish.store(wants, Ordering::Relaxed);
        if self.is_alone() { wants } else { self.stops.load(Ordering::Relaxed) }
    }

    /// Tells the others why this rank gives up.
    pub fn abort(&self, reason: &str) {
        self.lock().abort(reason);
    }

    /// Ends in good order.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn leave(&self) -> Result<(), Error> {
        self.guard.stop();
        self.with(|ranks| ranks.leave())
    }

    /// An operation of all ranks. Where it fails, work of devices that waits for ranks is broken off.
    fn with<T>(
        &self,
        operation: impl FnOnce(&mut dyn Communicator) -> Result<T, ranks::Error>,
    ) -> Result<T, Error> {
        let outcome = operation(&mut **self.lock());
        if outcome.is_err() {
            self.guard.cut();
        }
        Ok(outcome?)
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Communicator>> {
        self.communicator.lock().expect("no operation panics")
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.share.rank, self.share.world_size)
    }
}

/// The sum of two gradients, in the memory of the first.
pub fn plus(mut left: Vec<f32>, right: Vec<f32>) -> Vec<f32> {
    left.iter_mut().zip(&right).for_each(|(left, right)| *left += right);
    left
}
