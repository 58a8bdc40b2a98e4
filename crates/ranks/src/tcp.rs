//! The operations over sockets: one connection between any two ranks, each rank summing its own part.

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::link::{Link, Operation, Step, pulse_frame};
use crate::pulse::Pulse;
use crate::{Communicator, Error, Place, rendezvous};

/// Pulses within the time that a rank may be silent.
const PULSES: u32 = 10;
/// How long the end of a job waits for the others to have heard of it.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long a job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For all ranks to come; `PACKED_ADAMW_JOIN_S`, 60 s by default.
    pub join: Duration,
    /// For a sign of progress of a rank; `PACKED_ADAMW_SILENCE_S`, 15 s by default.
    pub silence: Duration,
}

/// Ranks that are connected by sockets.
pub struct Tcp {
    rank: usize,
    /// By rank; none to itself.
    links: Vec<Option<Link>>,
    limits: Limits,
    /// Operations so far.
    number: u64,
    pulse: Pulse,
    /// Whether the others know how this ends.
    has_said_why: bool,
    beating: Option<Beating>,
}

/// The thread that sends pulses; it ends when its channel does.
struct Beating {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { join: Duration::from_secs(60), silence: Duration::from_secs(15) }
    }
}

impl Limits {
    /// Those that the variables of this process name.
    ///
    /// # Errors
    ///
    /// A variable that is no number of seconds above zero.
    pub fn of_process() -> Result<Self, Error> {
        let seconds = |variable: &str, default: Duration| match std::env::var(variable) {
            Err(_) => Ok(default),
            Ok(text) => match text.parse::<u32>() {
                Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds.into())),
                _ => Err(Error::Variable {
                    variable: variable.to_owned(),
                    expected: "a whole number of seconds".into(),
                    found: text,
                }),
            },
        };
        let defaults = Self::default();
        Ok(Self {
            join: seconds("PACKED_ADAMW_JOIN_S", defaults.join)?,
            silence: seconds("PACKED_ADAMW_SILENCE_S", defaults.silence)?,
        })
    }
}

impl Tcp {
    /// Joins the job of `place`; returns when all ranks are there.
    ///
    /// # Errors
    ///
    /// A port in use, a master that cannot be reached, ranks that do not come, and ranks of another job or version.
    pub fn join(place: &Place, limits: Limits) -> Result<Self, Error> {
        let streams = rendezvous::meet(place, limits.join)?;
        let link = |(peer, stream): (usize, Option<_>)| {
            stream.map(|stream| Link::new(peer, stream, limits.silence)).transpose()
        };
        let links: Vec<Option<Link>> =
            streams.into_iter().enumerate().map(link).collect::<Result<_, _>>()?;
        let pulse = Pulse::default();
        let senders: Vec<_> = links.iter().flatten().map(Link::sender).collect();
        let (end, ended) = channel();
        let (own, interval) = (pulse.clone(), limits.silence / PULSES);
        let thread = std::thread::Builder::new()
            .name("pulse".into())
            .spawn(move || beat(&own, &senders, &ended, interval))
            .map_err(Error::io("start a thread"))?;
        let beating = Some(Beating { end, thread });
        let rank = place.rank;
        Ok(Self { rank, links, limits, number: 0, pulse, has_said_why: false, beating })
    }

    /// Sends content to every other rank, then takes theirs in the order of ranks, `own` at its place.
    fn exchange(
        &mut self,
        operation: Operation,
        outgoing: impl Fn(usize) -> Option<Vec<u8>>,
        expected: impl Fn(usize) -> Expected,
        mut take: impl FnMut(usize, Option<Vec<u8>>),
    ) -> Result<(), Error> {
        let step = Step { operation, number: self.number };
        self.number += 1;
        for (peer, link) in self.links.iter().enumerate() {
            if let (Some(link), Some(content)) = (link, outgoing(peer)) {
                link.send(step, &content);
            }
        }
        self.pulse.set_waits(true);
        let silence = self.limits.silence;
        let outcome = self.links.iter_mut().enumerate().try_for_each(|(peer, link)| {
            let content = match (link, expected(peer)) {
                (None, _) => None,
                (_, Expected::Nothing) => return Ok(()),
                (Some(link), Expected::Bytes(bytes)) => {
                    Some(link.receive(step, Some(bytes), silence)?)
                }
                (Some(link), Expected::Any) => Some(link.receive(step, None, silence)?),
            };
            take(peer, content);
            Ok(())
        });
        self.pulse.set_waits(false);
        self.pulse.beat();
        if let Err(error) = &outcome {
            self.pass_on(error);
        }
        outcome
    }

