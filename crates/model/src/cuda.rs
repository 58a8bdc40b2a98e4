//! A CUDA device: memory, recordings, and one file per operation under `cuda/`, which hand over to
//! the kernels of `gpu_kernels`.
//!
//! Gradients of parameters, and whatever else the next operation does not wait for, are computed aside
//! on a second stream; `gpu_kernels::Lanes` keeps the two apart. Every operation here first settles
//! what it is about to overwrite.
//!
//! Activations are f32 or bf16, as the precision says; parameters, gradients, statistics and losses
//! are f32 in every precision. Work is queued and a call returns at once; only what copies to the
//! host waits. What an operation needs for a shape is made by its `_plan` method and kept here.

mod attention;
mod beside;
mod branch;
mod ceiling;
mod chain;
mod decode;
mod embedding;
mod exchange;
mod gelu;
mod layernorm;
mod linear;
mod loss;
mod postponed;
mod timing;

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use gpu_kernels::{
    Activations, Attention, AttentionStart, BranchEnd, Buffer, Decode, DecodeShape, DepthTiles,
    Downloads, Embedding, ForwardChain, Gather, Gelu, Gpu, Graph, Head, HeadShape, Lane, Lanes,
    Linear, LinearShape, Logits, Plus, Precision, Products, RunSums, Shadows, TreeSum, Uploads,
    ViewMut, Weights,
};

use exchange::Ranks;
use loss::Sums;
use postponed::Postponed;
use timing::Timing;

use crate::ops::{
    self, AttentionShape, ChainShapes, Device, FloatsLater, GatherShape, LayerNormShape,
};
use crate::parts::{Part, PartTimes};
use crate::{Error, IGNORED};

/// A CUDA device that runs the network in one precision. Clones share everything.
#[derive(Clone)]
pub struct Cuda {
    inner: Arc<Inner>,
}

struct Inner {
    lanes: Lanes,
    products: Products,
    shadows: Shadows,
    gelu: Gelu,
    tree_sum: TreeSum,
    plus: Plus,
    gather: Gather,
    run_sums: RunSums,
    depth_tiles: Option<DepthTiles>,
    postponed: Mutex<Postponed>,
    ranks: Mutex<Option<Ranks>>,
    uploads: Mutex<Uploads<u32>>,
    downloads: Mutex<Downloads<f32>>,
    timing: Timing,
    embeddings: Kept<usize, Embedding>,
    layernorms: Kept<LayerNormShape, layernorm::Norm>,
    branch_ends: Kept<ops::LinearShape, Option<BranchEnd>>,
    branch_starts: Kept<ops::LinearShape, Option<branch::Start>>,
    linears: Kept<LinearShape, Linear>,
    attentions: Kept<AttentionShape, Attention>,
    attention_starts: Kept<AttentionShape, Option<AttentionStart>>,
    forward_chains: Kept<(ChainShapes, bool), Option<ForwardChain>>,
    backward_chains: Kept<(ChainShapes, bool), Option<chain::Linked>>,
    heads: Kept<HeadShape, Head>,
    logits: Kept<HeadShape, Logits>,
    decodes: Kept<DecodeShape, Decode>,
}

