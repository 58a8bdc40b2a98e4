//! From kernel source to machine code: a program is a source file, its headers and its defines; a
//! compiler makes an image of it for one architecture.
//!
//! Nothing is decided here about which programs there are (see `programs`) or where images are
//! kept (see [`cache`](crate::cache)).

#![expect(unsafe_code, reason = "calls into the compiler library")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Once;

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};

use crate::library::{self, Library};
use crate::{Error, version};

/// A file of kernel source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path, as `#include` names it.
    pub file: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// What is compiled together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file with the kernels.
    pub source: Source,
    /// The files that it includes.
    pub headers: &'static [Source],
    /// Its kernels.
    pub kernels: &'static [&'static str],
    /// Names and values of its macros.
    pub defines: Vec<(&'static str, String)>,
}

/// Machine code, or code for the driver's own compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// What the driver loads.
    pub bytes: Vec<u8>,
    /// What the compiler said: registers and spills of every kernel.
    pub log: String,
}

/// Makes images of programs.
pub trait Compiler: Send + Sync {
    /// What tells its images from those of other versions.
    ///
    /// # Errors
    ///
    /// If there is no compiler.
    fn version(&self) -> Result<String, Error>;

    /// The image for `architecture`: a cubin for `sm_..`, PTX for `compute_..`.
    ///
    /// # Errors
    ///
    /// [`Error::Compile`] with file and line, [`Error::UnknownArchitecture`], and what the compiler
    /// library refuses.
    fn compile(&self, program: &Program, architecture: &str) -> Result<Image, Error>;

    /// Whether several programs are compiled at once, on threads of their own. Then, where the first choice of a program
    /// does not do, all others are, also those that turn out not to be wanted, so that nobody waits for one after the
    /// other.
    fn is_parallel(&self) -> bool {
        false
    }
}

/// NVIDIA's run-time compiler.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nvrtc;

impl Program {
    /// The options besides the architecture. The arithmetic is written so that none of them
    /// changes a bit; they are given so that nobody has to prove it again.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        let fixed = [
            "--std=c++17",
            "--fmad=false",
            "--ftz=false",
            "--prec-div=true",
            "--prec-sqrt=true",
            "--ptxas-options=-v",
        ];
        let mut options: Vec<String> = fixed.map(str::to_owned).to_vec();
        options.extend(self.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        options
    }

    /// The one architecture that has all instructions it uses, if others do not: the macro `FOUR_WARPS`
    /// stands for such.
    #[must_use]
    pub fn only_architecture(&self) -> Option<&'static str> {
        let is_of_four_warps =
            |(name, value): &(&str, String)| *name == "FOUR_WARPS" && value == "1";
        self.defines.iter().any(is_of_four_warps).then_some("sm_90")
    }

    /// Whether it can be compiled for `architecture`.
    #[must_use]
    pub fn is_for(&self, architecture: &str) -> bool {
        self.only_architecture().is_none_or(|only| only == architecture)
    }

    /// A name for the image of this program for `architecture`: the hash of all that it depends on
    /// but the compiler.
    #[must_use]
    pub fn key(&self, architecture: &str) -> String {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        add(architecture);
        self.options().iter().for_each(|option| add(option));
        for source in [self.source].iter().chain(self.headers) {
            add(source.file);
            add(source.text);
        }
        hex(&hash.finalize())
    }
}

impl Compiler for Nvrtc {
    fn is_parallel(&self) -> bool {
        true
    }

    fn version(&self) -> Result<String, Error> {
        library::load(Library::Nvrtc)?;
        let found = version::nvrtc().map(|(major, minor)| format!("nvrtc {major}.{minor}"));
        found.ok_or(Error::Compiler {
            operation: "asking for the version of NVRTC",
            code: "no version".to_owned(),
        })
    }

    /// On a thread of its own: the compiler recurses deeper than the stacks of many threads reach.
    fn compile(&self, program: &Program, architecture: &str) -> Result<Image, Error> {
        library::load(Library::Nvrtc)?;
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let compiling = thread.spawn_scoped(scope, || {
                make_ready();
                compile(program, architecture)
            });
            let compiling = compiling.expect("the system can start a thread");
            compiling.join().expect("compiling does not panic")
        })
    }
}

/// Bytes of the stack that NVRTC compiles on.
const STACK_BYTES: usize = 64 << 20;

/// Compiles nothing once, before threads compile at the same time: the first compilation of a process sets
/// NVRTC 13.0 up, and whoever comes in the middle of that reads a null pointer.
fn make_ready() {
    static READY: Once = Once::new();
    READY.call_once(|| {
        let source = Source { file: "nothing.cu", text: "" };
        let nothing = Program { source, headers: &[], kernels: &[], defines: Vec::new() };
        // Whatever is wrong here is wrong with the next one too, whose error somebody reads.
        let _ = compile(&nothing, crate::prebuilt::PTX_ARCHITECTURE);
    });
}

