//! What is missing or gone: libraries, the driver, the compiler, the device. Errors, never panics.
//!
//! Whether a driver is loaded is decided once in a process, so some of these tests run themselves
//! in a process of their own.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use formats::Format;
use gpu_kernels::cache::Cache;
use gpu_kernels::compile::{Compiler, Image, Nvrtc, Program};
use gpu_kernels::library::{self, Library, Search};
use gpu_kernels::prebuilt::PTX_ARCHITECTURE;
use gpu_kernels::{Error, FusedAdamW, Gpu, Kind, Placement, TensorPlace, TensorPlan};
use gpu_kernels::{GradientType, ParameterType, prebuilt, programs};

use crate::emulator::{HostCompiler, device};
use crate::pair::{Setup, noise, options};

const CHILD: &str = "GPU_KERNELS_TEST_CHILD";

/// Runs a test of this file in a process of its own; `None` in that process. What it prints comes
/// back.
fn in_child(test: &str, variables: &[(&str, &Path)]) -> Option<String> {
    if env::var_os(CHILD).is_some() {
        return None;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("absent::{test}"), "--nocapture"]).env(CHILD, "1");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn a_machine_without_a_driver() {
    let Some(text) = in_child("a_machine_without_a_driver", &[]) else {
        match Gpu::open(0) {
            Ok(gpu) => println!("has a driver: {:?}", gpu.facts()),
            Err(error) => println!("{error}"),
        }
        for report in library::reports() {
            println!("{report:?}");
        }
        return;
    };
    if text.contains("has a driver") {
        return;
    }
    assert!(text.contains("expected the library libcuda.so.1, found none in: "), "{text}");
    assert!(text.contains("the loader's path"), "{text}");
    assert!(text.contains("install the NVIDIA driver"), "{text}");
    assert!(text.contains("library: Driver, path: None"), "{text}");
}

#[test]
fn libraries_are_looked_for_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let named = folder.path().join("named");
    let search = Search { first: vec![named.clone()], last: vec![folder.path().join("last")] };
    // cuBLASLt, which no other test loads; a file that is no library is none.
    fs::create_dir_all(&named).unwrap();
    fs::write(named.join("libcublasLt.so.13"), b"not a library").unwrap();
    match library::load_from(Library::CublasLt, &search) {
        Ok(()) => println!("the loader's path has it"),
        Err(error) => {
            let Error::LibraryMissing { name, tried, install } = &error else { panic!("{error}") };
            assert_eq!(*name, "libcublasLt.so.13");
            let last = folder.path().join("last").display().to_string();
            let expected = [named.display().to_string(), "the loader's path".to_owned(), last];
            assert_eq!(*tried, expected);
            assert!(install.contains("pip install"), "{install}");
        }
    }
}

#[test]
fn environments_beside_the_work_are_searched() {
    let folder = tempfile::tempdir().unwrap();
    let libraries = folder.path().join(".venv-cuda/lib/python3.11/site-packages/nvidia/cu13/lib");
    fs::create_dir_all(&libraries).unwrap();
    fs::create_dir_all(folder.path().join("deep/work")).unwrap();
    let child = env::var_os(CHILD).is_some();
    if child {
        println!("{:?}", Search::here());
        return;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "absent::environments_beside_the_work_are_searched", "--nocapture"]);
    command.env(CHILD, "1").env(library::FOLDERS_VARIABLE, "/one:/two");
    command.current_dir(folder.path().join("deep/work"));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("first: [\"/one\", \"/two\"]"), "{text}");
    let found = libraries.canonicalize().unwrap().display().to_string();
    assert!(text.contains(&found), "{text} lacks {found}");
}

/// A machine without NVRTC.
struct NoCompiler;

impl Compiler for NoCompiler {
    fn version(&self) -> Result<String, Error> {
        let tried = vec!["the loader's path".to_owned()];
        Err(Error::LibraryMissing { name: "libnvrtc.so.13", tried, install: "install it" })
    }

    fn compile(&self, _: &Program, _: &str) -> Result<Image, Error> {
        unreachable!("a compiler without a version compiles nothing")
    }
}

#[test]
fn nvrtc_compiles_beside_an_emulated_device() {
    if Nvrtc.version().is_err() {
        println!("skipped: no NVRTC");
        return;
    }
    let Some(text) = in_child("nvrtc_compiles_beside_an_emulated_device", &[]) else {
        let device = device();
        for choices in programs::released().iter().rev().take(2) {
            let image = Nvrtc.compile(&choices[0], "sm_90").unwrap();
            assert!(image.bytes.starts_with(b"\x7FELF"));
        }
        println!("compiled beside a device: {}", device.is_some());
        return;
    };
    assert!(text.contains("compiled beside a device"), "{text}");
}

