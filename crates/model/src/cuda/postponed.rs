//! Gradients of parameters that wait for others of their kind, to be computed with them at once: those
//! of a small layer's weights for those of all layers, and last stages of sums for each other.
//!
//! Where the pass goes from chain to chain, gradients of a block's weights wait for each other instead, and those of the token
//! table for the first chain: one kernel each computes them on what multiprocessors a chain leaves idle.
//!
//! They are computed when the last of their kind comes, when a buffer that they read is about to be
//! overwritten, before ranks add them up, and at the end of the pass.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};

use gpu_kernels::{
    DepthProduct, Head, Lane, LaterUpdate, LayerGradient, Linear, PendingSum, TableGradient,
};

use super::{Cuda, front};
use crate::Error;

/// What was postponed.
#[derive(Default)]
pub(super) struct Postponed {
    layers: Vec<Layers>,
    /// Layers whose gradients of biases are left.
    biases: Vec<Bias>,
    sums: Vec<PendingSum>,
    /// Gradients of a block's weights that are computed in one launch.
    products: Vec<Waiting>,
    /// Whether the pass goes from chain to chain, beside which there is room for those.
    is_chained: bool,
    /// How many multiprocessors that is.
    room: usize,
    /// The head's gradient of the token table, and its parts that were computed.
    table: Option<(Arc<Head>, TableGradient, usize)>,
    /// Whether layers wait also when all of their kind are there.
    delays: bool,
    /// Updates that wait for the forward chains of the next pass, and where the last that was queued writes.
    updates: VecDeque<LaterUpdate>,
    updated: Vec<Range<u64>>,
}

/// A layer whose gradients wait as a product.
struct Waiting {
    product: DepthProduct,
    linear: Arc<Linear>,
    gradient: LayerGradient,
    with_bias: bool,
    adds: bool,
}

/// A layer whose gradient of the bias is left.
struct Bias {
    linear: Arc<Linear>,
    gradient: LayerGradient,
    /// Its place among layers of its shape.
    place: usize,
    adds: bool,
}

/// Layers of one shape.
struct Layers {
    linear: Arc<Linear>,
    gradients: Vec<LayerGradient>,
    with_bias: bool,
    adds: bool,
}

impl Layers {
    /// What the gradients of their weights touch.
    fn touched(&self) -> Vec<Range<u64>> {
        let addresses = |layer: &LayerGradient| {
            let [d_y, x] = layer.read();
            [layer.written(), d_y, x].map(front)
        };
        self.gradients.iter().flat_map(addresses).collect()
    }
}

impl Bias {
    /// Where its gradient lies.
    fn written(&self) -> u64 {
        self.linear.bias_address(&self.gradient)
    }

    /// Queues the first stage.
    fn queue(&self, lane: &Lane) -> Result<PendingSum, gpu_kernels::Error> {
        self.linear.backward_bias_of_layer(lane, &self.gradient, self.place, self.adds)
    }
}

/// Linear layers of a block.
const BLOCK_LAYERS: usize = 4;

/// Sums that are computed together, about.
const SUMS: usize = 16;

/// Layers whose gradients of biases are computed about together.
pub(super) const BIASES: usize = 2;

/// Backward passes whose sums may wait to be added up: as many as are added up together, while as many
/// again come.
pub(super) const PARTIALS: usize = 2 * SUMS;

impl Postponed {
    /// Whether anything waits that reads one of these addresses, or adds to the token table's gradient there.
    fn reads(&self, addresses: &[u64]) -> bool {
        let biases = self.biases.iter().map(|bias| &bias.gradient);
        let gradients = self.layers.iter().flat_map(|layers| &layers.gradients).chain(biases);
        let sums = self.sums.iter().map(|sum| sum.touched()[0]);
        let table = self.table.iter().flat_map(|(_, table, _)| table.touched());
        let products = self.products.iter().flat_map(|waiting| waiting.product.read());
        let gradients = gradients.flat_map(LayerGradient::read);
        let mut read = gradients.chain(sums).chain(table).chain(products);
        read.any(|read| addresses.contains(&read))
    }

    /// Whether anything waits that writes within one of these ranges of addresses.
    fn writes(&self, within: &[Range<u64>]) -> bool {
        let gradients = self.layers.iter().flat_map(|layers| &layers.gradients);
        let biases = self.biases.iter().map(Bias::written);
        let sums = self.sums.iter().map(|sum| sum.touched()[1]);
        let table = self.table.iter().map(|(_, table, _)| table.touched()[0]);
        let weights = gradients.map(LayerGradient::written);
        let mut written = weights.chain(biases).chain(sums).chain(table);
        written.any(|address| within.iter().any(|range| range.contains(&address)))
    }

