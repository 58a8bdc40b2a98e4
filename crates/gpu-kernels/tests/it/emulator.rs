//! The device that tests run on: a GPU if there is one, or else the emulated driver of
//! `emulator/`, for which g++ compiles the very text of the kernels for this machine. Without
//! either, tests that need a device print `skipped` and pass; with `REQUIRE_GPU=1` a GPU must
//! be there.
//!
//! Included by the tests of more than one crate.

#![expect(unsafe_code, reason = "loads the emulated driver")]
#![allow(dead_code, reason = "not every program uses all of it")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use gpu_kernels::cache::Cache;
use gpu_kernels::compile::{Compiler, Image, Nvrtc, Program};
use gpu_kernels::library::{self, Library};
use gpu_kernels::{Error, Gpu, prebuilt, programs};

/// The device of all tests of a program.
pub struct TestDevice {
    gpu: Gpu,
    pub is_emulated: bool,
}

impl TestDevice {
    /// A stream of its own for a test.
    pub fn gpu(&self) -> Gpu {
        self.gpu.fork().unwrap()
    }

    /// `full` on a GPU, `emulated` without one, where every element takes far longer.
    pub fn size(&self, full: usize, emulated: usize) -> usize {
        if self.is_emulated { emulated } else { full }
    }
}

/// The device, or `None` after having said why.
pub fn device() -> Option<&'static TestDevice> {
    static DEVICE: OnceLock<Result<TestDevice, String>> = OnceLock::new();
    match DEVICE.get_or_init(open) {
        Ok(device) => Some(device),
        Err(reason) => skip(reason),
    }
}

/// Says why a test does nothing.
#[expect(clippy::print_stdout, reason = "whoever reads the log must see it")]
pub fn skip<T>(reason: &str) -> Option<T> {
    println!("skipped: {reason}");
    None
}

fn open() -> Result<TestDevice, String> {
    let is_required = env::var("REQUIRE_GPU").is_ok_and(|value| value == "1");
    let found = Gpu::open(0);
    match found {
        Ok(gpu) => Ok(TestDevice { gpu, is_emulated: false }),
        Err(error) if is_required => panic!("REQUIRE_GPU=1: {error}"),
        // A driver that is there must work.
        Err(error) if library::load(Library::Driver).is_ok() => Err(error.to_string()),
        Err(error) => {
            let compiler = HostCompiler::new().map_err(|reason| format!("{error}; {reason}"))?;
            make_nvrtc_ready();
            compiler.load_driver()?;
            let cache = Cache::at(compiler.folder.clone());
            let gpu = Gpu::open_with(0, Box::new(compiler), cache).map_err(|e| e.to_string())?;
            Ok(TestDevice { gpu, is_emulated: true })
        }
    }
}

/// Compiles something by NVRTC, where there is one: its first compilation sets it up, for which it would look into the
/// emulated driver if that were there.
fn make_nvrtc_ready() {
    let smallest = programs::released().pop().expect("a release has programs");
    let _ = Nvrtc.compile(&smallest[0], prebuilt::PTX_ARCHITECTURE);
}

/// Makes every later call into the emulated driver fail with `code`.
pub fn lose_device(code: i32) {
    use libloading::os::unix::Library;
    // SAFETY: the emulated driver is loaded for all to see, and exports this function.
    unsafe {
        let lose = Library::this().get::<unsafe extern "C" fn(i32)>(b"emulator_lose\0").unwrap();
        lose(code);
    }
}

/// g++, with the shim.
pub struct HostCompiler {
    sources: PathBuf,
    folder: PathBuf,
    version: String,
}

