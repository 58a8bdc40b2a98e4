//! The kernel sources that are built in, and the programs made of them.
//!
//! A number that Rust knows reaches a kernel as a macro, from here, so that it stands in
//! one place.

use formats::counter_hash::{MIX_INCREMENT, MIX_MULTIPLIERS};
use formats::exp_log::{EXP2_COEFFICIENTS, LN_2_HIGH, LN_2_LOW, LN_COEFFICIENTS, SQRT_HALF_BITS};
use formats::one_q::{FRESH_ENDPOINT, HALF_LOG2_E};
use formats::published_random::MULTIPLIERS as PUBLISHED_MULTIPLIERS;
use formats::ustate::STEP_FACTOR;
use formats::{Bias, Block8, Format, N4l4, NumberFormat, Rules, UState1Q, map_cells};

use crate::argument::Argument;
use crate::compile::{Program, Source};
use crate::kind::{BlockOptions, Kind, Kinds};
use crate::layout::BLOCK_QUADS;
use crate::maps::{self, EvenTables, MAP_TABLE_WORDS};
use crate::plan::{AttentionShape, Kernels, Plan, Room};
use crate::shape::{Shape, TableIn};
use crate::{Precision, table};

pub(crate) mod network;

macro_rules! source {
    ($file:literal) => {
        Source { file: $file, text: include_str!(concat!("../cuda/", $file)) }
    };
}

/// What kernels include.
const HEADERS: &[Source] = &[
    source!("prelude.cuh"),
    source!("table.cuh"),
    source!("elements.cuh"),
    source!("blocks.cuh"),
    source!("blocks/block8.cuh"),
    source!("blocks/grid.cuh"),
    source!("blocks/n4l4.cuh"),
    source!("blocks/seat.cuh"),
    source!("blocks/update.cuh"),
    source!("blocks/ustate1q.cuh"),
    source!("blocks/ustate_memory.cuh"),
    source!("blocks/ustate_record.cuh"),
    source!("codec/dynamic_map.cuh"),
    source!("codec/exp_log.cuh"),
    source!("codec/half_floats.cuh"),
    source!("codec/inverse.cuh"),
    source!("codec/n4l4.cuh"),
    source!("codec/one_q.cuh"),
    source!("codec/published_random.cuh"),
    source!("codec/ustate.cuh"),
    source!("mma.cuh"),
    source!("wgmma.cuh"),
    source!("wgmma_tf32.cuh"),
    source!("engine.cuh"),
    source!("attention.cuh"),
    source!("attention_planes.cuh"),
    source!("attention_mma.cuh"),
    source!("attention_parts.cuh"),
    source!("attention_turns.cuh"),
    source!("attention_ring.cuh"),
    source!("attention_found.cuh"),
    source!("attention_visits.cuh"),
    source!("attention_wide.cuh"),
    source!("codec/bias.cuh"),
    source!("codec/counter_hash.cuh"),
    source!("codec/minifloat.cuh"),
    source!("codec/split.cuh"),
    source!("codec/word.cuh"),
];

/// Threads of a warp, on every device so far.
pub(crate) const WARP_LANES: u32 = 32;

/// Threads of a multiprocessor that a kernel may be compiled to leave room for, the most first.
/// With more of them more memory is on its way at once, with fewer a thread has more registers.
const RESIDENT_THREADS: [u32; 4] = [2048, 1536, 1280, 1024];
/// The same where blocks of elements are encoded together, which takes more registers. The first has them for f32
/// tensors in `block8` and `n4l4` on every device so far, so that one compilation of these long kernels does.
const RESIDENT_THREADS_OF_BLOCKS: [u32; 3] = [1024, 768, 512];

/// Threads of a block of the norm: each takes four of the 1024 lanes.
pub(crate) const NORM_THREADS: u32 = CHUNK_LANES / 4;
/// Elements of a chunk of the norm's sum tree.
pub(crate) const CHUNK_ELEMENTS: u32 = 16_384;
/// Lanes of a chunk.
pub(crate) const CHUNK_LANES: u32 = 1_024;
/// Threads of a block of the kernels for split parameters.
pub(crate) const SPLIT_THREADS: u32 = 256;

/// What a launch over all tensors does. Each is compiled by itself, since few models ever look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Updates them.
    Update,
    /// Updates them, and writes copies of parameters too.
    UpdateAndCopy,
    /// Counts what an update would find not finite.
    Check,
}

impl Pass {
    const ALL: [Pass; 3] = [Pass::Update, Pass::UpdateAndCopy, Pass::Check];

