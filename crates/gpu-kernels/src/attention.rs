//! Causal attention, forward and backward: on tensor cores by `cuda/attention_mma_forward.cu` and
//! `cuda/attention_mma_backward.cu`, or where four warps make products as one by `cuda/attention_ring_forward.cu` and
//! `cuda/attention_ring_backward.cu`, in tf32 by `cuda/attention_wide_forward.cu` and
//! `cuda/attention_wide_backward.cu`; in f32 arithmetic, and for heads that those do not fit, by
//! `cuda/attention.cu`.
//!
//! A row of `qkv` holds q, k and v of C = H D each, the channels of a head side by side. For each
//! window and head, with u <= t:
//!
//! ```text
//! p[t, u] = softmax_u(q[t] . k[u] / sqrt(D))      out[t] = sum_u p[t, u] v[u]
//! ```
//!
//! The T x T probabilities are never kept: the forward pass leaves two numbers of each row, from which
//! the backward pass computes them again. Sums are in f32, in an order that depends on the shape alone.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

mod start;

pub use start::{AttentionStart, AttentionStartInputs};

use crate::launch::{blocks_of, checked_blocks, launch_early, launch_with_shared};
use crate::module::Kernel;
use crate::plan::{AttentionShape, Kernels, Plan, Room};
use crate::programs::{self, WARP_LANES};
use crate::tiles::TensorMap;
use crate::{Activations, Buffer, Error, Gpu, Precision};

/// The kernels for attention of one shape.
pub struct Attention {
    gpu: Gpu,
    precision: Precision,
    shape: AttentionShape,
    forward: Plan,
    backward: Plan,
    forward_kernel: Kernel,
    planes_kernel: Kernel,
    backward_kernel: Kernel,
    parts: Parts,
    /// How many tasks were taken of either pass: 0 between launches.
    taken: Buffer<u32>,
}

/// Memory for what blocks find that work on parts of tiles.
struct Parts {
    found: Buffer<f32>,
    done: Buffer<u32>,
}

/// What the kernels are given: `Attention` in `cuda/attention.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Call {
    qkv: u64,
    d_qkv: u64,
    out: u64,
    d_out: u64,
    statistics: u64,
    planes: u64,
    parts: u64,
    parts_done: u64,
    batch: u32,
    time: u32,
    padded_time: u32,
    heads: u32,
    tiles: u32,
    mixed_heads: u32,
    scale: f32,
    scale_log2: f32,
    rotation: u32,
    tasks: u32,
    taken: u64,
}

/// `RingAttention` in `cuda/attention_ring.cuh`.
#[repr(C)]
struct RingCall {
    qkv: TensorMap,
    d_out: TensorMap,
    call: Call,
}

impl Attention {
    /// The kernels for `shape`, compiled for its head size.
    ///
    /// # Errors
    ///
    /// What the compiler or the device refuses, and [`Error::TooLarge`].
    pub fn new(gpu: &Gpu, precision: Precision, shape: AttentionShape) -> Result<Attention, Error> {
        let facts = gpu.facts();
        let room = Room {
            compute_capability: facts.compute_capability,
            multiprocessors: facts.multiprocessors,
            shared_bytes_max: facts.shared_bytes_of_block,
            has_clusters: true,
        };
        // A compiler may be too old for the newest instructions, or a release have nothing of them.
        Attention::with_room(gpu, precision, shape, room)
            .or_else(|_| Attention::with_room(gpu, precision, shape, room.without_clusters()))
            .or_else(|_| Attention::with_room(gpu, precision, shape, room.without_four_warps()))
    }

    /// As [`Attention::new`], with blocks that know their tasks beforehand: what tests hold others against.
    ///
    /// # Errors
    ///
    /// As for [`Attention::new`].
    #[doc(hidden)]
    pub fn in_fixed_turns(
        gpu: &Gpu,
        precision: Precision,
        shape: AttentionShape,
    ) -> Result<Attention, Error> {
        let Attention { forward, backward, .. } = Attention::new(gpu, precision, shape)?;
        let plans = (forward.in_fixed_turns(), backward.in_fixed_turns());
        Attention::with_plans(gpu, precision, shape, plans)
    }

    fn with_room(
        gpu: &Gpu,
        precision: Precision,
        shape: AttentionShape,
        room: Room,
    ) -> Result<Attention, Error> {
        Attention::with_plans(gpu, precision, shape, Plan::of(precision, shape, room)?)
    }