impl Cuda {
    /// The network on a device and its stream, with products by cuBLASLt where there is one.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn new(gpu: &Gpu, precision: Precision) -> Result<Self, Error> {
        Self::with_products(gpu, Products::new(gpu, precision))
    }

    /// The network on a device with a choice of what computes products.
    ///
    /// # Errors
    ///
    /// What the compiler or the driver refuses.
    pub fn with_products(gpu: &Gpu, products: Products) -> Result<Self, Error> {
        let precision = products.precision();
        let inner = Inner {
            lanes: Lanes::new(gpu, &products)?,
            shadows: Shadows::new(gpu, precision)?,
            gelu: Gelu::new(gpu, precision)?,
            tree_sum: TreeSum::new(gpu)?,
            plus: Plus::new(gpu)?,
            gather: Gather::new(gpu, IGNORED)?,
            run_sums: RunSums::new(gpu)?,
            depth_tiles: DepthTiles::new(gpu, precision),
            postponed: Mutex::default(),
            ranks: Mutex::default(),
            uploads: Mutex::new(Uploads::new(gpu)),
            downloads: Mutex::default(),
            timing: Timing::default(),
            products,
            embeddings: Kept::default(),
            layernorms: Kept::default(),
            branch_ends: Kept::default(),
            branch_starts: Kept::default(),
            linears: Kept::default(),
            attentions: Kept::default(),
            attention_starts: Kept::default(),
            forward_chains: Kept::default(),
            backward_chains: Kept::default(),
            heads: Kept::default(),
            logits: Kept::default(),
            decodes: Kept::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The device, and the stream of all work.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        self.lane().gpu()
    }

    /// The precision of products, and the type of activations.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.inner.products.precision()
    }

    /// Whether products are cuBLASLt's.
    #[must_use]
    pub fn has_product_library(&self) -> bool {
        self.inner.products.has_library()
    }

    /// Begins or ends to time the parts of what is recorded or queued from now on.
    pub fn set_timed(&self, is_timed: bool) {
        self.inner.timing.set(is_timed);
    }

    /// The time that each part took when it last ran, for all operations since [`Cuda::set_timed`],
    /// after waiting for them. Work aside is timed where it holds other work up.
    ///
    /// # Errors
    ///
    /// What went wrong on the device before.
    pub fn take_part_times(&self) -> Result<PartTimes, Error> {
        Ok(self.inner.timing.times()?)
    }

    /// The measured rate of a large matrix product on noise, in TFLOP/s.
    ///
    /// # Errors
    ///
    /// What the device refuses, such as memory that it does not have.
    pub fn product_ceiling_tflops(&self) -> Result<f64, Error> {
        ceiling::product_tflops(self)
    }

    /// Queues an operation, between two points in time if those are asked for.
    fn timed(
        &self,
        part: Part,
        operation: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.inner.timing.around(self.gpu(), part, operation)
    }

    /// The lane of most work.
    fn lane(&self) -> &Lane {
        self.inner.lanes.main()
    }

    /// Captures what a step queues.
    fn capture<E: From<Error>>(&self, step: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        // The recording below it knows errors of its own only.
        let mut outcome = Ok(());
        let graph = self.gpu().record(|| {
            outcome = step();
            Ok::<(), gpu_kernels::Error>(())
        });
        outcome?;
        Ok(graph.map_err(Error::from)?)
    }

    /// Makes the main lane wait for work aside that touches any of these addresses, which are about
    /// to be overwritten, or read after work aside wrote them.
    fn settle(&self, addresses: &[u64]) -> Result<(), Error> {
        self.compute_postponed_of(addresses)?;
        Ok(self.inner.lanes.settle(addresses)?)
    }
}

impl Device for Cuda {
    type Floats = Buffer<f32>;
    type View<'a> = Weights<'a>;
    type ViewMut<'a> = ViewMut<'a, f32>;
    type Activations = Activations;
    type Tokens = Buffer<u32>;
    /// bf16, rounded to nearest, ties to even.
    type Copy = Buffer<u16>;
    type Recording = Option<Graph>;

    fn float_bytes(&self) -> usize {
        size_of::<f32>()
    }

    fn activation_bytes(&self) -> usize {
        self.precision().activation_bytes()
    }

    fn floats(&self, length: usize) -> Result<Buffer<f32>, Error> {
        Ok(self.gpu().zeros(length)?)
    }

    fn activations(&self, length: usize) -> Result<Activations, Error> {
        Ok(Activations::zeros(self.gpu(), self.precision(), length)?)
    }

    fn activations_side_by_side(
        &self,
        length: usize,
        count: usize,
    ) -> Result<Vec<Activations>, Error> {
        Ok(Activations::side_by_side(self.gpu(), self.precision(), length, count)?)
    }

    fn tokens(&self, length: usize) -> Result<Buffer<u32>, Error> {
        Ok(self.gpu().zeros(length)?)
    }

    fn length(&self, floats: &Buffer<f32>) -> usize {
        floats.len()
    }

    fn upload(&self, to: &mut Buffer<f32>, from: &[f32]) -> Result<(), Error> {
        check_room(to.len(), from.len())?;
        Ok(to.view_mut().part(0..from.len()).upload(from)?)
    }

    /// By way of pinned memory, so that nothing waits.
    fn upload_tokens(&self, to: &mut Buffer<u32>, start: usize, from: &[u32]) -> Result<(), Error> {
        check_room(to.len().saturating_sub(start), from.len())?;
        let mut uploads = self.inner.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(uploads.queue(to.view_mut().part(start..start + from.len()), from)?)
    }

    fn free_bytes(&self) -> Result<Option<u64>, Error> {
        Ok(Some(self.gpu().free_bytes()?))
    }

    fn parameter_copy_bytes(&self, parameters: usize) -> u64 {
        if self.inner.shadows.are_kept() { 2 * parameters as u64 } else { 0 }
    }

    /// Half of the free memory: the rest is for what comes later, such as a decoder.
    fn spare_tokens(&self) -> Result<u64, Error> {
        Ok(self.gpu().free_bytes()? / 2 / size_of::<u32>() as u64)
    }

    fn download_later(&self, from: &Buffer<f32>, length: usize) -> Result<FloatsLater, Error> {
        check_room(from.len(), length)?;
        let mut downloads = self.inner.downloads.lock().unwrap_or_else(PoisonError::into_inner);
        let pinned = downloads.queue(from)?;
        Ok(Box::new(move || Ok(pinned.read()?[..length].to_vec())))
    }

