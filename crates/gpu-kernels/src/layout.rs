//! Where the tensors of a model and their moments lie, and which block works on what. Plain
//! arithmetic, without a device.

use std::ops::Range;

use formats::Section;

use crate::kind::{Kind, ParameterType};
use crate::shape::Shape;
use crate::table::Tensor;
use crate::tensor_plan::TensorPlan;
use crate::{Error, Placement};

/// Elements that a thread takes.
const LANES: u64 = 4;

/// How many times as many a thread takes of a tensor whose elements are stored in blocks.
pub(crate) const BLOCK_QUADS: u32 = 2;

/// Most threads of all tiles of a block; what those of `ustate1q` add up fits a word.
pub(crate) const TILE_THREADS_MAX: u32 = 2048;
/// Blocks that there should be at least: some dozens for each multiprocessor of a large device.
const BLOCKS_MIN: u64 = 8192;
/// The same where blocks take two tiles instead of one: the second costs a tenth less than the first.
const BLOCKS_OF_TWO_MIN: u64 = 2048;

/// Words that every array of a state of blocks is filled up to.
const ARRAY_WORDS: usize = 16;

/// Where everything lies.
pub(crate) struct Layout {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) kinds: Vec<Kind>,
    /// Elements of the whole tensors that these are parts of.
    wholes: Vec<u64>,
    /// Elements of all tensors together.
    pub(crate) elements: usize,
    /// Words of all states together.
    pub(crate) state_words: usize,
    /// Blocks of an update.
    pub(crate) blocks: u64,
    /// Whether the tensors lie anywhere, instead of one after the other.
    pub(crate) is_placed: bool,
    /// Tiles that a block takes of a tensor whose elements are stored in blocks, a power of two.
    pub(crate) tiles: u32,
    /// Elements of a block.
    block_elements: u64,
}

impl Layout {
    /// Lays the states of all tensors out one after the other, and the tensors too.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`].
    pub(crate) fn new(
        plans: &[TensorPlan],
        shape: Shape,
        is_placed: bool,
    ) -> Result<Layout, Error> {
        let threads = shape.threads;
        let too_large = |what, limit| Error::TooLarge { what, limit };
        if u32::try_from(plans.len()).is_err() {
            return Err(too_large("the number of tensors", "32 bits"));
        }
        let mut layout = Layout {
            tensors: Vec::with_capacity(plans.len()),
            kinds: plans.iter().map(|plan| plan.kind).collect(),
            wholes: plans.iter().enumerate().map(|(at, plan)| plan.part(at).whole).collect(),
            elements: 0,
            state_words: 0,
            blocks: 0,
            is_placed,
            tiles: shape.tiles.unwrap_or_else(|| tiles(plans, threads)),
            block_elements: u64::from(threads) * LANES,
        };
        for plan in plans {
            let kind = plan.kind;
            let first_element = layout.elements as u64;
            let state = section_ranges(kind, plan.length, layout.state_words);
            let address = |bytes: u64| first_element * bytes;
            let is_split = kind.parameters == ParameterType::Split;
            let offset = |range: Option<&Range<usize>>| range.map_or(0, |r| r.start as u64 * 4);
            let mut tensor = Tensor {
                parameters: address(kind.parameters.bytes()),
                remainders: if is_split { address(2) } else { 0 },
                gradients: address(kind.gradients.bytes()),
                first: offset(state.first()),
                second: offset(state.get(1)),
                length: plan.length as u64,
                first_element,
                group: plan.group as u32,
                shift: 0,
                kind: kind.code(),
                published: plan.published,
            };
            tensor.shift = shift_of(kind, &tensor, plan.part(layout.tensors.len()).whole);
            layout.tensors.push(tensor);
            let elements = layout.elements.checked_add(plan.length);
            // Two words for an element at most, of four bytes each.
            let fits = elements.filter(|&elements| elements.checked_mul(8).is_some());
            let limit = "the address space";
            layout.elements = fits.ok_or_else(|| too_large("the number of elements", limit))?;
            let border = if is_in_blocks(kind) { ARRAY_WORDS } else { 1 };
            let end = state.last().map_or(layout.state_words, |range| range.end);
            layout.state_words = end.next_multiple_of(border);
        }
        layout.blocks = (0..layout.tensors.len()).map(|t| layout.blocks_of(t)).sum();
        Ok(layout)
    }

    /// The lengths of all tensors.
    pub(crate) fn lengths(&self) -> Vec<u64> {
        self.tensors.iter().map(|tensor| tensor.length).collect()
    }

    /// The elements of some tensors that follow each other, where tensors lie one after the other.
    pub(crate) fn elements_of(&self, tensors: Range<usize>) -> Range<u64> {
        let first = |tensor: usize| {
            self.tensors.get(tensor).map_or(self.elements as u64, |tensor| tensor.first_element)
        };
        first(tensors.start)..first(tensors.end)
    }

