//! Every kernel through NVRTC, for every architecture: it compiles, and keeps all its numbers in
//! registers. Skipped where there is no NVRTC, unless `REQUIRE_NVRTC=1`.

use std::env;
use std::fmt::Write as _;

use gpu_kernels::Error;
use gpu_kernels::compile::{Compiler, Nvrtc, Program, Source};
use gpu_kernels::prebuilt::spills;
use gpu_kernels::programs;

fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc.version() {
        Ok(_) => Some(Nvrtc),
        Err(error) if env::var("REQUIRE_NVRTC").is_ok_and(|value| value == "1") => {
            panic!("REQUIRE_NVRTC=1: {error}")
        }
        Err(error) => crate::emulator::skip(&error.to_string()),
    }
}

/// The register counts of every kernel in a log, in the order of the log.
fn registers(log: &str) -> Vec<String> {
    let mut kernels = Vec::new();
    let mut name = "";
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            name = rest.split('\'').next().unwrap_or_default();
        }
        if let Some((_, rest)) = line.split_once("Used ") {
            let count = rest.split(' ').next().unwrap_or_default();
            kernels.push(format!("{name} {count}"));
        }
    }
    kernels
}

/// Compiles the choices of a program until one spills nothing, as a device does.
fn compile(nvrtc: Nvrtc, choices: &[Program], architecture: &str) -> (usize, String) {
    for (position, program) in choices.iter().enumerate() {
        let image = nvrtc.compile(program, architecture).unwrap();
        assert!(image.bytes.starts_with(b"\x7FELF"), "a cubin is an ELF file");
        if !spills(&image.log) {
            return (position, image.log);
        }
    }
    let defines = &choices[0].defines;
    panic!("{} for {architecture}: every choice spills: {defines:?}", choices[0].source.file);
}

fn is_attention(choices: &[Program]) -> bool {
    choices[0].source.file.starts_with("attention")
}

/// Whether kinds, as the macro has them, are those of f32 tensors in `block8` or `n4l4`, whose kernels take long to
/// compile. A kind is a bit, the first of every four that of f32 alone.
fn is_long(kinds: &str) -> bool {
    let digits = kinds.trim_start_matches("0x").trim_end_matches('u');
    let blocks = u32::from_str_radix(digits, 16).unwrap_or(0) & 0x0FFF_0000;
    blocks != 0 && blocks & !0x0101_0000 == 0
}

/// Every program of a release for one device; of attention there is something for each.
fn compile_all(architecture: &str) {
    let Some(nvrtc) = nvrtc() else { return };
    let mut report = String::new();
    let is_here = |choices: &Vec<Program>| choices.iter().any(|p| p.is_for(architecture));
    let others = programs::released().into_iter().filter(|choices| !is_attention(choices));
    let others = others.filter(is_here);
    for choices in others.chain(programs::released_attention(architecture)) {
        let (position, log) = compile(nvrtc, &choices, architecture);
        let define = |name| choices[position].defines.iter().find(|(n, _)| *n == name);
        let value = |name| define(name).map_or("-", |(_, value)| value);
        let (blocks, kinds) = (value("BLOCKS_MIN"), value("KINDS"));
        let is_quick = position == 0 || architecture != "sm_90" || !is_long(kinds);
        assert!(is_quick, "{kinds}: a first step waits for one compilation");
        let kernels = registers(&log).join(", ");
        writeln!(report, "{architecture} blocks {blocks} kinds {kinds}: {kernels}").unwrap();
    }
    say(&report);
}

#[expect(clippy::print_stdout, reason = "whoever reads the log wants the registers")]
fn say(report: &str) {
    println!("{report}");
}

// What the devices that matter run, side by side, since it takes a while.

#[test]
fn every_program_compiles_without_spills_for_an_a100() {
    compile_all("sm_80");
}

#[test]
fn every_program_compiles_without_spills_for_an_h200() {
    compile_all("sm_90");
}

#[test]
fn every_program_compiles_without_spills_for_a_b200() {
    compile_all("sm_100");
}

#[test]
fn every_shape_compiles_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    for (name, choices) in programs::variants() {
        let (position, log) = compile(nvrtc, &choices, "sm_90");
        println!("{name}: choice {position}: {}", registers(&log).join(", "));
    }
}

#[test]
fn ptx_is_text_for_the_drivers_compiler() {
    let Some(nvrtc) = nvrtc() else { return };
    // All kinds together, the norm, the halves.
    for choices in programs::released().into_iter().rev().take(3) {
        let image = nvrtc.compile(choices.last().unwrap(), "compute_80").unwrap();
        let text = String::from_utf8(image.bytes).unwrap();
        assert!(text.contains(".target sm_80"), "{text}");
    }
}

#[test]
fn an_architecture_that_nvrtc_does_not_know() {
    let Some(nvrtc) = nvrtc() else { return };
    let program = &programs::released().pop().unwrap()[0];
    let error = nvrtc.compile(program, "sm_999").unwrap_err();
    assert!(matches!(error, Error::UnknownArchitecture { .. }), "{error}");
}

#[test]
fn a_mistake_is_named_by_file_and_line() {
    let Some(nvrtc) = nvrtc() else { return };
    let header =
        Source { file: "codec/wrong.cuh", text: "__device__ int f() {\n    return nothing;\n}\n" };
    let headers: &'static [Source] = Box::leak(Box::new([header]));
    let source = Source { file: "wrong.cu", text: "\n#include \"codec/wrong.cuh\"\n" };
    let program = Program { source, headers, kernels: &[], defines: Vec::new() };
    let error = nvrtc.compile(&program, "sm_90").unwrap_err();
    let Error::Compile { place, architecture, message } = &error else { panic!("{error}") };
    assert_eq!((place.as_str(), architecture.as_str()), ("codec/wrong.cuh line 2", "sm_90"));
    assert!(message.contains("\"nothing\" is undefined"), "{message}");
}

#[test]
fn spills_are_read_from_a_log() {
    let clean = "ptxas info    : Function properties for f\n    0 bytes stack frame, 0 bytes spill \
                 stores, 0 bytes spill loads\nptxas info    : Used 32 registers, 64 bytes smem";
    assert!(!spills(clean));
    for (from, to) in [("0 bytes stack", "16 bytes stack"), ("0 bytes spill s", "8 bytes spill s")]
    {
        assert!(spills(&clean.replace(from, to)));
    }
}
