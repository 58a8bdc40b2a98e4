//! The kind of a tensor: what its parameters, gradients and moments are in memory. A kernel is
//! compiled for the kinds that a model has.

use formats::n4l4::V_BITS;
use formats::{Block8, Format, N4l4, UState1Q};

use crate::Error;
use crate::layout::BLOCK_QUADS;
use crate::maps::MAP_TABLE_WORDS;
use crate::programs::WARP_LANES;

/// Elements that a thread takes of a tensor whose elements are stored in blocks.
const BLOCK_ELEMENTS: u32 = 4 * BLOCK_QUADS;
/// Fewer threads would read the tables of `block8` too often, and add to the sums of `ustate1q`.
const THREADS_MIN: u32 = 256;

/// How parameters lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ParameterType {
    /// As f32.
    #[default]
    F32,
    /// As a bf16 and 16 remainder bits in an array of their own; together an f32, see
    /// [`formats::split`].
    Split,
}

/// How gradients lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GradientType {
    /// As f32.
    #[default]
    F32,
    /// As bf16.
    Bf16,
}

/// What a tensor's arrays hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// How its moments persist.
    pub format: Format,
    /// How its parameters lie in memory.
    pub parameters: ParameterType,
    /// How its gradients lie in memory.
    pub gradients: GradientType,
}

/// The options of the formats of blocks in a model: each format has one set of them, which its
/// kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockOptions {
    pub(crate) block8: Block8,
    pub(crate) ustate: UState1Q,
    pub(crate) n4l4: N4l4,
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Kinds(u32);

impl ParameterType {
    /// Both.
    pub const ALL: [ParameterType; 2] = [ParameterType::F32, ParameterType::Split];

    /// The name in tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ParameterType::F32 => "f32",
            ParameterType::Split => "bf16+16",
        }
    }

    /// Bytes of an element of the main array.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            ParameterType::F32 => 4,
            ParameterType::Split => 2,
        }
    }
}

impl GradientType {
    /// Both.
    pub const ALL: [GradientType; 2] = [GradientType::F32, GradientType::Bf16];

    /// The name in tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            GradientType::F32 => "f32",
            GradientType::Bf16 => "bf16",
        }
    }

    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            GradientType::F32 => 4,
            GradientType::Bf16 => 2,
        }
    }
}

impl Kind {
    /// f32 parameters and gradients, moments in `format`.
    #[must_use]
    pub const fn plain(format: Format) -> Kind {
        Kind { format, parameters: ParameterType::F32, gradients: GradientType::F32 }
    }

    /// The formats that kernels have, in the order of their codes.
    pub const FORMATS: [Format; 7] = [
        Format::Fp32,
        Format::Fp16,
        Format::E4,
        Format::E4s,
        Format::Block8(Block8::DEFAULT),
        Format::UState1Q(UState1Q::DEFAULT),
        Format::N4l4(N4l4::DEFAULT),
    ];

    /// Every kind, in the order of their codes.
    pub fn all() -> impl Iterator<Item = Kind> + Clone {
        Kind::FORMATS.into_iter().flat_map(Kind::of_format)
    }

    /// The kinds of a format, in the order of their codes.
    pub(crate) fn of_format(format: Format) -> [Kind; 4] {
        let [f32s, split] = ParameterType::ALL;
        let [wide, half] = GradientType::ALL;
        [(f32s, wide), (f32s, half), (split, wide), (split, half)]
            .map(|(parameters, gradients)| Kind { format, parameters, gradients })
    }

    /// The number of a format in kernels.
    pub(crate) const fn format_code(format: Format) -> u32 {
        match format {
            Format::Fp32 => 0,
            Format::Fp16 => 1,
            Format::E4 => 2,
            Format::E4s => 3,
            Format::Block8(_) => 4,
            Format::UState1Q(_) => 5,
            Format::N4l4(_) => 6,
        }
    }

    /// The number of the kind in kernels.
    pub(crate) fn code(self) -> u32 {
        let split = u32::from(self.parameters == ParameterType::Split);
        let bf16 = u32::from(self.gradients == GradientType::Bf16);
        Kind::format_code(self.format) * 4 + split * 2 + bf16
    }
}

impl BlockOptions {
    /// Every format's own.
    pub(crate) const DEFAULT: BlockOptions =
        BlockOptions { block8: Block8::DEFAULT, ustate: UState1Q::DEFAULT, n4l4: N4l4::DEFAULT };

