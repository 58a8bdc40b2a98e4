//! How the ranks of a job find each other.
//!
//! Rank 0 listens at the master's address. Every other rank opens a port of its own, connects to rank 0 and says who it
//! is: program version, rank, world size, port. Rank 0 greets it at once, so that another program on that port is not
//! taken for rank 0. Once all are there, rank 0 sends everybody the addresses, and each rank connects to those between
//! rank 0 and itself. So there is one connection between any two ranks.
//!
//! A rank 0 that does not get its port says so to those that ask on the port beside it; they have nothing to add.
//!
//! What is said is text, one thing a line, behind its length in four bytes.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use crate::{Error, Place};

/// The first line, with the version of what follows.
const GREETING: &str = "packed-adamw ranks 1";
/// What a rank asks that did not find rank 0 on its port.
const QUESTION: &str = "packed-adamw ranks 1: where is rank 0?";
/// How long rank 0 answers that, after it did not get its port.
const EXPLAINING: Duration = Duration::from_secs(10);
/// How long a rank waits for a greeting before it asks beside.
const GREETED: Duration = Duration::from_secs(1);
/// Most bytes of a text.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// How long one that has connected may take to speak.
const SPEECH: Duration = Duration::from_secs(5);
/// Time between attempts.
const RETRY: Duration = Duration::from_millis(100);

/// Connections to all other ranks, by rank; none to itself.
pub(crate) type Streams = Vec<Option<TcpStream>>;

/// What a rank says of itself.
struct Hello {
    version: String,
    rank: usize,
    world_size: usize,
    port: u16,
}

/// Meets the other ranks, which must all come within `limit`.
pub(crate) fn meet(place: &Place, limit: Duration) -> Result<Streams, Error> {
    let deadline = Instant::now() + limit;
    if place.rank == 0 { receive_all(place, limit, deadline) } else { come(place, limit, deadline) }
}

/// Rank 0: waits for all others, then sends them each other's addresses.
fn receive_all(place: &Place, limit: Duration, deadline: Instant) -> Result<Streams, Error> {
    let listener = listen(place).inspect_err(|error| explain(place, limit, error))?;
    let mut streams: Streams = (0..place.world_size).map(|_| None).collect();
    let mut addresses = vec![String::new(); place.world_size];
    while streams.iter().skip(1).any(Option::is_none) {
        let Some((mut stream, from)) = accept(&listener, deadline)? else {
            let absent: Vec<usize> =
                (1..place.world_size).filter(|&rank| streams[rank].is_none()).collect();
            let (world_size, address) = (place.world_size, place.master());
            let error = Error::Absent { absent, world_size, address, waited_s: limit.as_secs() };
            return Err(refuse(&mut streams, error));
        };
        // Whoever says nothing that we understand is not one of us.
        let Ok(hello) = hear(&mut stream).map(|text| Hello::parse(&text)) else { continue };
        let Some(hello) = hello else { continue };
        if let Err(error) = hello.check(place, &streams) {
            let _ = say(&mut stream, &format!("no\n{error}"));
            return Err(refuse(&mut streams, error));
        }
        // One that is gone already is found at the first operation.
        let _ = say(&mut stream, GREETING);
        addresses[hello.rank] = SocketAddr::new(from.ip(), hello.port).to_string();
        streams[hello.rank] = Some(stream);
    }
    let table = format!("yes\n{}", addresses.join("\n"));
    for stream in streams.iter_mut().flatten() {
        // A rank that is gone already is found at the first operation.
        let _ = say(stream, &table);
    }
    Ok(streams)
}