/// A compiler that takes several programs at once, and counts them. The kernels of those that leave room for
/// more blocks than `blocks_max` are said not to fit registers.
struct Counting {
    host: HostCompiler,
    blocks_max: u32,
    compiled: Arc<AtomicUsize>,
}

impl Compiler for Counting {
    fn version(&self) -> Result<String, Error> {
        self.host.version()
    }

    fn compile(&self, program: &Program, architecture: &str) -> Result<Image, Error> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let mut program = program.clone();
        let blocks = program.defines.iter().find(|(name, _)| *name == "BLOCKS_MIN");
        if blocks.is_some_and(|(_, blocks)| blocks.parse::<u32>().unwrap() > self.blocks_max) {
            program.defines.push(("SHIM_LOCAL_BYTES", "8".to_owned()));
        }
        self.host.compile(&program, architecture)
    }

    fn is_parallel(&self) -> bool {
        true
    }
}

#[test]
fn the_first_choice_is_compiled_alone_and_all_others_at_once_where_it_does_not_do() {
    let Some(device) = device().filter(|device| device.is_emulated) else { return };
    drop(device.gpu());
    let choices = &programs::variants()[0].1;
    let blocks_of = |program: &Program| {
        let (_, blocks) = program.defines.iter().find(|(name, _)| *name == "BLOCKS_MIN").unwrap();
        blocks.parse::<u32>().unwrap()
    };
    let cases = [(blocks_of(&choices[0]), 1), (blocks_of(&choices[1]), choices.len())];
    for (blocks_max, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let compiled = Arc::new(AtomicUsize::new(0));
        let open = || {
            let host = HostCompiler::new().unwrap();
            let compiler = Counting { host, blocks_max, compiled: Arc::clone(&compiled) };
            Gpu::open_with(0, Box::new(compiler), Cache::at(folder.path())).unwrap()
        };
        let facts = plain_model(&open()).unwrap().kernel_facts().unwrap();
        assert_eq!((facts[0].name, facts[0].local_bytes), ("adamw_update", 0));
        assert_eq!(compiled.load(Ordering::Relaxed), expected, "each choice once");
        plain_model(&open()).unwrap();
        assert_eq!(compiled.load(Ordering::Relaxed), expected, "all come from the cache");
    }
}

fn plain_model(gpu: &Gpu) -> Result<FusedAdamW, Error> {
    model_of(gpu, &[Kind::plain(Format::E4)])
}

/// A model of a tensor of each of these kinds.
fn model_of(gpu: &Gpu, kinds: &[Kind]) -> Result<FusedAdamW, Error> {
    let plan = |&kind| TensorPlan {
        length: 100,
        group: 0,
        kind,
        bias: Some(16),
        published: 0,
        part: None,
    };
    let options = gpu_kernels::Options { measures_norm: false, ..options() };
    FusedAdamW::new(gpu, &kinds.iter().map(plan).collect::<Vec<_>>(), 1, options, false, None)
}

