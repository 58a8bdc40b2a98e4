//! The programs of the network: compiled for the exact width of a model, its vocabulary and the type
//! of its activations. How many tokens there are is an argument.

use super::WARP_LANES;
use crate::Precision;
use crate::chain::{ChainDirection, ChainShape, GROUPS};
use crate::compile::{Program, Source};
use crate::depth_tiles;
use crate::product::across::AcrossTiles;
use crate::product::deep;
use crate::tiles::TileShape;

macro_rules! source {
    ($file:literal) => {
        Source { file: $file, text: include_str!(concat!("../../cuda/", $file)) }
    };
}

/// What they include.
const HEADERS: &[Source] = &[
    source!("prelude.cuh"),
    source!("numbers.cuh"),
    source!("quick.cuh"),
    source!("gelu.cuh"),
    source!("reduce.cuh"),
    source!("loss_row.cuh"),
];

/// What rows of logits that the copy engine brings include.
const RING_HEADERS: &[Source] = &[
    source!("prelude.cuh"),
    source!("numbers.cuh"),
    source!("quick.cuh"),
    source!("reduce.cuh"),
    source!("loss_row.cuh"),
    source!("mma.cuh"),
    source!("engine.cuh"),
];

/// What products by tiles include.
const TILE_HEADERS: &[Source] = &[
    source!("prelude.cuh"),
    source!("numbers.cuh"),
    source!("quick.cuh"),
    source!("gelu.cuh"),
    source!("mma.cuh"),
    source!("wgmma.cuh"),
    source!("wgmma_tf32.cuh"),
    source!("engine.cuh"),
    source!("depth_products.cuh"),
    source!("turned.cuh"),
    source!("pairs.cuh"),
    source!("tile_steps.cuh"),
    source!("tile.cuh"),
    source!("tile_rows.cuh"),
    source!("cluster.cuh"),
    source!("norm_forward.cuh"),
    source!("norm_backward.cuh"),
    source!("attention_pairs.cuh"),
    source!("branch_rows.cuh"),
    source!("chain.cuh"),
];

/// Threads of a block that goes through elements or rows.
pub(crate) const THREADS: u32 = 256;
/// Threads of a block of LayerNorm's forward kernels, whose warps take rows.
pub(crate) const ROW_THREADS: u32 = 128;
/// Most threads of a block of the loss.
const LOSS_THREADS_MAX: usize = 768;
/// Threads of a block that adds up what others left.
pub(crate) const SUM_THREADS: u32 = 1024;
/// That block adds up at most 2^11 numbers a thread.
pub(crate) const SUM_RUN_LEVELS: u32 = 11;
/// Logits of a row are stored with as many as make this a divisor.
pub(crate) const LOGITS_STEP: usize = 8;
/// Outputs along a side of a tile of the product.
pub(crate) const PRODUCT_TILE: usize = 64;
/// Sums whose second stages one launch can take.
pub(crate) const SUMS_MAX: usize = 32;
/// Columns of a tile of the second stage of column sums.
pub(crate) const LANE_COLUMNS: usize = 32;

/// Places of tokens that a block sorts.
pub(crate) const PLACES_OF_RUN: u32 = 1024;

/// What LayerNorm adds to the variance.
const EPSILON: &str = "1e-5f";
/// sqrt(8 / pi), and the weight of the cube in GELU.
const GELU_SCALE: &str = "1.5957691216057308f";
const GELU_CUBIC: &str = "0.044715f";

/// Numbers of one access of a row of `columns`: 16 bytes of activations, or 1 where rows are not
/// made of such.
pub(crate) fn vector(columns: usize, activation_bytes: usize) -> usize {
    let wide = 16 / activation_bytes;
    if columns.is_multiple_of(wide) { wide } else { 1 }
}

/// LayerNorm over rows of `channels`.
pub(crate) fn layernorm(channels: usize, activation_bytes: usize) -> [Program; 2] {
    let defines = |threads: u32| {
        vec![
            ("THREADS", threads.to_string()),
            ("CHANNELS", channels.to_string()),
            ("VECTOR", vector(channels, activation_bytes).to_string()),
            ("EPSILON", EPSILON.to_owned()),
        ]
    };
    let kernels = &["layernorm_forward", "layernorm_forward_residual", "layernorm_backward"];
    let of =
        |threads| program(source!("layernorm.cu"), kernels, activation_bytes, defines(threads));
    [of(ROW_THREADS), of(backward_threads(channels))]
}

