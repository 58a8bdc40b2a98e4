//! Kernels built before, for the archive: asked of the program, which knows its sources and the compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, bail};

use crate::archive::{File, Files};

/// Where they lie in an archive.
pub const FOLDER: &str = "prebuilt/kernels";

/// Exit code of the program where there is no compiler for kernels.
const COMPILER_MISSING: i32 = 3;

/// Kernels and what they were made by.
#[derive(Debug)]
pub struct Kernels {
    /// Name and version of the compiler, such as `nvrtc 13.0`.
    pub compiler: String,
    /// The architecture from which on they run, such as `compute_80`.
    pub architecture: String,
    /// The files, under [`FOLDER`], with a page that says what they are.
    pub files: Files,
}

/// Has the program write its kernels; none where there is no compiler. Without a program named it is built.
pub fn build(root: &Path, program: Option<&Path>) -> Result<Option<Kernels>> {
    let folder = std::env::temp_dir().join(format!("packed-adamw-kernels-{}", std::process::id()));
    let answer = ask(root, program, &folder).and_then(|output| taken(&output, &folder));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    answer
}

fn ask(root: &Path, program: Option<&Path>, folder: &Path) -> Result<Output> {
    let mut command = match program {
        Some(program) => Command::new(program),
        None => {
            let mut cargo = Command::new("cargo");
            cargo.args(["run", "--quiet", "--release", "--locked", "--package", "cli", "--"]);
            cargo
        }
    };
    command.current_dir(root).args(["kernels", "--json", "--output"]).arg(folder);
    command.output().with_context(|| format!("{command:?} cannot be started"))
}

fn taken(output: &Output, folder: &Path) -> Result<Option<Kernels>> {
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => {}
        Some(COMPILER_MISSING) => return Ok(None),
        _ => bail!("the program could not write its kernels: {}", said.trim()),
    }
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let text = |key: &str| {
        report[key].as_str().map(str::to_owned).with_context(|| format!("no `{key}` in the report"))
    };
    let (compiler, architecture) = (text("compiler")?, text("architecture")?);
    let mut files = Files::new();
    let paths =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).context("a name in UTF-8")?;
        let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        files.insert(format!("{FOLDER}/{name}"), File { executable: false, bytes });
    }
    let about = about(&compiler, &architecture, files.len()).into_bytes();
    files.insert(format!("{FOLDER}/README.md"), File { executable: false, bytes: about });
    Ok(Some(Kernels { compiler, architecture, files }))
}

fn about(compiler: &str, architecture: &str, count: usize) -> String {
    format!(
        "# Prebuilt kernels\n\n\
         These {count} files are no sources. They are PTX for {architecture} and later, made by {compiler} from\n\
         `crates/gpu-kernels/cuda`, for machines that have a driver and no NVRTC. A file is named by the hash of\n\
         all that it depends on but the compiler.\n\n\
         The program looks for them in the folder that `PACKED_ADAMW_KERNELS` names, and in `kernels` beside\n\
         itself.\n"
    )
}
