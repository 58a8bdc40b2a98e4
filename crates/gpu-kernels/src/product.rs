//! One matrix product of a fixed shape: by cuBLASLt where it is there and has an algorithm for it, or by tiles
//! where those are faster, or by kernels for factors that lie across their depth; and else by `cuda/matmul.cu`, which
//! takes any shape.

#![expect(unsafe_code, reason = "launches a kernel over addresses")]

pub(crate) mod across;
pub(crate) mod deep;
mod tiled;

use std::sync::Arc;

use crate::blas::{self, Handle, Plan, WORKSPACE_BYTES};
use crate::launch::{checked_blocks, launch};
use crate::module::Kernel;
use crate::programs::network::{self, PRODUCT_TILE, THREADS};
use crate::{Buffer, Error, Gpu, Precision, graph, timing};

use across::Across;
use deep::Deep;
use tiled::Tiled;

/// What computes products.
pub struct Products {
    library: Option<Arc<Handle>>,
    precision: Precision,
    prefers_tiles: bool,
}

/// A stream of work, with the memory that products on it use beside their matrices.
pub struct Lane {
    gpu: Gpu,
    workspace: Buffer<u8>,
}

/// `out[i, j] = sum_l a[i, l] b[l, j]`, with i < m, j < n, l < k, and what its epilogue adds.
#[derive(Clone, Debug)]
pub(crate) struct ProductShape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Side,
    pub(crate) b: Side,
    /// Elements from one row of the output to the next.
    pub(crate) out_row: usize,
    pub(crate) precision: Precision,
    pub(crate) is_bf16_out: bool,
    pub(crate) epilogue: Epilogue,
    /// A power of two up to 16 that divides every address and every row in bytes.
    pub(crate) alignment_bytes: usize,
    /// How many products of this shape are made at once. More than one: the library's alone.
    pub(crate) count: usize,
}

/// What happens to a product before it is stored. All but the first two are the library's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Epilogue {
    /// Nothing.
    None,
    /// `+ bias[j]`.
    Bias,
    /// `+ bias[j]`, kept in `aux` `[m, n]`; then GELU.
    Gelu,
    /// Times the gradient of GELU at `aux[i, j]`.
    GeluGradient,
    /// Nothing, and beside it `bias[j] = sum_l b[l, j]`.
    ColumnSums,
}

/// How a factor lies in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    /// Whether its transpose lies there, row by row.
    pub(crate) is_transposed: bool,
    /// Elements from one row in memory to the next.
    pub(crate) row: usize,
}

/// The addresses of a product. `bias` and `aux` have the type of the output.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operands {
    pub(crate) out: u64,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) bias: u64,
    pub(crate) aux: u64,
    /// Elements from the output, left and right factor of one product to those of the next, where several
    /// are made at once.
    pub(crate) steps: [i64; 3],
}

/// A product that can be queued.
pub(crate) struct Product {
    shape: ProductShape,
    engine: Engine,
}

enum Engine {
    Library(Box<Plan>),
    Tiles(Tiled),
    Across(Box<Across>),
    Deep(Box<Deep>),
    Own(Kernel),
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Argument {
    out: u64,
    a: u64,
    b: u64,
    bias: u64,
    out_row: u64,
    a_row: u64,
    a_column: u64,
    b_row: u64,
    b_column: u64,
    m: u32,
    n: u32,
    k: u32,
    adds: u32,
}

impl Products {
    /// By cuBLASLt if there is one, and else by our own kernel.
    #[must_use]
    pub fn new(gpu: &Gpu, precision: Precision) -> Products {
        Products { library: Handle::open(gpu).ok(), precision, prefers_tiles: false }
    }

    /// By our own kernel alone, which computes in f32 also where the precision is tf32.
    #[must_use]
    pub fn without_library(precision: Precision) -> Products {
        Products { library: None, precision, prefers_tiles: false }
    }

    /// By tiles wherever a device has those, whatever is faster; for comparisons.
    #[must_use]
    pub fn preferring_tiles(self) -> Products {
        Products { prefers_tiles: true, ..self }
    }

    /// Whether they are made by tiles wherever possible.
    pub(crate) fn prefers_tiles(&self) -> bool {
        self.prefers_tiles
    }

    /// Whether cuBLASLt was found.
    #[must_use]
    pub fn has_library(&self) -> bool {
        self.library.is_some()
    }

    /// The precision of the products.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }
}

impl Lane {
    /// The stream of `gpu`.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], and what the driver refuses.
    pub fn new(gpu: &Gpu, products: &Products) -> Result<Lane, Error> {
        let bytes = if products.has_library() { WORKSPACE_BYTES } else { 0 };
        Ok(Lane { gpu: gpu.clone(), workspace: gpu.zeros(bytes)? })
    }

