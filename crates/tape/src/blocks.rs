//! Files read and written in hashed blocks: how a tape is kept safe while it is in use.
//!
//! A tape is never mapped. Every byte that reaches training was read into memory of our own, by position,
//! and its block was held against the hash that the sidecar (or the check at opening) has of it. A file
//! that was cut short, replaced or rewritten meanwhile is therefore an error at the next read, and never
//! the end of the process or other tokens in silence.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::Error;
use crate::checksum::{Checksum, Hasher};
use crate::disk::open_file;
use crate::layout::BLOCK_BYTES;

/// A whole file's SHA-256 and that of each of its blocks, in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockHasher {
    whole: Hasher,
    block: Hasher,
    block_bytes: u64,
    blocks: Vec<Checksum>,
}

impl BlockHasher {
    /// Adds `bytes` to what has been hashed so far; both hashes are made at the same time.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let Self { whole, block, block_bytes, blocks } = self;
        rayon::join(
            || whole.update(bytes),
            || {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let room = (BLOCK_BYTES - *block_bytes).min(rest.len() as u64);
                    let (now, after) = rest.split_at(room as usize);
                    block.update(now);
                    *block_bytes += room;
                    if *block_bytes == BLOCK_BYTES {
                        blocks.push(std::mem::take(block).finish());
                        *block_bytes = 0;
                    }
                    rest = after;
                }
            },
        );
    }

    /// The SHA-256 of everything added, and of its blocks.
    pub(crate) fn finish(mut self) -> (Checksum, Vec<Checksum>) {
        if self.block_bytes > 0 {
            self.blocks.push(self.block.finish());
        }
        (self.whole.finish(), self.blocks)
    }
}

/// A file of numbers of one size, read by position.
#[derive(Debug)]
pub(crate) struct BlockFile {
    path: PathBuf,
    file: File,
    identity: Identity,
    element_bytes: usize,
    /// The hash of each block; empty until they are known.
    hashes: Vec<Checksum>,
    /// The block that was verified last, with its number.
    last: Mutex<Option<(u64, Vec<u8>)>>,
}

/// What a path must go on naming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    bytes: u64,
    /// Device and inode, where the system has them.
    file: Option<(u64, u64)>,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let file = {
            use std::os::unix::fs::MetadataExt as _;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let file = None;
        Self { bytes: metadata.len(), file }
    }
}

impl BlockFile {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// [`Error::Read`] if it is no readable file, [`Error::TapeEmpty`] if it is empty,
    /// [`Error::TapeSize`] if it does not hold a whole number of elements.
    pub(crate) fn open(path: &Path, element_bytes: usize) -> Result<Self, Error> {
        let wrong = |source| Error::read(path, source);
        let file = open_file(path).map_err(wrong)?;
        let metadata = file.metadata().map_err(wrong)?;
        let (identity, path) = (Identity::of(&metadata), path.to_owned());
        if identity.bytes == 0 {
            return Err(Error::TapeEmpty { path });
        }
        if !identity.bytes.is_multiple_of(element_bytes as u64) {
            return Err(Error::TapeSize { path, bytes: identity.bytes, element_bytes });
        }
        let (hashes, last) = (Vec::new(), Mutex::default());
        Ok(Self { path, file, identity, element_bytes, hashes, last })
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// How many numbers it holds.
    pub(crate) fn count(&self) -> u64 {
        self.identity.bytes / self.element_bytes as u64
    }

    /// Sets the hashes that blocks are verified with from now on.
    ///
    /// # Panics
    /// If there is not one for each block.
    pub(crate) fn set_hashes(&mut self, hashes: Vec<Checksum>) {
        assert_eq!(hashes.len() as u64, self.identity.bytes.div_ceil(BLOCK_BYTES), "one a block");
        self.hashes = hashes;
    }

    /// Hands over the bytes of the elements from `start` to `end`, in pieces that never divide one.
    ///
    /// # Errors
    /// [`Error::Read`] where reading fails, [`Error::TapeChanged`] where the file is not what it was.
    ///
    /// # Panics
    /// If the range reaches beyond the file, or the hashes are not known yet.
    pub(crate) fn read(
        &self,
        start: u64,
        end: u64,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        assert!(start <= end && end <= self.count(), "the range is inside the file");
        self.check_identity(start * self.element_bytes as u64)?;
        let size = self.element_bytes as u64;
        let (mut byte, end) = (start * size, end * size);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        while byte < end {
            let index = byte / BLOCK_BYTES;
            if last.as_ref().is_none_or(|&(held, _)| held != index) {
                let mut bytes = last.take().map(|(_, bytes)| bytes).unwrap_or_default();
                self.read_block(index, &mut bytes)?;
                *last = Some((index, bytes));
            }
            let (_, block) = last.as_ref().expect("the block was just read");
            let block_start = index * BLOCK_BYTES;
            let to = end.min(block_start + block.len() as u64);
            take(&block[(byte - block_start) as usize..(to - block_start) as usize]);
            byte = to;
        }
        Ok(())
    }

    /// Reads block number `index` and verifies it.
    fn read_block(&self, index: u64, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let start = index * BLOCK_BYTES;
        let end = self.identity.bytes.min(start + BLOCK_BYTES);
        self.read_unverified(start, end, bytes)?;
        let found = Checksum::of(bytes);
        let expected = self.hashes[usize::try_from(index).expect("there is a hash of it")];
        if found != expected {
            return Err(self.changed(
                start,
                format!("the SHA-256 of this block is {found}, expected {expected}"),
            ));
        }
        Ok(())
    }

    /// Reads the bytes from `start` to `end` as they are.
    pub(crate) fn read_unverified(
        &self,
        start: u64,
        end: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let now =
            std::fs::metadata(&self.path).map_err(|source| Error::read(&self.path, source))?;
        let now = Identity::of(&now);
        if now.bytes != self.identity.bytes {
            let (found, expected) = (now.bytes, self.identity.bytes);
            return Err(self.changed(start, format!("it has {found} bytes, expected {expected}")));
        }
        if now != self.identity {
            return Err(self.changed(start, "another file has its name now".to_owned()));
        }
        let count = usize::try_from(end - start).expect("blocks fit in memory");
        bytes.resize(count, 0);
        read_exact_at(&self.file, bytes, start).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => self.changed(start, "it was cut short".to_owned()),
            _ => Error::ReadAt { path: self.path.clone(), offset: start, source },
        })
    }

    /// Whether the path still names this file, as long as it was.
    fn check_identity(&self, offset: u64) -> Result<(), Error> {
        let now =
            std::fs::metadata(&self.path).map_err(|source| Error::read(&self.path, source))?;
        let now = Identity::of(&now);
        if now.bytes != self.identity.bytes {
            let (found, expected) = (now.bytes, self.identity.bytes);
            return Err(self.changed(offset, format!("it has {found} bytes, expected {expected}")));
        }
        if now != self.identity {
            return Err(self.changed(offset, "another file has its name now".to_owned()));
        }
        Ok(())
    }

    fn changed(&self, offset: u64, problem: String) -> Error {
        Error::TapeChanged { path: self.path.clone(), offset, problem }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = std::os::windows::fs::FileExt::seek_read(file, bytes, offset)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes = &mut bytes[count..];
        offset += count as u64;
    }
    Ok(())
}
