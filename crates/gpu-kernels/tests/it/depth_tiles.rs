//! Gradients of weights by a kernel of our own, against products in f64; and how long they take.

use gpu_kernels::{
    Activations, DepthProduct, DepthTiles, Error, Gpu, Head, HeadGradients, HeadInputs, HeadShape,
    Lane, Linear, LinearShape, LinearUse, Precision, Products, Shadows,
};

use crate::emulator::{TestDevice, device};
use crate::network::{bounds, close, noise, product, products, spoilt_floats, stored};

/// Those that have such products.
const PRECISIONS: [Precision; 2] = [Precision::Bf16, Precision::Tf32];

/// More blocks than there are.
const ALL: usize = 1 << 20;

/// Noise that products in tf32 do not round.
fn short_noise(length: usize, seed: u32) -> Vec<f32> {
    let short = |number: f32| f32::from_bits(number.to_bits() & 0xFFFF_E000);
    noise(length, seed, 1.0).into_iter().map(short).collect()
}

/// A layer, and what its gradients are computed from.
struct Layer {
    linear: Linear,
    shape: LinearShape,
    x: Activations,
    d_y: Activations,
    with_bias: bool,
    precision: Precision,
}

impl Layer {
    fn new(
        device: &TestDevice,
        gpu: &Gpu,
        precision: Precision,
        shape: LinearShape,
        with_bias: bool,
    ) -> Layer {
        let LinearShape { rows, inputs, outputs } = shape;
        let products = products(device, gpu, precision);
        let lane = Lane::new(gpu, &products).unwrap();
        let planned = LinearUse { is_training: true, ..LinearUse::default() };
        let linear = Linear::new(&lane, &products, shape, planned).unwrap();
        let of =
            |length, seed| Activations::of(gpu, precision, &short_noise(length, seed)).unwrap();
        let (x, d_y) = (of(rows * inputs, 1), of(rows * outputs, 2));
        Layer { linear, shape, x, d_y, with_bias, precision }
    }

    fn parameters(&self) -> usize {
        (self.shape.inputs + 1) * self.shape.outputs
    }

    /// Its gradients, as numbers.
    fn expected(&self) -> Vec<f64> {
        let LinearShape { rows, inputs, outputs } = self.shape;
        let [x, d_y] = [(rows * inputs, 1), (rows * outputs, 2)]
            .map(|(length, seed)| stored(self.precision, &short_noise(length, seed)));
        let mut expected =
            product([inputs, outputs, rows], |i, l| x[l * inputs + i], |l, j| d_y[l * outputs + j]);
        let sum = |j: usize| d_y.iter().skip(j).step_by(outputs).sum::<f64>();
        expected.extend((0..outputs).map(sum));
        expected
    }
}

