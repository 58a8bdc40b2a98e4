//! Windows in a shuffled order, out of ranges that are read ahead.
//!
//! Which window is number w is the matter of [`order`](crate::order); this module brings its tokens. A tape has
//! at most two ranges in memory: the one that windows are taken from, and the next one, which a thread
//! reads and verifies meanwhile (one thread for all tapes). Asking for a window anywhere reads its range
//! and nothing before it. An error of reading comes out where the window is asked for, with file and place.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use crate::Error;
use crate::order::{Order, OrderOptions, RangePlace};
use crate::reader::Tape;

/// The windows of tapes in their order.
///
/// # Example
///
/// ```no_run
/// use std::sync::Arc;
/// use tape::loader::Loader;
/// use tape::order::OrderOptions;
/// use tape::reader::{Tape, TapeSource, Verify};
///
/// let source = TapeSource::at("c4/train.tape-set.json");
/// let tape = Arc::new(Tape::open_with(&source, None, Verify::WhenRead)?);
/// let options = OrderOptions { context: 1024, range_tokens: 1 << 24, seed: 1, weights: Vec::new() };
/// let mut loader = Loader::new(vec![tape], &options, true)?;
/// // The sixteen windows of update 5,000, wherever the last run stopped.
/// loader.read(80_000..80_016, &mut |row| assert!(row.inputs.len() <= 1024))?;
/// # Ok::<(), tape::Error>(())
/// ```
#[derive(Debug)]
pub struct Loader {
    order: Arc<Order>,
    streams: Vec<Stream>,
    fetcher: Option<Fetcher>,
}

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'r> {
    /// The tape that it comes from, as numbered in [`Loader::new`].
    pub tape: usize,
    /// The position of the first input in that tape.
    pub cursor: u64,
    /// The position of the first token of the range that the window is in.
    pub range_start: u64,
    /// The tokens of that range.
    pub range: &'r [u32],
    /// What the model reads: T tokens, fewer in the last window of a tape.
    pub inputs: &'r [u32],
    /// What it should say: the token after each input.
    pub targets: &'r [u32],
    /// For each target, how many bytes of text it stands for; `None` without byte lengths.
    pub byte_lengths: Option<&'r [u16]>,
}

/// The reading of one tape.
#[derive(Debug)]
struct Stream {
    tape: Arc<Tape>,
    /// The order of ranges of the newest epoch that was asked for.
    range_order: Option<(u64, Arc<[u64]>)>,
    current: Option<LoadedRange>,
    /// What the thread is reading, or has read.
    ahead: Ahead,
}

#[derive(Debug, Default)]
enum Ahead {
    #[default]
    Nothing,
    Asked(RangePlace),
    There(RangePlace, Result<LoadedRange, Error>),
}

/// A range in memory.
#[derive(Debug)]
struct LoadedRange {
    at: RangePlace,
    /// The number of its first window in the tape.
    first_window: u64,
    /// Its windows, from the first on, in their order.
    windows: Vec<u32>,
    /// Where its tokens begin in the tape.
    start: u64,
    tokens: Vec<u32>,
    /// Of the tokens; empty without byte lengths.
    lengths: Vec<u16>,
}

impl Loader {
    /// A loader of `tapes`; with `prefetch`, the next range is read ahead on a thread. The windows are the
    /// same with and without.
    ///
    /// # Errors
    /// [`Error::Weights`], or [`Error::NoTargets`] for a tape of one token.
    ///
    /// # Panics
    /// If there is no tape or T is 0.
    pub fn new(
        tapes: Vec<Arc<Tape>>,
        options: &OrderOptions,
        prefetch: bool,
    ) -> Result<Self, Error> {
        if let Some(tape) = tapes.iter().find(|tape| tape.len() < 2) {
            return Err(Error::NoTargets { path: tape.path().to_owned() });
        }
        let targets: Vec<u64> = tapes.iter().map(|tape| tape.len() - 1).collect();
        let order = Arc::new(Order::new(&targets, options)?);
        let stream = |tape: &Arc<Tape>| Stream {
            tape: Arc::clone(tape),
            range_order: None,
            current: None,
            ahead: Ahead::Nothing,
        };
        let streams = tapes.iter().map(stream).collect();
        let fetcher = prefetch.then(|| Fetcher::start(tapes, Arc::clone(&order)));
        Ok(Self { order, streams, fetcher })
    }

    /// The order of the windows.
    pub fn order(&self) -> &Arc<Order> {
        &self.order
    }

