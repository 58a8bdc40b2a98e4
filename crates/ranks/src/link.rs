//! Frames between this rank and one other.
//!
//! A frame is 24 bytes (kind, operation, number, length) and its content. A thread sends, so that two ranks that send
//! each other much at once do not wait for each other; who receives reads from the socket itself.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::pulse::Pulse;

/// Bytes before the content of a frame.
const HEADER_BYTES: usize = 24;
/// How often a receiver that gets nothing looks at the clock.
const LOOK: Duration = Duration::from_millis(200);
/// How long a look between operations may take.
const GLANCE: Duration = Duration::from_millis(1);
/// Most bytes of the words of a rank that gives up.
const REASON_BYTES_MAX: u64 = 1 << 16;

const DATA: u8 = 1;
const PULSE: u8 = 2;
const ABORT: u8 = 3;

/// What ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    ReduceScatter,
    AllGather,
    AllToAll,
    Gather,
    Broadcast,
    Barrier,
}

/// One operation of a job: which, and how many were before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) operation: Operation,
    pub(crate) number: u64,
}

/// The way to another rank.
pub(crate) struct Link {
    peer: usize,
    reader: TcpStream,
    sender: Option<Sender<Vec<u8>>>,
    sending: Option<JoinHandle<()>>,
    /// What the peer last showed of its work.
    steps: u64,
    /// When it was last seen to get somewhere.
    progress: Instant,
}

/// A frame without its content.
struct Header {
    kind: u8,
    operation: u8,
    number: u64,
    length: u64,
}

impl Operation {
    const ALL: [(Self, &'static str); 6] = [
        (Self::ReduceScatter, "reduce_scatter"),
        (Self::AllGather, "all_gather"),
        (Self::AllToAll, "all_to_all"),
        (Self::Gather, "gather"),
        (Self::Broadcast, "broadcast"),
        (Self::Barrier, "barrier"),
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = Operation::ALL[self.operation as usize];
        write!(f, "{name} (operation {})", self.number)
    }
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        (bytes[0], bytes[1]) = (self.kind, self.operation);
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |start: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[start..start + 8]);
            u64::from_le_bytes(word)
        };
        Self { kind: bytes[0], operation: bytes[1], number: word(8), length: word(16) }
    }

    /// What the frame is part of, for people.
    fn name(&self) -> String {
        match Operation::ALL.get(usize::from(self.operation)) {
            Some(&(operation, _)) if self.kind == DATA => {
                let step = Step { operation, number: self.number };
                format!("{} bytes for {step}", self.length)
            }
            _ => "something that is no frame".to_owned(),
        }
    }
}