type Kernel = (&'static TestDevice, Gpu, Precision, DepthTiles);

/// The kernels that there are.
fn kernels() -> Vec<Kernel> {
    let of = |precision| {
        let device = device()?;
        let gpu = device.gpu();
        let tiles = DepthTiles::new(&gpu, precision)?;
        Some((device, gpu, precision, tiles))
    };
    PRECISIONS.into_iter().filter_map(of).collect()
}

/// Layers with and without biases, wider and narrower ones, several in a launch and more than one takes, with
/// unequal last tiles and rows that are no whole pieces; by blocks that have a tile each, and by few.
#[test]
fn gradients_of_weights_are_products_over_rows() {
    for kernel in kernels() {
        let (device, ..) = kernel;
        for rows in [device.size(128, 64), device.size(1152, 136), 200, 8] {
            check_rows(&kernel, rows);
        }
    }
}

fn check_rows((device, gpu, precision, tiles): &Kernel, rows: usize) {
    const SIZES: [(usize, usize, bool); 5] =
        [(320, 960, true), (320, 320, false), (64, 128, true), (256, 64, false), (128, 64, true)];
    let of = |(inputs, outputs, with_bias)| {
        let shape = LinearShape { rows, inputs, outputs };
        Layer::new(device, gpu, *precision, shape, with_bias)
    };
    let layers = SIZES.map(of);
    let mut gradients: Vec<_> =
        layers.iter().map(|layer| spoilt_floats(gpu, layer.parameters())).collect();
    for (adds, blocks_max) in [(false, ALL), (true, 3)] {
        let products: Vec<DepthProduct> = layers
            .iter()
            .zip(&mut gradients)
            .map(|(Layer { linear, x, d_y, with_bias, .. }, gradient)| {
                let layer = linear.layer_gradient(&gradient.view_mut(), d_y, x).unwrap();
                linear.depth_product(&layer, *with_bias, adds).unwrap()
            })
            .collect();
        tiles.queue(gpu, &products, blocks_max).unwrap();
        for (layer, gradient) in layers.iter().zip(&gradients) {
            let found = gradient.to_vec().unwrap();
            let times = if adds { 2.0 } else { 1.0 };
            let expected: Vec<f64> = layer.expected().iter().map(|x| times * x).collect();
            let weights = layer.shape.inputs * layer.shape.outputs;
            let what = format!("{precision} {:?}, adds {adds}", layer.shape);
            close(&what, &found[..weights], &expected[..weights], 5e-6);
            match layer.with_bias {
                true => close(&what, &found[weights..], &expected[weights..], 5e-6),
                false => assert!(found[weights..].iter().all(|sum| sum.is_nan()), "{what}"),
            }
        }
    }
}

/// The gradient of the token table is that of the library, or of the plain product.
#[test]
fn gradient_of_the_table_is_a_product_over_rows() {
    kernels().iter().for_each(check_table);
}

fn check_table((device, gpu, precision, tiles): &Kernel) {
    let precision = *precision;
    let shape = HeadShape { rows: 200, channels: 128, vocabulary: 448 };
    let HeadShape { rows, channels, vocabulary } = shape;
    let products = products(device, gpu, precision);
    let lane = Lane::new(gpu, &products).unwrap();
    let head = Head::new(&lane, &products, shape, true).unwrap();
    let table = gpu.upload(&noise(vocabulary * channels, 1, 1.0)).unwrap();
    let shadows = Shadows::new(gpu, precision).unwrap();
    shadows.refresh(gpu, &table, 0..table.len()).unwrap();
    let x = Activations::of(gpu, precision, &noise(rows * channels, 2, 1.0)).unwrap();
    let targets: Vec<u32> = (0..rows as u32).map(|row| row * 7 % vocabulary as u32).collect();
    let targets = gpu.upload(&targets).unwrap();
    let scale = gpu.upload(&[1.0f32]).unwrap();
    let mut losses = spoilt_floats(gpu, rows);
    let mut workspace = spoilt_floats(gpu, shape.workspace_length(precision));
    let mut d_x = Activations::zeros(gpu, precision, rows * channels).unwrap();
    let mut d_table = spoilt_floats(gpu, vocabulary * channels);
    let table = shadows.view(&table, 0..table.len());
    // Products in tf32 may round either way.
    let bound = if precision.is_bf16() { 5e-6 } else { bounds(precision)[1] };
    let mut expected = Vec::new();
    for adds in [false, true] {
        let d_table_view = d_table.view_mut();
        let gradients = HeadGradients { d_x: &mut d_x, d_table: d_table_view, scale: &scale, adds };
        let inputs = HeadInputs { x: &x, table, targets: &targets };
        let lanes = [&lane; 2];
        let left = head.losses(lanes, &mut losses, inputs, &mut workspace, Some(gradients));
        let left = left.unwrap().unwrap();
        if !adds {
            (0..head.table_parts()).for_each(|part| head.add_table(&lane, &left, part).unwrap());
            expected = d_table.to_vec().unwrap().into_iter().map(f64::from).collect();
        }
        tiles.queue(gpu, &[head.depth_product(&left).unwrap()], 2).unwrap();
        close("d_table", &d_table.to_vec().unwrap(), &expected, bound);
        expected.iter_mut().for_each(|number| *number *= 2.0);
    }
}

/// Printed, not judged: the head of `reference-12m` with the gradient of its input, as products are chosen.
#[test]
fn times_of_the_head() {
    const CALLS: usize = 10;
    for (_, gpu, precision, _) in kernels().iter().filter(|(device, ..)| !device.is_emulated) {
        let (gpu, precision) = (gpu, *precision);
        let shape = HeadShape { rows: 1152, channels: 320, vocabulary: 12_096 };
        let HeadShape { rows, channels, vocabulary } = shape;
        let products = Products::new(gpu, precision);
        let lane = Lane::new(gpu, &products).unwrap();
        let head = Head::new(&lane, &products, shape, true).unwrap();
        let table = gpu.upload(&noise(vocabulary * channels, 1, 0.1)).unwrap();
        let shadows = Shadows::new(gpu, precision).unwrap();
        shadows.refresh(gpu, &table, 0..table.len()).unwrap();
        let table = shadows.view(&table, 0..table.len());
        let x = Activations::of(gpu, precision, &noise(rows * channels, 2, 1.0)).unwrap();
        let targets: Vec<u32> = (0..rows as u32).map(|row| row * 7 % vocabulary as u32).collect();
        let targets = gpu.upload(&targets).unwrap();
        let scale = gpu.upload(&[1.0f32]).unwrap();
        let mut losses = spoilt_floats(gpu, rows);
        let mut workspace = spoilt_floats(gpu, shape.workspace_length(precision));
        let mut d_x = Activations::zeros(gpu, precision, rows * channels).unwrap();
        let mut d_table = spoilt_floats(gpu, vocabulary * channels);
        for has_gradients in [false, true] {
            let graph = gpu
                .record(|| {
                    (0..CALLS).try_for_each(|_| {
                        let (adds, d_table) = (false, d_table.view_mut());
                        let d_x = &mut d_x;
                        let gradients = HeadGradients { d_x, d_table, scale: &scale, adds };
                        let gradients = has_gradients.then_some(gradients);
                        let inputs = HeadInputs { x: &x, table, targets: &targets };
                        let lanes = [&lane; 2];
                        head.losses(lanes, &mut losses, inputs, &mut workspace, gradients).map(drop)
                    })
                })
                .unwrap();
            graph.replay().unwrap();
            let mut times: Vec<f64> = (0..11)
                .map(|_| gpu.elapsed_ms(|| graph.replay()).unwrap() * 1e3 / CALLS as f64)
                .collect();
            times.sort_by(f64::total_cmp);
            println!("{precision}, head, gradients {has_gradients}: {:.2} us", times[5]);
        }
    }
}

/// Printed, not judged: the four layers of a block of `reference-12m` and its token table, repeated.
#[test]
fn times_of_a_block() {
    for kernel in kernels().iter().filter(|(device, ..)| !device.is_emulated) {
        time_block(kernel);
    }
}

#[expect(clippy::print_stdout, reason = "whoever reads the log wants the times")]
fn time_block((device, gpu, precision, tiles): &Kernel) {
    const CALLS: usize = 24;
    const SETS: usize = 6;
    const ROWS: usize = 1152;
    let of = |inputs, outputs, with_bias| {
        let shape = LinearShape { rows: ROWS, inputs, outputs };
        Layer::new(device, gpu, *precision, shape, with_bias)
    };
    let block =
        || [of(1280, 320, false), of(320, 1280, true), of(320, 320, false), of(320, 960, true)];
    let blocks: Vec<[Layer; 4]> = (0..SETS).map(|_| block()).collect();
    let mut gradients: Vec<_> = blocks
        .iter()
        .map(|block| block.each_ref().map(|layer| spoilt_floats(gpu, layer.parameters())))
        .collect();
    let products: Vec<Vec<DepthProduct>> = blocks
        .iter()
        .zip(&mut gradients)
        .map(|(block, gradients)| {
            let layers = block.iter().zip(gradients);
            layers
                .map(|(Layer { linear, x, d_y, with_bias, .. }, gradient)| {
                    let layer = linear.layer_gradient(&gradient.view_mut(), d_y, x).unwrap();
                    linear.depth_product(&layer, *with_bias, false).unwrap()
                })
                .collect()
        })
        .collect();
    let time = |what: &str, queue: &dyn Fn(usize) -> Result<(), Error>| {
        let graph = gpu.record(|| (0..CALLS).try_for_each(queue)).unwrap();
        graph.replay().unwrap();
        let mut times: Vec<f64> = (0..11)
            .map(|_| gpu.elapsed_ms(|| graph.replay()).unwrap() * 1e3 / CALLS as f64)
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{precision}, {what}: {:.2} us", times[5]);
    };
    let tiles_of_block: usize = products[0].iter().map(DepthProduct::blocks).sum();
    time(&format!("a block's gradients of weights, {tiles_of_block} tiles"), &|call| {
        tiles.queue(gpu, &products[call % SETS], ALL)
    });
    // The token table as a layer.
    let (rest, vocabulary) = (of(320, 12_096, true), 12_096);
    let mut gradient = spoilt_floats(gpu, rest.parameters());
    let layer = rest.linear.layer_gradient(&gradient.view_mut(), &rest.d_y, &rest.x).unwrap();
    let table = [rest.linear.depth_product(&layer, true, false).unwrap()];
    for blocks_max in [42, ALL] {
        let blocks = blocks_max.min(table[0].blocks());
        time(&format!("{vocabulary} x 320 by {blocks} blocks"), &|_| {
            tiles.queue(gpu, &table, blocks_max)
        });
    }
}
