//! Gradients of parameters of several layers at once.

use gpu_kernels::{
    Activations, Gpu, Lane, LayerGradient, Linear, LinearShape, LinearUse, Precision, Products,
    RunSums,
};

use crate::emulator::device;
use crate::network::{bounds, check_linear, close, noise, products, spoilt_floats};

/// Gradients of several layers together are those of each alone, wherever they lie.
#[test]
fn they_are_those_of_each_alone() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let shape = LinearShape { rows: 70, inputs: 64, outputs: 40 };
    for precision in Precision::ALL {
        check(&gpu, &products(device, &gpu, precision), shape);
    }
}

/// The same by kernels of our own wherever a device has them, in tiles that are full and that are not.
#[test]
fn they_are_so_by_kernels_of_our_own() {
    let Some(device) = device() else { return };
    let gpu = device.gpu();
    let sizes = [[70, 64, 40], [33, 200, 328], [device.size(1152, 40), 320, 960], [64, 8, 12]];
    for [rows, inputs, outputs] in sizes {
        for precision in [Precision::Tf32, Precision::Bf16] {
            let products = Products::without_library(precision);
            let (products, shape) =
                (products.preferring_tiles(), LinearShape { rows, inputs, outputs });
            check_linear(&products, &gpu, precision, shape);
            check(&gpu, &products, shape);
        }
    }
}

fn check(gpu: &Gpu, products: &Products, shape: LinearShape) {
    const LAYERS: usize = 3;
    let LinearShape { rows, inputs, outputs } = shape;
    let precision = products.precision();
    {
        let lane = Lane::new(gpu, products).unwrap();
        let planned = LinearUse { is_training: true, layers: LAYERS, ..LinearUse::default() };
        let layer = Linear::new(&lane, products, shape, planned).unwrap();
        let sums = RunSums::new(gpu).unwrap();
        let side_by_side = |length: usize, seed: u32| {
            let all = Activations::side_by_side(gpu, precision, length, LAYERS).unwrap();
            let filled = all.into_iter().zip(seed..).map(|(mut one, seed)| {
                one.upload(&noise(length, seed, 1.0)).unwrap();
                one
            });
            filled.collect::<Vec<_>>()
        };
        let (x, d_y) = (side_by_side(rows * inputs, 10), side_by_side(rows * outputs, 20));
        let (length, step) = ((inputs + 1) * outputs, (inputs + 2) * outputs);
        let mut alone = spoilt_floats(gpu, length);
        // All of them at equal distances, and backwards; two of them; at other distances.
        for places in [vec![0, 1, 2], vec![2, 1, 0], vec![0, 2], vec![0, 1, 3]] {
            let mut gradients = spoilt_floats(gpu, 4 * step);
            for adds in [false, true] {
                let mut of_layer = |(index, place): (usize, &usize)| {
                    let view = gradients.view_mut().part(place * step..place * step + length);
                    layer.layer_gradient(&view, &d_y[index], &x[index]).unwrap()
                };
                let mut layers: Vec<_> = places.iter().enumerate().map(&mut of_layer).collect();
                layer.backward_weights_of_layers(&lane, &mut layers, adds).unwrap();
                let bias = |(place, one): (usize, &LayerGradient)| {
                    layer.backward_bias_of_layer(&lane, one, place, adds).unwrap()
                };
                let pending: Vec<_> = layers.iter().enumerate().map(bias).collect();
                sums.queue(gpu, &pending).unwrap();
            }
            let found = gradients.to_vec().unwrap();
            for (index, place) in places.iter().enumerate() {
                for adds in [false, true] {
                    let alone = alone.view_mut();
                    let (d_y, x) = (&d_y[index], &x[index]);
                    layer.backward_parameters(&lane, alone, d_y, x, true, adds).unwrap();
                }
                let expected = alone.to_vec().unwrap();
                let expected: Vec<f64> = expected.iter().map(|&number| f64::from(number)).collect();
                let [_, bound] = bounds(precision);
                close("of a layer", &found[place * step..][..length], &expected, bound);
            }
            let is_touched = found.iter().filter(|gradient| !gradient.is_nan()).count();
            assert_eq!(is_touched, places.len() * length);
        }
    }
}