/// Whether NVRTC lists an architecture, `sm_90` or `compute_90`.
fn is_known(architecture: &str) -> bool {
    let number = architecture.rsplit('_').next().and_then(|digits| digits.parse().ok());
    version::nvrtc_architectures().zip(number).is_none_or(|(known, number)| known.contains(&number))
}

fn compile(program: &Program, architecture: &str) -> Result<Image, Error> {
    if !is_known(architecture) {
        let (architecture, install) = (architecture.to_owned(), Library::Nvrtc.install());
        return Err(Error::UnknownArchitecture { architecture, install });
    }
    let mut options = program.options();
    // Instructions of one architecture alone are the compiler's to use where its name says so.
    let suffix = if program.only_architecture().is_some() { "a" } else { "" };
    options.push(format!("--gpu-architecture={architecture}{suffix}"));
    let unit = Unit::new(program)?;
    // SAFETY: the program was created and lives.
    let compiled = unsafe { result::compile_program(unit.0, &options) };
    let log = unit.log()?;
    if let Err(NvrtcError(code)) = compiled {
        let (place, message) = first_complaint(program, &log)
            .unwrap_or_else(|| (program.source.file.to_owned(), format!("{code:?}: {log}")));
        return Err(Error::Compile { place, architecture: architecture.to_owned(), message });
    }
    let bytes = if architecture.starts_with("sm_") { unit.cubin()? } else { unit.ptx()? };
    Ok(Image { bytes, log })
}

/// A program inside of NVRTC.
struct Unit(sys::nvrtcProgram);

impl Unit {
    fn new(program: &Program) -> Result<Unit, Error> {
        let text = |text: &str| CString::new(text).expect("kernel sources have no zero byte");
        let (source, file) = (text(program.source.text), text(program.source.file));
        let (texts, files): (Vec<CString>, Vec<CString>) =
            program.headers.iter().map(|header| (text(header.text), text(header.file))).unzip();
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|string| string.as_ptr()).collect()
        };
        let (texts, files) = (pointers(&texts), pointers(&files));
        let mut unit = ptr::null_mut();
        // SAFETY: all strings end in zero and live through the call, which copies them; the two
        // lists are as long as it is told.
        unsafe {
            sys::nvrtcCreateProgram(
                &mut unit,
                source.as_ptr(),
                file.as_ptr(),
                texts.len() as c_int,
                texts.as_ptr(),
                files.as_ptr(),
            )
        }
        .result()
        .map_err(|error| refused("creating a program", error))?;
        Ok(Unit(unit))
    }

    fn log(&self) -> Result<String, Error> {
        // SAFETY: the program was created and lives.
        let log = unsafe { result::get_program_log(self.0) }
            .map_err(|error| refused("reading the compiler's log", error))?;
        let bytes: Vec<u8> = log.into_iter().map(|byte| byte as u8).collect();
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, Error> {
        let failed = |error| refused("reading the machine code", error);
        let mut size = 0;
        // SAFETY: the program was created and lives; the size is written.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) }.result().map_err(failed)?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that was asked for.
        unsafe { sys::nvrtcGetCUBIN(self.0, bytes.as_mut_ptr().cast()) }
            .result()
            .map_err(failed)?;
        Ok(bytes)
    }

    fn ptx(&self) -> Result<Vec<u8>, Error> {
        // SAFETY: the program was created and lives.
        let ptx = unsafe { result::get_ptx(self.0) };
        let ptx = ptx.map_err(|error| refused("reading the PTX", error))?;
        Ok(ptx.into_iter().map(|byte| byte as u8).collect())
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: the program was created and is destroyed once; a failure leaks it.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn refused(operation: &'static str, error: NvrtcError) -> Error {
    Error::Compiler { operation, code: format!("{:?}", error.0) }
}

/// The place and the text of the first error in a compiler's log, whose lines look like
/// `adamw.cu(12): error: ...`.
fn first_complaint(program: &Program, log: &str) -> Option<(String, String)> {
    log.lines().find_map(|line| {
        let (place, message) = line.split_once(": error")?;
        let (file, rest) = place.rsplit_once('(')?;
        let number: u32 = rest.trim_end_matches(')').parse().ok()?;
        let known = [program.source].iter().chain(program.headers).any(|s| file.ends_with(s.file));
        let message = message.trim_start_matches([':', ' ', '#']);
        known.then(|| (format!("{file} line {number}"), message.to_owned()))
    })
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