    /// The name of its kernel.
    pub(crate) const fn kernel(self) -> &'static str {
        self.kernels()[0]
    }

    const fn kernels(self) -> &'static [&'static str] {
        match self {
            Pass::Update | Pass::UpdateAndCopy => &["adamw_update"],
            Pass::Check => &["adamw_check"],
        }
    }
}

/// A pass over tensors of `kinds`, for every number of resident threads; with a table of
/// `argument_tensors` in its argument, or in memory if there are none.
///
/// `threads` are raised to what the blocks of formats ask for.
pub(crate) fn adamw(
    pass: Pass,
    kinds: Kinds,
    options: BlockOptions,
    threads: u32,
    argument_tensors: usize,
) -> Vec<Program> {
    let threads = threads.max(options.threads_min(kinds));
    let program = |resident: u32| {
        let mut defines = common();
        defines.extend(of_blocks(kinds, options, threads));
        defines.extend([
            ("THREADS", threads.to_string()),
            ("BLOCK_QUADS", BLOCK_QUADS.to_string()),
            ("BLOCKS_MIN", (resident / threads).max(1).to_string()),
            ("ARGUMENT_TENSORS", argument_tensors.to_string()),
            ("KINDS", format!("{:#x}u", kinds.bits())),
            ("CHECKS", u32::from(pass == Pass::Check).to_string()),
            ("COPIES", u32::from(pass == Pass::UpdateAndCopy).to_string()),
        ]);
        let (source, kernels) = (source!("adamw.cu"), pass.kernels());
        Program { source, headers: HEADERS, kernels, defines }
    };
    let resident: &[u32] =
        if kinds.has_blocks() { &RESIDENT_THREADS_OF_BLOCKS } else { &RESIDENT_THREADS };
    resident.iter().map(|&resident| program(resident)).collect()
}

/// The macros of the formats of blocks.
fn of_blocks(kinds: Kinds, options: BlockOptions, threads: u32) -> Vec<(&'static str, String)> {
    let BlockOptions { block8, ustate, n4l4 } = options;
    let is_repaired = |rules: Rules| u32::from(rules == Rules::Repaired);
    let numbers = [
        ("BLOCK8_BLOCK", block8.block),
        ("BLOCK8_REPAIRED", is_repaired(block8.rules)),
        ("USTATE_BLOCK", ustate.block),
        ("USTATE_MEAN_BLOCK", ustate.mean_block),
        ("USTATE_V_BITS", ustate.v_bits),
        ("USTATE_FIRST", u32::from(ustate.has_first)),
        ("USTATE_SECOND", u32::from(ustate.has_second)),
        ("USTATE_REPAIRED", is_repaired(ustate.rules)),
        ("N4L4_M_BLOCK", n4l4.m_block),
        ("N4L4_V_BLOCK", n4l4.v_block),
        ("N4L4_NEAREST", u32::from(n4l4.is_nearest)),
        ("SHARED_TABLE_WORDS", options.table_words(kinds, threads)),
        ("MAP_TABLE_WORDS", MAP_TABLE_WORDS),
        ("MAP_FIRST_SHIFT", map_cells::SIGNED_SHIFT),
        ("MAP_SECOND_SHIFT", map_cells::UNSIGNED_SHIFT),
        ("MAP_COARSE_SHIFT", map_cells::COARSE_SHIFT),
        ("MAP_BORDER_BITS", map_cells::BORDER_BITS),
        ("MAP_FIRST_CELLS", maps::FIRST_CELLS),
        ("MAP_SECOND_CELLS", maps::SECOND_CELLS),
    ];
    numbers.map(|(name, number)| (name, number.to_string())).to_vec()
}

/// Neighbours of a thread of the update of bf16 in 8-bit codes, and threads of a block: as many as a multiprocessor has
/// registers for, which share one copy of the tables.
pub(crate) const QUANTIZED_EIGHT: u32 = 8;
pub(crate) const QUANTIZED_THREADS: u32 = 1024;