    /// Its device and stream.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn workspace(&self) -> u64 {
        self.workspace.address()
    }
}

impl Product {
    /// Plans a product. The first time on a machine this takes a moment, see [`Plan::new`].
    ///
    /// # Errors
    ///
    /// What the library, the compiler or the driver refuses.
    pub(crate) fn new(
        lane: &Lane,
        products: &Products,
        shape: ProductShape,
    ) -> Result<Product, Error> {
        let engine = match Product::plan(lane, products, &shape)? {
            Some(engine) => engine,
            None => {
                assert!(matches!(shape.epilogue, Epilogue::None | Epilogue::Bias), "{shape}");
                assert_eq!(shape.count, 1, "{shape}");
                let input_bytes = shape.precision.activation_bytes();
                let program = network::matmul(input_bytes, shape.output_bytes());
                Engine::Own(lane.gpu.module(&program)?.kernel("matmul")?)
            }
        };
        Ok(Product { shape, engine })
    }

    /// Plans what not every engine has, an epilogue or several products at once; `None` if none has it.
    ///
    /// # Errors
    ///
    /// What the library or the driver refuses.
    pub(crate) fn fused(
        lane: &Lane,
        products: &Products,
        shape: ProductShape,
    ) -> Result<Option<Product>, Error> {
        let engine = Product::plan(lane, products, &shape)?;
        Ok(engine.map(|engine| Product { shape, engine }))
    }

    fn plan(
        lane: &Lane,
        products: &Products,
        shape: &ProductShape,
    ) -> Result<Option<Engine>, Error> {
        let is_preferred = products.prefers_tiles;
        let plan = match &products.library {
            Some(handle) => Plan::new(lane, handle, shape)?,
            None if is_preferred => None,
            None => return Ok(None),
        };
        if let Some(across) = Across::choose(lane, shape, plan.as_ref(), is_preferred)? {
            return Ok(Some(Engine::Across(Box::new(across))));
        }
        if let Some(deep) = Deep::choose(lane, shape, plan.as_ref(), is_preferred)? {
            return Ok(Some(Engine::Deep(Box::new(deep))));
        }
        let is_preferred = is_preferred || shape.is_beside_others();
        Ok(match Tiled::choose(lane, shape, plan.as_ref(), is_preferred)? {
            Some(tiled) => Some(Engine::Tiles(tiled)),
            None => plan.map(|plan| Engine::Library(Box::new(plan))),
        })
    }

    /// Whether it is made by tiles, many small blocks.
    pub(crate) fn is_by_tiles(&self) -> bool {
        matches!(self.engine, Engine::Tiles(_))
    }

    /// Its shape.
    pub(crate) fn shape(&self) -> &ProductShape {
        &self.shape
    }

    /// Queues the product, which overwrites the output or adds to it.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`], and what the library or the driver refuses.
    ///
    /// # Safety
    ///
    /// 1. The operands are matrices of the product's shape and types on the device of `lane`,
    ///    allocated until the work is done.
    /// 2. Nothing else uses the output meanwhile but work on the same stream.
    pub(crate) unsafe fn queue(
        &self,
        lane: &Lane,
        operands: Operands,
        adds: bool,
    ) -> Result<(), Error> {
        let shape = &self.shape;
        let bytes = shape.alignment_bytes as u64;
        let Operands { out, a, b, bias, .. } = operands;
        for (name, address) in [("output", out), ("left factor", a), ("right factor", b)] {
            if !address.is_multiple_of(bytes) {
                let what = format!("{name} of {shape}");
                return Err(Error::Misaligned { what, bytes, address });
            }
        }
        let kernel = match &self.engine {
            // SAFETY: the caller's duties.
            Engine::Library(plan) => return unsafe { plan.queue(lane, operands, adds) },
            Engine::Tiles(tiled) => {
                assert!(!adds, "{shape} does not add");
                // SAFETY: the caller's duties.
                return unsafe { tiled.queue(&lane.gpu, operands) };
            }
            // SAFETY: the caller's duties.
            Engine::Across(across) => return unsafe { across.queue(&lane.gpu, operands, adds) },
            Engine::Deep(deep) => {
                assert!(!adds, "{shape} does not add");
                // SAFETY: the caller's duties.
                return unsafe { deep.queue(&lane.gpu, operands) };
            }
            Engine::Own(kernel) => kernel,
        };
        let steps = |side: Side| {
            let (row, one) = (side.row as u64, 1);
            if side.is_transposed { (one, row) } else { (row, one) }
        };
        let ((a_row, a_column), (b_row, b_column)) = (steps(shape.a), steps(shape.b));
        let argument = Argument {
            out,
            a,
            b,
            bias: if shape.epilogue == Epilogue::Bias { bias } else { 0 },
            out_row: shape.out_row as u64,
            a_row,
            a_column,
            b_row,
            b_column,
            m: shape.m as u32,
            n: shape.n as u32,
            k: shape.k as u32,
            adds: u32::from(adds),
        };
        let tiles = shape.m.div_ceil(PRODUCT_TILE) * shape.n.div_ceil(PRODUCT_TILE);
        // SAFETY: 1. `Argument` is laid out as `Product` in matmul.cu, which was compiled for these
        // threads. 2. and 3. The caller's duties.
        unsafe { launch(&lane.gpu, kernel, checked_blocks(tiles as u64)?, THREADS, &argument) }
    }
}