impl Link {
    /// A link over an open connection.
    pub(crate) fn new(peer: usize, stream: TcpStream, silence: Duration) -> Result<Self, Error> {
        let prepare = || -> io::Result<TcpStream> {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LOOK))?;
            // A peer that takes nothing for so long is gone; who receives from it says so.
            stream.set_write_timeout(Some(silence))?;
            stream.try_clone()
        };
        let writer = prepare().map_err(Error::io("set up a connection"))?;
        let (sender, frames) = channel();
        let sending = std::thread::Builder::new()
            .name(format!("to rank {peer}"))
            .spawn(move || send_all(writer, &frames))
            .map_err(Error::io("start a thread"))?;
        let progress = Instant::now();
        let (sender, sending) = (Some(sender), Some(sending));
        Ok(Self { peer, reader: stream, sender, sending, steps: 0, progress })
    }

    /// Where frames for the peer go; what cannot be sent is lost, and receiving tells.
    pub(crate) fn sender(&self) -> Sender<Vec<u8>> {
        self.sender.clone().expect("a link is open until it is dropped")
    }

    /// Queues the content of a step.
    pub(crate) fn send(&self, step: Step, content: &[u8]) {
        let (operation, length) = (step.operation as u8, content.len() as u64);
        let header = Header { kind: DATA, operation, number: step.number, length };
        let mut frame = Vec::with_capacity(HEADER_BYTES + content.len());
        frame.extend(header.to_bytes());
        frame.extend(content);
        // Receiving from the peer tells that it is gone.
        let _ = self.sender().send(frame);
    }

    /// Queues the words of a rank that gives up.
    pub(crate) fn send_abort(&self, reason: &str) {
        let end = reason.floor_char_boundary(REASON_BYTES_MAX as usize);
        let (length, number, operation) = (end as u64, 0, 0);
        let mut frame = Header { kind: ABORT, operation, number, length }.to_bytes().to_vec();
        frame.extend(&reason.as_bytes()[..end]);
        let _ = self.sender().send(frame);
    }

    /// Waits for the peer's content of a step. `expected` bytes, if their number is known.
    pub(crate) fn receive(
        &mut self,
        step: Step,
        expected: Option<u64>,
        silence: Duration,
    ) -> Result<Vec<u8>, Error> {
        let mut progress = Instant::now();
        loop {
            let mut bytes = [0; HEADER_BYTES];
            self.fill(&mut bytes, step, &mut progress, silence)?;
            let header = Header::from_bytes(&bytes);
            match header.kind {
                PULSE => {
                    if self.shows_progress(&header) {
                        progress = Instant::now();
                    }
                }
                ABORT if header.length <= REASON_BYTES_MAX => {
                    let mut reason = vec![0; header.length as usize];
                    self.fill(&mut reason, step, &mut progress, silence)?;
                    let reason = String::from_utf8_lossy(&reason).into_owned();
                    return Err(Error::Aborted { rank: self.peer, reason });
                }
                DATA if header.operation == step.operation as u8
                    && header.number == step.number
                    && expected.is_none_or(|expected| expected == header.length) =>
                {
                    return self.content(header.length, step, silence);
                }
                _ => {
                    let length =
                        expected.map_or_else(String::new, |bytes| format!("{bytes} bytes for "));
                    let (expected, found) = (format!("{length}{step}"), header.name());
                    return Err(Error::OutOfStep { rank: self.peer, expected, found });
                }
            }
        }
    }

    /// Whether a pulse tells of work, or of a wait: who waits for others is not the one that hangs.
    fn shows_progress(&mut self, pulse: &Header) -> bool {
        let is_progress = pulse.operation == 1 || pulse.number != self.steps;
        self.steps = pulse.number;
        if is_progress {
            self.progress = Instant::now();
        }
        is_progress
    }

    /// Looks at what the peer has sent between operations, without waiting for more.
    pub(crate) fn watch(&mut self, silence: Duration) -> Result<(), Error> {
        let (rank, during) = (self.peer, || "work on devices".to_owned());
        let gone = || Error::Ended { rank, operation: during() };
        loop {
            let mut bytes = [0; HEADER_BYTES];
            // The sending thread shares the socket, which must go on to block there.
            self.reader
                .set_read_timeout(Some(GLANCE))
                .map_err(Error::io("look at a connection"))?;
            let peeked = self.reader.peek(&mut bytes);
            self.reader.set_read_timeout(Some(LOOK)).map_err(Error::io("look at a connection"))?;
            match peeked {
                Ok(0) => return Err(gone()),
                Ok(HEADER_BYTES) => {}
                Ok(_) => break,
                Err(error) if is_pause(&error) => break,
                Err(_) => return Err(gone()),
            }
            let header = Header::from_bytes(&bytes);
            match header.kind {
                PULSE => {
                    self.reader.read_exact(&mut bytes).map_err(|_| gone())?;
                    self.shows_progress(&header);
                }
                ABORT if header.length <= REASON_BYTES_MAX => {
                    self.reader.read_exact(&mut bytes).map_err(|_| gone())?;
                    let mut reason = vec![0; header.length as usize];
                    let step = Step { operation: Operation::Barrier, number: 0 };
                    self.fill(&mut reason, step, &mut Instant::now(), silence)?;
                    let reason = String::from_utf8_lossy(&reason).into_owned();
                    return Err(Error::Aborted { rank, reason });
                }
                // It has come to the next operation, and waits for this rank.
                _ => {
                    self.progress = Instant::now();
                    break;
                }
            }
        }
        if self.progress.elapsed() > silence {
            let silent_s = silence.as_secs();
            return Err(Error::Hangs { rank, operation: during(), silent_s });
        }
        Ok(())
    }

    /// The content of a frame, which counts as progress as it comes.
    fn content(&mut self, length: u64, step: Step, silence: Duration) -> Result<Vec<u8>, Error> {
        const PIECE: usize = 1 << 20;
        let mut content = Vec::new();
        let mut missing = length as usize;
        while missing > 0 {
            // Memory grows with what really came, not with what a header says.
            let (start, piece) = (content.len(), missing.min(PIECE));
            content.resize(start + piece, 0);
            self.fill(&mut content[start..], step, &mut Instant::now(), silence)?;
            missing -= piece;
        }
        Ok(content)
    }

    /// Reads until `bytes` are full, or the peer made no progress for too long.
    fn fill(
        &mut self,
        mut bytes: &mut [u8],
        step: Step,
        progress: &mut Instant,
        silence: Duration,
    ) -> Result<(), Error> {
        let (rank, operation) = (self.peer, || step.to_string());
        while !bytes.is_empty() {
            match self.reader.read(bytes) {
                Ok(0) => return Err(Error::Ended { rank, operation: operation() }),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if is_pause(&error) => {}
                Err(_) => return Err(Error::Ended { rank, operation: operation() }),
            }
            if progress.elapsed() > silence {
                let silent_s = silence.as_secs();
                return Err(Error::Hangs { rank, operation: operation(), silent_s });
            }
        }
        Ok(())
    }

    /// Sends what is queued and says that nothing more comes; then waits for the same from the peer, so that nothing
    /// on its way is lost, until `deadline`.
    pub(crate) fn close(&mut self, deadline: Instant) {
        self.sender = None;
        let Some(sending) = self.sending.take() else { return };
        while !sending.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !sending.is_finished() {
            // The peer takes nothing; whatever is left for it is lost.
            let _ = self.reader.shutdown(Shutdown::Both);
            return;
        }
        let _ = self.reader.shutdown(Shutdown::Write);
        let mut rest = [0; 4096];
        while Instant::now() < deadline {
            match self.reader.read(&mut rest) {
                Ok(0) => break,
                Err(error) if !is_pause(&error) => break,
                _ => {}
            }
        }
    }
}

/// The frame of a pulse.
pub(crate) fn pulse_frame(pulse: &Pulse) -> Vec<u8> {
    let (number, waits) = pulse.show();
    Header { kind: PULSE, operation: u8::from(waits), number, length: 0 }.to_bytes().to_vec()
}

fn send_all(mut stream: TcpStream, frames: &Receiver<Vec<u8>>) {
    while let Ok(frame) = frames.recv() {
        if stream.write_all(&frame).is_err() {
            // Receiving from the peer tells; it shall not wait for more.
            let _ = stream.shutdown(Shutdown::Write);
            return;
        }
    }
}

fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