impl HostCompiler {
    pub fn new() -> Result<HostCompiler, String> {
        let output = Command::new("g++").arg("--version").output();
        let output = output.map_err(|error| format!("no g++ to emulate a device with: {error}"))?;
        let first_line = String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned);
        let manifest = env::var("CARGO_MANIFEST_DIR").map_err(|error| error.to_string())?;
        let sources = Path::new(&manifest).join("../gpu-kernels/tests/it/emulator");
        let read = |file| fs::read_to_string(sources.join(file)).map_err(|error| error.to_string());
        let (shim, warps) = (read("shim.h")?, read("shim_warp.h")?);
        let version = format!("{} {shim} {warps}", first_line.unwrap_or_default());
        let folder = env::temp_dir().join("packed-adamw-emulator");
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        Ok(HostCompiler { sources, folder, version })
    }

    /// Compiles a shared library.
    fn run(&self, source: &Path, arguments: &[String], output: &Path) -> Result<(), String> {
        let mut command = Command::new("g++");
        command.args(["-std=c++17", "-O2", "-ffp-contract=off", "-fno-strict-aliasing"]);
        command.args(["-fPIC", "-shared", "-w", "-U_FORTIFY_SOURCE"]);
        if cfg!(target_arch = "x86_64") && is_fma_there() {
            command.arg("-mfma");
        }
        command.args(arguments).arg("-o").arg(output).arg(source);
        let done = command.output().map_err(|error| error.to_string())?;
        let log = String::from_utf8_lossy(&done.stderr);
        let complaint = log.lines().find(|line| line.contains("error")).unwrap_or(&log).to_owned();
        if done.status.success() { Ok(()) } else { Err(complaint) }
    }

    /// Makes the emulated driver the one that the bindings find.
    fn load_driver(&self) -> Result<(), String> {
        let library = self.folder.join(format!("libcuda-{}.so", std::process::id()));
        let name = "-Wl,-soname,libcuda.so.1".to_owned();
        self.run(&self.sources.join("driver.cpp"), &[name], &library)?;
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: the library is ours and stays loaded.
        let loaded = unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_GLOBAL) };
        let _ = fs::remove_file(&library);
        std::mem::forget(loaded.map_err(|error| error.to_string())?);
        Ok(())
    }
}

fn is_fma_there() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// The source of a program and the headers that it includes, by way of others too.
fn texts_of(program: &Program) -> Vec<&'static str> {
    let mut texts = vec![program.source.text];
    let mut next = 0;
    while let Some(&text) = texts.get(next) {
        next += 1;
        for header in program.headers {
            let is_included = text.contains(&format!("#include \"{}\"", header.file));
            if is_included && !texts.contains(&header.text) {
                texts.push(header.text);
            }
        }
    }
    texts
}

impl Compiler for HostCompiler {
    fn version(&self) -> Result<String, Error> {
        Ok(self.version.clone())
    }

    fn compile(&self, program: &Program, architecture: &str) -> Result<Image, Error> {
        // One at a time: tests in parallel want the same few programs.
        static COMPILING: Mutex<()> = Mutex::new(());
        let _guard = COMPILING.lock().unwrap();
        let refused = |message: String| Error::Compile {
            place: program.source.file.to_owned(),
            architecture: architecture.to_owned(),
            message,
        };
        let folder = tempfile::tempdir_in(&self.folder).map_err(|e| refused(e.to_string()))?;
        for source in [program.source].iter().chain(program.headers) {
            let file = folder.path().join(source.file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, source.text).unwrap();
        }
        // The table of kernels that the emulated driver looks into.
        let entries: Vec<String> =
            program.kernels.iter().map(|name| format!("SHIM_ENTRY({name})")).collect();
        let main = folder.path().join("main.cpp");
        let text = format!(
            "#include \"{}\"\nextern \"C\" const ShimEntry shim_entries[] = {{ {}, {{0, 0, 0}} }};\n",
            program.source.file,
            entries.join(", ")
        );
        fs::write(&main, text).unwrap();
        let mut arguments: Vec<String> = program
            .defines
            .iter()
            .filter(|(name, _)| *name != "WARP_LANES")
            .map(|(name, value)| format!("-D{name}={value}"))
            .collect();
        let texts = texts_of(program);
        let has = |word| texts.iter().any(|text| text.contains(word));
        // Kernels whose lanes exchange more than votes and counts need warps of 32.
        let has_warps = has("\"mma.cuh\"") || has("__shfl");
        let has_barriers = has_warps || program.source.text.contains("__syncthreads");
        arguments.push(format!("-DWARP_LANES={}", if has_warps { 32 } else { 1 }));
        arguments.push(format!("-DSHIM_WARPS={}", u32::from(has_warps)));
        arguments.push(format!("-DSHIM_BARRIERS={}", u32::from(has_barriers)));
        arguments.push(format!("-I{}", folder.path().display()));
        arguments.push("-include".to_owned());
        arguments.push(self.sources.join("shim.h").display().to_string());
        let output = folder.path().join("module.so");
        self.run(&main, &arguments, &output).map_err(refused)?;
        let bytes = fs::read(output).map_err(|error| refused(error.to_string()))?;
        Ok(Image { bytes, log: String::new() })
    }
}