    /// The words of one array of a tensor's state.
    ///
    /// # Panics
    ///
    /// If there is no such tensor or array.
    pub(crate) fn section(&self, tensor: usize, section: usize) -> Range<usize> {
        let (kind, tensor) = (self.kinds[tensor], self.tensors[tensor]);
        let start = tensor.first as usize / size_of::<u32>();
        let ranges = section_ranges(kind, tensor.length as usize, start);
        ranges[section].clone()
    }

    /// Takes over where the tensors lie.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] and [`Error::OtherType`] where they are not those of this model.
    pub(crate) fn place(&mut self, placement: &Placement) -> Result<(), Error> {
        placement.check(&self.kinds, &self.lengths())?;
        let tensors = self.tensors.iter_mut().zip(self.kinds.iter().zip(&self.wholes));
        for ((tensor, (&kind, &whole)), place) in tensors.zip(placement.tensors()) {
            tensor.parameters = place.parameters;
            tensor.remainders = place.remainders;
            tensor.gradients = place.gradients;
            tensor.shift = shift_of(kind, tensor, whole);
        }
        Ok(())
    }

    /// How many blocks a tensor takes. They begin at a border of a wide access, up to three
    /// elements before the tensor; where that is not known yet, there is a block for it.
    fn blocks_of(&self, index: usize) -> u64 {
        let tensor = &self.tensors[index];
        // Blocks of elements begin with the tensor.
        if is_in_blocks(self.kinds[index]) {
            let tile = self.block_elements * u64::from(BLOCK_QUADS);
            return tensor.length.div_ceil(tile * u64::from(self.tiles));
        }
        let slack = if self.is_placed { LANES - 1 } else { u64::from(tensor.shift) % LANES };
        if tensor.length == 0 { 0 } else { (tensor.length + slack).div_ceil(self.block_elements) }
    }

    /// The first block of each tensor.
    pub(crate) fn first_blocks(&self) -> Vec<u32> {
        first_blocks((0..self.tensors.len()).map(|tensor| self.blocks_of(tensor)))
    }
}

/// Tiles for a block to take: more of them make less of what a block does once, but leave multiprocessors
/// without work where there are few blocks.
fn tiles(plans: &[TensorPlan], threads: u32) -> u32 {
    let tile = u64::from(threads) * LANES * u64::from(BLOCK_QUADS);
    let in_blocks = plans.iter().filter(|plan| is_in_blocks(plan.kind));
    let all = in_blocks.map(|plan| (plan.length as u64).div_ceil(tile)).sum::<u64>();
    let most = (TILE_THREADS_MAX / threads).max(1);
    let two = if most >= 2 && all >= 2 * BLOCKS_OF_TWO_MIN { 2 } else { 1 };
    let mut tiles = two;
    while 2 * tiles <= most && all >= u64::from(2 * tiles) * BLOCKS_MIN {
        tiles *= 2;
    }
    tiles
}

/// The first block of each tensor, if they have `counts` blocks.
pub(crate) fn first_blocks(counts: impl Iterator<Item = u64>) -> Vec<u32> {
    let mut next = 0;
    counts
        .map(|count| {
            let first = next;
            next += count as u32;
            first
        })
        .collect()
}

/// How many elements before a tensor its blocks begin, so that they begin at a border of a wide
/// access in every array; `LANES` if the arrays do not agree on one. Buffers begin at such borders.
///
/// The blocks of a tensor, or of a part of one, of 2^32 elements must not reach over a multiple of that, where random
/// words change their stream: they begin with the tensor.
fn shift_of(kind: Kind, tensor: &Tensor, whole: u64) -> u32 {
    if is_in_blocks(kind) {
        let elements = [
            tensor.parameters / kind.parameters.bytes(),
            tensor.gradients / kind.gradients.bytes(),
            tensor.remainders / 2,
        ];
        let is_wide = elements.iter().all(|elements| elements % LANES == 0);
        return if is_wide { 0 } else { LANES as u32 };
    }
    let shift = tensor.parameters / kind.parameters.bytes() % LANES;
    let is_split = kind.parameters == ParameterType::Split;
    let has_second = kind.format.arrays(0).count() > 1;
    let others = [
        Some(tensor.gradients / kind.gradients.bytes()),
        Some(tensor.first / 4),
        has_second.then_some(tensor.second / 4),
        is_split.then_some(tensor.remainders / 2),
    ];
    let agree = others.into_iter().flatten().all(|elements| elements % LANES == shift);
    let is_small = shift == 0 || whole < 1 << 32;
    if agree && is_small { shift as u32 } else { LANES as u32 }
}

/// The words of the arrays of a tensor's state, the first of which begins at `start`.
fn section_ranges(kind: Kind, length: usize, start: usize) -> Vec<Range<usize>> {
    let mut next = start;
    let sections = kind.format.arrays(length as u64);
    let border = if is_in_blocks(kind) { ARRAY_WORDS } else { 1 };
    next = next.next_multiple_of(border);
    sections
        .map(|section: Section| {
            let first = next;
            let end = first + section.bytes().div_ceil(4) as usize;
            next = end.next_multiple_of(border);
            first..end
        })
        .collect()
}

/// Whether elements of a kind are stored in blocks.
pub(crate) fn is_in_blocks(kind: Kind) -> bool {
    kind.format.lanes().is_none()
}