/// Threads of a block of LayerNorm's backward kernel: as many warps as find room for their sums in
/// shared memory.
pub(crate) fn backward_threads(channels: usize) -> u32 {
    const SHARED_FLOATS: usize = 48 * 1024 / 4;
    let warps = (SHARED_FLOATS / channels).clamp(1, (THREADS / WARP_LANES) as usize);
    WARP_LANES * warps as u32
}

/// Sums of columns of activations.
pub(crate) fn columns(vector: usize, activation_bytes: usize) -> Program {
    let defines = vec![
        ("THREADS", THREADS.to_string()),
        ("SUM_THREADS", SUM_THREADS.to_string()),
        ("SUMS_MAX", SUMS_MAX.to_string()),
        ("VECTOR", vector.to_string()),
    ];
    program(source!("columns.cu"), &["column_runs", "column_sums"], activation_bytes, defines)
}

/// GELU.
pub(crate) fn gelu(activation_bytes: usize) -> Program {
    let defines = vec![
        ("THREADS", THREADS.to_string()),
        ("GELU_SCALE", GELU_SCALE.to_owned()),
        ("GELU_CUBIC", GELU_CUBIC.to_owned()),
    ];
    program(source!("gelu.cu"), &["gelu_forward", "gelu_backward"], activation_bytes, defines)
}

/// Tables whose rows have `channels`.
pub(crate) fn embedding(channels: usize, activation_bytes: usize) -> Program {
    let defines = vec![
        ("THREADS", THREADS.to_string()),
        ("CHANNELS", channels.to_string()),
        ("VECTOR", vector(channels, activation_bytes).to_string()),
        ("RUN", PLACES_OF_RUN.to_string()),
    ];
    let kernels = &[
        "embedding_forward",
        "embedding_forward_one",
        "embedding_sort",
        "embedding_rank",
        "embedding_backward",
    ];
    program(source!("embedding.cu"), kernels, activation_bytes, defines)
}

/// Cross-entropy over rows of `vocabulary` logits; also the threads of a block.
pub(crate) fn loss(vocabulary: usize, activation_bytes: usize) -> (Program, u32) {
    let stride = logits_stride(vocabulary);
    // Three accesses of 16 bytes a thread, or more where that takes more threads than leave each
    // enough registers.
    let accesses = stride * activation_bytes / 16;
    let threads =
        accesses.div_ceil(3).next_multiple_of(WARP_LANES as usize).min(LOSS_THREADS_MAX) as u32;
    let defines = vec![
        ("THREADS", threads.to_string()),
        ("VOCABULARY", vocabulary.to_string()),
        ("STRIDE", stride.to_string()),
    ];
    let kernels = &["loss_forward", "loss_forward_backward"];
    (program(source!("loss.cu"), kernels, activation_bytes, defines), threads)
}

/// How the kernels of [`loss_ring`] are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossRing {
    /// Threads that compute; a warp comes to them.
    pub(crate) threads: u32,
    /// Blocks of a multiprocessor.
    pub(crate) blocks: u32,
    /// Rows that a block has in shared memory.
    pub(crate) places: u32,
    /// The shared memory for them.
    pub(crate) shared_bytes: u32,
}

impl LossRing {
    /// Where a block can have so much shared memory, two rows of the vocabulary or more included.
    pub(crate) fn new(
        vocabulary: usize,
        activation_bytes: usize,
        shared_bytes_of_block: u32,
    ) -> Option<LossRing> {
        const PLACES_MAX: u32 = 4;
        /// Beside the rows, of a block.
        const OTHER_BYTES: u32 = 2048;
        const THREADS_MAX: [usize; 2] = [896, 512];
        let row_bytes = logits_stride(vocabulary) * activation_bytes;
        let place_bytes = u32::try_from(row_bytes.next_multiple_of(128)).ok()?;
        let places = |blocks: u32| {
            let room = (shared_bytes_of_block / blocks).saturating_sub(OTHER_BYTES);
            (room / place_bytes).min(PLACES_MAX)
        };
        let blocks = if places(2) >= 2 { 2 } else { 1 };
        let places = places(blocks);
        let threads_max = THREADS_MAX[blocks as usize - 1];
        let accesses = row_bytes / 16;
        let accesses_of_thread = accesses.div_ceil(threads_max).max(3);
        let threads = accesses.div_ceil(accesses_of_thread).next_multiple_of(WARP_LANES as usize);
        let shared_bytes = places * place_bytes;
        (places >= 2).then_some(LossRing { threads: threads as u32, blocks, places, shared_bytes })
    }
}

