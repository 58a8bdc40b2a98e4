//! The bytes of one file or of standard input, decompressed, while the stored bytes are counted and
//! hashed.

use std::fmt;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use super::files::{Compression, Origin};
use crate::Error;
use crate::checksum::{Checksum, Hasher};
use crate::disk::open_file;

/// The largest zstd window that is accepted, as a power of two: 128 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Read in steps of this size from the disk.
const BUFFER_BYTES: usize = 256 << 10;

const GZIP_MAGIC: &[u8] = &[0x1F, 0x8B];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];

/// A decompressed file that knows what it has read.
#[derive(Debug)]
pub(super) struct Stream {
    path: PathBuf,
    decoder: Decoder,
}

type Stored = BufReader<Counted<Box<dyn Read + Send>>>;

enum Decoder {
    None(Stored),
    Gzip(Box<flate2::bufread::MultiGzDecoder<Stored>>),
    Zstd(zstd::Decoder<'static, Stored>),
}

impl Stream {
    /// Opens what `origin` names.
    pub(super) fn open(origin: &Origin, compression: Compression) -> Result<Self, Error> {
        let path = origin.path();
        let wrong = |source| Error::read(&path, source);
        let inner: Box<dyn Read + Send> = match origin {
            Origin::File(path) => Box::new(open_file(path).map_err(wrong)?),
            Origin::StandardInput => Box::new(io::stdin()),
        };
        Self::new(path.clone(), inner, compression).map_err(wrong)
    }

    fn new(
        path: PathBuf,
        mut inner: Box<dyn Read + Send>,
        compression: Compression,
    ) -> io::Result<Self> {
        let mut compression = compression;
        if compression == Compression::ByContent {
            let mut start = Vec::new();
            (&mut inner).take(ZSTD_MAGIC.len() as u64).read_to_end(&mut start)?;
            compression = if start.starts_with(GZIP_MAGIC) {
                Compression::Gzip
            } else if start.starts_with(ZSTD_MAGIC) {
                Compression::Zstd
            } else {
                Compression::None
            };
            inner = Box::new(Cursor::new(start).chain(inner));
        }
        let counted = Counted { inner, bytes: 0, hasher: Hasher::default() };
        let stored = BufReader::with_capacity(BUFFER_BYTES, counted);
        let decoder = match compression {
            Compression::None | Compression::ByContent => Decoder::None(stored),
            Compression::Gzip => {
                Decoder::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(stored)))
            }
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(stored)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Decoder::Zstd(decoder)
            }
        };
        Ok(Self { path, decoder })
    }

    /// The file's path, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Stored bytes read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        let stored = match &self.decoder {
            Decoder::None(stored) => stored,
            Decoder::Gzip(decoder) => decoder.get_ref(),
            Decoder::Zstd(decoder) => decoder.get_ref(),
        };
        stored.get_ref().bytes
    }

    /// The error of a failed read, with the file's name and, for compressed files, advice.
    pub(super) fn error(&self, source: io::Error) -> Error {
        let path = self.path.clone();
        match self.decoder {
            Decoder::None(_) => Error::Read { path, source },
            Decoder::Gzip(_) | Decoder::Zstd(_) => Error::Decompress { path, source },
        }
    }

    /// Reads what is left of the stored file; returns its size and SHA-256.
    pub(super) fn finish(self) -> Result<(u64, Checksum), Error> {
        let mut stored = match self.decoder {
            Decoder::None(stored) => stored,
            Decoder::Gzip(decoder) => decoder.into_inner(),
            Decoder::Zstd(decoder) => decoder.finish(),
        };
        io::copy(&mut stored, &mut io::sink()).map_err(|source| Error::read(&self.path, source))?;
        let Counted { bytes, hasher, .. } = stored.into_inner();
        Ok((bytes, hasher.finish()))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.decoder {
            Decoder::None(stored) => stored.read(buffer),
            Decoder::Gzip(decoder) => decoder.read(buffer),
            Decoder::Zstd(decoder) => decoder.read(buffer),
        }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None(_) => "None",
            Self::Gzip(_) => "Gzip",
            Self::Zstd(_) => "Zstd",
        })
    }
}

/// Counts and hashes everything that is read through it.
struct Counted<R> {
    inner: R,
    bytes: u64,
    hasher: Hasher,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes += count as u64;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}
