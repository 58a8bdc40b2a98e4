//! The shared libraries of CUDA: the driver, the run-time compiler NVRTC, cuBLASLt, and NCCL. Where they
//! are looked for, and how they are made ready before anything calls into them.
//!
//! Nothing is linked: a program built here runs on machines without any of them. The bindings
//! find a library by name on the loader's path and panic if they do not, so each is looked
//! for first, by [`load`]:
//!
//! 1. in the folders that the environment variable [`FOLDERS_VARIABLE`] names;
//! 2. on the loader's path;
//! 3. in Python environments, where PyTorch's libraries are: the active one, that of the first `python3` on
//!    the path, and `.venv-cuda`, `.venv` and `venv` in the working folder, in that of the program, and in
//!    any folder above them;
//! 4. in CUDA toolkits under `/usr/local`.
//!
//! A library found in a folder is loaded from there by its path and stays loaded; asked for by its
//! name later, the loader hands out the same one.
//!
//! What this file does not do: call into a library, except for its version.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::Error;

/// The environment variable that names folders with CUDA libraries, searched before all others.
pub const FOLDERS_VARIABLE: &str = "PACKED_ADAMW_CUDA_LIBRARIES";

/// A library that CUDA work needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Library {
    /// The driver: everything needs it.
    Driver,
    /// NVRTC, which compiles kernels on first use.
    Nvrtc,
    /// cuBLASLt, for matrix products.
    CublasLt,
    /// NCCL, for ranks with a device each.
    Nccl,
}

/// Where libraries are looked for besides the loader's path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Folders that come before the loader's path.
    pub first: Vec<PathBuf>,
    /// Folders that come after it.
    pub last: Vec<PathBuf>,
}

/// What is known of a library, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryReport {
    /// The library.
    pub library: Library,
    /// The file that was loaded.
    pub path: Option<PathBuf>,
    /// Its version.
    pub version: Option<String>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

impl Library {
    /// All of them.
    pub const ALL: [Library; 4] =
        [Library::Driver, Library::Nvrtc, Library::CublasLt, Library::Nccl];

    /// What reports call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Library::Driver => "CUDA driver",
            Library::Nvrtc => "NVRTC",
            Library::CublasLt => "cuBLASLt",
            Library::Nccl => "NCCL",
        }
    }

    /// Its file names, the preferred one first.
    #[must_use]
    pub const fn file_names(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so.1"],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12"],
            Library::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12"],
            Library::Nccl => &["libnccl.so.2"],
        }
    }

    /// What to do where it is missing.
    #[must_use]
    pub const fn install(self) -> &'static str {
        match self {
            Library::Driver => "install the NVIDIA driver of this machine's GPU",
            Library::Nvrtc => {
                "install it with `python3 -m venv .venv-cuda && .venv-cuda/bin/pip install \
                 nvidia-cuda-nvrtc`, install a CUDA toolkit, or set PACKED_ADAMW_CUDA_LIBRARIES"
            }
            Library::CublasLt => {
                "install it with `python3 -m venv .venv-cuda && .venv-cuda/bin/pip install \
                 nvidia-cublas`, install a CUDA toolkit, or set PACKED_ADAMW_CUDA_LIBRARIES"
            }
            Library::Nccl => {
                "install it with `python3 -m venv .venv-cuda && .venv-cuda/bin/pip install \
                 nvidia-nccl-cu13`, or set PACKED_ADAMW_CUDA_LIBRARIES"
            }
        }
    }

    /// Whether the loader hands it out by one of the names that the bindings ask for.
    fn is_present(self) -> bool {
        // SAFETY: these open the library by its name, which runs its own initialisers; they are
        // those of the vendor, and nothing else is called.
        #[expect(unsafe_code, reason = "opening a shared library runs its initialisers")]
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
                Library::Nccl => crate::nccl::is_present(),
            }
        }
    }

    /// The files of a folder that must be loaded before it.
    fn prerequisites(self, folder: &Path) -> Vec<PathBuf> {
        if self != Library::Nvrtc {
            return Vec::new();
        }
        let entries =
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_builtins = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libnvrtc-builtins.so")
        };
        entries.filter(is_builtins).collect()
    }
}

