//! How the ranks of a job find each other.
//!
//! Rank 0 listens at the master's address. Every other rank opens a port of its own, connects to rank 0 and says who it
//! is: program version, rank, world size, port. Once all are there, rank 0 sends everybody the addresses, and each
//! rank connects to those between rank 0 and itself. So there is one connection between any two ranks.
//!
//! What is said is text, one thing a line, behind its length in four bytes.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use crate::{Error, Place};

/// The first line, with the version of what follows.
const GREETING: &str = "packed-adamw ranks 1";
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
    let listener = listen(place)?;
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
    let mut master = connect(place, limit, deadline)?;
    let lost = || Error::Ended { rank: 0, operation: "joining the job".into() };
    let here = master.local_addr().map_err(Error::io("read an address"))?.ip();
    let listener = TcpListener::bind((here, 0)).map_err(Error::io("open a port"))?;
    let port = listener.local_addr().map_err(Error::io("read an address"))?.port();
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        rank: place.rank,
        world_size: place.world_size,
        port,
    };
    say(&mut master, &hello.to_text()).map_err(|_| lost())?;
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
    let bound = TcpListener::bind(&address).or_else(|error| match error.kind() {
        ErrorKind::AddrNotAvailable => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, place.master_port))
        }
        _ => Err(error),
    });
    let listener = bound.map_err(|source| Error::PortInUse { address, source })?;
    listener.set_nonblocking(true).map_err(Error::io("set up a port"))?;
    Ok(listener)
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

/// Connects to rank 0, which may not listen yet.
fn connect(place: &Place, limit: Duration, deadline: Instant) -> Result<TcpStream, Error> {
    loop {
        let attempt = connect_once(place, deadline);
        match attempt {
            Ok(stream) => return Ok(stream),
            Err(source) if Instant::now() + RETRY >= deadline => {
                let (rank, address, waited_s) = (place.rank, place.master(), limit.as_secs());
                return Err(Error::Unreachable { rank, address, waited_s, source });
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
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