    fn with_plans(
        gpu: &Gpu,
        precision: Precision,
        shape: AttentionShape,
        (forward, backward): (Plan, Plan),
    ) -> Result<Attention, Error> {
        let kernel = |plan: &Plan, name| {
            let kernel = gpu.best_module(&programs::attention(plan))?.kernel(name)?;
            kernel.allow_shared(gpu, plan.shared_bytes)?;
            Ok::<Kernel, Error>(kernel)
        };
        let blocks = checked_blocks(forward.forward_blocks(shape))? as usize;
        let blocks_of_parts = if forward.part_rows > 0 { blocks } else { 0 };
        Ok(Attention {
            parts: Parts {
                found: gpu.zeros(blocks_of_parts * forward.part_numbers as usize)?,
                done: gpu.zeros(blocks_of_parts * (forward.threads / WARP_LANES) as usize)?,
            },
            taken: gpu.zeros(2)?,
            gpu: gpu.clone(),
            precision,
            shape,
            forward_kernel: kernel(&forward, "attention_forward")?,
            planes_kernel: kernel(&backward, "attention_planes")?,
            backward_kernel: kernel(&backward, "attention_backward")?,
            forward,
            backward,
        })
    }

    /// The shape.
    pub(crate) fn shape(&self) -> AttentionShape {
        self.shape
    }

    /// The precision.
    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// Elements of workspace that [`Attention::backward`] needs.
    #[must_use]
    pub fn workspace_length(shape: AttentionShape) -> usize {
        3 * shape.batch * shape.heads * shape.padded_time()
    }

    /// Writes `out` `[B T, C]` from `qkv` `[B T, 3 C]`, and `statistics` `[B T, H, 2]`: of each row the
    /// largest score / sqrt(D) log2(e), and 1 / the sum of its exponentials above that. The workspace
    /// is not touched. Buffers may be longer; their fronts are used.
    ///
    /// # Errors
    ///
    /// [`Error::OtherType`], [`Error::Length`], and what the driver refuses.
    pub fn forward(
        &self,
        out: &mut Activations,
        statistics: &mut Buffer<f32>,
        qkv: &Activations,
        _workspace: &mut Buffer<f32>,
    ) -> Result<(), Error> {
        let length = self.shape.rows() * self.shape.channels();
        qkv.check("qkv", self.precision, 3 * length)?;
        out.check("the output of attention", self.precision, length)?;
        self.check_statistics(statistics)?;
        let call = Call {
            qkv: qkv.address(),
            out: out.address(),
            statistics: statistics.address(),
            taken: self.taken.address(),
            ..self.call(&self.forward)
        };
        let tasks = self.forward.forward_blocks(self.shape);
        // SAFETY: 1. and 2. The lengths were checked. 3. The outputs are borrowed mutably.
        unsafe { self.launch(&self.forward, &self.forward_kernel, call, tasks) }
    }

    /// Writes `d_qkv` `[B T, 3 C]` from the gradient `d_out` of `out`, with what the forward pass was
    /// given and left:
    ///
    /// ```text
    /// o[t] = d_out[t] . out[t]
    /// dp[t, u] = d_out[t] . v[u]          ds[t, u] = p[t, u] (dp[t, u] - o[t]) / sqrt(D)
    /// dq[t] = sum_u ds[t, u] k[u]         dk[u] = sum_t ds[t, u] q[t]         dv[u] = sum_t p[t, u] d_out[t]
    /// ```
    ///
    /// Overwrites the front of `workspace`.
    ///
    /// # Errors
    ///
    /// [`Error::OtherType`], [`Error::Length`], and what the driver refuses.
    pub fn backward(
        &self,
        d_qkv: &mut Activations,
        d_out: &Activations,
        out: &Activations,
        qkv: &Activations,
        statistics: &Buffer<f32>,
        workspace: &mut Buffer<f32>,
    ) -> Result<(), Error> {
        self.queue_backward(d_qkv, d_out, out, qkv, statistics, workspace, true)
    }