/// Any other rank: comes to rank 0, then connects to the ranks before it and is connected to by those behind.
fn come(place: &Place, limit: Duration, deadline: Instant) -> Result<Streams, Error> {
    let lost = || Error::Ended { rank: 0, operation: "joining the job".into() };
    let (mut master, hello, listener) = find(place, limit, deadline)?;
    // Rank 0 waits for the last of us as long as we do, and says so itself.
    let patience = deadline.saturating_duration_since(Instant::now()) + SPEECH;
    let answer = hear_within(&mut master, patience).map_err(|_| lost())?;
    let addresses = match answer.split_once('\n') {
        Some(("yes", addresses)) => addresses.split('\n').collect::<Vec<_>>(),
        Some(("no", reason)) => {
            return Err(Error::Refused { rank: place.rank, reason: reason.to_owned() });
        }
        _ => return Err(lost()),
    };
    let mut streams: Streams = (0..place.world_size).map(|_| None).collect();
    streams[0] = Some(master);
    for peer in 1..place.rank {
        let gone = || Error::Ended { rank: peer, operation: "joining the job".into() };
        let mut stream = TcpStream::connect(addresses[peer]).map_err(|_| gone())?;
        say(&mut stream, &hello.to_text()).map_err(|_| gone())?;
        streams[peer] = Some(stream);
    }
    while let Some(absent) =
        (place.rank + 1..place.world_size).find(|&peer| streams[peer].is_none())
    {
        let Some((mut stream, _)) = accept(&listener, deadline + SPEECH)? else {
            return Err(Error::Ended { rank: absent, operation: "joining the job".into() });
        };
        let Ok(Some(hello)) = hear(&mut stream).map(|text| Hello::parse(&text)) else { continue };
        if hello.rank > place.rank && hello.rank < place.world_size {
            streams[hello.rank] = Some(stream);
        }
    }
    Ok(streams)
}

impl Hello {
    fn new(place: &Place, port: u16) -> Self {
        let (rank, world_size) = (place.rank, place.world_size);
        Self { version: env!("CARGO_PKG_VERSION").into(), rank, world_size, port }
    }

    fn to_text(&self) -> String {
        let Self { version, rank, world_size, port } = self;
        format!("{GREETING}\n{version}\n{rank}\n{world_size}\n{port}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(GREETING) {
            return None;
        }
        Some(Self {
            version: lines.next()?.to_owned(),
            rank: lines.next()?.parse().ok()?,
            world_size: lines.next()?.parse().ok()?,
            port: lines.next()?.parse().ok()?,
        })
    }

    /// Whether it is a rank of this job that is not there yet.
    fn check(&self, place: &Place, streams: &Streams) -> Result<(), Error> {
        let stranger = |what, expected: &str, found: &str| {
            let (expected, found) = (expected.to_owned(), found.to_owned());
            Err(Error::Stranger { rank: self.rank, what, expected, found })
        };
        let version = env!("CARGO_PKG_VERSION");
        if self.version != version {
            return stranger("the program's version", version, &self.version);
        }
        if self.world_size != place.world_size {
            let (expected, found) = (place.world_size.to_string(), self.world_size.to_string());
            return stranger("the world size", &expected, &found);
        }
        if self.rank == 0 || self.rank >= place.world_size || streams[self.rank].is_some() {
            let expected = "a number that no other rank has";
            return stranger("the rank", expected, &self.rank.to_string());
        }
        Ok(())
    }
}

/// Tells those that look for rank 0 why it is not on its port, until all have heard it or time is up.
fn explain(place: &Place, limit: Duration, error: &Error) {
    let Ok(listener) = listen_at(place, beside(place.master_port)) else { return };
    let deadline = Instant::now() + limit.min(EXPLAINING);
    let mut told = 1;
    while told < place.world_size {
        let Ok(Some((mut stream, _))) = accept(&listener, deadline) else { return };
        if hear(&mut stream).is_ok_and(|question| question == QUESTION) {
            told += usize::from(say(&mut stream, &format!("no\n{error}")).is_ok());
        }
    }
}

/// What rank 0 says where it explains itself; none where it does not.
fn ask(place: &Place) -> Option<String> {
    let beside = Place { master_port: beside(place.master_port), ..place.clone() };
    let mut stream = connect_once(&beside, Instant::now() + RETRY).ok()?;
    say(&mut stream, QUESTION).ok()?;
    hear(&mut stream).ok()?.strip_prefix("no\n").map(str::to_owned)
}

fn beside(port: u16) -> u16 {
    port.checked_add(1).unwrap_or(port - 1)
}

/// Tells all that came why nothing becomes of it.
fn refuse(streams: &mut Streams, error: Error) -> Error {
    for stream in streams.iter_mut().flatten() {
        let _ = say(stream, &format!("no\n{error}"));
    }
    error
}