    /// Hands over the windows numbered `windows`, in order.
    ///
    /// # Errors
    /// Those of [`Tape::read`]; the windows before are handed over then.
    pub fn read(
        &mut self,
        windows: Range<u64>,
        take: &mut dyn FnMut(Row<'_>),
    ) -> Result<(), Error> {
        for window in windows {
            let (tape, window) = self.order.locate(window);
            let position = self.go_to(tape, window)?;
            let range = self.streams[tape].current.as_ref().expect("the range was brought");
            let number = range.first_window + u64::from(range.windows[position as usize]);
            let inputs = self.order.of_tape(tape).inputs(number);
            let at = |token: u64| (token - range.start) as usize;
            let (start, end) = (at(inputs.start), at(inputs.end));
            take(Row {
                tape,
                cursor: inputs.start,
                range_start: range.start,
                range: &range.tokens,
                inputs: &range.tokens[start..end],
                targets: &range.tokens[start + 1..=end],
                byte_lengths: range.lengths.get(start + 1..=end),
            });
        }
        Ok(())
    }

    /// Makes the range of a window of a tape the current one; the window's position in its order.
    fn go_to(&mut self, tape: usize, window: u64) -> Result<u64, Error> {
        let (epoch, position) = self.order.of_tape(tape).epoch_of(window);
        let ranges = self.range_order(tape, epoch);
        let (place, position) = self.order.of_tape(tape).find(position, &ranges);
        let at = RangePlace { epoch, place };
        if self.streams[tape].current.as_ref().is_none_or(|range| range.at != at) {
            let old = self.streams[tape].current.take();
            let (range, spare) = self.bring(tape, at, old)?;
            self.streams[tape].current = Some(range);
            if let Some(fetcher) = &self.fetcher {
                let next = self.order.of_tape(tape).next(at);
                fetcher.ask(Request { tape, at: next, spare });
                self.streams[tape].ahead = Ahead::Asked(next);
            }
        }
        Ok(position)
    }

    /// The range at a place, and memory for another one.
    fn bring(
        &mut self,
        tape: usize,
        at: RangePlace,
        old: Option<LoadedRange>,
    ) -> Result<(LoadedRange, Option<LoadedRange>), Error> {
        match std::mem::take(&mut self.streams[tape].ahead) {
            Ahead::There(there, range) if there == at => return Ok((range?, old)),
            Ahead::Asked(asked) => {
                // Where the reading jumps, another place was expected; what comes is dropped.
                let range = self.wait(tape);
                if asked == at {
                    return Ok((range?, old));
                }
            }
            Ahead::There(..) | Ahead::Nothing => {}
        }
        let ranges = self.range_order(tape, at.epoch);
        let range = load(&self.streams[tape].tape, &self.order, tape, at, &ranges, old)?;
        Ok((range, None))
    }

    /// What the thread has read for a tape; answers for other tapes are kept for them.
    fn wait(&mut self, tape: usize) -> Result<LoadedRange, Error> {
        let fetcher = self.fetcher.as_ref().expect("only a fetcher is asked");
        loop {
            let Answer { tape: of, at, range } = fetcher.answer();
            if of == tape {
                return range;
            }
            self.streams[of].ahead = Ahead::There(at, range);
        }
    }

    fn range_order(&mut self, tape: usize, epoch: u64) -> Arc<[u64]> {
        let stream = &mut self.streams[tape];
        match &stream.range_order {
            Some((known, ranges)) if *known == epoch => Arc::clone(ranges),
            _ => {
                let ranges: Arc<[u64]> = self.order.of_tape(tape).range_order(epoch).into();
                stream.range_order = Some((epoch, Arc::clone(&ranges)));
                ranges
            }
        }
    }
}

/// Reads a range, into the memory of `old` where there is some.
fn load(
    tape: &Tape,
    order: &Order,
    index: usize,
    at: RangePlace,
    range_order: &[u64],
    old: Option<LoadedRange>,
) -> Result<LoadedRange, Error> {
    let order = order.of_tape(index);
    let (mut tokens, mut lengths) = old.map(|old| (old.tokens, old.lengths)).unwrap_or_default();
    let (first_window, windows) = order.windows_of(at, range_order);
    let start = order.inputs(first_window).start;
    let end = order.inputs(first_window + windows.len() as u64 - 1).end + 1;
    tape.read(start..end, &mut tokens)?;
    tape.read_byte_lengths(start..end, &mut lengths)?;
    Ok(LoadedRange { at, first_window, windows, start, tokens, lengths })
}

/// The thread that reads ahead.
#[derive(Debug)]
struct Fetcher {
    requests: Option<Sender<Request>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

struct Request {
    tape: usize,
    at: RangePlace,
    /// Memory that may be used again.
    spare: Option<LoadedRange>,
}

struct Answer {
    tape: usize,
    at: RangePlace,
    range: Result<LoadedRange, Error>,
}

impl Fetcher {
    fn start(tapes: Vec<Arc<Tape>>, order: Arc<Order>) -> Self {
        let (requests, inbox) = mpsc::channel::<Request>();
        let (outbox, answers) = mpsc::channel();
        let thread = thread::spawn(move || {
            for Request { tape, at, spare } in inbox {
                let ranges = order.of_tape(tape).range_order(at.epoch);
                let range = load(&tapes[tape], &order, tape, at, &ranges, spare);
                if outbox.send(Answer { tape, at, range }).is_err() {
                    break;
                }
            }
        });
        Self { requests: Some(requests), answers, thread: Some(thread) }
    }

    fn ask(&self, request: Request) {
        let requests = self.requests.as_ref().expect("open until the end");
        requests.send(request).expect("the thread lives as long as its inbox");
    }

    fn answer(&self) -> Answer {
        self.answers.recv().expect("every request is answered")
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}
