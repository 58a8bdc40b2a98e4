//! How long what lies between two attentions takes on a GPU as one kernel, by graph replays: printed, not judged. Nothing
//! where a device has no such kernels.

use gpu_kernels::{
    Activations, Attention, AttentionShape, BackwardChain, BackwardChainInputs,
    BackwardChainOutputs, Buffer, ForwardChain, ForwardChainInputs, ForwardChainOutputs, Gpu,
    Graph, NextBlock, NormGradient, NormedSum, Precision,
};

use crate::branch::tiles;
use crate::chain::{Given, Layer};
use crate::network::noise;

const PRECISION: Precision = Precision::Bf16;
/// The rows of `reference-12m`.
const SHAPE: AttentionShape = AttentionShape { batch: 1, time: 1152, heads: 5, head_size: 64 };
const CHANNELS: usize = 320;
const NARROW: usize = 1152 * CHANNELS;
/// Layers, which take turns, and turns of a recording.
const LAYERS: usize = 6;
const TURNS: usize = 7;
const REPLAYS: usize = 21;

#[test]
fn times_of_both_chains() {
    let Some(device) = tiles() else { return };
    let gpu = device.gpu();
    let mut forward: Vec<_> = (0..LAYERS as u32).map(|seed| Forward::new(&gpu, seed)).collect();
    let chain = ForwardChain::new(&gpu, PRECISION, [1152, CHANNELS], true).unwrap();
    let graph = gpu.record(|| {
        (0..TURNS)
            .try_for_each(|_| forward.iter_mut().try_for_each(|layer| layer.queue(&gpu, &chain)))
    });
    println!("chain forward: {:.2} us", median_us(&gpu, &graph.unwrap()));
    let attention = Attention::new(&gpu, PRECISION, SHAPE).unwrap();
    let graph = gpu.record(|| {
        (0..TURNS).try_for_each(|_| {
            forward.iter_mut().try_for_each(|layer| {
                layer.attend(&attention)?;
                layer.queue(&gpu, &chain)
            })
        })
    });
    println!("attention and chain forward: {:.2} us", median_us(&gpu, &graph.unwrap()));
    let chain = BackwardChain::new(&gpu, &attention, true).unwrap();
    let mut backward: Vec<_> = (0..LAYERS as u32).map(|seed| Backward::new(&gpu, seed)).collect();
    let graph = gpu.record(|| {
        (0..TURNS)
            .try_for_each(|_| backward.iter_mut().try_for_each(|layer| layer.queue(&gpu, &chain)))
    });
    println!("chain backward: {:.2} us", median_us(&gpu, &graph.unwrap()));
    let graph = gpu.record(|| {
        (0..TURNS).try_for_each(|_| {
            backward.iter_mut().try_for_each(|layer| {
                layer.queue(&gpu, &chain)?;
                layer.attend(&attention)
            })
        })
    });
    println!("chain and attention backward: {:.2} us", median_us(&gpu, &graph.unwrap()));
}

/// Microseconds of one call: the median over replays.
fn median_us(gpu: &Gpu, graph: &Graph) -> f64 {
    graph.replay().unwrap();
    let mut times: Vec<f64> = (0..REPLAYS)
        .map(|_| gpu.elapsed_ms(|| graph.replay()).unwrap() * 1e3 / (TURNS * LAYERS) as f64)
        .collect();
    times.sort_by(f64::total_cmp);
    times[REPLAYS / 2]
}

fn layers(gpu: &Gpu, seed: u32) -> [Layer; 4] {
    [[1, 1], [1, 4], [4, 1], [1, 3]].map(|[inputs, outputs]: [usize; 2]| {
        Layer::new(
            gpu,
            seed + inputs as u32 * 7 + outputs as u32,
            [inputs * CHANNELS, outputs * CHANNELS],
        )
    })
}

fn empty(gpu: &Gpu, width: usize) -> Activations {
    Activations::zeros(gpu, PRECISION, width * NARROW).unwrap()
}

struct Forward {
    layers: [Layer; 4],
    left: Given,
    residual: Given,
    gains: [Buffer<f32>; 2],
    // x1, x2, out1, out2.
    narrow: [Activations; 4],
    wide: [Activations; 2],
    qkv: Activations,
    statistics: [Buffer<f32>; 2],
    sums: Buffer<f32>,
    workspace: Buffer<f32>,
}

impl Forward {
    fn new(gpu: &Gpu, seed: u32) -> Forward {
        Forward {
            layers: layers(gpu, seed),
            left: Given::new(gpu, NARROW, seed, 1.0),
            residual: Given::new(gpu, NARROW, seed + 1, 3.0),
            gains: [2, 3].map(|more| gpu.upload(&noise(2 * CHANNELS, seed + more, 1.0)).unwrap()),
            narrow: [1; 4].map(|width| empty(gpu, width)),
            wide: [4; 2].map(|width| empty(gpu, width)),
            qkv: empty(gpu, 3),
            statistics: [1; 2].map(|_| gpu.zeros(2 * 1152).unwrap()),
            sums: gpu.zeros(2 * 1152 * 5).unwrap(),
            workspace: gpu.zeros(Attention::workspace_length(SHAPE)).unwrap(),
        }
    }

