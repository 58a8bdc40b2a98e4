//! Parquet files to documents: types, nulls, row groups, codecs, and damaged files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use tape::Error;
use tape::checksum::Checksum;
use tape::sources::{DocumentSource, OnError, SourceOptions, Sources};

use super::fixture::{Folder, check_message};

/// The bytes of a Parquet file with columns `id` and `text`, so many rows a group.
pub fn parquet_file(texts: &[Option<&[u8]>], group: usize, codec: Compression) -> Vec<u8> {
    let schema = "message rows { REQUIRED INT64 id; OPTIONAL BINARY text (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(50)
        .build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    for texts in texts.chunks(group) {
        let mut rows = writer.next_row_group().unwrap();
        let ids: Vec<i64> = (0..texts.len() as i64).collect();
        let mut column = rows.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
        let values: Vec<ByteArray> =
            texts.iter().flatten().map(|text| ByteArray::from(text.to_vec())).collect();
        let mut column = rows.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        rows.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

fn write(folder: &Folder, name: &str, texts: &[Option<&[u8]>]) -> PathBuf {
    folder.write(name, parquet_file(texts, 300, Compression::SNAPPY))
}

fn texts(path: &Path) -> Vec<String> {
    let sources = Sources::open(&[path], SourceOptions::default()).unwrap();
    sources.map(|document| document.unwrap().text).collect()
}

#[track_caller]
fn refused(path: &Path, field: &str) -> Error {
    let options = SourceOptions { field: field.to_owned(), ..SourceOptions::default() };
    Sources::open(&[path], options).unwrap().find_map(Result::err).expect("an error")
}

#[test]
fn rows_of_all_groups_are_documents_with_any_codec() {
    let folder = Folder::new();
    let rows: Vec<String> = (0..2500).map(|i| format!("Row {i}, caf\u{e9} {}", i % 7)).collect();
    let some: Vec<Option<&[u8]>> = rows.iter().map(|row| Some(row.as_bytes())).collect();
    let zstd = Compression::ZSTD(ZstdLevel::try_new(3).unwrap());
    let gzip = Compression::GZIP(Default::default());
    for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY, zstd, gzip] {
        for group in [1000, 7000, 300] {
            let bytes = parquet_file(&some, group, codec);
            let path = folder.write("rows.parquet", &bytes);
            assert_eq!(texts(&path), rows, "{codec:?} {group}");
            let mut sources = Sources::open(&[&path], SourceOptions::default()).unwrap();
            let names: Vec<_> = sources.by_ref().map(|row| row.unwrap().name).collect();
            assert_eq!(names[2499], "rows.parquet:2500");
            let record = sources.records().remove(0);
            assert_eq!((record.bytes, record.sha256), (bytes.len() as u64, Checksum::of(&bytes)));
            assert_eq!(sources.progress().bytes_read, bytes.len() as u64);
            assert_eq!(sources.records_ahead().unwrap(), Some(Vec::new()), "all were read");
        }
    }
}

#[test]
fn rows_without_text_are_named_or_skipped() {
    let folder = Folder::new();
    let rows: [Option<&[u8]>; 5] = [Some(b"one"), None, Some(b""), Some(b"\xFF"), Some(b"five")];
    for (at, problem) in [(1, "it is null"), (2, "it is empty"), (3, "not UTF-8 at its byte 0")] {
        let path = write(&folder, "a.parquet", &[rows[0], rows[at]]);
        check_message(&refused(&path, "text"), &["a.parquet, row 2", "column \"text\"", problem]);
    }
    let path = write(&folder, "b.parquet", &rows);
    let options = SourceOptions { on_error: OnError::Skip, ..SourceOptions::default() };
    let mut sources = Sources::open(&[&path], options).unwrap();
    let texts: Vec<_> = sources.by_ref().map(|row| row.unwrap().text).collect();
    assert_eq!(texts, ["one", "five"]);
    assert_eq!(sources.skipped().count, 3);
    assert!(sources.skipped().first[2].contains("row 4"), "{:?}", sources.skipped());
    assert_eq!(sources.progress().skipped, 3);
}

#[test]
fn files_without_the_column_are_refused() {
    let folder = Folder::new();
    let path = write(&folder, "a.parquet", &[Some(b"one")]);
    check_message(&refused(&path, "story"), &["a.parquet", "no column \"story\"", "id, text"]);
    check_message(&refused(&path, "id"), &["column \"id\" holds no strings"]);
    let path = write(&folder, "b.parquet", &[]);
    check_message(&refused(&path, "text"), &["b.parquet is empty"]);
    for bytes in [&b""[..], b"PAR1", b"no parquet at all", b"PAR1xxxxxxxx\xFF\xFF\xFF\x7FPAR1"] {
        let path = folder.write("c.parquet", bytes);
        check_message(&refused(&path, "text"), &["c.parquet", "Parquet", "check the file"]);
    }
}

proptest! {
    #[test]
    fn no_damage_makes_a_panic(at in 0_usize..2000, bytes: [u8; 3], cut in 0_usize..3000) {
        let folder = Folder::new();
        let rows: Vec<String> = (0..60).map(|i| format!("row {i}")).collect();
        let rows: Vec<Option<&[u8]>> = rows.iter().map(|row| Some(row.as_bytes())).collect();
        let mut file = parquet_file(&rows, 30, Compression::SNAPPY);
        let start = at % file.len();
        for (there, byte) in file[start..].iter_mut().zip(bytes) {
            *there = byte;
        }
        file.truncate(cut.max(8));
        let path = folder.write("a.parquet", file);
        for document in Sources::open(&[path], SourceOptions::default()).unwrap() {
            let _ = document;
        }
    }
}
