//! The recipes of docs/data.md, tried on small files of the layout that the data sets have.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::{Value, json as value};
use tempfile::tempdir;

use crate::program::{data, json};

fn stories(seed: u64, count: usize) -> Vec<String> {
    tape::stories::Stories::new(seed).take(count).collect()
}

fn write(here: &Path, name: &str, bytes: &[u8]) {
    let path = here.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A Parquet file whose columns are strings, of the same text in each row but for the column `text`.
fn parquet_of(columns: &[&str], texts: &[String]) -> Vec<u8> {
    let fields: String =
        columns.iter().map(|name| format!("OPTIONAL BINARY {name} (UTF8); ")).collect();
    let schema = Arc::new(parse_message_type(&format!("message rows {{ {fields} }}")).unwrap());
    let properties =
        Arc::new(WriterProperties::builder().set_compression(Compression::SNAPPY).build());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, properties).unwrap();
    for texts in texts.chunks(40) {
        let mut group = writer.next_row_group().unwrap();
        for name in columns {
            let value = |text: &String| match *name {
                "text" => ByteArray::from(text.as_bytes().to_vec()),
                _ => ByteArray::from("x"),
            };
            let values: Vec<ByteArray> = texts.iter().map(value).collect();
            let mut column = group.next_column().unwrap().unwrap();
            let levels = vec![1; values.len()];
            column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Prepares by a recipe; documents of train and validation.
fn prepared(here: &Path, recipe: &[&str]) -> Vec<u64> {
    let report: Value = json(here, &[&["prepare"], recipe, &["--json"]].concat());
    let tapes = report["tapes"].as_array().unwrap();
    tapes.iter().map(|tape| tape["documents"].as_u64().unwrap()).collect()
}

#[test]
fn c4_is_prepared_and_its_configuration_runs() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let lines = |texts: &[String]| {
        let line = |text: &String| {
            let url = "https://example.org/";
            format!("{}\n", value!({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": url}))
        };
        gzip(texts.iter().map(line).collect::<String>().as_bytes())
    };
    for shard in 0..2 {
        let name = format!("c4/en/c4-train.{shard:05}-of-01024.json.gz");
        write(here, &name, &lines(&stories(shard, 30)));
    }
    write(here, "c4/en/c4-validation.00000-of-00008.json.gz", &lines(&stories(9, 12)));
    let recipe = [
        "--input",
        "c4/en/c4-train.*.json.gz",
        "--validation-input",
        "c4/en/c4-validation.*.json.gz",
        "--output-dir",
        "data/c4",
        "--token-type",
        "u16",
        "--shard-tokens",
        "3000",
    ];
    assert_eq!(prepared(here, &recipe), [60, 12]);
    let again: Value = json(here, &[&["prepare"], &recipe[..], &["--json"]].concat());
    assert_eq!(again["reused"], true);
    let estimate: Value =
        json(here, &[&["prepare"], &recipe[..], &["--dry-run", "--json"]].concat());
    assert_eq!(estimate["exact"], true);
    assert_eq!(estimate["documents"], 72);

    let inspect = ["inspect", "data/c4/train.tape-set.json", "--verify", "--json"];
    let found = json(here, &inspect);
    assert_eq!((found["documents"].as_u64(), found["token_bytes"].as_u64()), (Some(60), Some(2)));
    assert!(found["verdict"].as_str().unwrap().contains("everything"), "{found}");
    assert!(
        found["files"].as_u64().unwrap() > 2 && found["commonest"][0]["count"].as_u64() > Some(9)
    );
    assert!(found["longest_document"]["tokens"].as_u64() > Some(20));

    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    let config = Path::new(&manifest).join("../../configs/c4-20m.toml");
    let Ok(config) = fs::read_to_string(config) else { return };
    write(here, "c4-20m.toml", config.as_bytes());
    let mut train = vec!["train", "--config", "c4-20m.toml", "--output-dir", "run", "--json"];
    for small in [
        "model.context=16",
        "model.channels=16",
        "model.layers=1",
        "model.heads=2",
        "run.tokens=4000",
        "run.batch=4",
        "schedule.warmup=500",
        "run.validation_windows=4",
        "data.range_tokens=1000",
        "data.epoch_tokens=1000",
    ] {
        train.extend(["--set", small]);
    }
    assert_eq!(json(here, &train)["tokens"], 4000);
}

#[test]
fn fineweb_is_prepared() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let columns = ["text", "id", "dump", "url"];
    for shard in 0..2 {
        let name = format!("fineweb/sample/10BT/{shard:03}_00000.parquet");
        write(here, &name, &parquet_of(&columns, &stories(shard, 100)));
    }
    let recipe = [
        "--input",
        "fineweb/sample/10BT/*.parquet",
        "--output-dir",
        "data/fineweb",
        "--validation-fraction",
        "0.1",
        "--token-type",
        "u16",
        "--shard-tokens",
        "100000000",
        "--deduplicate",
        "--on-error",
        "skip",
    ];
    let documents = prepared(here, &recipe);
    assert_eq!(documents.iter().sum::<u64>(), 200);
    assert!((5..40).contains(&documents[1]), "{documents:?}");
    assert!(here.join("data/fineweb/train.tape-set.json").exists());
}

#[test]
fn tiny_stories_are_prepared_from_both_layouts() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let texts = stories(5, 50);
    let text = texts.iter().map(|text| format!("{text}<|endoftext|>\n")).collect::<String>();
    write(here, "TinyStoriesV2-GPT4-train.txt", text.as_bytes());
    let text = stories(6, 7).iter().map(|t| format!("{t}<|endoftext|>\n")).collect::<String>();
    write(here, "TinyStoriesV2-GPT4-valid.txt", text.as_bytes());
    let recipe = [
        "--input",
        "TinyStoriesV2-GPT4-train.txt",
        "--validation-input",
        "TinyStoriesV2-GPT4-valid.txt",
        "--document-end",
        "<|endoftext|>",
        "--output-dir",
        "data/tinystories",
    ];
    assert_eq!(prepared(here, &recipe), [50, 7]);

    write(here, "TinyStories/data/train-00000-of-00004.parquet", &parquet_of(&["text"], &texts));
    let rows = parquet_of(&["text"], &stories(6, 7));
    write(here, "TinyStories/data/validation-00000-of-00001.parquet", &rows);
    let recipe = [
        "--input",
        "TinyStories/data/train-*.parquet",
        "--validation-input",
        "TinyStories/data/validation-*.parquet",
        "--output-dir",
        "data/again",
    ];
    assert_eq!(prepared(here, &recipe), [50, 7]);
    let ids = |path: &str| fs::read(here.join(path).join("train.tokens.u32")).unwrap();
    assert!(ids("data/tinystories") == ids("data/again"), "both layouts give the same tape");
}

#[test]
fn wikitext_is_prepared_by_article_from_both_layouts() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let article = |i: usize| {
        format!(
            " \n = Article {i} = \n \n A sentence of it . \n = = Part = = \n \n More <unk> . \n"
        )
    };
    let raw: String = (0..30).map(article).collect();
    write(here, "wikitext-103-raw/wiki.train.txt", raw.as_bytes());
    let held: String = (30..35).map(article).collect();
    write(here, "wikitext-103-raw/wiki.valid.txt", held.as_bytes());
    let starts = ["--document-start", "^ = [^=]"];
    let recipe = [
        "--input",
        "wikitext-103-raw/wiki.train.txt",
        "--validation-input",
        "wikitext-103-raw/wiki.valid.txt",
        "--output-dir",
        "data/wikitext",
    ];
    assert_eq!(prepared(here, &[&recipe[..], &starts].concat()), [30, 5]);

    // In the Parquet layout a blank line is an empty row.
    let rows = |text: &str| {
        let row = |line: &str| if line == " \n" { String::new() } else { line.to_owned() };
        let rows: Vec<String> = text.split_inclusive('\n').map(row).collect();
        parquet_of(&["text"], &rows)
    };
    write(here, "wikitext-103-raw-v1/train-00000-of-00002.parquet", &rows(&raw));
    write(here, "wikitext-103-raw-v1/validation-00000-of-00001.parquet", &rows(&held));
    let recipe = [
        "--input",
        "wikitext-103-raw-v1/train-*.parquet",
        "--validation-input",
        "wikitext-103-raw-v1/validation-*.parquet",
        "--output-dir",
        "data/again",
    ];
    assert_eq!(prepared(here, &[&recipe[..], &starts].concat()), [30, 5]);
}

#[cfg(unix)]
#[test]
fn a_disk_that_fills_is_named_and_leaves_earlier_tapes() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    write(here, "small.txt", b"A few words.");
    write(here, "large.txt", stories(1, 3000).concat().as_bytes());
    let small = ["prepare", "--input", "small.txt", "--output-dir", "tapes"];
    data(here, &[&small[..], &["--validation-fraction", "0"]].concat());
    let before = fs::read(here.join("tapes/train.tokens.u32")).unwrap();
    // A limit on the size of files stands for the end of the disk.
    let program = crate::program::path();
    let script = format!(
        "trap '' XFSZ; ulimit -f 200; exec {} prepare --input large.txt --output-dir tapes \
         --validation-fraction 0 --overwrite",
        program.display()
    );
    let output =
        std::process::Command::new("sh").args(["-c", &script]).current_dir(here).output().unwrap();
    let errors = crate::program::text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("cannot write") && errors.contains("earlier files are unchanged"),
        "{errors}"
    );
    assert_eq!(fs::read(here.join("tapes/train.tokens.u32")).unwrap(), before);
    let left = fs::read_dir(here.join("tapes")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().contains("partial")));
}
