//! LayerNorm and its gradients. Launches `cuda/layernorm.cu`.

#![expect(unsafe_code, reason = "launches kernels over addresses")]

use crate::buffer::{check_aligned, check_length};
use crate::columns::PendingSum;
use crate::launch::launch;
use crate::module::Kernel;
use crate::programs::WARP_LANES;
use crate::programs::network::{self, ROW_THREADS, backward_threads};
use crate::{Activations, Buffer, Error, Gpu, Precision, View, ViewMut};

/// Most blocks of a forward launch a multiprocessor; warps then take several rows.
const FORWARD_BLOCKS: u32 = 8;

/// LayerNorm over rows of one width.
pub struct LayerNorm {
    forward: Kernel,
    forward_residual: Kernel,
    backward: Kernel,
    precision: Precision,
    channels: usize,
}

/// What the forward pass leaves, and the gradient that comes back.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormInputs<'a> {
    /// Gradient of the output, `[rows, C]`.
    pub d_out: &'a Activations,
    /// The input of the forward pass, `[rows, C]`.
    pub x: &'a Activations,
    /// Mean and 1 / deviation of each row, `[rows, 2]`.
    pub statistics: &'a Buffer<f32>,
    /// Gain and bias, C each.
    pub gain_bias: View<'a, f32>,
    /// A gradient that the input has beside the one by way of the output, `[rows, C]`.
    pub d_residual: Option<&'a Activations>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Forward {
    out: u64,
    statistics: u64,
    x: u64,
    left: u64,
    right: u64,
    gain_bias: u64,
    rows: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Backward {
    d_x: u64,
    d_out: u64,
    x: u64,
    statistics: u64,
    gain: u64,
    d_residual: u64,
    partials: u64,
    rows: u32,
}

