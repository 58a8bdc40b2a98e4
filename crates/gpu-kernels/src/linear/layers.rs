//! Gradients of the parameters of several layers of one shape together: one product where the library can
//! make many at once, and the sums of all layers' columns in one launch.

#![expect(unsafe_code, reason = "queues products over addresses")]

use crate::buffer::Held;
use crate::columns::{ColumnRuns, Matrices, PendingSum};
use crate::product::{Lane, Operands};
use crate::{Activations, Error, ViewMut};

use super::{Backward, Linear, LinearShape};

/// What the gradients of one layer's parameters are computed from, later; it keeps that memory.
#[derive(Debug)]
pub struct LayerGradient {
    d_weight_bias: Held,
    d_y: Held,
    x: Held,
}

impl LayerGradient {
    /// The addresses of what it reads.
    #[must_use]
    pub fn read(&self) -> [u64; 2] {
        [self.d_y.address(), self.x.address()]
    }

    /// The address of what it writes.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.d_weight_bias.address()
    }

    pub(super) fn operands(&self) -> Operands {
        let (a, b) = (self.x.address(), self.d_y.address());
        Operands { out: self.written(), a, b, ..Operands::default() }
    }
}

impl Linear {
    /// What [`Linear::backward_parameters_of_layers`] is to compute for one of its layers.
    ///
    /// # Errors
    ///
    /// As [`Linear::forward`].
    pub fn layer_gradient(
        &self,
        d_weight_bias: &ViewMut<'_, f32>,
        d_y: &Activations,
        x: &Activations,
    ) -> Result<LayerGradient, Error> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        d_y.check("gradient of a linear layer's output", self.precision, rows * outputs)?;
        x.check("input of a linear layer", self.precision, rows * inputs)?;
        self.check_weights(d_weight_bias.len())?;
        let (d_y, x) = (d_y.held(), x.held());
        Ok(LayerGradient { d_weight_bias: d_weight_bias.held(), d_y, x })
    }

    /// How many layers [`Linear::backward_parameters_of_layers`] is planned for; 1 for none.
    #[must_use]
    pub fn layers_at_once(&self) -> usize {
        self.planned.layers.max(1)
    }

    /// Does for several layers what [`Linear::backward_parameters`] does for one, at once if they are as
    /// many as were planned and lie at equal distances, but for the last stage of the gradients of b,
    /// which it returns. What the layers were made of is as it was then, and nobody wrote to their
    /// gradients since.
    ///
    /// # Errors
    ///
    /// What the library or the driver refuses.
    ///
    /// # Panics
    ///
    /// If the layer was not planned for training, or for fewer layers.
    pub fn backward_parameters_of_layers(
        &self,
        lane: &Lane,
        mut layers: Vec<LayerGradient>,
        with_bias: bool,
        adds: bool,
    ) -> Result<Vec<PendingSum>, Error> {
        let Backward { weight, weights, .. } = self.backward();
        assert!(layers.len() <= self.layers_at_once(), "{} layers", layers.len());
        layers.sort_unstable_by_key(LayerGradient::written);
        let is_whole = layers.len() == self.layers_at_once();
        let steps = steps_of(&layers).filter(|_| is_whole).zip(weights.as_ref());
        if let Some((steps, weights)) = steps {
            let bytes = self.precision.activation_bytes() as i64;
            let [out, x, d_y] = steps;
            let steps = [out / 4, x / bytes, d_y / bytes];
            // SAFETY: as in `forward`, of all layers.
            unsafe { weights.queue(lane, Operands { steps, ..layers[0].operands() }, adds)? };
        } else {
            for layer in &layers {
                // SAFETY: as in `forward`.
                unsafe { weight.queue(lane, layer.operands(), adds)? };
            }
        }
        let at_once = if steps.is_some() { layers.len() } else { 1 };
        if !with_bias {
            return Ok(Vec::new());
        }
        // SAFETY: whoever asks for the gradients of parameters has queued those of outputs.
        unsafe { self.queue_runs(lane, &layers, at_once, adds) }
    }

    /// Queues the first stage of the gradients of b, `at_once` layers a launch, which lie at equal
    /// distances; returns what is left to do.
    ///
    /// # Safety
    ///
    /// The gradients of outputs are there.
    pub(super) unsafe fn queue_runs(
        &self,
        lane: &Lane,
        layers: &[LayerGradient],
        at_once: usize,
        adds: bool,
    ) -> Result<Vec<PendingSum>, Error> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        let Backward { runs, partials, .. } = self.backward();
        let bytes = self.precision.activation_bytes() as i64;
        let length = ColumnRuns::workspace_length(rows, outputs);
        let mut pending = Vec::new();
        for (first, layers) in layers.chunks(at_once).enumerate() {
            let step = steps_of(layers).map_or(0, |[_, _, d_y]| d_y / bytes);
            let matrices = Matrices {
                address: layers[0].d_y.address(),
                count: layers.len(),
                step,
                rows,
                columns: outputs,
            };
            let first = first * at_once;
            // SAFETY: the caller's duty; lengths were checked when the layers were made.
            unsafe { runs.queue(lane.gpu(), partials, first * length, matrices)? };
            for (index, layer) in layers.iter().enumerate() {
                let sums = layer.d_weight_bias.clone().at(4 * inputs * outputs);
                let place = (first + index) * length;
                pending.push(PendingSum::of_runs(partials, place, sums, [rows, outputs], adds));
            }
        }
        Ok(pending)
    }
}

/// The distances in bytes from each layer's gradients, input and gradient of the output to those of the
/// next, if they are the same for all, and all forwards.
fn steps_of(layers: &[LayerGradient]) -> Option<[i64; 3]> {
    let addresses = |layer: &LayerGradient| {
        [layer.written(), layer.x.address(), layer.d_y.address()].map(|address| address as i64)
    };
    let mut steps = layers.windows(2).map(|pair| {
        let [before, after] = [&pair[0], &pair[1]].map(addresses);
        [0, 1, 2].map(|index| after[index] - before[index])
    });
    let first = steps.next().filter(|first| first.iter().all(|&step| step > 0))?;
    steps.all(|step| step == first).then_some(first)
}