    /// As [`Attention::backward`], after [`AttentionStart::queue`] has written `d_out` and `workspace`.
    ///
    /// # Errors
    ///
    /// As [`Attention::backward`].
    pub fn backward_started(
        &self,
        d_qkv: &mut Activations,
        d_out: &Activations,
        out: &Activations,
        qkv: &Activations,
        statistics: &Buffer<f32>,
        workspace: &mut Buffer<f32>,
    ) -> Result<(), Error> {
        self.queue_backward(d_qkv, d_out, out, qkv, statistics, workspace, false)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "those of its two callers and what sets them apart"
    )]
    fn queue_backward(
        &self,
        d_qkv: &mut Activations,
        d_out: &Activations,
        out: &Activations,
        qkv: &Activations,
        statistics: &Buffer<f32>,
        workspace: &mut Buffer<f32>,
        finds_planes: bool,
    ) -> Result<(), Error> {
        let length = self.shape.rows() * self.shape.channels();
        d_qkv.check("the gradient of qkv", self.precision, 3 * length)?;
        d_out.check("the gradient of attention", self.precision, length)?;
        out.check("the output of attention", self.precision, length)?;
        qkv.check("qkv", self.precision, 3 * length)?;
        self.check_statistics(statistics)?;
        check_front("the workspace of attention", workspace, Self::workspace_length(self.shape))?;
        let call = Call {
            qkv: qkv.address(),
            d_qkv: d_qkv.address(),
            out: out.address(),
            d_out: d_out.address(),
            statistics: statistics.address(),
            planes: workspace.address(),
            taken: self.taken.address() + size_of::<u32>() as u64,
            ..self.call(&self.backward)
        };
        let rows = self.pairs() * self.shape.padded_time() as u64;
        let threads = self.backward.threads;
        let plane_blocks = blocks_of(rows, u64::from(threads / programs::PLANE_LANES))?;
        let tasks = self.pairs() * u64::from(2 * call.tiles);
        // SAFETY: as in `forward`; the two kernels are on one stream.
        unsafe {
            if finds_planes {
                let size = (plane_blocks, threads, 0);
                launch_with_shared(&self.gpu, &self.planes_kernel, size, &call)?;
            }
            self.launch(&self.backward, &self.backward_kernel, call, tasks)
        }
    }

    /// Queues the kernel of a pass of `tasks`, each a block's unless blocks take turns.
    ///
    /// # Safety
    ///
    /// 1. What `call` names is as long as the shape asks for. 2. It is on this device. 3. Nobody else
    ///    touches what is written.
    unsafe fn launch(
        &self,
        plan: &Plan,
        kernel: &Kernel,
        call: Call,
        tasks: u64,
    ) -> Result<(), Error> {
        let (gpu, shape) = (&self.gpu, self.shape);
        let size =
            |blocks| Ok::<_, Error>((checked_blocks(blocks)?, plan.threads, plan.shared_bytes));
        let Some(turns) = plan.turns(tasks, self.pairs(), gpu.facts().multiprocessors) else {
            // SAFETY: `Call` is laid out as in attention.cuh, which was compiled for these threads and this shared
            // memory; the rest is the caller's.
            return unsafe { launch_with_shared(gpu, kernel, size(tasks)?, &call) };
        };
        let map = |address, columns| {
            let matrices = [shape.batch, shape.time, columns];
            TensorMap::of_matrices(gpu, self.precision, address, matrices)
        };
        let qkv = map(call.qkv, 3 * shape.channels())?;
        // The forward pass has no gradient.
        let d_out = if call.d_out == 0 { qkv } else { map(call.d_out, shape.channels())? };
        let mixed_heads = turns.mixed_heads as u32;
        let call = Call { rotation: turns.rotation, tasks: tasks as u32, mixed_heads, ..call };
        let call = RingCall { qkv, d_out, call };
        let size = size(turns.blocks)?;
        // SAFETY: as above, with `RingCall` and attention_ring.cuh, whose kernels wait before they do anything else.
        unsafe {
            // The backward pass would take the place of what others do beside the operation before it.
            match plan.kernels {
                Kernels::RingForward => launch_early(gpu, kernel, size, &call),
                _ => launch_with_shared(gpu, kernel, size, &call),
            }
        }
    }

    fn check_statistics(&self, statistics: &Buffer<f32>) -> Result<(), Error> {
        let length = 2 * self.shape.rows() * self.shape.heads;
        check_front("the statistics of attention", statistics, length)
    }

    /// Windows times heads.
    fn pairs(&self) -> u64 {
        self.shape.batch as u64 * self.shape.heads as u64
    }

    /// What all calls have in common.
    fn call(&self, plan: &Plan) -> Call {
        let AttentionShape { batch, time, heads, head_size } = self.shape;
        let scale = 1.0 / (head_size as f64).sqrt();
        Call {
            parts: self.parts.found.address(),
            parts_done: self.parts.done.address(),
            batch: batch as u32,
            time: time as u32,
            padded_time: self.shape.padded_time() as u32,
            heads: heads as u32,
            tiles: (time as u32).div_ceil(plan.rows),
            mixed_heads: if plan.by_head { 0 } else { self.pairs() as u32 },
            scale: scale as f32,
            scale_log2: (scale * std::f64::consts::LOG2_E) as f32,
            rotation: 0,
            ..Call::default()
        }
    }
}

/// Refuses a buffer of fewer than `length` elements.
fn check_front(what: &str, buffer: &Buffer<f32>, length: usize) -> Result<(), Error> {
    crate::buffer::check_length(what, length, buffer.len().min(length))
}

impl std::fmt::Debug for Attention {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Attention({:?}, {}, {:?}, {:?})",
            self.shape, self.precision, self.forward, self.backward
        )
    }
}