#[test]
fn kernels_built_before_serve_without_a_compiler() {
    let Some(device) = device().filter(|device| device.is_emulated) else { return };
    drop(device.gpu());
    let open = || Gpu::open_with(0, Box::new(NoCompiler), Cache::at("/nonexistent")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let variable = [(prebuilt::FOLDER_VARIABLE, folder.path())];
    let name = "kernels_built_before_serve_without_a_compiler";
    let Some(text) = in_child(name, &variable) else {
        match plain_model(&open()) {
            Ok(_) => println!("served"),
            Err(error) => println!("{error}"),
        }
        return;
    };
    assert!(text.contains("expected a compiler or prebuilt kernels of adamw.cu"), "{text}");
    assert!(text.contains("libnvrtc.so.13"), "{text}");
    assert!(text.contains(&folder.path().display().to_string()), "{text}");
    // The kernels of `e4` alone, as a release has them.
    let variants = programs::variants().into_iter();
    let e4: Vec<_> =
        variants.filter(|(name, _)| name == "e4 memory, 128 threads").map(|(_, p)| p).collect();
    let compiler = HostCompiler::new().unwrap();
    let files =
        prebuilt::write(folder.path(), &compiler, &["sm_90", PTX_ARCHITECTURE], &e4).unwrap();
    assert_eq!(files.len(), 1 + e4[0].len(), "the first cubin, and PTX of every choice");
    let text = in_child(name, &variable).unwrap();
    assert!(text.contains("served"), "{text}");
}

#[test]
fn kernels_that_a_package_carries_come_before_the_compiler() {
    let Some(device) = device().filter(|device| device.is_emulated) else { return };
    drop(device.gpu());
    let folder = tempfile::tempdir().unwrap();
    let name = "kernels_that_a_package_carries_come_before_the_compiler";
    // How many kernels a model compiles: of one tensor in blocks, without a small one in f32 beside it, or of two tensors
    // of other types.
    let compiled = |is_mixed: &str| {
        let (folders, mixed) = (prebuilt::FOLDER_VARIABLE, Path::new(is_mixed));
        in_child(name, &[(folders, folder.path()), (MIXED, mixed)])
    };
    let Some(text) = compiled("") else {
        let cache = tempfile::tempdir().unwrap();
        let compiled = Arc::new(AtomicUsize::new(0));
        let compiler = Counting {
            host: HostCompiler::new().unwrap(),
            blocks_max: 100,
            compiled: Arc::clone(&compiled),
        };
        let gpu = Gpu::open_with(0, Box::new(compiler), Cache::at(cache.path())).unwrap();
        let kind = Kind::plain("n4l4".parse().unwrap());
        let half = Kind { parameters: ParameterType::Split, gradients: GradientType::Bf16, ..kind };
        let is_mixed = env::var_os(MIXED).is_some_and(|value| !value.is_empty());
        let kinds = if is_mixed { vec![kind, half] } else { vec![kind] };
        model_of(&gpu, &kinds).unwrap();
        println!("compiled {}", compiled.load(Ordering::Relaxed));
        return;
    };
    assert!(text.contains("compiled 1"), "{text}");
    let has = |program: &Program, name, value| {
        program.defines.iter().any(|(own, found)| *own == name && found == value)
    };
    let cases = [("", "0x1000001u", "160"), ("yes", "0x9009999u", "0")];
    for (is_mixed, kinds, tensors) in cases {
        let is_wanted = |choices: &Vec<Program>| {
            has(&choices[0], "KINDS", kinds) && has(&choices[0], "ARGUMENT_TENSORS", tensors)
        };
        let wanted: Vec<_> = programs::carried().into_iter().filter(is_wanted).collect();
        assert_eq!(wanted.len(), 1);
        let compiler = HostCompiler::new().unwrap();
        let files = prebuilt::write(folder.path(), &compiler, &["sm_90"], &wanted).unwrap();
        assert_eq!(files.len(), 1);
        let text = compiled(is_mixed).unwrap();
        assert!(text.contains("compiled 0"), "{text}");
        // A driver that cannot load them, such as an older one, gets others.
        fs::write(&files[0], "nothing that a driver knows").unwrap();
        let text = compiled(is_mixed).unwrap();
        assert!(text.contains("compiled 1"), "{text}");
    }
}

/// Whether the model of a test in a process of its own has tensors of several types.
const MIXED: &str = "GPU_KERNELS_TEST_MIXED";

#[test]
fn machine_code_serves_later_devices_of_its_generation() {
    let Ok(compiler) = HostCompiler::new() else {
        println!("skipped: no C++ compiler");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let smallest = programs::released().pop().unwrap();
    let architectures = ["sm_86", "sm_100"];
    let programs = [smallest];
    assert_eq!(
        prebuilt::write(folder.path(), &compiler, &architectures, &programs).unwrap().len(),
        2
    );
    let folders = [folder.path().to_owned()];
    let has = |name| prebuilt::machine_code(&programs[0][0], name, &folders).is_some();
    let serves =
        ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120"].map(has);
    assert_eq!(serves, [false, true, true, false, true, true, false, false]);
}

fn is_of_words(format: Format) -> bool {
    matches!(format, Format::Fp32 | Format::Fp16 | Format::E4 | Format::E4s)
}

#[test]
fn a_release_can_build_its_kernels() {
    if Nvrtc.version().is_err() {
        println!("skipped: no NVRTC");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let released = programs::released();
    let of = |file: &str| released.iter().filter(|p| p[0].source.file == file).count();
    let kinds = Kind::all();
    let blocks = kinds.clone().filter(|kind| !is_of_words(kind.format)).count();
    // Half of the kinds have f32 parameters.
    assert_eq!(
        of("adamw.cu"),
        2 * (kinds.clone().count() + 1 + blocks) + kinds.count() / 2 + 1 + blocks / 2,
        "update and check, and copy of f32, of each kind alone, all of words together, and each of blocks with f32 beside it"
    );
    assert_eq!((of("norm.cu"), of("split.cu")), (1, 1));
    // The smallest two, twice: the same names and bytes.
    let some = &released[released.len() - 2..];
    let build = || {
        let files =
            prebuilt::write(folder.path(), &Nvrtc, &["sm_90", PTX_ARCHITECTURE], some).unwrap();
        files.iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect::<Vec<_>>()
    };
    let (first, second) = (build(), build());
    assert_eq!(first.len(), second.len());
    for ((file, bytes), (again, other)) in first.iter().zip(&second) {
        assert_eq!(file, again);
        assert!(bytes == other, "{}: {} and {} bytes", file.display(), bytes.len(), other.len());
    }
}

#[test]
fn a_device_that_is_lost() {
    let Some(device) = device().filter(|device| device.is_emulated) else { return };
    let Some(text) = in_child("a_device_that_is_lost", &[]) else {
        let gpu = device.gpu();
        let mut pair = Setup::of(Format::E4, &[100]).build(&gpu);
        pair.step(1, &noise(100, 1, 1.0));
        crate::emulator::lose_device(719);
        println!("{}", pair.fused.outcome().unwrap_err());
        println!("{}", gpu.synchronize().unwrap_err());
        println!("{}", gpu.zeros::<f32>(3).unwrap_err());
        return;
    };
    assert_eq!(text.matches("the device is lost (CUDA_ERROR_LAUNCH_FAILED").count(), 3, "{text}");
}

#[test]
fn buffers_that_do_not_fit() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let mut model = plain_model(&gpu).unwrap();
    let mut parameters = gpu.zeros::<f32>(99).unwrap();
    let gradients = gpu.zeros::<f32>(100).unwrap();
    let halves = gpu.zeros::<u16>(100).unwrap();
    use gpu_kernels::{Gradients, ParametersMut};
    let step = |model: &mut FusedAdamW, p: ParametersMut<'_>, g: Gradients<'_>| {
        model.step(p, g).unwrap_err().to_string()
    };
    let message = step(&mut model, ParametersMut::F32(&mut parameters), Gradients::F32(&gradients));
    assert_eq!(message, "parameters: expected 100 elements, found 99");
    let mut parameters = gpu.zeros::<f32>(100).unwrap();
    let message = step(&mut model, ParametersMut::F32(&mut parameters), Gradients::Bf16(&halves));
    assert_eq!(message, "gradients: expected f32, found bf16");
    let (mut upper, mut remainders) = (halves, gpu.zeros::<u16>(100).unwrap());
    let split = ParametersMut::Split { upper: &mut upper, remainders: &mut remainders };
    let message = step(&mut model, split, Gradients::F32(&gradients));
    assert_eq!(message, "parameters: expected f32, found bf16+16");
}

#[test]
fn places_that_do_not_fit() {
    let place = |parameters, gradients, length| TensorPlace {
        parameters,
        remainders: 0,
        gradients,
        length,
        parameter_type: ParameterType::F32,
        gradient_type: GradientType::F32,
    };
    // SAFETY: no step is made over these.
    #[expect(unsafe_code, reason = "addresses that nobody uses")]
    let placement = |places: &[TensorPlace]| unsafe { Placement::new(places.to_vec()) };
    let refused = |places: &[TensorPlace], message: &str| {
        assert_eq!(placement(places).unwrap_err().to_string(), message);
    };
    let message = "the gradients of tensor 0: expected an address divisible by 4, found 0x1002";
    refused(&[place(0x2000, 0x1002, 1)], message);
    let apart = "expected memory of their own for the parameters of tensor 0 and the gradients of \
                 tensor 0, found them to overlap";
    refused(&[place(0x1000, 0x1000, 1)], apart);
    let apart = "expected memory of their own for the gradients of tensor 1 and the parameters of \
                 tensor 0, found them to overlap";
    refused(&[place(0x1ffc, 0x4000, 2), place(0x6000, 0x1000, 0x400)], apart);
    // Gradients are only read, and may be shared; tensors without elements use no memory.
    placement(&[place(0x1000, 0x4000, 2), place(0x2000, 0x4000, 2)]).unwrap();
    placement(&[place(0x1000, 0x1000, 0), place(0x1000, 0x4000, 2)]).unwrap();
}

#[test]
fn a_machine_without_nccl() {
    let empty = tempfile::tempdir().unwrap();
    let search = Search { first: vec![empty.path().to_owned()], last: Vec::new() };
    match library::load_from(Library::Nccl, &search) {
        // It may be on the loader's path.
        Ok(()) => assert!(gpu_kernels::nccl::is_there().is_ok()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("expected the library libnccl.so.2, found none in: "), "{text}");
            assert!(text.contains("nvidia-nccl-cu13"), "{text}");
        }
    }
}