/// The update of bf16 parameters whose moments are 8-bit codes, in blocks of so many elements.
pub(crate) fn quantized(block: u32, tables: EvenTables) -> Vec<Program> {
    let options =
        BlockOptions { block8: Block8 { block, ..Block8::ORIGINAL }, ..BlockOptions::DEFAULT };
    let mut defines = common();
    defines.extend(of_blocks(Kinds::default(), options, QUANTIZED_THREADS));
    let numbers = [
        ("THREADS", QUANTIZED_THREADS),
        ("BLOCK", block),
        ("EVEN_BASE_BITS", maps::EVEN_BASE_BITS),
        ("TABLE_WORDS", tables.words),
        ("FIRST_NEGATIVE", maps::FIRST_NEGATIVE),
        ("SECOND_EVEN_CELLS", maps::SECOND_EVEN_CELLS),
        ("FIRST_ENTRIES", tables.first_entries),
        ("SECOND_ENTRIES", tables.second_entries),
        ("ENTRY_COPIES", tables.entry_copies),
    ];
    defines.extend(numbers.map(|(name, number)| (name, number.to_string())));
    let source = source!("quantized.cu");
    vec![Program { source, headers: HEADERS, kernels: &["quantized_update"], defines }]
}

/// The gradient norm, for every number of resident threads.
pub(crate) fn norm() -> Vec<Program> {
    let program = |resident: u32| {
        let mut defines = common();
        defines.extend([
            ("THREADS", NORM_THREADS.to_string()),
            ("BLOCKS_MIN", (resident / NORM_THREADS).to_string()),
            ("CHUNK_ELEMENTS", CHUNK_ELEMENTS.to_string()),
            ("CHUNK_LANES", CHUNK_LANES.to_string()),
        ]);
        let (source, kernels): (_, &[&str]) =
            (source!("norm.cu"), &["gradient_norm", "finish_norm"]);
        Program { source, headers: HEADERS, kernels, defines }
    };
    RESIDENT_THREADS.map(program).to_vec()
}

/// The halves of split parameters.
pub(crate) fn split() -> Vec<Program> {
    let mut defines = common();
    defines.push(("THREADS", SPLIT_THREADS.to_string()));
    let (source, kernels): (_, &[&str]) = (source!("split.cu"), &["split", "recombine"]);
    vec![Program { source, headers: HEADERS, kernels, defines }]
}

/// Threads of the kernel that begins an update, each for a group.
pub(crate) const ADVANCE_THREADS: u32 = 32;
/// Groups of one launch of it.
pub(crate) const ADVANCE_RULES_MAX: usize = 32;

/// The begin of an update.
pub(crate) fn advance() -> Vec<Program> {
    let mut defines = common();
    defines.push(("THREADS", ADVANCE_THREADS.to_string()));
    defines.push(("RULES_MAX", ADVANCE_RULES_MAX.to_string()));
    let (source, kernels): (_, &[&str]) = (source!("advance.cu"), &["begin_update"]);
    vec![Program { source, headers: HEADERS, kernels, defines }]
}

/// Threads of a block of the kernel that moves scales on, each for a tensor.
pub(crate) const SCALES_THREADS: u32 = 128;

/// The scales of tensors of which others have parts.
pub(crate) fn scales() -> Vec<Program> {
    let mut defines = common();
    defines.push(("THREADS", SCALES_THREADS.to_string()));
    let (source, kernels): (_, &[&str]) = (source!("scales.cu"), &["advance_scales"]);
    vec![Program { source, headers: HEADERS, kernels, defines }]
}

/// Lanes that share a row in the kernel that writes the planes of attention.
pub(crate) const PLANE_LANES: u32 = 8;

