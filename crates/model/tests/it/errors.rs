//! What is refused, and how it reads.

use model::{Batch, Config, Cpu, Dimensions, Error, Gpt, IGNORED, Layout, Plan, Purpose};

use crate::samples;

fn refuse(dimensions: [usize; 5], message: &str) {
    let [vocabulary, context, channels, layers, heads] = dimensions;
    let error =
        Config::new(Dimensions { vocabulary, context, channels, layers, heads }).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn impossible_shapes() {
    refuse(
        [7, 6, 10, 2, 3],
        "10 channels cannot be divided among 3 heads; choose heads that divide the channels",
    );
    let zero = "is 0; every dimension of the model must be at least 1";
    refuse([0, 6, 6, 2, 3], &format!("vocabulary {zero}"));
    refuse([7, 0, 6, 2, 3], &format!("context {zero}"));
    refuse([7, 6, 0, 2, 3], &format!("channels {zero}"));
    refuse([7, 6, 6, 0, 3], &format!("layers {zero}"));
    refuse([7, 6, 6, 2, 0], &format!("heads {zero}"));
    refuse(
        [1 << 33, 6, 6, 2, 3],
        "a vocabulary of 8589934592 is too large; token ids are 32 bits wide, so at most 4294967295",
    );
    let large = "would not fit this machine's address space; choose a smaller model or batch";
    refuse([7, 6, 1 << 40, 2, 1], &format!("the parameters {large}"));
    refuse([7, 6, 6, usize::MAX / 2, 3], &format!("the parameters {large}"));
}

#[test]
fn impossible_batches() {
    let config = samples::config([7, 6, 6, 2, 3]);
    let plan = |rows, time| {
        let batch = Batch { rows, time };
        let planned = Plan::new(&Cpu::<f32>::new(), config, batch, Purpose::Training).map(|_| ());
        let made = Gpt::new(Cpu::<f32>::new(), config, batch, Purpose::Training).map(|_| ());
        assert_eq!(planned, made);
        planned.unwrap_err()
    };
    assert_eq!(plan(0, 5), Error::EmptyBatch { rows: 0, time: 5 });
    assert_eq!(plan(2, 0), Error::EmptyBatch { rows: 2, time: 0 });
    assert_eq!(plan(2, 7), Error::WindowTooLong { time: 7, context: 6 });
    assert_eq!(plan(usize::MAX / 4, 6), Error::TooLarge { what: "the activations" });
    // Beyond what any processor addresses: a system may promise more memory than it has.
    let huge = Batch { rows: 1 << 45, time: 6 };
    let error = Gpt::new(Cpu::<f32>::new(), config, huge, Purpose::Training).map(|_| ());
    assert!(matches!(error, Err(Error::OutOfMemory { .. })), "{error:?}");
}

#[test]
fn bad_uploads_leave_the_batch_of_before() {
    let config = samples::config([7, 6, 6, 2, 3]);
    let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
    let mut gpt = samples::gpt::<f32>(config, 1, 3);
    gpt.upload(&[1, 2, 3], &[2, 3, IGNORED], 1.0).unwrap();
    gpt.forward(&parameters).unwrap();
    let before = gpt.loss().unwrap();

    let error = gpt.upload(&[1, 2], &[1, 2, 3], 1.0).unwrap_err();
    assert_eq!(error, Error::Length { what: "tokens", expected: 3, found: 2 });
    let error = gpt.upload(&[1, 2, 3], &[1, 2, 3, 4], 1.0).unwrap_err();
    assert_eq!(error, Error::Length { what: "targets", expected: 3, found: 4 });
    let error = gpt.upload(&[1, 7, 3], &[1, 2, 3], 1.0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "token 1 is 7, beyond the vocabulary of 7; the text was encoded with another tokenizer"
    );
    let error = gpt.upload(&[1, IGNORED, 3], &[1, 2, 3], 1.0).unwrap_err();
    assert!(matches!(error, Error::TokenOutOfRange { what: "token", position: 1, .. }));
    let error = gpt.upload(&[1, 2, 3], &[1, 2, 9], 1.0).unwrap_err();
    assert!(matches!(error, Error::TokenOutOfRange { what: "target", position: 2, found: 9, .. }));

    gpt.forward(&parameters).unwrap();
    assert_eq!(gpt.loss().unwrap(), before);
}

#[test]
fn buffers_of_another_length() {
    let config = samples::config([7, 6, 6, 2, 3]);
    let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
    let expected = parameters.len();
    let mut gpt = samples::gpt::<f32>(config, 1, 3);
    let short = vec![0.0; 5];
    assert_eq!(
        gpt.forward(&short).unwrap_err(),
        Error::Length { what: "parameters", expected, found: 5 }
    );
    assert_eq!(
        gpt.forward_backward(&parameters, &mut short.clone(), false).unwrap_err(),
        Error::Length { what: "gradients", expected, found: 5 }
    );
    let error = gpt.token_losses(&mut [0.0; 4]).unwrap_err();
    assert_eq!(error, Error::Length { what: "token losses", expected: 3, found: 4 });
    let error = gpt.logits(&parameters, 2..4).unwrap_err();
    assert_eq!(error, Error::RowsOutOfRange { start: 2, end: 4, rows: 3 });
}

#[test]
fn evaluation_memory_has_no_backward_pass() {
    let config = samples::config([7, 6, 6, 2, 3]);
    let parameters: Vec<f32> = samples::parameters(&Layout::new(config), 1);
    let batch = Batch { rows: 1, time: 3 };
    let mut gpt = Gpt::new(Cpu::<f32>::new(), config, batch, Purpose::Evaluation).unwrap();
    let error = gpt.forward_backward(&parameters, &mut parameters.clone(), false).unwrap_err();
    assert_eq!(error, Error::EvaluationOnly);
}