    /// Whether a product that waits does.
    fn products_write(&self, within: &[Range<u64>]) -> bool {
        let mut written = self.products.iter().flat_map(|waiting| waiting.product.written());
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
        if self.postponed().is_chained
            && let Some(product) = linear.depth_product(&gradient, with_bias, adds)
        {
            return self.postpone_product(Waiting { product, linear, gradient, with_bias, adds });
        }
        let is_of = |layers: &Layers| {
            Arc::ptr_eq(&layers.linear, &linear)
                && (layers.with_bias, layers.adds) == (with_bias, adds)
        };
        self.compute_biases(BIASES)?;
        let complete = {
            let postponed = &mut *self.postponed();
            let waiting = &mut postponed.layers;
            let index = waiting.iter().position(is_of).unwrap_or_else(|| {
                let linear = Arc::clone(&linear);
                waiting.push(Layers { linear, gradients: Vec::new(), with_bias, adds });
                waiting.len() - 1
            });
            if with_bias {
                let (linear, gradient) = (Arc::clone(&linear), gradient.clone());
                let place = waiting[index].gradients.len();
                postponed.biases.push(Bias { linear, gradient, place, adds });
            }
            waiting[index].gradients.push(gradient);
            let is_complete = waiting[index].gradients.len() == linear.layers_at_once();
            let is_complete = is_complete && !postponed.delays;
            is_complete.then(|| waiting.swap_remove(index))
        };
        complete.map_or(Ok(()), |layers| self.compute_layers(layers))
    }

    /// Computes beside a chain, whose blocks leave multiprocessors idle, what waits for such a place; `room` is how many, if
    /// that is known to be so.
    pub(super) fn compute_beside_chain(&self, room: Option<usize>) -> Result<(), Error> {
        self.compute_biases(BIASES)?;
        let is_chained = room.is_some() && self.inner.depth_tiles.is_some();
        {
            let postponed = &mut *self.postponed();
            postponed.is_chained = is_chained;
            postponed.room = room.unwrap_or(0);
        }
        match self.table_product().filter(|_| is_chained) {
            Some(product) => {
                self.postponed().table = None;
                self.queue_products(&[product])
            }
            None => self.compute_table_part(false),
        }
    }

    /// The head's gradient of the token table as a product, if it waits and can be one.
    fn table_product(&self) -> Option<DepthProduct> {
        let postponed = &*self.postponed();
        postponed.table.as_ref().and_then(|(head, table, _)| head.depth_product(table))
    }

    /// Postpones the gradient of a layer of a block until those of its others are there.
    fn postpone_product(&self, waiting: Waiting) -> Result<(), Error> {
        let is_complete = {
            let postponed = &mut *self.postponed();
            postponed.products.push(waiting);
            postponed.products.len() >= BLOCK_LAYERS && !postponed.delays
        };
        if is_complete { self.compute_products() } else { Ok(()) }
    }

    /// Computes such gradients, aside.
    fn compute_products(&self) -> Result<(), Error> {
        let products = std::mem::take(&mut self.postponed().products);
        let products: Vec<_> = products.into_iter().map(|waiting| waiting.product).collect();
        self.queue_products(&products)
    }

    fn queue_products(&self, products: &[DepthProduct]) -> Result<(), Error> {
        let Some(tiles) = &self.inner.depth_tiles else { return Ok(()) };
        if products.is_empty() {
            return Ok(());
        }
        let touched = products.iter().flat_map(|product| product.written().chain(product.read()));
        let touched: Vec<_> = touched.map(front).collect();
        let room = self.postponed().room;
        Ok(self.inner.lanes.aside(&touched, |lane| tiles.queue(lane.gpu(), products, room))?)
    }

    /// Postpones the head's gradient of the token table.
    pub(super) fn postpone_table(&self, head: Arc<Head>, table: TableGradient) {
        self.postponed().table = Some((head, table, 0));
    }

    /// Computes the next part of it, aside, if there is one, and if it has several or `is_whole`.
    pub(super) fn compute_table_part(&self, is_whole: bool) -> Result<(), Error> {
        let Some((head, table, part)) = self.postponed().table.take() else { return Ok(()) };
        if is_whole == (head.table_parts() == 1) {
            let touched = table.touched().map(front);
            self.inner.lanes.aside(&touched, |lane| head.add_table(lane, &table, part))?;
            if part + 1 < head.table_parts() {
                self.postponed().table = Some((head, table, part + 1));
            }
        } else {
            self.postponed().table = Some((head, table, part));
        }
        Ok(())
    }

