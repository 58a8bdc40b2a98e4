//! The decoder computes what the network over whole windows does.

use model::{Cpu, Decoder, Element, Error, IGNORED, Layout};

use crate::samples::{self, Samples};

/// The largest difference of any logit, over a whole context, relative to the largest logit.
fn worst_difference<T: Element>(dimensions: [usize; 5]) -> f64 {
    let [vocabulary, context, ..] = dimensions;
    let config = samples::config(dimensions);
    let parameters: Vec<T> = samples::parameters(&Layout::new(config), 3);
    let tokens = Samples::new(4).ids(context, vocabulary);
    let mut gpt = samples::gpt::<T>(config, 1, context);
    gpt.upload(&tokens, &vec![IGNORED; context], 1.0).unwrap();
    gpt.forward(&parameters).unwrap();
    let logits = gpt.logits(&parameters, 0..context).unwrap();
    let largest = logits.iter().fold(0.0f32, |max, x| max.max(x.abs()));

    let mut decoder = Decoder::new(Cpu::<T>::new(), config).unwrap();
    let mut worst = 0.0f32;
    for (&token, expected) in tokens.iter().zip(logits.chunks_exact(vocabulary)) {
        let found = decoder.step(&parameters, token).unwrap();
        for (found, expected) in found.iter().zip(expected) {
            worst = worst.max((found - expected).abs());
        }
    }
    f64::from(worst / largest)
}

#[test]
fn logits_agree_with_the_whole_window() {
    // The sums run in another order; f64 shows that nothing else differs (logits are f32 there).
    let dimensions = [61, 130, 24, 3, 4];
    let in_f64 = worst_difference::<f64>(dimensions);
    assert!(in_f64 < 1.2e-7, "f64: {in_f64:e}");
    let in_f32 = worst_difference::<f32>(dimensions);
    assert!(in_f32 < 1e-5, "f32: {in_f32:e}");
}

#[test]
fn reset_starts_afresh() {
    let config = samples::config([20, 8, 12, 2, 2]);
    let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 3);
    let mut decoder = Decoder::new(Cpu::<f32>::new(), config).unwrap();
    let first = decoder.step(&parameters, 5).unwrap().to_vec();
    let second = decoder.step(&parameters, 6).unwrap().to_vec();
    assert_eq!(decoder.position(), 2);
    decoder.reset();
    assert_eq!(decoder.step(&parameters, 5).unwrap(), first);
    assert_eq!(decoder.step(&parameters, 6).unwrap(), second);
}

#[test]
fn positions_beyond_the_context_are_refused() {
    let config = samples::config([20, 3, 12, 2, 2]);
    let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 3);
    let mut decoder = Decoder::new(Cpu::<f32>::new(), config).unwrap();
    assert_eq!(
        decoder.step(&parameters, 20).unwrap_err(),
        Error::TokenOutOfRange { what: "token", position: 0, found: 20, vocabulary: 20 }
    );
    for token in 0..3 {
        decoder.step(&parameters, token).unwrap();
    }
    assert_eq!(decoder.step(&parameters, 0).unwrap_err(), Error::ContextFull { context: 3 });
    assert_eq!(decoder.position(), 3);
    decoder.reset();
    decoder.step(&parameters, 0).unwrap();
}
