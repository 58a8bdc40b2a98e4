//! Texts out of Parquet files: one column of strings, row group by row group, page by page.
//!
//! The index at the file's end is read first, then only the pages of the wanted column. Memory holds
//! one decompressed page and its dictionary. The file's bytes are hashed at the end, in one pass of
//! their own, for a reader of one column does not see them all.

use std::fmt;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, SerializedFileReader};

use super::DOCUMENT_BYTES_MAX;
use crate::Error;
use crate::checksum::Checksum;
use crate::disk::open_file;

/// Rows decoded at once; the texts stay in their page until they are taken.
const ROWS: usize = 256;

/// The rows of one file.
pub(super) struct Rows {
    path: PathBuf,
    file: SerializedFileReader<File>,
    file_bytes: u64,
    field: String,
    column: usize,
    /// The definition level of a value that is there.
    level_max: i16,
    next_group: usize,
    reader: Option<ColumnReaderImpl<ByteArrayType>>,
    /// Decoded rows that were not taken yet, the next one last; `None` for null.
    decoded: Vec<Option<ByteArray>>,
    /// Rows taken.
    row: u64,
}

/// The text of one row.
pub(super) struct RowText {
    pub(super) number: u64,
    pub(super) text: String,
}

impl Rows {
    /// Opens the file at `path` and finds the column `field`.
    pub(super) fn open(path: &Path, field: String) -> Result<Self, Error> {
        let file = open_file(path).map_err(|source| Error::read(path, source))?;
        let file_bytes = file.metadata().map_err(|source| Error::read(path, source))?.len();
        let wrong = |problem: String| Error::Parquet { path: path.to_owned(), problem };
        let file = guarded(|| SerializedFileReader::new(file)).map_err(wrong)?;
        let (column, level_max) = find_column(&file, &field).map_err(wrong)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            file_bytes,
            field,
            column,
            level_max,
            next_group: 0,
            reader: None,
            decoded: Vec::new(),
            row: 0,
        })
    }

    /// The text of the next row, or `None` at the end of the file. Where `empty_is_text` is false,
    /// a row without text is an error.
    pub(super) fn next_text(&mut self, empty_is_text: bool) -> Result<Option<RowText>, Error> {
        if !self.decode()? {
            return Ok(None);
        }
        let value = self.decoded.pop().expect("decode leaves at least one row");
        self.row += 1;
        let wrong = |problem: &str| Error::Row {
            path: self.path.clone(),
            row: self.row,
            column: self.field.clone(),
            problem: problem.to_owned(),
        };
        let value = value.ok_or_else(|| wrong("it is null"))?;
        if value.len() > DOCUMENT_BYTES_MAX {
            return Err(wrong(&format!("it is longer than {DOCUMENT_BYTES_MAX} bytes")));
        }
        let text = str::from_utf8(value.data()).map_err(|error| {
            wrong(&format!("it is not UTF-8 at its byte {}", error.valid_up_to()))
        })?;
        if text.is_empty() && !empty_is_text {
            return Err(wrong("it is empty"));
        }
        Ok(Some(RowText { number: self.row, text: text.to_owned() }))
    }

    /// Decodes rows until some are waiting; false at the end of the file.
    fn decode(&mut self) -> Result<bool, Error> {
        while self.decoded.is_empty() {
            if self.reader.is_none() {
                if self.next_group >= self.file.num_row_groups() {
                    return Ok(false);
                }
                let (file, group, column) = (&self.file, self.next_group, self.column);
                let opened = guarded(|| file.get_row_group(group)?.get_column_reader(column));
                let ColumnReader::ByteArrayColumnReader(reader) =
                    opened.map_err(|problem| self.wrong(problem))?
                else {
                    return Err(self.wrong("a row group disagrees with the schema".to_owned()));
                };
                self.reader = Some(reader);
                self.next_group += 1;
            }
            let reader = self.reader.as_mut().expect("it was just opened");
            let (mut levels, mut values) = (Vec::new(), Vec::new());
            let read = guarded(|| reader.read_records(ROWS, Some(&mut levels), None, &mut values));
            let (records, ..) = read.map_err(|problem| self.wrong(problem))?;
            if records == 0 {
                self.reader = None;
                continue;
            }
            self.decoded = self.pair(records, &levels, values)?;
        }
        Ok(true)
    }

    /// Rows out of values and the levels that say where a value is missing; the first row last.
    fn pair(
        &self,
        records: usize,
        levels: &[i16],
        values: Vec<ByteArray>,
    ) -> Result<Vec<Option<ByteArray>>, Error> {
        let mut values = values.into_iter();
        let mut rows: Vec<Option<ByteArray>> = if self.level_max == 0 {
            values.by_ref().map(Some).collect()
        } else {
            let is_there = levels.iter().map(|&level| level == self.level_max);
            is_there.map(|there| if there { values.next() } else { None }).collect()
        };
        if rows.len() != records || values.next().is_some() {
            return Err(self.wrong("a page holds another number of values than it says".to_owned()));
        }
        rows.reverse();
        Ok(rows)
    }

    fn wrong(&self, problem: String) -> Error {
        Error::Parquet { path: self.path.clone(), problem }
    }

    /// Stored bytes read so far, as the share of row groups.
    pub(super) fn bytes_read(&self) -> u64 {
        let groups = self.file.num_row_groups().max(1) as u128;
        let share = u128::from(self.file_bytes) * self.next_group as u128 / groups;
        u64::try_from(share).expect("a share of the bytes is no more than the bytes")
    }

    /// The size and SHA-256 of the file.
    pub(super) fn finish(self) -> Result<(u64, Checksum), Error> {
        let wrong = |source| Error::read(&self.path, source);
        let file = open_file(&self.path).map_err(wrong)?;
        let (sha256, bytes) = Checksum::of_reader(file).map_err(wrong)?;
        Ok((bytes, sha256))
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("path", &self.path).field("row", &self.row).finish()
    }
}

/// The index and definition level of the column of strings named `field`, or what is wrong.
fn find_column(file: &SerializedFileReader<File>, field: &str) -> Result<(usize, i16), String> {
    let schema = file.metadata().file_metadata().schema_descr();
    let names = || {
        let names: Vec<String> = schema.columns().iter().map(|c| c.path().string()).collect();
        names.join(", ")
    };
    let index = schema.columns().iter().position(|column| column.path().string() == field);
    let index = index.ok_or_else(|| format!("there is no column {field:?}; it has {}", names()))?;
    let column = schema.column(index);
    if column.physical_type() != Type::BYTE_ARRAY || column.max_rep_level() > 0 {
        return Err(format!("column {field:?} holds no strings; the columns are {}", names()));
    }
    Ok((index, column.max_def_level()))
}

/// What `read` gives. The library panics on some damaged files; that is an error like any other.
fn guarded<T>(read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it is damaged in a way that the decoder did not expect".to_owned()),
    }
}