    /// Computes all of it that is left, aside.
    fn compute_table(&self) -> Result<(), Error> {
        let Some((head, table, first)) = self.postponed().table.take() else { return Ok(()) };
        let touched = table.touched().map(front);
        Ok(self.inner.lanes.aside(&touched, |lane| {
            (first..head.table_parts()).try_for_each(|part| head.add_table(lane, &table, part))
        })?)
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
        let are_products_written = self.postponed().products_write(ranges);
        if are_products_written {
            self.compute_products()?;
        }
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
        self.compute_products()?;
        self.compute_all_layers()?;
        self.compute_biases(0)?;
        let sums = std::mem::take(&mut self.postponed().sums);
        self.compute_sums(sums)
    }

    /// Computes the first stages of gradients of biases aside, if at least so many wait.
    pub(super) fn compute_biases(&self, least: usize) -> Result<(), Error> {
        let biases = {
            let waiting = &mut self.postponed().biases;
            if waiting.len() < least { Vec::new() } else { std::mem::take(waiting) }
        };
        if biases.is_empty() {
            return Ok(());
        }
        let touched = |bias: &Bias| bias.gradient.read().into_iter().chain([bias.written()]);
        let touched: Vec<_> = biases.iter().flat_map(touched).map(front).collect();
        let mut pending = Vec::new();
        self.inner.lanes.aside(&touched, |lane| {
            for bias in &biases {
                pending.push(bias.queue(lane)?);
            }
            Ok(())
        })?;
        self.postpone_sums(pending)
    }

    /// Computes all that was postponed, when nothing else of the pass is left: products aside, and sums beside them.
    pub(super) fn finish_postponed(&self) -> Result<(), Error> {
        self.postponed().is_chained = false;
        self.finish_products()?;
        assert!(self.postponed().updates.is_empty(), "a forward pass has a chain for each update");
        self.compute_all_layers()?;
        let lanes = &self.inner.lanes;
        let mut pending = std::mem::take(&mut self.postponed().sums);
        for bias in std::mem::take(&mut self.postponed().biases) {
            pending.push(bias.queue(lanes.main())?);
        }
        let touched: Vec<_> = pending.iter().flat_map(PendingSum::touched).collect();
        lanes.settle(&touched)?;
        Ok(self.inner.run_sums.queue(self.gpu(), &pending)?)
    }

    /// Computes such gradients when there is nothing that they would be beside of. In tf32 those that are left are few blocks
    /// that take long, and more by the layer's own products.
    fn finish_products(&self) -> Result<(), Error> {
        if self.precision().is_bf16() {
            self.compute_products()?;
        }
        let products = std::mem::take(&mut self.postponed().products);
        products.into_iter().try_for_each(|waiting| {
            let Waiting { linear, gradient, with_bias, adds, .. } = waiting;
            self.postpone_layer(linear, gradient, with_bias, adds)
        })
    }

    fn compute_all_layers(&self) -> Result<(), Error> {
        self.compute_table()?;
        let layers = std::mem::take(&mut self.postponed().layers);
        layers.into_iter().try_for_each(|layers| self.compute_layers(layers))
    }

    /// Has updates wait for forward chains.
    pub(super) fn postpone_updates(&self, updates: Vec<LaterUpdate>) {
        self.postponed().updates.extend(updates);
    }

    /// The next of them.
    pub(super) fn take_update(&self) -> Option<LaterUpdate> {
        let postponed = &mut *self.postponed();
        let update = postponed.updates.pop_front()?;
        postponed.updated = update.written().to_vec();
        Some(update)
    }

    /// Where the last of them writes, if nobody asked yet.
    pub(super) fn take_updated(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.postponed().updated)
    }

    /// Forgets what was postponed, when a recording failed.
    pub(super) fn forget_postponed(&self) {
        *self.postponed() = Postponed::default();
    }

    /// Computes gradients of weights aside.
    fn compute_layers(&self, mut layers: Layers) -> Result<(), Error> {
        let touched = layers.touched();
        let Layers { linear, gradients, adds, .. } = &mut layers;
        let lanes = &self.inner.lanes;
        let queue = |lane: &Lane| linear.backward_weights_of_layers(lane, gradients, *adds);
        Ok(lanes.aside(&touched, queue)?)
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