/// The loss over rows that the copy engine brings.
pub(crate) fn loss_ring(vocabulary: usize, activation_bytes: usize, ring: LossRing) -> Program {
    let defines = vec![
        ("THREADS", ring.threads.to_string()),
        ("BLOCKS_MIN", ring.blocks.to_string()),
        ("PLACES", ring.places.to_string()),
        ("FOUR_WARPS", 1.to_string()),
        ("VOCABULARY", vocabulary.to_string()),
        ("STRIDE", logits_stride(vocabulary).to_string()),
    ];
    let kernels = &["loss_ring_forward", "loss_ring_forward_backward"];
    let program = program(source!("loss_ring.cu"), kernels, activation_bytes, defines);
    Program { headers: RING_HEADERS, ..program }
}

/// How far apart rows of logits begin.
pub(crate) fn logits_stride(vocabulary: usize) -> usize {
    vocabulary.next_multiple_of(LOGITS_STEP)
}

/// The sum of losses.
pub(crate) fn sum() -> Program {
    let defines =
        vec![("THREADS", SUM_THREADS.to_string()), ("RUN_LEVELS", SUM_RUN_LEVELS.to_string())];
    program(source!("sum.cu"), &["tree_sum"], 4, defines)
}

/// Sums in an order of choice.
pub(crate) fn plus() -> Program {
    let defines = vec![("THREADS", THREADS.to_string())];
    program(source!("plus.cu"), &["plus", "in_order"], 4, defines)
}

/// The device's clock.
pub(crate) fn stamp() -> Program {
    program(source!("stamp.cu"), &["stamp"], 4, Vec::new())
}

/// Batches out of tapes.
pub(crate) fn gather(ignored: u32) -> Program {
    let defines = vec![("THREADS", SUM_THREADS.to_string()), ("IGNORED", format!("{ignored:#x}u"))];
    program(source!("gather.cu"), &["gather"], 4, defines)
}

/// Parameters to bf16.
pub(crate) fn cast() -> Program {
    let defines = vec![("THREADS", THREADS.to_string())];
    program(source!("cast.cu"), &["cast"], 2, defines)
}

/// What becomes of a tile of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileProgram {
    /// A residual sum and the LayerNorm after it.
    BranchForward,
    /// The gradients of a LayerNorm and of a residual sum.
    BranchBackward,
    /// What attention's backward pass wants to know of each row.
    AttentionStart,
    /// Nothing: the tile is the output.
    Product,
    /// A bias is added.
    Bias,
    /// A bias is added, and GELU follows.
    Gelu,
    /// The gradient of GELU is multiplied with it.
    GeluGradient,
}

impl TileProgram {
    /// Its kernel.
    pub(crate) fn kernel(self) -> &'static str {
        self.kernels()[0]
    }

    fn kernels(self) -> &'static [&'static str] {
        match self {
            TileProgram::BranchForward => &["branch_forward"],
            TileProgram::BranchBackward => &["branch_backward"],
            TileProgram::AttentionStart => &["attention_start"],
            TileProgram::Product
            | TileProgram::Bias
            | TileProgram::Gelu
            | TileProgram::GeluGradient => &["tile_linear"],
        }
    }
}