    /// Those of a model.
    ///
    /// # Errors
    ///
    /// [`Error::MixedOptions`] where two tensors have the same format with other options.
    pub(crate) fn of(kinds: &[Kind]) -> Result<BlockOptions, Error> {
        let mut options = BlockOptions::DEFAULT;
        let mut seen: [Option<Format>; 3] = [None; 3];
        for kind in kinds {
            let place = match kind.format {
                Format::Block8(block8) => {
                    options.block8 = block8;
                    0
                }
                Format::UState1Q(ustate) => {
                    options.ustate = ustate;
                    1
                }
                Format::N4l4(n4l4) => {
                    options.n4l4 = n4l4;
                    2
                }
                _ => continue,
            };
            match seen[place] {
                Some(expected) if expected != kind.format => {
                    let (expected, found) = (expected.to_string(), kind.format.to_string());
                    return Err(Error::MixedOptions { expected, found });
                }
                _ => seen[place] = Some(kind.format),
            }
        }
        Ok(options)
    }

    /// Threads that a block must have at least, so that it holds whole blocks of `kinds`, and
    /// what it does once is worth it.
    pub(crate) fn threads_min(self, kinds: Kinds) -> u32 {
        let has = |format: u32| kinds.bits() >> (format * 4) & 0xF != 0;
        let of = |format: u32, threads: u32| if has(format) { threads } else { 0 };
        let threads = |block: u32| (block / BLOCK_ELEMENTS).max(THREADS_MIN);
        of(4, threads(self.block8.block))
            .max(of(5, threads(self.ustate.block)))
            .max(of(6, threads(self.n4l4.v_block)))
    }

    /// Words of the tables that threads of a block share.
    pub(crate) fn table_words(self, kinds: Kinds, threads: u32) -> u32 {
        let has = |format: u32| kinds.bits() >> (format * 4) & 0xF != 0;
        let of = |format: u32, words: u32| if has(format) { words } else { 0 };
        let team = WARP_LANES * BLOCK_ELEMENTS;
        let blocks = |block: u32| threads / WARP_LANES * (team / block).max(1);
        // A level is two words, and infinity is one more.
        of(4, MAP_TABLE_WORDS)
            .max(of(5, blocks(self.ustate.block) * 2 * ((1 << self.ustate.v_bits) + 1)))
            .max(of(6, blocks(self.n4l4.v_block) * (1 << V_BITS)))
    }
}

impl Kinds {
    /// All kinds of formats whose elements stand alone.
    pub(crate) const ALONE: Kinds = Kinds(0xFFFF);
    /// Those of them whose parameters and gradients are both f32, or both bf16.
    const ALONE_OF_ONE_TYPE: Kinds = Kinds(0x9999);

    /// The set with these kinds, and others, that a release carries: all whose elements stand alone,
    /// or one in blocks with its f32 for small tensors.
    pub(crate) fn released(self) -> Kinds {
        let kinds = Kind::all().filter(|kind| self.0 & 1 << kind.code() != 0);
        let kinds = kinds.map(|kind| Kind { format: Format::Fp32, ..kind });
        if self.has_blocks() { kinds.fold(self, Kinds::with) } else { Kinds::ALONE }
    }

    /// The sets with a format that PyTorch's package carries, and whether for any number of tensors; else with
    /// the table in memory. Formats of blocks have their f32 for small tensors beside them; the last set is for
    /// models of f32 and bf16 tensors, perhaps with formats beside this one whose elements stand alone.
    pub(crate) fn carried(format: Format) -> [(Kinds, bool); 5] {
        let [wide, bf16_gradients, bf16_parameters, bf16] = Kind::of_format(format).map(|kind| {
            let kinds = Kinds::default().with(kind);
            if kinds.has_blocks() { kinds.released() } else { kinds }
        });
        let many = wide.and(bf16).and(Kinds::ALONE_OF_ONE_TYPE);
        let others = [bf16_gradients, bf16_parameters, many].map(|kinds| (kinds, false));
        [(wide, true), (bf16, true), others[0], others[1], others[2]]
    }

    /// Whether it has all kinds of another set.
    pub(crate) const fn contains(self, others: Kinds) -> bool {
        self.0 & others.0 == others.0
    }

    /// With one more.
    pub(crate) fn with(self, kind: Kind) -> Kinds {
        self.and(Kinds(1 << kind.code()))
    }

    /// With those of another set.
    pub(crate) const fn and(self, others: Kinds) -> Kinds {
        Kinds(self.0 | others.0)
    }

    /// Whether there are formats of blocks among them.
    pub(crate) const fn has_blocks(self) -> bool {
        self.0 & Kinds::BLOCKS != 0
    }

    /// Whether there are kinds with f32 parameters, which can be copied.
    pub(crate) const fn has_f32_parameters(self) -> bool {
        self.0 & 0x3333_3333 != 0
    }

    /// The kinds of formats of blocks.
    pub(crate) const BLOCKS: u32 = 0x0FFF_0000;

    /// A bit for each code.
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
}