/// Whether a product is made by a kernel of our own, of that name, which `queue` queues, rather than by the library's plan, if there is
/// one: where it is faster, or `is_preferred`.
///
/// # Errors
///
/// What the driver refuses.
fn is_chosen(
    lane: &Lane,
    name: &str,
    shape: &ProductShape,
    plan: Option<&Plan>,
    is_preferred: bool,
    mut queue: impl FnMut(Operands) -> Result<(), Error>,
) -> Result<bool, Error> {
    let (gpu, cache) = (lane.gpu(), &lane.gpu().device.cache);
    if is_preferred {
        return Ok(true);
    }
    // Without a place to keep it, a choice by time might differ from run to run.
    if cache.folder().is_none() {
        return Ok(false);
    }
    let Some(plan) = plan else { return Ok(true) };
    let key = blas::key(gpu, &format!("whether {name} is faster for {shape}"));
    if let Some([answer]) = cache.load(&key).as_deref() {
        return Ok(*answer == 1);
    }
    let (_scratch, operands) = blas::scratch(gpu, shape)?;
    // SAFETY: the operands are scratch matrices of the shape's sizes.
    let theirs = || unsafe { plan.queue(lane, operands, false) };
    let is_faster = graph::alone(|| timing::is_faster(gpu, || queue(operands), theirs));
    // What cannot be timed is not chosen.
    Ok(cache.keep_first(&key, vec![u8::from(is_faster.unwrap_or(false))]) == [1])
}

impl ProductShape {
    /// Whether it is better made by many small blocks, though it may be slower by itself: the way back through GELU in tf32,
    /// beside which gradients of weights hold a third of the multiprocessors of an H200. There the library's product and
    /// GELU's gradient behind it take 23 us, and tiles 13.
    pub(crate) fn is_beside_others(&self) -> bool {
        self.precision == Precision::Tf32 && self.epilogue == Epilogue::GeluGradient
    }

    fn output_bytes(&self) -> usize {
        if self.is_bf16_out { 2 } else { 4 }
    }

    /// Elements of output, left factor and right factor.
    fn elements(&self) -> [usize; 3] {
        let rows = |side: Side, rows, columns| if side.is_transposed { columns } else { rows };
        [
            self.m * self.out_row,
            rows(self.a, self.m, self.k) * self.a.row,
            rows(self.b, self.k, self.n) * self.b.row,
        ]
    }

    /// The steps of products whose matrices lie side by side.
    pub(crate) fn dense_steps(&self) -> [i64; 3] {
        self.elements().map(|elements| elements as i64)
    }

    /// Bytes of output, left factor, right factor, bias and aux, of all products.
    pub(crate) fn bytes(&self) -> [usize; 5] {
        let input = self.precision.activation_bytes();
        let [out, a, b] = self.elements().map(|elements| elements * self.count);
        [
            out * self.output_bytes(),
            a * input,
            b * input,
            self.n * self.output_bytes(),
            match self.epilogue {
                Epilogue::Gelu | Epilogue::GeluGradient => {
                    self.m * self.out_row * self.output_bytes()
                }
                Epilogue::None | Epilogue::Bias | Epilogue::ColumnSums => 0,
            },
        ]
    }
}

impl std::fmt::Display for ProductShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |side: Side| if side.is_transposed { "'" } else { "" };
        let (m, n, k, precision) = (self.m, self.n, self.k, self.precision);
        write!(f, "the {precision} product [{m}, {k}]{}", side(self.a))?;
        write!(f, " [{k}, {n}]{}", side(self.b))?;
        let epilogue = match self.epilogue {
            Epilogue::None => "",
            Epilogue::Bias => " with bias",
            Epilogue::Gelu => " with bias and GELU",
            Epilogue::GeluGradient => " with the gradient of GELU",
            Epilogue::ColumnSums => " with column sums",
        };
        let rows = [self.a.row, self.b.row, self.out_row];
        write!(f, "{epilogue} in {} bytes, rows of {rows:?}", self.output_bytes())?;
        write!(f, ", aligned to {}", self.alignment_bytes)?;
        if self.count > 1 { write!(f, ", {} at once", self.count) } else { Ok(()) }
    }
}