/// A product by tiles.
pub(crate) fn tile_program(program: TileProgram, shape: TileShape) -> Program {
    let (source, mut defines) = match program {
        TileProgram::BranchForward => {
            let defines =
                vec![("CHANNELS", shape.columns.to_string()), ("EPSILON", EPSILON.to_owned())];
            (source!("branch_forward.cu"), defines)
        }
        TileProgram::BranchBackward => {
            (source!("branch_backward.cu"), vec![("CHANNELS", shape.columns.to_string())])
        }
        TileProgram::AttentionStart => {
            (source!("attention_start.cu"), vec![("COLUMNS", shape.columns.to_string())])
        }
        TileProgram::Product
        | TileProgram::Bias
        | TileProgram::Gelu
        | TileProgram::GeluGradient => {
            let is = |wanted: &[TileProgram]| u32::from(wanted.contains(&program)).to_string();
            let defines = vec![
                ("COLUMNS", shape.columns.to_string()),
                ("WITH_BIAS", is(&[TileProgram::Bias, TileProgram::Gelu])),
                ("WITH_GELU", is(&[TileProgram::Gelu])),
                ("WITH_GELU_GRADIENT", is(&[TileProgram::GeluGradient])),
                ("GELU_SCALE", GELU_SCALE.to_owned()),
                ("GELU_CUBIC", GELU_CUBIC.to_owned()),
            ];
            (source!("tile_linear.cu"), defines)
        }
    };
    defines.extend([
        ("DEPTH", shape.depth.to_string()),
        ("STAGES", shape.stages().to_string()),
        ("BLOCKS_MIN", shape.blocks_min().to_string()),
        ("TILE_GROUPS", shape.groups.to_string()),
        ("RIGHT_TRANSPOSED", u32::from(shape.right_is_transposed).to_string()),
        ("SHARED_BYTES", shape.shared_bytes().to_string()),
        ("FOUR_WARPS", "1".to_owned()),
    ]);
    let bytes = shape.precision.activation_bytes();
    Program { headers: TILE_HEADERS, ..self::program(source, program.kernels(), bytes, defines) }
}

/// Products whose factors lie across their depth.
pub(crate) fn across_program(tiles: AcrossTiles, shared_bytes_max: usize) -> Program {
    let defines = vec![
        ("ROW_TILES", tiles.row_tiles.to_string()),
        ("COLUMN_TILES", tiles.column_tiles.to_string()),
        ("ROW_WARPS", tiles.row_warps.to_string()),
        ("COLUMN_WARPS", tiles.column_warps.to_string()),
        ("DEPTH_WARPS", tiles.depth_warps.to_string()),
        ("STAGES", tiles.stages(shared_bytes_max).to_string()),
        ("SHARED_BYTES", tiles.shared_bytes(shared_bytes_max).to_string()),
        ("REGISTERS", "240".to_owned()),
        ("FOUR_WARPS", "1".to_owned()),
    ];
    Program { headers: RING_HEADERS, ..program(source!("across.cu"), &["across"], 4, defines) }
}

/// Products of much depth, in so many parts.
pub(crate) fn deep_program(splits: usize) -> Program {
    let defines = vec![
        ("SPLITS", splits.to_string()),
        ("SUM_THREADS", deep::SUM_THREADS.to_string()),
        ("STAGES", depth_tiles::STAGES.to_string()),
        ("RAW_STAGES", depth_tiles::RAW_STAGES.to_string()),
        ("SHARED_BYTES", depth_tiles::shared_bytes(Precision::Tf32).to_string()),
        ("FOUR_WARPS", "1".to_owned()),
    ];
    let kernels = &["deep", "deep_sum"];
    Program { headers: TILE_HEADERS, ..program(source!("deep.cu"), kernels, 4, defines) }
}

/// A chain of products.
pub(crate) fn chain_program(shape: ChainShape) -> Program {
    let ChainShape { channels, direction, .. } = shape;
    let (source, kernels, is_transposed): (_, &[_], _) = match direction {
        ChainDirection::Forward => (source!("chain_forward.cu"), &["chain_forward"], "0"),
        ChainDirection::Backward => (source!("chain_backward.cu"), &["chain_backward"], "1"),
    };
    let defines = vec![
        ("CHANNELS", channels.to_string()),
        ("FIRST_PIECES", shape.first_pieces().to_string()),
        ("LAST_TILES", shape.last_tiles().to_string()),
        ("COMPUTE_GROUPS", GROUPS.to_string()),
        ("STAGES", shape.stages().to_string()),
        ("SHARED_BYTES", shape.shared_bytes().to_string()),
        ("RIGHT_TRANSPOSED", is_transposed.to_owned()),
        ("EPSILON", EPSILON.to_owned()),
        ("GELU_SCALE", GELU_SCALE.to_owned()),
        ("GELU_CUBIC", GELU_CUBIC.to_owned()),
        ("FOUR_WARPS", "1".to_owned()),
    ];
    Program { headers: TILE_HEADERS, ..program(source, kernels, 2, defines) }
}

