//! The ranks that share a run, as the trainer sees them.
//!
//! What ranks do together is in crate `ranks`; here is what it means for a run: which micro-batches are whose, how
//! gradients become one, what all must have in common, and that all stop together.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ranks::{Alone, Busy, Communicator, Node, Place, Pulse, TreeSum, nodes_of, part_of};

use crate::error::Error;

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
        }
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
        Ok(self.lock().barrier()?)
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
        self.lock().broadcast(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// The numbers of all ranks, rank after rank.
    ///
    /// # Errors
    ///
    /// A rank that is gone.
    pub fn numbers(&self, own: &[f64]) -> Result<Vec<Vec<f64>>, Error> {
        let bytes: Vec<u8> = own.iter().flat_map(|number| number.to_le_bytes()).collect();
        let all = self.lock().gather(&bytes)?;
        let number = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes);
        Ok(all.iter().map(|bytes| bytes.as_chunks().0.iter().map(number).collect()).collect())
    }

    /// Compares named values with those of rank 0; all ranks name the same difference.
    ///
    /// # Errors
    ///
    /// [`Error::RanksDiffer`], and a rank that is gone.
    pub fn must_agree(&self, values: &[(String, String)]) -> Result<(), Error> {
        let text = serde_json::to_vec(values).expect("pairs of texts are JSON");
        let all = self.lock().gather(&text)?;
        let read = |text: &Vec<u8>| -> Vec<(String, String)> {
            serde_json::from_slice(text).unwrap_or_default()
        };
        let first = read(&all[0]);
        for (rank, values) in all.iter().enumerate().skip(1) {
            let values = read(values);
            let missing = || ("number of values".to_owned(), values.len().to_string());
            let other = values.iter().cloned().chain((values.len() < first.len()).then(missing));
            if let Some(((key, expected), (_, found))) =
                first.iter().cloned().zip(other).find(|(first, other)| first != other)
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
        Ok(self.lock().all_reduce(gradients)?)
    }

    /// Adds the gradients of `count` micro-batches, of which `own` has the subtrees of this rank, to `sum`: in the
    /// order of one tree, whoever has which.
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
    ) -> Result<(), Error> {
        let world_size = self.share.world_size;
        let parts: Vec<Range<usize>> =
            (0..world_size).map(|rank| part_of(sum.len(), rank, world_size)).collect();
        let nodes = own.into_nodes();
        let outgoing = parts.iter().map(|part| {
            let pieces = nodes.iter().map(|node| &node.value[part.clone()]);
            pieces.flat_map(bytemuck::cast_slice::<f32, u8>).copied().collect()
        });
        let incoming = self.lock().all_to_all(outgoing.collect())?;
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
        Ok(self.lock().all_gather(sum, &parts)?)
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
        Ok(self.lock().leave()?)
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