impl LayerNorm {
    /// The kernels for rows of `channels`.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu, precision: Precision, channels: usize) -> Result<LayerNorm, Error> {
        let [forward, backward] = network::layernorm(channels, precision.activation_bytes());
        let forward = gpu.module(&forward)?;
        Ok(LayerNorm {
            forward: forward.kernel("layernorm_forward")?,
            forward_residual: forward.kernel("layernorm_forward_residual")?,
            backward: gpu.module(&backward)?.kernel("layernorm_backward")?,
            precision,
            channels,
        })
    }

    /// Elements of workspace that the backward pass needs for `rows`.
    #[must_use]
    pub fn workspace_length(gpu: &Gpu, rows: usize, channels: usize) -> usize {
        backward_blocks(gpu, rows, channels) as usize * 3 * channels
    }

    /// Overwrites `out` `[rows, C]`, and mean and 1 / deviation of each row in `statistics`.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], [`Error::OtherType`], and what the driver refuses.
    pub fn forward(
        &self,
        gpu: &Gpu,
        out: &mut Activations,
        statistics: &mut Buffer<f32>,
        x: &Activations,
        gain_bias: View<'_, f32>,
        rows: usize,
    ) -> Result<(), Error> {
        self.check(rows, &[("output", out), ("input", x)], statistics, gain_bias)?;
        let argument = Forward {
            out: out.address(),
            statistics: statistics.address(),
            x: 0,
            left: x.address(),
            right: 0,
            gain_bias: gain_bias.address(),
            rows: rows as u32,
        };
        let blocks = forward_blocks(gpu, rows);
        // SAFETY: 1. `Forward` is laid out as in layernorm.cu, which was compiled for these threads. 2.
        // All are as long as `check` found. 3. What is written was borrowed mutably.
        unsafe { launch(gpu, &self.forward, blocks, ROW_THREADS, &argument) }
    }

    /// Overwrites `x` with the residual sum `terms[0] + terms[1]`, and then what
    /// [`LayerNorm::forward`] overwrites for it.
    ///
    /// # Errors
    ///
    /// As [`LayerNorm::forward`].
    pub fn forward_residual(
        &self,
        gpu: &Gpu,
        (out, statistics, x): (&mut Activations, &mut Buffer<f32>, &mut Activations),
        terms: [&Activations; 2],
        gain_bias: View<'_, f32>,
        rows: usize,
    ) -> Result<(), Error> {
        let [left, right] = terms;
        let activations = [("output", &*out), ("sum", x), ("term", left), ("term", right)];
        self.check(rows, &activations, statistics, gain_bias)?;
        let argument = Forward {
            out: out.address(),
            statistics: statistics.address(),
            x: x.address(),
            left: left.address(),
            right: right.address(),
            gain_bias: gain_bias.address(),
            rows: rows as u32,
        };
        let blocks = forward_blocks(gpu, rows);
        // SAFETY: as in `forward`.
        unsafe { launch(gpu, &self.forward_residual, blocks, ROW_THREADS, &argument) }
    }

    /// Overwrites the gradient of the input, and leaves in `partials` the runs whose sums
    /// [`LayerNorm::backward_parameters`] stores.
    ///
    /// # Errors
    ///
    /// As [`LayerNorm::forward`].
    pub fn backward_input(
        &self,
        gpu: &Gpu,
        d_x: &mut Activations,
        partials: &mut Buffer<f32>,
        inputs: LayerNormInputs<'_>,
        rows: usize,
    ) -> Result<(), Error> {
        let LayerNormInputs { d_out, x, statistics, gain_bias, d_residual } = inputs;
        let activations = [
            ("gradient of the input", &*d_x),
            ("gradient", d_out),
            ("input", x),
            ("gradient beside it", d_residual.unwrap_or(d_out)),
        ];
        self.check(rows, &activations, statistics, gain_bias)?;
        let needed = LayerNorm::workspace_length(gpu, rows, self.channels);
        check_length("LayerNorm's workspace", needed, partials.len().min(needed))?;
        let argument = Backward {
            d_x: d_x.address(),
            d_out: d_out.address(),
            x: x.address(),
            statistics: statistics.address(),
            gain: gain_bias.address(),
            d_residual: d_residual.map_or(0, Activations::address),
            partials: partials.address(),
            rows: rows as u32,
        };
        let blocks = backward_blocks(gpu, rows, self.channels);
        let threads = backward_threads(self.channels);
        // SAFETY: as in `forward`, for `Backward`.
        unsafe { launch(gpu, &self.backward, blocks, threads, &argument) }
    }

    /// What is left to do for the gradients of parameters, from what [`LayerNorm::backward_input`] left: C
    /// each of gain and bias, and with C more before them also of a bias that was added to the input:
    /// the sum of the rows of its gradient.
    ///
    /// # Errors
    ///
    /// [`Error::Length`].
    pub fn backward_parameters(
        &self,
        gpu: &Gpu,
        d_parameters: &ViewMut<'_, f32>,
        partials: &Buffer<f32>,
        rows: usize,
        adds: bool,
    ) -> Result<PendingSum, Error> {
        let (channels, found) = (self.channels, d_parameters.len());
        if found != 2 * channels && found != 3 * channels {
            let what = "gradients of gain and bias".to_owned();
            return Err(Error::Length { what, expected: 2 * channels, found });
        }
        let runs = backward_blocks(gpu, rows, channels) as usize;
        PendingSum::new(d_parameters, partials, (runs, 3 * channels), adds)
    }

    fn check(
        &self,
        rows: usize,
        activations: &[(&'static str, &Activations)],
        statistics: &Buffer<f32>,
        gain_bias: View<'_, f32>,
    ) -> Result<(), Error> {
        for (what, activations) in activations {
            activations.check(what, self.precision, rows * self.channels)?;
        }
        check_length("statistics", 2 * rows, statistics.len().min(2 * rows))?;
        let is_wide = network::vector(self.channels, self.precision.activation_bytes()) > 1;
        check_aligned("gain and bias", gain_bias.address(), is_wide)?;
        check_length("gain and bias", 2 * self.channels, gain_bias.len())
    }
}

fn forward_blocks(gpu: &Gpu, rows: usize) -> u32 {
    let most = gpu.facts().multiprocessors * FORWARD_BLOCKS;
    rows.div_ceil((ROW_THREADS / WARP_LANES) as usize).clamp(1, most as usize) as u32
}

fn backward_blocks(gpu: &Gpu, rows: usize, channels: usize) -> u32 {
    let warps = (backward_threads(channels) / WARP_LANES) as usize;
    let (blocks, multiprocessors) = (rows.div_ceil(warps), gpu.facts().multiprocessors as usize);
    // A few more than multiprocessors are done sooner than a few warps with two rows.
    let most = if blocks <= 2 * multiprocessors { blocks } else { multiprocessors };
    blocks.clamp(1, most.max(1)) as u32
}