/// A pass of attention by a plan, with its choices.
pub(crate) fn attention(plan: &Plan) -> Vec<Program> {
    let (source, kernels): (_, &[&str]) = match plan.kernels {
        Kernels::General => (
            source!("attention.cu"),
            &["attention_forward", "attention_planes", "attention_backward"],
        ),
        Kernels::MatrixForward => (source!("attention_mma_forward.cu"), &["attention_forward"]),
        Kernels::MatrixBackward => {
            (source!("attention_mma_backward.cu"), &["attention_planes", "attention_backward"])
        }
        Kernels::RingForward => (source!("attention_ring_forward.cu"), &["attention_forward"]),
        Kernels::RingBackward => {
            (source!("attention_ring_backward.cu"), &["attention_planes", "attention_backward"])
        }
        Kernels::WideForward => (source!("attention_wide_forward.cu"), &["attention_forward"]),
        Kernels::WideBackward => {
            (source!("attention_wide_backward.cu"), &["attention_planes", "attention_backward"])
        }
    };
    let program = |choice: &[(&'static str, u32); 2]| {
        let shared =
            [("WARP_LANES", WARP_LANES), ("PLANE_LANES", PLANE_LANES), ("THREADS", plan.threads)];
        let numbers = shared.iter().chain(&plan.numbers).chain(choice);
        let defines = numbers.map(|&(name, number)| (name, number.to_string())).collect();
        Program { source, headers: HEADERS, kernels, defines }
    };
    plan.choices.iter().map(program).collect()
}

/// Attention in every precision, for heads that models have, for few and for many tiles, on a device
/// with this room.
fn attentions(room: Room) -> Vec<Vec<Program>> {
    let mut programs = Vec::new();
    for head_size in [32, 64, 80, 96, 128] {
        for (precision, batch) in Precision::ALL.into_iter().flat_map(|p| [(p, 1), (p, 1024)]) {
            let shape = AttentionShape { batch, time: 1024, heads: 1, head_size };
            let (forward, backward) =
                Plan::of(precision, shape, room).expect("small heads fit every device");
            for choices in [attention(&forward), attention(&backward)] {
                if !programs.contains(&choices) {
                    programs.push(choices);
                }
            }
        }
    }
    programs
}

/// Attention on a device of `architecture`, as a release has it.
#[must_use]
pub fn released_attention(architecture: &str) -> Vec<Vec<Program>> {
    let has_this = |room: &&Room| {
        let (major, minor) = room.compute_capability;
        architecture == format!("sm_{major}{minor}")
    };
    Room::RELEASED.iter().find(has_this).map_or_else(Vec::new, |&room| attentions(room))
}

/// The programs of a release, each with its choices of resident threads: the update of every
/// kind of tensors alone and of all kinds together, with the table in memory, which serves any
/// number of tensors; attention; the norm, and the halves; before them, the rest of the network for
/// the models that have names.
#[must_use]
pub fn released() -> Vec<Vec<Program>> {
    let alone = Kind::all().map(|kind| Kinds::default().with(kind));
    let blocks = alone.clone().filter(|kinds| kinds.has_blocks()).map(Kinds::released);
    let threads = Shape::default().threads;
    let passes = alone.chain([Kinds::ALONE]).chain(blocks).flat_map(|kinds| {
        let has = move |pass: &Pass| *pass != Pass::UpdateAndCopy || kinds.has_f32_parameters();
        let passes = Pass::ALL.into_iter().filter(has);
        passes.map(move |pass| adamw(pass, kinds, BlockOptions::DEFAULT, threads, 0))
    });
    let mut attention: Vec<Vec<Program>> = Vec::new();
    for choices in Room::RELEASED.into_iter().flat_map(attentions) {
        if !attention.contains(&choices) {
            attention.push(choices);
        }
    }
    let network = network::released().into_iter().map(|program| vec![program]);
    let tables = [EvenTables::WIDE, EvenTables::NARROW];
    let quantized =
        [256, 2048].into_iter().flat_map(|block| tables.map(|own| quantized(block, own)));
    let others = [advance(), norm(), scales(), split()];
    network.chain(passes).chain(quantized).chain(attention).chain(others).collect()
}

/// The programs that PyTorch's package carries, so that no first step waits for a compiler: the update in each format where
/// parameters and gradients are all f32 or all bf16, for any number of tensors; with the table in memory, where they are
/// of the other types, of both, or of several formats; the check of all f32 or all bf16; and what most updates are
/// launched with.
#[must_use]
pub fn carried() -> Vec<Vec<Program>> {
    let threads = Shape::default().threads;
    let mut programs = vec![advance(), norm(), scales()];
    for format in Format::ALL {
        let options = BlockOptions::of(&[Kind::plain(format)]);
        let options = options.expect("one format has one set of options");
        for (kinds, is_for_any_number) in Kinds::carried(format) {
            let mut forms = vec![(Pass::Update, 0)];
            if is_for_any_number {
                forms.push((Pass::Check, 0));
                forms.extend(Argument::SIZES.map(|size| (Pass::Update, size)));
            }
            let choices =
                forms.into_iter().map(|(pass, size)| adamw(pass, kinds, options, threads, size));
            for choices in choices {
                // Formats whose elements stand alone have some for all of them.
                if !programs.contains(&choices) {
                    programs.push(choices);
                }
            }
        }
    }
    programs
}

/// The update of f32 tensors in each format alone, in every shape worth measuring, with its choices
/// of resident threads.
#[must_use]
pub fn variants() -> Vec<(String, Vec<Program>)> {
    let of_format = |format: Format| {
        let kinds = Kinds::default().with(Kind::plain(format));
        // Tiles are no part of a program.
        let shapes = Shape::variants().into_iter().filter(|(_, shape)| shape.tiles.is_none());
        shapes.map(move |(name, shape)| {
            let tensors = if shape.table == TableIn::Argument { 64 } else { 0 };
            let options = BlockOptions::DEFAULT;
            let update = adamw(Pass::Update, kinds, options, shape.threads, tensors);
            (format!("{format} {name}"), update)
        })
    };
    Kind::FORMATS.into_iter().flat_map(of_format).collect()
}

/// The macros that every program has.
fn common() -> Vec<(&'static str, String)> {
    let mut defines = vec![("WARP_LANES", WARP_LANES.to_string())];
    for (bits, code_max, number) in [
        ("E4M11_FRACTION_BITS", "E4M11_CODE_MAX", NumberFormat::E4M11),
        ("E4M12_FRACTION_BITS", "E4M12_CODE_MAX", NumberFormat::E4M12),
        ("BINARY16_FRACTION_BITS", "BINARY16_CODE_MAX", NumberFormat::Binary16),
    ] {
        defines.push((bits, number.fraction_bits().to_string()));
        defines.push((code_max, format!("{:#x}u", number.code_max())));
    }
    let numbers = [
        ("BINARY16_BIAS", Bias::BINARY16.get()),
        ("BIAS_MIN", Bias::MIN.get()),
        ("BIAS_MAX", Bias::MAX.get()),
        ("BIAS_DEFAULT", Bias::DEFAULT.get()),
        ("BIAS_AUTO_OFFSET", Bias::AUTO_OFFSET.unsigned_abs()),
        ("TENSOR_BYTES", size_of::<table::Tensor>() as u32),
        ("GROUP_BYTES", size_of::<table::Group>() as u32),
        ("CONTROL_BYTES", size_of::<table::Control>() as u32),
        ("FORMAT_FP32", Kind::format_code(Format::Fp32)),
        ("FORMAT_FP16", Kind::format_code(Format::Fp16)),
        ("FORMAT_E4", Kind::format_code(Format::E4)),
        ("FORMAT_E4S", Kind::format_code(Format::E4s)),
        ("FORMAT_BLOCK8", Kind::format_code(Format::Block8(Block8::DEFAULT))),
        ("FORMAT_USTATE1Q", Kind::format_code(Format::UState1Q(UState1Q::DEFAULT))),
        ("FORMAT_N4L4", Kind::format_code(Format::N4l4(N4l4::DEFAULT))),
    ];
    defines.extend(numbers.map(|(name, number)| (name, number.to_string())));
    let [multiplier_1, multiplier_2] = MIX_MULTIPLIERS;
    let [exp2_1, exp2_2, exp2_3, exp2_4, exp2_5] = EXP2_COEFFICIENTS.map(f32::to_bits);
    let [ln_0, ln_1, ln_2, ln_3, ln_4, ln_5, ln_6, ln_7] = LN_COEFFICIENTS.map(f32::to_bits);
    let [by_update, _, _, by_stream] = PUBLISHED_MULTIPLIERS;
    defines.push(("USTATE_STEP_FACTOR", format!("{STEP_FACTOR:?}")));
    defines.push(("HALF_LOG2_E", format!("{HALF_LOG2_E:?}f")));
    let words = [
        ("BLOCK_KINDS", Kinds::BLOCKS),
        ("LN_2_HIGH_BITS", LN_2_HIGH.to_bits()),
        ("LN_2_LOW_BITS", LN_2_LOW.to_bits()),
        ("SQRT_HALF_BITS", SQRT_HALF_BITS),
        ("EXP2_1_BITS", exp2_1),
        ("EXP2_2_BITS", exp2_2),
        ("EXP2_3_BITS", exp2_3),
        ("EXP2_4_BITS", exp2_4),
        ("EXP2_5_BITS", exp2_5),
        ("LN_0_BITS", ln_0),
        ("LN_1_BITS", ln_1),
        ("LN_2_BITS", ln_2),
        ("LN_3_BITS", ln_3),
        ("LN_4_BITS", ln_4),
        ("LN_5_BITS", ln_5),
        ("LN_6_BITS", ln_6),
        ("LN_7_BITS", ln_7),
        ("FRESH_ENDPOINT", u32::from(FRESH_ENDPOINT)),
        ("PUBLISHED_MULTIPLIER_UPDATE", by_update),
        ("PUBLISHED_MULTIPLIER_STREAM", by_stream),
        ("MIX_MULTIPLIER_1", multiplier_1),
        ("MIX_MULTIPLIER_2", multiplier_2),
        ("MIX_INCREMENT", MIX_INCREMENT),
    ];
    defines.extend(words.map(|(name, word)| (name, format!("{word:#x}u"))));
    defines
}
