//! Gradients of parameters that wait for others of their kind, to be computed with them at once: those
//! of a small layer's weights for those of all layers, and last stages of sums for each other.
//!
//! They are computed when the last of their kind comes, when a buffer that they read is about to be
//! overwritten, before ranks add them up, and at the end of the pass.

use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};

use gpu_kernels::{LayerGradient, Linear, PendingSum};

use super::{Cuda, front};
use crate::Error;

/// What was postponed.
#[derive(Default)]
pub(super) struct Postponed {
    layers: Vec<Layers>,
    sums: Vec<PendingSum>,
    /// Whether layers wait also when all of their kind are there.
    delays: bool,
}

/// Layers of one shape.
struct Layers {
    linear: Arc<Linear>,
    gradients: Vec<LayerGradient>,
    with_bias: bool,
    adds: bool,
}

/// Sums that are computed together, about.
const SUMS: usize = 16;

/// Backward passes whose sums may wait to be added up: as many as are added up together, while as many
/// again come.
pub(super) const PARTIALS: usize = 2 * SUMS;

impl Postponed {
    /// Whether anything waits that reads one of these addresses.
    fn reads(&self, addresses: &[u64]) -> bool {
        let gradients = self.layers.iter().flat_map(|layers| &layers.gradients);
        let sums = self.sums.iter().map(|sum| sum.touched()[0]);
        gradients.flat_map(LayerGradient::read).chain(sums).any(|read| addresses.contains(&read))
    }

    /// Whether anything waits that writes within one of these ranges of addresses.
    fn writes(&self, within: &[Range<u64>]) -> bool {
        let gradients = self.layers.iter().flat_map(|layers| &layers.gradients);
        let sums = self.sums.iter().map(|sum| sum.touched()[1]);
        let mut written = gradients.map(LayerGradient::written).chain(sums);
        written.any(|address| within.iter().any(|range| range.contains(&address)))
    }
}

impl Cuda {
    /// Postpones the gradients of a layer.
    pub(super) fn postpone_layer(
        &self,
        linear: Arc<Linear>,
        gradient: LayerGradient,
        with_bias: bool,
        adds: bool,
    ) -> Result<(), Error> {
        let is_of = |layers: &Layers| {
            Arc::ptr_eq(&layers.linear, &linear)
                && (layers.with_bias, layers.adds) == (with_bias, adds)
        };
        let complete = {
            let postponed = &mut *self.postponed();
            let waiting = &mut postponed.layers;
            let index = waiting.iter().position(is_of).unwrap_or_else(|| {
                let linear = Arc::clone(&linear);
                waiting.push(Layers { linear, gradients: Vec::new(), with_bias, adds });
                waiting.len() - 1
            });
            waiting[index].gradients.push(gradient);
            let is_complete = waiting[index].gradients.len() == linear.layers_at_once();
            let is_complete = is_complete && !postponed.delays;
            is_complete.then(|| waiting.swap_remove(index))
        };
        complete.map_or(Ok(()), |layers| self.compute_layers(layers))
    }

    /// Postpones the last stage of a sum.
    pub(super) fn postpone_sum(&self, sum: PendingSum) -> Result<(), Error> {
        self.postpone_sums(vec![sum])
    }

    fn postpone_sums(&self, sums: Vec<PendingSum>) -> Result<(), Error> {
        let waiting = {
            let waiting = &mut self.postponed().sums;
            waiting.extend(sums);
            if waiting.len() < SUMS { Vec::new() } else { std::mem::take(waiting) }
        };
        self.compute_sums(waiting)
    }

    /// Computes all that was postponed, if something of it reads one of these addresses.
    pub(super) fn compute_postponed_of(&self, addresses: &[u64]) -> Result<(), Error> {
        let is_read = self.postponed().reads(addresses);
        if is_read { self.compute_postponed() } else { Ok(()) }
    }

    /// Computes all that was postponed, if something of it writes within one of these ranges of addresses.
    pub(super) fn compute_postponed_within(&self, ranges: &[Range<u64>]) -> Result<(), Error> {
        let is_written = self.postponed().writes(ranges);
        if is_written { self.compute_postponed() } else { Ok(()) }
    }

    /// Begins or ends to postpone all gradients of layers.
    pub(super) fn postpone_all(&self, delays: bool) {
        self.postponed().delays = delays;
    }

    /// Whether the gradients of all layers are postponed.
    pub(super) fn postpones_all(&self) -> bool {
        self.postponed().delays
    }

    /// Computes all that was postponed, aside.
    pub(super) fn compute_postponed(&self) -> Result<(), Error> {
        let layers = std::mem::take(&mut self.postponed().layers);
        for layers in layers {
            self.compute_layers(layers)?;
        }
        let sums = std::mem::take(&mut self.postponed().sums);
        self.compute_sums(sums)
    }

    /// Forgets what was postponed, when a recording failed.
    pub(super) fn forget_postponed(&self) {
        *self.postponed() = Postponed::default();
    }

    fn compute_layers(&self, layers: Layers) -> Result<(), Error> {
        let Layers { linear, gradients, with_bias, adds } = layers;
        let addresses = |layer: &LayerGradient| {
            let [d_y, x] = layer.read();
            [layer.written(), d_y, x].map(front)
        };
        let touched: Vec<_> = gradients.iter().flat_map(addresses).collect();
        let mut pending = Vec::new();
        self.inner.lanes.aside(&touched, |lane| {
            pending = linear.backward_parameters_of_layers(lane, gradients, with_bias, adds)?;
            Ok(())
        })?;
        self.postpone_sums(pending)
    }

    fn compute_sums(&self, sums: Vec<PendingSum>) -> Result<(), Error> {
        if sums.is_empty() {
            return Ok(());
        }
        let touched: Vec<_> = sums.iter().flat_map(PendingSum::touched).map(front).collect();
        let run_sums = &self.inner.run_sums;
        Ok(self.inner.lanes.aside(&touched, |lane| run_sums.queue(lane.gpu(), &sums))?)
    }

    fn postponed(&self) -> MutexGuard<'_, Postponed> {
        self.inner.postponed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