    fn attend(&mut self, attention: &Attention) -> Result<(), gpu_kernels::Error> {
        let Forward { left, qkv, sums, workspace, .. } = self;
        attention.forward(&mut left.there, sums, qkv, workspace)
    }

    fn queue(&mut self, gpu: &Gpu, chain: &ForwardChain) -> Result<(), gpu_kernels::Error> {
        let [projection, up, down, qkv] = &self.layers;
        let [x1, x2, out1, out2] = &mut self.narrow;
        let [wide, activated] = &mut self.wide;
        let [statistics1, statistics2] = &mut self.statistics;
        let outputs = ForwardChainOutputs {
            attention_end: NormedSum { x: x1, out: out1, statistics: statistics1 },
            wide,
            activated,
            mlp_end: NormedSum { x: x2, out: out2, statistics: statistics2 },
            qkv: Some(&mut self.qkv),
        };
        let inputs = ForwardChainInputs {
            left: &self.left.there,
            residual: &self.residual.there,
            projection: projection.view(),
            mlp_norm: self.gains[0].view(),
            up: up.view(),
            down: down.view(),
            next_norm: self.gains[1].view(),
            qkv: Some(qkv.view()),
        };
        chain.queue(gpu, outputs, inputs)
    }
}

/// A LayerNorm, with the gradient of its input.
struct Norm {
    x: Given,
    statistics: Buffer<f32>,
    gain: Buffer<f32>,
    d_x: Activations,
    partials: Buffer<f32>,
}

impl Norm {
    fn new(gpu: &Gpu, seed: u32) -> Norm {
        let length = BackwardChain::partials_length([1152, CHANNELS]);
        Norm {
            x: Given::new(gpu, NARROW, seed, 3.0),
            statistics: gpu.upload(&noise(2 * 1152, seed, 1.0)).unwrap(),
            gain: gpu.upload(&noise(2 * CHANNELS, seed, 1.0)).unwrap(),
            d_x: empty(gpu, 1),
            partials: gpu.zeros(length).unwrap(),
        }
    }
}

struct Backward {
    layers: [Layer; 4],
    d_qkv: Given,
    qkv: Given,
    d_residual: Given,
    z: Given,
    out: Given,
    norms: [Norm; 2],
    sums: Buffer<f32>,
    d_wide: Activations,
    d_attention: Activations,
    workspace: Buffer<f32>,
}

impl Backward {
    fn new(gpu: &Gpu, seed: u32) -> Backward {
        Backward {
            layers: layers(gpu, seed),
            d_qkv: Given::new(gpu, 3 * NARROW, seed, 1.0),
            qkv: Given::new(gpu, 3 * NARROW, seed + 9, 1.0),
            d_residual: Given::new(gpu, NARROW, seed + 1, 1.0),
            z: Given::new(gpu, 4 * NARROW, seed + 2, 3.0),
            out: Given::new(gpu, NARROW, seed + 3, 1.0),
            norms: [4, 5].map(|more| Norm::new(gpu, seed + more)),
            sums: gpu.upload(&vec![0.5; 2 * 1152 * 5]).unwrap(),
            d_wide: empty(gpu, 4),
            d_attention: empty(gpu, 1),
            workspace: gpu.zeros(Attention::workspace_length(SHAPE)).unwrap(),
        }
    }

    fn attend(&mut self, attention: &Attention) -> Result<(), gpu_kernels::Error> {
        let Backward { d_qkv, d_attention, out, qkv, sums, workspace, .. } = self;
        attention.backward_started(
            &mut d_qkv.there,
            d_attention,
            &out.there,
            &qkv.there,
            sums,
            workspace,
        )
    }

    fn queue(&mut self, gpu: &Gpu, chain: &BackwardChain) -> Result<(), gpu_kernels::Error> {
        let [projection, up, down, qkv] = &self.layers;
        let [next, mlp] = &mut self.norms;
        let outputs = BackwardChainOutputs {
            next: Some(NormGradient { d_x: &mut next.d_x, partials: &mut next.partials }),
            d_wide: &mut self.d_wide,
            mlp: NormGradient { d_x: &mut mlp.d_x, partials: &mut mlp.partials },
            d_attention: &mut self.d_attention,
            workspace: &mut self.workspace,
        };
        let inputs = BackwardChainInputs {
            next: Some(NextBlock {
                d_qkv: &self.d_qkv.there,
                qkv: qkv.view(),
                x: &next.x.there,
                statistics: &next.statistics,
                norm: next.gain.view(),
            }),
            d_residual: &self.d_residual.there,
            down: down.view(),
            wide: &self.z.there,
            up: up.view(),
            x: &mlp.x.there,
            statistics: &mlp.statistics,
            mlp_norm: mlp.gain.view(),
            projection: projection.view(),
            attention_out: &self.out.there,
            attention_statistics: &self.sums,
        };
        chain.queue(gpu, outputs, inputs)
    }
}