    /// A window of a small network takes a quarter of a millisecond alone, and a fourth of that beside others.
    fn scoring_tokens(&self) -> usize {
        8192
    }

    fn gather(
        &self,
        [tokens, targets]: [&mut Buffer<u32>; 2],
        ids: &Buffer<u32>,
        schedule: &mut Buffer<u32>,
        shape: GatherShape,
    ) -> Result<(), Error> {
        self.settle(&[tokens.address(), targets.address()])?;
        let GatherShape { rows, time, first_row, update_rows, advances } = shape;
        let shape = gpu_kernels::GatherShape { rows, time, first_row, update_rows, advances };
        Ok(self.inner.gather.queue(self.gpu(), [tokens, targets], ids, schedule, shape)?)
    }

    fn download(&self, from: &Buffer<f32>, to: &mut [f32]) -> Result<(), Error> {
        check_room(from.len(), to.len())?;
        Ok(from.view().part(0..to.len()).download(to)?)
    }

    fn reserve_parameters(&self, parameters: &Buffer<f32>) -> Result<(), Error> {
        Ok(self.inner.shadows.reserve(self.gpu(), parameters)?)
    }

    fn parameter_copy(&self, parameters: &Buffer<f32>) -> Option<Buffer<u16>> {
        self.inner.shadows.copy(parameters)
    }

    /// Copies range after range aside, while the pass begins.
    fn prepare_parameters(
        &self,
        parameters: &Buffer<f32>,
        ranges: &[Range<usize>],
    ) -> Result<(), Error> {
        let Inner { shadows, lanes, .. } = &*self.inner;
        if shadows.are_kept() {
            self.reserve_parameters(parameters)?;
            for range in ranges {
                let touched = shadows.view(parameters, range.clone()).product_addresses();
                let refresh = |lane: &Lane| shadows.refresh(lane.gpu(), parameters, range.clone());
                lanes.aside(&[touched], refresh)?;
            }
        }
        Ok(())
    }

    fn finish_pass(&self) -> Result<(), Error> {
        self.timed(Part::Linear, || {
            self.finish_postponed()?;
            Ok(self.inner.lanes.join()?)
        })
    }

    fn view<'a>(&'a self, floats: &'a Buffer<f32>, range: Range<usize>) -> Weights<'a> {
        self.inner.shadows.view(floats, range)
    }

    fn view_mut<'a>(&self, floats: &'a mut Buffer<f32>, range: Range<usize>) -> ViewMut<'a, f32> {
        floats.view_mut().part(range)
    }

    fn two_views_mut<'a>(
        &self,
        floats: &'a mut Buffer<f32>,
        [first, second]: [Range<usize>; 2],
    ) -> [ViewMut<'a, f32>; 2] {
        let (front, back) = floats.view_mut().split_at(second.start);
        [front.part(first), back.part(0..second.len())]
    }

    /// Captures the step at the first call and replays it then and at every later one. Inside of
    /// another recording the step is queued into that.
    fn record<F, E>(&self, recording: &mut Option<Graph>, step: F) -> Result<(), E>
    where
        F: FnOnce() -> Result<(), E> + Send,
        E: From<Error> + Send,
    {
        if self.gpu().is_recording().map_err(Error::from)? {
            return step();
        }
        let graph = match recording.take() {
            Some(graph) => graph,
            None => {
                self.inner.lanes.forget();
                self.forget_postponed();
                self.forget_sums();
                self.capture(step)?
            }
        };
        let replayed = graph.replay();
        *recording = Some(graph);
        Ok(replayed.map_err(Error::from)?)
    }

    fn launches(&self, recording: &Option<Graph>) -> u64 {
        recording.as_ref().map_or(0, Graph::operations)
    }
}

/// What has been made for a shape, by that shape.
struct Kept<S, T>(Mutex<HashMap<S, Arc<T>>>);

impl<S, T> Default for Kept<S, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Hash + Eq, T> Kept<S, T> {
    /// What was made for a shape and is good enough, or else what `make` makes.
    fn get(
        &self,
        shape: S,
        is_enough: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> Result<T, gpu_kernels::Error>,
    ) -> Result<Arc<T>, Error> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.get(&shape).filter(|found| is_enough(found)) {
            return Ok(Arc::clone(found));
        }
        let made = Arc::new(make()?);
        kept.insert(shape, Arc::clone(&made));
        Ok(made)
    }
}

/// The address range of one element, which stands for its buffer.
fn front(address: u64) -> Range<u64> {
    address..address + 1
}

fn check_room(room: usize, needed: usize) -> Result<(), Error> {
    if needed <= room {
        Ok(())
    } else {
        Err(Error::Length { what: "a copy between host and device", expected: needed, found: room })
    }
}
