//! One step: which passes it makes, and what they do with a chunk.
//!
//! 1. When clipping, the norm of all gradients, for the clip scale; also when gradients that are not finite
//!    stop everything, which it looks for.
//! 2. When non-finite elements drop the update, a look for them that writes nothing.
//! 3. While tensors have no bias yet, the largest clipped gradient of each.
//! 4. The update.
//!
//! Without clipping the norm is wanted for the report only; the first pass of
//! those that run anyway adds it up while the gradients of a chunk are in the cache.

use formats::{Bias, E4Word, E4sWord, Format, Fp16Word, RandomStream, Rules};

use super::arrays::ArraysMut;
use super::blocks::{BlockCodec, BlockVisit, TILES_MAX, TILES_SMALL};
use super::codec::{Codec, MomentArrays, Plain, Storage, Word, WordArray};
use super::codecs::{CodecContext, Task};
use super::kernel::{Found, GradientMax, Mode, Run, Visit};
use super::norm::{CHUNK_ELEMENTS, Look, clip_scale, square_sum};
use super::pass::{Chunk, ChunkResult, Span, TensorState};
use super::random::BlockRandom;
use super::slices::{Gradients, Parameters};
use super::ustate1q::Spread;
use crate::groups::Layout;
use crate::scalars::{BlockScalars, Scalars};
use crate::simd::Instructions;
use crate::{Location, OnNonfinite, Report};

/// A step about to be done.
pub(crate) struct Step<'a, 'b> {
    pub(crate) context: Context<'a>,
    pub(crate) tensors: &'a mut [TensorState],
    pub(crate) parameters: Parameters<'a, 'b>,
    pub(crate) gradients: Gradients<'a>,
    pub(crate) results: &'a mut [ChunkResult],
}

/// What all chunks have in common.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) layout: &'a Layout,
    /// One for every group.
    pub(crate) scalars: &'a [Scalars],
    /// One for every group.
    pub(crate) block_scalars: &'a [BlockScalars],
    /// Those of `block8` tensors: the mended ones, and the published.
    pub(crate) update: u64,
    pub(crate) instructions: Instructions,
}

impl<'a> Step<'a, '_> {
    /// Does it, unless everything `is_held` up, or the loss is bad and options ask to drop the update then.
    pub(crate) fn run(mut self, is_held: bool, is_loss_bad: bool) -> Report {
        let options = self.context.layout.options;
        let checks = options.on_nonfinite == OnNonfinite::Skip;
        let holds = options.on_nonfinite == OnNonfinite::Hold;
        let is_norm_first = options.clip_norm.is_some() || holds || (checks && is_loss_bad);
        let mut scale = 1.0;
        if is_norm_first {
            self.pass(Context::look);
        }
        if let Some(clip_norm) = options.clip_norm {
            scale = clip_scale(clip_norm, self.gradient_norm());
        }
        if holds || (checks && is_loss_bad) {
            let report = self.report(scale);
            if is_held || is_loss_bad || report.nonfinite > 0 {
                return Report { skipped: true, ..report };
            }
        }
        if checks {
            self.visit_elements(Mode::Check, scale, !is_norm_first);
            let report = self.report(scale);
            if report.nonfinite > 0 {
                return Report { skipped: true, ..report };
            }
        }
        self.choose_biases(scale);
        self.visit_elements(Mode::Update, scale, !is_norm_first && !checks);
        self.advance_scales();
        self.report(scale)
    }

    /// Runs `work` on every chunk.
    pub(super) fn pass(&mut self, work: impl Fn(Context<'a>, &mut Chunk<'_>) + Sync) {
        let context = self.context;
        let span = Span {
            first_tensor: 0,
            tensors: self.tensors,
            parameters: self.parameters.reborrow(),
            gradients: self.gradients,
            results: self.results,
        };
        span.for_each_chunk(&|mut chunk| work(context, &mut chunk));
    }

    pub(super) fn visit_elements(&mut self, mode: Mode, clip_scale: f32, sums_squares: bool) {
        self.pass(|context, chunk| {
            let (found, spread) = context.visit_chunk(mode, clip_scale, sums_squares, chunk);
            let result = chunk.result();
            result.spread = spread;
            result.counts = found.counts;
            result.square_sum = found.square_sum.unwrap_or(result.square_sum);
        });
    }

    /// Gives a bias to every tensor that has none and whose clipped gradient has a
    /// finite element other than zero.
    fn choose_biases(&mut self, clip_scale: f32) {
        if self.tensors.iter().all(|tensor| tensor.bias.is_some()) {
            return;
        }
        self.pass(|context, chunk| {
            if chunk.bias.is_none() {
                let gradients = chunk.gradients;
                let kernel = GradientMax { gradients, clip_scale };
                chunk.result().gradient_max = context.instructions.run(kernel);
            }
        });
        let mut rest = &self.results[..];
        for tensor in self.tensors.iter_mut() {
            let (chunks, later) = rest.split_at(tensor.chunk_count());
            if tensor.bias.is_none() {
                let gradient_max =
                    chunks.iter().map(|chunk| chunk.gradient_max).fold(0.0, f32::max);
                tensor.bias = Bias::for_max_gradient(gradient_max);
            }
            rest = later;
        }
    }

    /// Gives every tensor of `ustate1q` the scale of its next encode.
    fn advance_scales(&mut self) {
        let (layout, mut rest) = (self.context.layout, &self.results[..]);
        for (position, tensor) in self.tensors.iter_mut().enumerate() {
            let (chunks, later) = rest.split_at(tensor.chunk_count());
            rest = later;
            let spread = chunks.iter().fold(Spread::NONE, |sum, chunk| sum.plus(chunk.spread));
            let spread = counted(layout, position, spread);
            tensor.arrays.advance_scales(|scale| spread.next_scale(scale));
        }
    }

    fn gradient_norm(&self) -> f64 {
        square_sum(self.results.iter().map(|chunk| chunk.square_sum)).sqrt()
    }

    /// The results of all chunks together, in order.
    pub(super) fn report(&self, clip_scale: f32) -> Report {
        let mut report = Report {
            update: self.context.update,
            gradient_norm: self.gradient_norm(),
            clip_scale,
            nonfinite: 0,
            saturated_m: 0,
            saturated_r: 0,
            first_nonfinite: None,
            skipped: false,
        };
        let mut results = self.results.iter();
        for (tensor, state) in self.tensors.iter().enumerate() {
            let start = self.context.layout.parts[tensor].start as usize;
            for (chunk, result) in results.by_ref().take(state.chunk_count()).enumerate() {
                let counts = result.counts;
                report.nonfinite += u64::from(counts.nonfinite);
                report.saturated_m += u64::from(counts.saturated_m);
                report.saturated_r += u64::from(counts.saturated_r);
                let first = start + chunk * CHUNK_ELEMENTS;
                let location = counts.first_nonfinite;
                let location =
                    location.map(|position| Location { tensor, index: first + position });
                report.first_nonfinite = report.first_nonfinite.or(location);
            }
        }
        report
    }
}

