//! Gradients of the parameters of several layers of one shape together: one product where the library can
//! make many at once, and the sums of all layers' columns in one launch.

#![expect(unsafe_code, reason = "queues products over addresses")]

use crate::buffer::Held;
use crate::columns::{ColumnRuns, Matrix, PendingSum};
use crate::depth_tiles::{DepthProduct, Factor};
use crate::product::{Lane, Operands};
use crate::{Activations, Error, ViewMut};

use super::{Backward, Linear, LinearShape};

/// What the gradients of one layer's parameters are computed from, later; it keeps that memory.
#[derive(Clone, Debug)]
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
    /// What [`Linear::backward_weights_of_layers`] is to compute for one of its layers.
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

    /// The gradients of a layer as a product for [`DepthTiles`](crate::DepthTiles), if they can be one. What the layer
    /// was made of is as it was then when that is queued.
    #[must_use]
    pub fn depth_product(
        &self,
        layer: &LayerGradient,
        with_bias: bool,
        adds: bool,
    ) -> Option<DepthProduct> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        if !DepthProduct::is_possible(self.precision, [inputs, outputs]) {
            return None;
        }
        let x = Factor { held: layer.x.clone(), columns: inputs };
        let d_y = Factor { held: layer.d_y.clone(), columns: outputs };
        // The wider one is left, whose tiles are; and d_y for the sums of its columns.
        let by_rows = inputs > outputs && !with_bias;
        let (left, right) = if by_rows { (x, d_y) } else { (d_y, x) };
        let out = layer.d_weight_bias.clone();
        let bias = with_bias.then(|| out.clone().at(4 * inputs * outputs));
        Some(DepthProduct { out, bias, left, right, rows, by_rows, adds })
    }

    /// How many layers [`Linear::backward_weights_of_layers`] is planned for; 1 for none.
    #[must_use]
    pub fn layers_at_once(&self) -> usize {
        self.planned.layers.max(1)
    }

    /// Where the gradient of b of one of its layers lies.
    #[must_use]
    pub fn bias_address(&self, layer: &LayerGradient) -> u64 {
        let LinearShape { inputs, outputs, .. } = self.shape;
        layer.written() + (size_of::<f32>() * inputs * outputs) as u64
    }

    /// Computes the gradients of W of several layers, at once if they are as many as were planned and lie at equal
    /// distances. What the layers were made of is as it was then, and nobody wrote to their gradients since.
    ///
    /// # Errors
    ///
    /// What the library or the driver refuses.
    ///
    /// # Panics
    ///
    /// If the layer was not planned for training, or for fewer layers.
    pub fn backward_weights_of_layers(
        &self,
        lane: &Lane,
        layers: &mut [LayerGradient],
        adds: bool,
    ) -> Result<(), Error> {
        let Backward { weight, weights, .. } = self.backward();
        assert!(layers.len() <= self.layers_at_once(), "{} layers", layers.len());
        layers.sort_unstable_by_key(LayerGradient::written);
        let is_whole = layers.len() == self.layers_at_once();
        let steps = steps_of(layers).filter(|_| is_whole).zip(weights.as_ref());
        let Some(([out, x, d_y], weights)) = steps else {
            // SAFETY: as in `forward`.
            let queue =
                |layer: &LayerGradient| unsafe { weight.queue(lane, layer.operands(), adds) };
            return layers.iter().try_for_each(queue);
        };
        let bytes = self.precision.activation_bytes() as i64;
        let steps = [out / 4, x / bytes, d_y / bytes];
        // SAFETY: as in `forward`, of all layers.
        unsafe { weights.queue(lane, Operands { steps, ..layers[0].operands() }, adds) }
    }

    /// Computes the gradient of b of one of its layers, but for the last stage, which it returns. As many layers as were
    /// planned have places of their own for what is in between.
    ///
    /// # Errors
    ///
    /// What the driver refuses.
    ///
    /// # Panics
    ///
    /// If the layer was not planned for training, or has no such place.
    pub fn backward_bias_of_layer(
        &self,
        lane: &Lane,
        layer: &LayerGradient,
        place: usize,
        adds: bool,
    ) -> Result<PendingSum, Error> {
        assert!(place < self.layers_at_once(), "place {place} of {}", self.layers_at_once());
        // SAFETY: whoever asks for the gradients of parameters has queued those of outputs.
        unsafe { self.queue_run(lane, layer, place, adds) }
    }

    /// Queues the first stage of the gradient of b of a layer; returns what is left to do.
    ///
    /// # Safety
    ///
    /// The gradient of outputs is there.
    pub(super) unsafe fn queue_run(
        &self,
        lane: &Lane,
        layer: &LayerGradient,
        place: usize,
        adds: bool,
    ) -> Result<PendingSum, Error> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        let Backward { runs, partials, .. } = self.backward();
        let place = place * ColumnRuns::workspace_length(rows, outputs);
        let matrix = Matrix { address: layer.d_y.address(), rows, columns: outputs };
        // SAFETY: the caller's duty; lengths were checked when the layer was made.
        unsafe { runs.queue(lane.gpu(), partials, place, matrix)? };
        let sums = layer.d_weight_bias.clone().at(4 * inputs * outputs);
        Ok(PendingSum::of_runs(partials, place, sums, [rows, outputs], adds))
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