/// Products over rows.
pub(crate) fn depth_program(precision: Precision) -> Program {
    let shared_bytes = depth_tiles::shared_bytes(precision).to_string();
    let mut defines = vec![
        ("STAGES", depth_tiles::STAGES.to_string()),
        ("PRODUCTS_MAX", depth_tiles::PRODUCTS_MAX.to_string()),
        ("SHARED_BYTES", shared_bytes),
        ("FOUR_WARPS", "1".to_owned()),
    ];
    let (source, kernels): (_, &[_]) = if precision.is_bf16() {
        defines.push(("RIGHT_TRANSPOSED", "1".to_owned()));
        (source!("depth_tiles.cu"), &["depth_tiles"])
    } else {
        defines.extend([
            ("RAW_STAGES", depth_tiles::RAW_STAGES.to_string()),
            ("REGISTERS", "152".to_owned()),
            ("TURNING_REGISTERS", "56".to_owned()),
        ]);
        (source!("depth_wide.cu"), &["depth_wide"])
    };
    let program = program(source, kernels, precision.activation_bytes(), defines);
    Program { headers: TILE_HEADERS, ..program }
}

/// One token at a time.
pub(crate) fn decode(heads: usize, head_size: usize, activation_bytes: usize) -> Program {
    let defines = vec![
        ("THREADS", THREADS.to_string()),
        ("CHANNELS", (heads * head_size).to_string()),
        ("HEAD_SIZE", head_size.to_string()),
        ("ATTENTION_SCALE", format!("{:e}f", 1.0 / (head_size as f64).sqrt())),
    ];
    program(source!("decode.cu"), &["decode_attention"], activation_bytes, defines)
}

/// Products without cuBLASLt.
pub(crate) fn matmul(input_bytes: usize, output_bytes: usize) -> Program {
    let defines =
        vec![("THREADS", THREADS.to_string()), ("OUTPUT_BYTES", output_bytes.to_string())];
    program(source!("matmul.cu"), &["matmul"], input_bytes, defines)
}

/// The programs of the models that have names: their widths, heads and vocabularies.
pub(crate) fn released() -> Vec<Program> {
    let mut programs = vec![sum(), plus(), cast(), stamp(), gather(u32::MAX)];
    for bytes in [2, 4] {
        programs.push(gelu(bytes));
        programs.extend([1, 16 / bytes].map(|vector| columns(vector, bytes)));
        programs.extend([4, bytes].map(|output| matmul(bytes, output)));
        for (channels, heads, vocabulary) in [(320, 5, 12_096), (768, 12, 50_304)] {
            programs.extend(layernorm(channels, bytes));
            programs.push(embedding(channels, bytes));
            programs.push(loss(vocabulary, bytes).0);
            let ring = LossRing::new(vocabulary, bytes, HOPPER_SHARED_BYTES);
            programs.extend(ring.map(|ring| loss_ring(vocabulary, bytes, ring)));
            programs.push(decode(heads, channels / heads, bytes));
        }
    }
    programs.extend(branches(320));
    programs.dedup();
    programs
}

/// The shared memory that a block can have where kernels of a release have most to gain from it.
const HOPPER_SHARED_BYTES: u32 = 232_448;

/// The ends of branches of a model of few channels.
fn branches(channels: usize) -> Vec<Program> {
    let end = |precision, depth| {
        let shape = TileShape::of_rows(precision, [1, depth, channels], false);
        tile_program(TileProgram::BranchForward, shape)
    };
    let start = |precision, depth| {
        let shape = TileShape::of_rows(precision, [1, depth, channels], true);
        tile_program(TileProgram::BranchBackward, shape)
    };
    let shape = TileShape::of_whole_depth(Precision::Bf16, [1, channels, channels]);
    let mut programs = vec![tile_program(TileProgram::AttentionStart, shape)];
    for precision in [Precision::Bf16, Precision::Tf32] {
        programs.extend([channels, 4 * channels].map(|depth| end(precision, depth)));
        programs.extend([3 * channels, 4 * channels].map(|depth| start(precision, depth)));
    }
    for direction in [ChainDirection::Forward, ChainDirection::Backward] {
        for is_linked in [true, false] {
            let shape = ChainShape { rows: 1, channels, direction, is_linked };
            programs.push(chain_program(shape));
        }
    }
    programs.extend([Precision::Bf16, Precision::Tf32].map(depth_program));
    programs
}

fn program(
    source: Source,
    kernels: &'static [&'static str],
    activation_bytes: usize,
    mut defines: Vec<(&'static str, String)>,
) -> Program {
    defines.push(("WARP_LANES", WARP_LANES.to_string()));
    defines.push(("ACTIVATION_BYTES", activation_bytes.to_string()));
    Program { source, headers: HEADERS, kernels, defines }
}
