//! Events for TensorBoard: what `metrics.jsonl` has, as a file that its readers take.
//!
//! The file is a series of records: the length of the data as a little-endian u64, a masked CRC-32C of these
//! eight bytes, the data, a masked CRC-32C of the data. The data of each is an `Event` in the encoding of protocol
//! buffers, of which four fields are used: `wall_time` (1, double), `step` (2, int64), `file_version` (3, string)
//! and `summary` (5), a list (1) of values with a `tag` (1, string) and a `simple_value` (2, float).
//!
//! The wall time is the training time since the start of the run, so that the same run gives the same bytes; in
//! TensorBoard the axes `step` and `relative` are those to choose.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::events::Event;

/// The name that its readers look for.
const FILE_NAME: &str = "events.out.tfevents.0.packed-adamw";

/// A file of events.
#[derive(Debug)]
pub struct TensorBoard {
    file: BufWriter<File>,
    path: PathBuf,
}

impl TensorBoard {
    /// A file in `folder`, in place of one that is there, with `events` in it.
    ///
    /// # Errors
    ///
    /// What the file system refuses.
    pub fn create(folder: &Path, events: &[Event]) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let path = folder.join(FILE_NAME);
        let file = File::create(&path).map_err(Error::io("create", &path))?;
        let mut board = Self { file: BufWriter::new(file), path };
        let mut version = Vec::new();
        double(&mut version, 1, 0.0);
        bytes(&mut version, 3, b"brain.Event:2");
        board.write(&record(&version))?;
        for event in events {
            board.take(event)?;
        }
        board.flush()?;
        Ok(board)
    }

    /// Appends an event, if it is one with numbers to show, and lets readers have it.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub fn append(&mut self, event: &Event) -> Result<(), Error> {
        self.take(event)?;
        self.flush()
    }

    fn take(&mut self, event: &Event) -> Result<(), Error> {
        let (step, elapsed_s, values) = match event {
            Event::Update(update) => {
                let mut values = vec![
                    ("train/loss_nats", update.loss_nats),
                    ("train/learning_rate", update.learning_rate),
                    ("train/gradient_norm", update.gradient_norm),
                    ("train/tokens_per_s", update.tokens_per_s),
                    ("events/nonfinite", update.nonfinite as f64),
                    ("events/saturated_m", update.saturated_m as f64),
                    ("events/saturated_r", update.saturated_r as f64),
                ];
                values.extend(update.bpb.map(|bpb| ("train/bpb", bpb)));
                (update.update, update.elapsed_s, values)
            }
            Event::Validation(found) => {
                let mut values = vec![("validation/loss_nats", found.loss_nats)];
                values.extend(found.bpb.map(|bpb| ("validation/bpb", bpb)));
                (found.update, found.elapsed_s, values)
            }
            Event::FinalValidation(found) => {
                let mut values = vec![("final_validation/loss_nats", found.loss_nats)];
                values.extend(found.bpb.map(|bpb| ("final_validation/bpb", bpb)));
                (found.update, found.elapsed_s, values)
            }
            _ => return Ok(()),
        };
        let mut summary = Vec::new();
        for (tag, number) in values {
            let mut value = Vec::new();
            bytes(&mut value, 1, tag.as_bytes());
            key(&mut value, 2, 5);
            value.extend((number as f32).to_le_bytes());
            bytes(&mut summary, 1, &value);
        }
        let mut message = Vec::new();
        double(&mut message, 1, elapsed_s);
        key(&mut message, 2, 0);
        varint(&mut message, step);
        bytes(&mut message, 5, &summary);
        self.write(&record(&message))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::io("write", &self.path))
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.flush().map_err(Error::io("write", &self.path))
    }
}

/// Data with its length and checksums around it.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked(&length).to_le_bytes());
    record.extend_from_slice(data);
    record.extend(masked(data).to_le_bytes());
    record
}

/// The checksum, rotated and moved, so that the checksum of data that holds checksums stays a good one.
fn masked(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The key of a field: its number and the type of what follows.
fn key(into: &mut Vec<u8>, field: u64, wire_type: u64) {
    varint(into, field << 3 | wire_type);
}

fn varint(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn double(into: &mut Vec<u8>, field: u64, number: f64) {
    key(into, field, 1);
    into.extend(number.to_le_bytes());
}

fn bytes(into: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    key(into, field, 2);
    varint(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first record of every file that TensorFlow writes, but for its time: 24 bytes at time 0.
    #[test]
    fn the_first_record_is_the_version() {
        let folder = tempfile::tempdir().unwrap();
        drop(TensorBoard::create(folder.path(), &[]).unwrap());
        let found = fs::read(folder.path().join(FILE_NAME)).unwrap();
        assert_eq!(&found[..8], &24_u64.to_le_bytes());
        // The masked checksum of a length of 24, which begins every such file.
        assert_eq!(&found[8..12], &[0xa3, 0x7f, 0x4b, 0x22]);
        assert_eq!(&found[12..23], b"\x09\0\0\0\0\0\0\0\0\x1a\x0d");
        assert_eq!(&found[23..36], b"brain.Event:2");
        assert_eq!(found.len(), 40);
    }

    #[test]
    fn numbers_are_written_in_groups_of_seven_bits() {
        let encoded = |number| {
            let mut bytes = Vec::new();
            varint(&mut bytes, number);
            bytes
        };
        assert_eq!((encoded(0), encoded(127)), (vec![0], vec![127]));
        assert_eq!((encoded(128), encoded(300)), (vec![0x80, 1], vec![0xac, 2]));
        assert_eq!(encoded(u64::MAX).len(), 10);
    }
}
