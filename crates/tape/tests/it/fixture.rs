//! Small folders, corpora and tapes for the tests.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tape::checksum::Checksum;
use tape::layout::{
    BLOCK_BYTES, Element, EndOfDocument, EndOfDocumentPolicy, FORMAT_VERSION, FileRecord, Part,
    Sidecar, TapeFiles, TokenizerRecord,
};
use tape::prepare::{PrepareOptions, Split, prepare};
use tape::reader::Tape;
use tape::sources::{InMemory, Progress};
use tape::tokenizer::Tokenizer;
use tape::writer::TapeRecord;

/// A folder of its own for one test.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file, with the folders on the way to it.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// The names in the folder, sorted, without the lock of preparations.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != ".prepare.lock");
        names.sort();
        names
    }
}

/// A progress callback that lets everything go on.
pub fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A tape written by hand: ids 0 to 9, the id 9 ends a document.
pub struct HandMade {
    pub folder: Folder,
    pub ids: Vec<u32>,
    pub lengths: Vec<u16>,
    pub files: TapeFiles,
}

/// V of [`HandMade`].
pub const HAND_MADE_VOCABULARY: u32 = 10;

impl HandMade {
    /// `count` tokens with byte lengths 1, 2, 3, 1, 2, 3 and so on, and a document of every 7.
    pub fn new(count: usize) -> Self {
        let is_end = |position: usize| position % 7 == 6;
        let id = |position| if is_end(position) { 9 } else { (position * 5 % 9) as u32 };
        let length = |position| if is_end(position) { 0 } else { (position % 3 + 1) as u16 };
        Self::of((0..count).map(id).collect(), (0..count).map(length).collect())
    }

    /// A tape of these ids and lengths, with a true sidecar.
    pub fn of(ids: Vec<u32>, lengths: Vec<u16>) -> Self {
        let folder = Folder::new();
        let files = TapeFiles::in_folder(folder.path(), Part::Train);
        let tape = Self { folder, ids, lengths, files };
        tape.write_ids();
        tape.write_lengths();
        tape.sidecar().save(tape.files.sidecar.as_ref().unwrap()).unwrap();
        tape
    }

    fn id_bytes(&self) -> Vec<u8> {
        self.ids.iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    fn length_bytes(&self) -> Vec<u8> {
        self.lengths.iter().flat_map(|length| length.to_le_bytes()).collect()
    }

    pub fn write_ids(&self) {
        std::fs::write(&self.files.tokens, self.id_bytes()).unwrap();
    }

    pub fn write_lengths(&self) {
        std::fs::write(self.files.byte_lengths.as_ref().unwrap(), self.length_bytes()).unwrap();
    }

    /// The sidecar that is true of the ids and lengths in memory.
    pub fn sidecar(&self) -> Sidecar {
        let record = |file: &str, bytes: Vec<u8>| FileRecord {
            file: file.to_owned(),
            count: self.ids.len() as u64,
            sha256: Checksum::of(&bytes),
            blocks: bytes.chunks(BLOCK_BYTES as usize).map(Checksum::of).collect(),
        };
        Sidecar {
            format_version: FORMAT_VERSION,
            element: Element::U32,
            tokens: record("train.tokens.u32", self.id_bytes()),
            byte_lengths: record("train.byte-lengths.u16", self.length_bytes()),
            tokenizer: TokenizerRecord {
                sha256: Checksum::of(b"no tokenizer"),
                entries: HAND_MADE_VOCABULARY - 1,
                vocabulary: HAND_MADE_VOCABULARY,
            },
            end_of_document: EndOfDocument {
                id: HAND_MADE_VOCABULARY - 1,
                policy: EndOfDocumentPolicy::AfterEveryDocument,
            },
            documents: self.ids.iter().filter(|&&id| id == HAND_MADE_VOCABULARY - 1).count() as u64,
            source_bytes: self.lengths.iter().map(|&length| u64::from(length)).sum(),
            split: None,
            preparation: None,
            sources: Vec::new(),
        }
    }
}

/// Prepares `texts` into one train tape.
pub fn prepare_whole(folder: &Path, tokenizer: &Tokenizer, texts: &[String]) -> TapeRecord {
    let mut documents = InMemory::new("texts", texts.iter().cloned());
    let options = PrepareOptions::new(folder, Split::Whole(Part::Train));
    prepare(&mut documents, tokenizer, &options, &mut go_on).unwrap().tapes.remove(0)
}

/// All ids of a tape.
pub fn ids_of(tape: &Tape) -> Vec<u32> {
    let mut ids = Vec::new();
    tape.read(0..tape.len(), &mut ids).unwrap();
    ids
}

/// Runs `work` in a pool of so many threads.
pub fn with_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

/// A file of this crate's folder, found when the test runs, not when it is built.
pub fn crate_file(name: &str) -> PathBuf {
    PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap()).join(name)
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    crate_file("../..")
}

/// The shared corpora with these names, or `None` (and a word about it) where they are absent.
pub fn shared_data(names: &[&str]) -> Option<Vec<PathBuf>> {
    let folder = repository().join("../shared/data");
    let paths: Vec<_> = names.iter().map(|name| folder.join(name)).collect();
    let missing = paths.iter().find(|path| !path.exists());
    if let Some(path) = missing {
        println!("skipped: {} is not there", path.display());
        return None;
    }
    Some(paths)
}

/// Whether golden files are rewritten instead of compared.
pub fn updates_golden() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1")
}

/// The shape of an error's message: every part must be in it, in this order.
#[track_caller]
pub fn check_message(error: &tape::Error, parts: &[&str]) {
    let message = error.to_string();
    let mut rest = message.as_str();
    for part in parts {
        let Some(at) = rest.find(part) else { panic!("{part:?} is not in {message:?}") };
        rest = &rest[at + part.len()..];
    }
    assert!(!message.ends_with('.'), "{message:?} ends with a full stop");
}