impl Search {
    /// The places of the file head.
    #[must_use]
    pub fn here() -> Search {
        let named = env::var_os(FOLDERS_VARIABLE).unwrap_or_default();
        let first = env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
        let mut last = Vec::new();
        if let Some(active) = env::var_os("VIRTUAL_ENV") {
            last.extend(python_folders(Path::new(&active)));
        }
        let program = env::current_exe().ok();
        let path = env::var_os("PATH").unwrap_or_default();
        let python = env::split_paths(&path).find(|folder| folder.join("python3").is_file());
        last.extend(
            python.and_then(|folder| folder.parent().map(python_folders)).unwrap_or_default(),
        );
        let starts =
            [env::current_dir().ok(), program.and_then(|p| p.parent().map(Path::to_owned))];
        for start in starts.into_iter().flatten() {
            for folder in start.ancestors() {
                for name in [".venv-cuda", ".venv", "venv"] {
                    last.extend(python_folders(&folder.join(name)));
                }
            }
        }
        let toolkits = sorted_entries(Path::new("/usr/local"), "cuda");
        last.extend(toolkits.into_iter().rev().map(|toolkit| toolkit.join("lib64")));
        last.dedup();
        Search { first, last }
    }

    /// The first folder with the library among `folders`, and the file.
    fn find(library: Library, folders: &[PathBuf]) -> Option<PathBuf> {
        let names = library.file_names();
        let mut files =
            folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
        files.find(|file| file.exists())
    }

    /// The places in words, in order.
    fn places(&self) -> Vec<String> {
        let name = |path: &PathBuf| path.display().to_string();
        let mut places: Vec<String> = self.first.iter().map(name).collect();
        places.push("the loader's path".to_owned());
        places.extend(self.last.iter().map(name));
        places
    }
}

/// Makes a library ready for the bindings, once for all.
///
/// # Errors
///
/// [`Error::LibraryMissing`].
pub fn load(library: Library) -> Result<(), Error> {
    load_from(library, &Search::here())
}

/// [`load`] with other places. A library that is loaded already stays.
///
/// # Errors
///
/// [`Error::LibraryMissing`].
pub fn load_from(library: Library, search: &Search) -> Result<(), Error> {
    static LOADED: Mutex<Vec<Library>> = Mutex::new(Vec::new());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if loaded.contains(&library) {
        return Ok(());
    }
    let found_first = Search::find(library, &search.first).is_some_and(|file| open(library, &file));
    let is_ready = (found_first || library.is_present())
        || Search::find(library, &search.last).is_some_and(|file| open(library, &file));
    if !is_ready {
        let (name, tried) = (library.file_names()[0], search.places());
        return Err(Error::LibraryMissing { name, tried, install: library.install() });
    }
    loaded.push(library);
    Ok(())
}

/// Opens a library by its path for the rest of the program, after what it needs; whether the
/// bindings can find it now.
fn open(library: Library, file: &Path) -> bool {
    let folder = file.parent().unwrap_or(Path::new("."));
    for path in library.prerequisites(folder).iter().map(PathBuf::as_path).chain([file]) {
        open_file(path);
    }
    library.is_present()
}

#[cfg(unix)]
fn open_file(file: &Path) {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    // SAFETY: a vendor's library is opened for the rest of the program; its initialisers are the
    // only code that runs.
    #[expect(unsafe_code, reason = "opening a shared library runs its initialisers")]
    let opened = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) };
    if let Ok(library) = opened {
        std::mem::forget(library);
    }
}

#[cfg(not(unix))]
fn open_file(_file: &Path) {}

/// What is known of every library. Loads those that are there.
#[must_use]
pub fn reports() -> Vec<LibraryReport> {
    Library::ALL.into_iter().map(report).collect()
}

fn report(library: Library) -> LibraryReport {
    match load(library) {
        Ok(()) => {
            let version = crate::version::of(library);
            LibraryReport { library, path: loaded_path(library), version, problem: None }
        }
        Err(error) => {
            let problem = Some(error.to_string());
            LibraryReport { library, path: None, version: None, problem }
        }
    }
}

/// The file that a loaded library came from, where the system tells.
fn loaded_path(library: Library) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let stem = library.file_names()[0].split(".so").next()?;
    let mut paths = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
    let is_it = |path: &&str| {
        let file = path.rsplit('/').next().unwrap_or_default();
        file.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so"))
    };
    paths.find(is_it).map(PathBuf::from)
}

/// The folders of a Python environment that hold CUDA libraries.
fn python_folders(environment: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for python in sorted_entries(&environment.join("lib"), "python3") {
        let packages = python.join("site-packages/nvidia");
        for package in ["cu13", "cuda_nvrtc", "cublas", "nccl"] {
            let folder = packages.join(package).join("lib");
            if folder.is_dir() {
                folders.push(folder);
            }
        }
    }
    folders
}

/// The entries of a folder whose names begin with `prefix`, sorted.
fn sorted_entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}