/// What a whole tensor's scale follows from. The published format counts elements without a first moment too.
pub(super) fn counted(layout: &Layout, position: usize, spread: Spread) -> Spread {
    match layout.format_of(position) {
        Format::UState1Q(ustate) if ustate.rules == Rules::Published => {
            Spread { live: layout.parts[position].whole, ..spread }
        }
        _ => spread,
    }
}

impl Context<'_> {
    /// Adds squares up, and counts gradients that are not finite.
    pub(super) fn look(self, chunk: &mut Chunk<'_>) {
        let (square_sum, counts) = self.instructions.run(Look { gradients: chunk.gradients });
        let result = chunk.result();
        result.square_sum = square_sum;
        result.counts = counts;
    }

    /// Visits the elements of a chunk, whatever their format.
    fn visit_chunk(
        self,
        mode: Mode,
        clip_scale: f32,
        sums_squares: bool,
        chunk: &mut Chunk<'_>,
    ) -> (Found, Spread) {
        let tensor = chunk.tensor;
        let part = self.layout.parts[tensor];
        let start = part.start + chunk.start as u64;
        // A tensor without a bias has only zeros stored, which mean zero at any.
        let bias = chunk.bias.unwrap_or_default();
        let group = self.layout.tensors[tensor].group;
        let run = Run {
            mode,
            scalars: self.scalars[group],
            clip_scale,
            parameters: &mut *chunk.parameters,
            gradients: chunk.gradients,
            first_index_low: start as u32,
            sums_squares,
        };
        let format = self.layout.format_of(tensor);
        let found = match (format, chunk.arrays.reborrow()) {
            (_, ArraysMut::Moments { m, v }) => self.visit(run, Plain, MomentArrays { m, v }),
            (Format::Fp16, ArraysMut::Words(words)) => {
                self.visit(run, Word(Fp16Word::new()), WordArray(words))
            }
            (Format::E4s, ArraysMut::Words(words)) => {
                let (seed, index_high) = (self.layout.options.seed, (start >> 32) as u32);
                let stream = RandomStream::new(seed, self.update, part.tensor, index_high);
                self.visit(run, Word(E4sWord::new(bias, stream)), WordArray(words))
            }
            (_, ArraysMut::Words(words)) => {
                self.visit(run, Word(E4Word::new(bias)), WordArray(words))
            }
            (_, arrays) => return self.visit_blocks(run, tensor, start, arrays),
        };
        (found, Spread::NONE)
    }

    /// Visits the elements of a chunk in a format of blocks.
    fn visit_blocks(
        self,
        run: Run<'_>,
        tensor: usize,
        start: u64,
        arrays: ArraysMut<'_>,
    ) -> (Found, Spread) {
        let (seed, part) = (self.layout.options.seed, self.layout.parts[tensor]);
        let group = self.layout.tensors[tensor].group;
        let context = CodecContext {
            layout: self.layout,
            scalars: run.scalars,
            block_scalars: self.block_scalars[group],
            random: BlockRandom::new(seed, self.update, part.tensor, part.place(group), start),
        };
        context.run(arrays, Visiting { run, instructions: self.instructions })
    }

    fn visit<C: Codec>(
        self,
        run: Run<'_>,
        codec: C,
        storage: impl Storage<Stored = C::Stored>,
    ) -> Found {
        self.instructions.run(Visit { run, codec, storage })
    }
}

/// A visit, once its codec is known.
struct Visiting<'a> {
    run: Run<'a>,
    instructions: Instructions,
}

impl Task for Visiting<'_> {
    type Output = Found;

    fn run(self, codec: &mut impl BlockCodec) -> Found {
        let Visiting { run, instructions } = self;
        if codec.tiles_of_block() <= TILES_SMALL {
            instructions.run(BlockVisit::<_, TILES_SMALL> { run, codec })
        } else {
            instructions.run(BlockVisit::<_, TILES_MAX> { run, codec })
        }
    }
}
