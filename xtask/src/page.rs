//! The page of a release: what it is, what it needs, what is inside and what deliberately is not.
//!
//! One text, as Markdown and as HTML that needs no other file. It follows from the archive alone, so it is the
//! same on every machine.

mod render;

use anyhow::Result;

use crate::archive::{Files, MANIFEST};
use crate::kernels::{self, Kernels};
use crate::workspace;

/// What the page tells of.
pub struct Facts<'a> {
    pub version: &'a str,
    pub archive_name: &'a str,
    pub archive_bytes: usize,
    pub sha256: &'a str,
    pub commit: &'a str,
    /// Whether tracked files differed from the commit.
    pub changed: bool,
    /// Everything in the archive but the list of hashes.
    pub files: &'a Files,
    pub kernels: Option<&'a Kernels>,
}

/// A page, ready to be written.
#[derive(Debug)]
pub struct Page {
    title: String,
    blocks: Vec<Block>,
}

/// A part of a page. Texts are plain but for `code`.
#[derive(Debug)]
enum Block {
    Heading(&'static str),
    Paragraph(String),
    List(Vec<String>),
    Table { head: Vec<&'static str>, rows: Vec<Vec<String>> },
    Code(String),
}

/// Folders and what is in them; a file belongs to the first that its path begins with.
const PARTS: [(&str, &str); 8] = [
    ("crates/", "the library crates and the command `packed-adamw`"),
    ("xtask/", "the tool that made and verifies this archive"),
    ("docs/", "documents"),
    ("configs/", "configurations of runs"),
    ("tokenizer/", "the bundled tokenizer"),
    ("fuzz/", "fuzz targets and their seeds"),
    (kernels::FOLDER, "prebuilt kernels, no sources"),
    ("", "manifests, lock file, licence, texts at the root"),
];

/// What one might look for in vain.
const NOT_INSIDE: [&str; 6] = [
    "Programs: `cargo build --release -p cli` builds one for the machine at hand.",
    "Sources of other crates: Cargo fetches what `Cargo.lock` names, and checks their hashes.",
    "Texts and tapes: `docs/data.md` says which ones the figures refer to, and `prepare` makes tapes.",
    "Trained weights and checkpoints: runs are repeatable from their configuration.",
    "CUDA libraries: they are found at run time where they are installed.",
    "The history of the repository, and files that it does not track.",
];

impl Facts<'_> {
    /// The page.
    ///
    /// # Errors
    ///
    /// A tree without the files that it reads its numbers from.
    pub fn page(&self) -> Result<Page> {
        let blocks = vec![
            Block::Paragraph(
                "GPT-style models trained with AdamW whose two moments persist packed, in Rust: the sources of one \
                 version, in an archive that anybody can make again byte for byte."
                    .into(),
            ),
            self.facts()?,
            Block::Heading("Verify"),
            Block::Code(format!(
                "sha256sum {name}                      # compare with the hash above\n\
                 unzip -q {name} -d {stem} && cd {stem} && sha256sum --quiet -c {MANIFEST}\n\
                 cargo xtask verify ../{name}          # strict parsing, made again, compared",
                name = self.archive_name,
                stem = self.archive_name.trim_end_matches(".zip"),
            )),
            Block::Heading("What it needs"),
            self.needs()?,
            Block::Heading("What is inside"),
            self.inside(),
            Block::Paragraph(self.about_kernels()),
            Block::Heading("What is deliberately not inside"),
            Block::List(NOT_INSIDE.map(str::to_owned).to_vec()),
            Block::Heading("The contract that results refer to"),
            Block::Table {
                head: vec!["term", "value"],
                rows: pairs(workspace::contract(self.files)?),
            },
        ];
        Ok(Page { title: format!("packed-adamw {}", self.version), blocks })
    }

    fn facts(&self) -> Result<Block> {
        let model = workspace::reference_model(self.files)?;
        let [vocabulary, context, channels, layers, heads] = model.shape;
        let changes = if self.changed { ", with changes that are in no commit" } else { "" };
        let rows = [
            ("version", self.version.to_owned()),
            (
                "archive",
                format!("`{}`, {} bytes", self.archive_name, grouped(self.archive_bytes as u64)),
            ),
            ("SHA-256", format!("`{}`", self.sha256)),
            ("files", format!("{}, and `{MANIFEST}`", self.files.len())),
            ("commit", format!("`{}`{changes}", self.commit)),
            (
                "reference model",
                format!(
                    "`{}`: {} parameters (V {vocabulary}, T {context}, C {channels}, L {layers}, H {heads})",
                    model.name,
                    grouped(model.parameters)
                ),
            ),
        ];
        Ok(Block::Table { head: vec!["", ""], rows: pairs(rows.map(|(k, v)| (k.to_owned(), v))) })
    }

    fn needs(&self) -> Result<Block> {
        let rust = workspace::rust_version(self.files)?;
        let rows = [
            ("to build", format!("Rust {rust} or later, a C compiler (for zstd), and the crates that `Cargo.lock` names")),
            ("to run", "any processor; AVX2 and AVX-512 are used where they are; no other program or library".into()),
            (
                "with CUDA",
                "an NVIDIA driver of CUDA 13, compute capability 8.0 or later; NVRTC 13, or the prebuilt kernels; \
                 cuBLASLt 13 for matrix products"
                    .into(),
            ),
        ];
        Ok(Block::Table { head: vec!["", ""], rows: pairs(rows.map(|(k, v)| (k.to_owned(), v))) })
    }

    fn inside(&self) -> Block {
        let part_of = |path: &str| {
            PARTS.iter().position(|(start, _)| path.starts_with(start)).expect("the last takes all")
        };
        let mut sums = [(0_u64, 0_u64); PARTS.len()];
        for (path, file) in self.files {
            let (count, bytes) = &mut sums[part_of(path)];
            *count += 1;
            *bytes += file.bytes.len() as u64;
        }
        let rows = PARTS.iter().zip(sums).filter(|(_, (count, _))| *count > 0);
        let rows = rows.map(|((start, what), (count, bytes))| {
            let start =
                if start.is_empty() { "at the root".to_owned() } else { format!("`{start}`") };
            vec![start, grouped(count), grouped(bytes), (*what).to_owned()]
        });
        Block::Table { head: vec!["folder", "files", "bytes", "what"], rows: rows.collect() }
    }

    fn about_kernels(&self) -> String {
        match self.kernels {
            Some(Kernels { compiler, architecture, files }) => format!(
                "`{}` holds {} prebuilt kernels: PTX for {architecture} and later, made by {compiler}. They are made \
                 from `crates/gpu-kernels/cuda` and no sources; everything else is tracked in the commit.",
                kernels::FOLDER,
                files.len() - 1
            ),
            None => "No prebuilt kernels: NVRTC compiles them at first use. Every file is tracked in the commit.".into(),
        }
    }
}

fn pairs(rows: impl IntoIterator<Item = (String, String)>) -> Vec<Vec<String>> {
    rows.into_iter().map(|(name, value)| vec![name, value]).collect()
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = {
        let first = digits.len() % 3;
        let (head, tail) = digits.split_at(first);
        let tail = (0..tail.len() / 3).map(|group| &tail[3 * group..3 * group + 3]);
        Some(head).filter(|head| !head.is_empty()).into_iter().chain(tail).collect()
    };
    groups.join(",")
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_apart() {
        assert_eq!(
            [0, 12, 123, 1234, 11_637_760].map(super::grouped),
            ["0", "12", "123", "1,234", "11,637,760"]
        );
    }
}