/// Listens at the master's address; at all addresses of this host, if its name stands for one that the host does not
/// know itself.
fn listen(place: &Place) -> Result<TcpListener, Error> {
    let address = place.master();
    let bound = listen_at(place, place.master_port);
    let listener = bound.map_err(|source| Error::PortInUse { address, source })?;
    listener.set_nonblocking(true).map_err(Error::io("set up a port"))?;
    Ok(listener)
}

fn listen_at(place: &Place, port: u16) -> io::Result<TcpListener> {
    let there = Place { master_port: port, ..place.clone() };
    TcpListener::bind(there.master()).or_else(|error| match error.kind() {
        ErrorKind::AddrNotAvailable => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        _ => Err(error),
    })
}

/// The next connection; none when time is up.
fn accept(
    listener: &TcpListener,
    deadline: Instant,
) -> Result<Option<(TcpStream, SocketAddr)>, Error> {
    listener.set_nonblocking(true).map_err(Error::io("set up a port"))?;
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(false).map_err(Error::io("set up a connection"))?;
                return Ok(Some((stream, from)));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Ok(None);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            // The one that wanted to connect is gone again.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(Error::io("accept a connection")(error)),
        }
    }
}

/// Finds rank 0, which may not listen yet, and says who comes and where it can be reached.
fn find(
    place: &Place,
    limit: Duration,
    deadline: Instant,
) -> Result<(TcpStream, Hello, TcpListener), Error> {
    loop {
        let source = match connect_once(place, deadline) {
            Ok(mut stream) => {
                let here = stream.local_addr().map_err(Error::io("read an address"))?.ip();
                let listener = TcpListener::bind((here, 0)).map_err(Error::io("open a port"))?;
                let port = listener.local_addr().map_err(Error::io("read an address"))?.port();
                let hello = Hello::new(place, port);
                match greeted(place, &mut stream, &hello, deadline)? {
                    true => return Ok((stream, hello, listener)),
                    false => io::Error::new(ErrorKind::InvalidData, "another program has the port"),
                }
            }
            Err(source) => source,
        };
        if let Some(reason) = ask(place) {
            return Err(Error::Refused { rank: place.rank, reason });
        }
        if Instant::now() + RETRY >= deadline {
            let (rank, address, waited_s) = (place.rank, place.master(), limit.as_secs());
            return Err(Error::Unreachable { rank, address, waited_s, source });
        }
        std::thread::sleep(RETRY);
    }
}

/// Whether it is rank 0 that answers a hello.
fn greeted(
    place: &Place,
    stream: &mut TcpStream,
    hello: &Hello,
    deadline: Instant,
) -> Result<bool, Error> {
    let refused = |reason: &str| Error::Refused { rank: place.rank, reason: reason.to_owned() };
    if say(stream, &hello.to_text()).is_err() {
        return Ok(false);
    }
    while Instant::now() < deadline {
        stream.set_read_timeout(Some(GREETED)).map_err(Error::io("set up a connection"))?;
        match stream.peek(&mut [0]) {
            Ok(0) => return Ok(false),
            Ok(_) => {
                return match hear(stream) {
                    Ok(text) if text == GREETING => Ok(true),
                    Ok(text) => match text.strip_prefix("no\n") {
                        Some(reason) => Err(refused(reason)),
                        None => Ok(false),
                    },
                    Err(_) => Ok(false),
                };
            }
            // Rank 0 may still listen to somebody else; or it is another program that says nothing.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if let Some(reason) = ask(place) {
                    return Err(refused(&reason));
                }
            }
            Err(_) => return Ok(false),
        }
    }
    Ok(false)
}

fn connect_once(place: &Place, deadline: Instant) -> io::Result<TcpStream> {
    let none = || io::Error::new(ErrorKind::NotFound, "the name has no address");
    let mut outcome = Err(none());
    for address in place.master().to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).max(RETRY);
        outcome = TcpStream::connect_timeout(&address, left);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn say(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(SPEECH))?;
    let mut message = (text.len() as u32).to_le_bytes().to_vec();
    message.extend(text.as_bytes());
    stream.write_all(&message)
}

fn hear(stream: &mut TcpStream) -> io::Result<String> {
    hear_within(stream, SPEECH)
}

fn hear_within(stream: &mut TcpStream, patience: Duration) -> io::Result<String> {
    stream.set_read_timeout(Some(patience.max(RETRY)))?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > TEXT_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, "too long"));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text)?;
    String::from_utf8(text).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}