    /// Tells the others what was found, so that all name the same rank.
    fn pass_on(&mut self, error: &Error) {
        let reason = match error {
            Error::Aborted { .. } => {
                // Whoever gave up told everybody.
                self.has_said_why = true;
                return;
            }
            error => error.to_string(),
        };
        self.abort(&reason);
    }
}

/// What a rank sends in an operation.
#[derive(Clone, Copy)]
enum Expected {
    Nothing,
    Bytes(u64),
    Any,
}

impl Communicator for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.links.len()
    }

    fn reduce_scatter(&mut self, values: &mut [f32], parts: &[Range<usize>]) -> Result<(), Error> {
        let own = parts[self.rank].clone();
        let bytes = (own.len() * size_of::<f32>()) as u64;
        let mut sum: Vec<f32> = Vec::new();
        let mut add = |terms: &[f32]| match sum.is_empty() {
            true => sum.extend(terms),
            false => sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term),
        };
        let shared: &[f32] = values;
        self.exchange(
            Operation::ReduceScatter,
            |peer| Some(to_bytes(&shared[parts[peer].clone()])),
            |_| Expected::Bytes(bytes),
            |_, content| match content {
                None => add(&shared[own.clone()]),
                Some(content) => add(&to_floats(&content)),
            },
        )?;
        values[own].copy_from_slice(&sum);
        Ok(())
    }

    fn all_gather(&mut self, values: &mut [f32], parts: &[Range<usize>]) -> Result<(), Error> {
        let own = to_bytes(&values[parts[self.rank].clone()]);
        self.exchange(
            Operation::AllGather,
            |_| Some(own.clone()),
            |peer| Expected::Bytes((parts[peer].len() * size_of::<f32>()) as u64),
            |peer, content| {
                if let Some(content) = content {
                    values[parts[peer].clone()].copy_from_slice(&to_floats(&content));
                }
            },
        )
    }

    fn all_to_all(&mut self, mut outgoing: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Error> {
        assert_eq!(outgoing.len(), self.world_size(), "one message for each rank");
        let mut own = Some(std::mem::take(&mut outgoing[self.rank]));
        let mut incoming = Vec::new();
        self.exchange(
            Operation::AllToAll,
            |peer| Some(outgoing[peer].clone()),
            |_| Expected::Any,
            |_, content| incoming.push(content.or_else(|| own.take()).unwrap_or_default()),
        )?;
        Ok(incoming)
    }

    fn gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut all = Vec::new();
        self.exchange(
            Operation::Gather,
            |_| Some(own.to_vec()),
            |_| Expected::Any,
            |_, content| all.push(content.unwrap_or_else(|| own.to_vec())),
        )?;
        Ok(all)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<(), Error> {
        let is_root = self.rank == root;
        let mut received = None;
        self.exchange(
            Operation::Broadcast,
            |_| is_root.then(|| bytes.clone()),
            |peer| if peer == root { Expected::Any } else { Expected::Nothing },
            |peer, content| {
                if peer == root {
                    received = content;
                }
            },
        )?;
        if let Some(received) = received {
            *bytes = received;
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Error> {
        self.exchange(Operation::Barrier, |_| Some(Vec::new()), |_| Expected::Bytes(0), |_, _| {})
    }

    fn watch(&mut self) -> Result<(), Error> {
        let silence = self.limits.silence;
        let outcome = self.links.iter_mut().flatten().try_for_each(|link| link.watch(silence));
        if let Err(error) = &outcome {
            self.pass_on(error);
        }
        outcome
    }

    fn abort(&mut self, reason: &str) {
        if !self.has_said_why {
            self.has_said_why = true;
            self.links.iter().flatten().for_each(|link| link.send_abort(reason));
        }
    }

    fn leave(&mut self) -> Result<(), Error> {
        let outcome = self.barrier();
        self.has_said_why |= outcome.is_ok();
        outcome
    }

    fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.abort("it ended early");
        if let Some(Beating { end, thread }) = self.beating.take() {
            drop(end);
            // A pulse that panicked has nothing to say that matters now.
            let _ = thread.join();
        }
        let deadline = Instant::now() + FAREWELL;
        self.links.iter_mut().flatten().for_each(|link| link.close(deadline));
    }
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tcp(rank {} of {})", self.rank, self.links.len())
    }
}

fn beat(pulse: &Pulse, links: &[Sender<Vec<u8>>], ended: &Receiver<()>, interval: Duration) {
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(interval) {
        for link in links {
            // Receiving tells who is gone.
            let _ = link.send(pulse_frame(pulse));
        }
    }
}

/// Floats as they travel: little-endian.
fn to_bytes(floats: &[f32]) -> Vec<u8> {
    if cfg!(target_endian = "little") {
        return bytemuck::cast_slice(floats).to_vec();
    }
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn to_floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}
