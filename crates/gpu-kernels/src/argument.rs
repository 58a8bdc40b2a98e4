//! The argument of an update's launch: what every block is given and, where there is room, the
//! table of tensors in which it searches for its own. The same bytes as `Step` in `cuda/adamw.cu`.

#![expect(unsafe_code, reason = "a plain layout that a kernel reads")]

use bytemuck::{Pod, Zeroable};

use crate::layout::Layout;
use crate::shape::TableIn;
use crate::table::{Bases, Tensor};

/// Bytes of the largest argument that a launch can have.
const BYTES_MAX: usize = 32_764;
/// Bytes of a tensor in an argument: its first block, and its row.
const TENSOR_BYTES: usize = size_of::<u32>() + size_of::<Tensor>();
/// Most tensors of an argument.
const TENSORS_MAX: usize = 384;

const _: () = assert!(size_of::<Step>() + TENSORS_MAX * TENSOR_BYTES <= BYTES_MAX);

/// What every block is given.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) bases: Bases,
    pub(crate) tensors: u64,
    pub(crate) first_blocks: u64,
    pub(crate) biases: u64,
    pub(crate) gradient_maxima: u64,
    pub(crate) control: u64,
    pub(crate) maps: u64,
    pub(crate) parts: u64,
    pub(crate) spreads: u64,
    pub(crate) copies: u64,
    pub(crate) tensor_count: u32,
    pub(crate) skips: u32,
    pub(crate) maps_are_fine: u32,
    pub(crate) tiles: u32,
    pub(crate) first_block: u32,
    pub(crate) padding: [u32; 3],
}

// SAFETY: numbers only, for which zero bits are a value.
unsafe impl Zeroable for Step {}
// SAFETY: a C layout of numbers, of which the short ones come last and fill thirty-two bytes, so
// that no byte is padding; any bits are a value.
unsafe impl Pod for Step {}

/// The bytes of an argument.
pub(crate) struct Argument {
    bytes: Vec<u8>,
    /// Tensors that there is room for; none if the table lies in memory.
    tensors: usize,
}

impl Argument {
    /// The numbers of tensors that kernels are compiled for: few, since each takes a compilation and a place in a
    /// package. Every launch copies the whole argument, so the first is just above a GPT-2 of twelve layers.
    pub(crate) const SIZES: [usize; 2] = [160, TENSORS_MAX];

    /// An argument for the tensors of `layout`.
    pub(crate) fn new(layout: &Layout, table: TableIn) -> Argument {
        let count = layout.tensors.len();
        let tensors = match table {
            TableIn::Argument => Argument::SIZES.into_iter().find(|&size| size >= count),
            TableIn::Memory => None,
        };
        let tensors = tensors.unwrap_or(0);
        let bytes = vec![0; size_of::<Step>() + tensors * TENSOR_BYTES];
        let mut argument = Argument { bytes, tensors };
        argument.set_tensors(layout);
        argument
    }

    /// How many tensors the kernel has to be compiled for; none if it finds them in memory.
    pub(crate) fn tensors(&self) -> usize {
        self.tensors
    }

    /// Takes over where the tensors of a layout lie.
    pub(crate) fn set_tensors(&mut self, layout: &Layout) {
        if self.tensors == 0 {
            return;
        }
        let table = &mut self.bytes[size_of::<Step>()..];
        let (first_blocks, tensors) = table.split_at_mut(self.tensors * size_of::<u32>());
        put(first_blocks, &layout.first_blocks());
        put(tensors, &layout.tensors);
    }

    /// The argument of a launch.
    pub(crate) fn with_step(&mut self, step: Step) -> &[u8] {
        put(&mut self.bytes, &[step]);
        &self.bytes
    }
}

/// Overwrites the front of `bytes`.
fn put<T: Pod>(bytes: &mut [u8], values: &[T]) {
    let from: &[u8] = bytemuck::cast_slice(values);
    bytes[..from.len()].copy_from_slice(from);
}
