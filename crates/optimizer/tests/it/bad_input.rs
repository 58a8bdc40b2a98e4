//! Refusals: hyperparameters, groups, names, buffers, updates. Each message says
//! what was expected, what was found, and where.

use formats::Format;
use optimizer::{AdamW, CpuAdamW, Error, Group, Options, TensorSpec};

use crate::pair::{group, specs};

#[track_caller]
fn refused(tensors: &[TensorSpec], groups: &[Group], options: Options, message: &str) {
    let error = CpuAdamW::new(tensors, groups, options).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn hyperparameters_out_of_range() {
    type Change = fn(&mut Group, f64);
    let cases: [(Change, &str, &[f64]); 5] = [
        (|g, x| g.betas[0] = x, "beta1", &[-0.1, 1.0, 0.999_999_99, 2.0]),
        (|g, x| g.betas[1] = x, "beta2", &[-1e-9, 1.0, 0.999_999_99]),
        (|g, x| g.eps = x, "eps", &[0.0, -1e-8, 1e-50, 1e50]),
        (|g, x| g.weight_decay = x, "weight_decay", &[-0.1, 1e39]),
        (|g, x| g.learning_rate = x, "learning_rate", &[-1e-3, 1e39]),
    ];
    for (change, name, values) in cases {
        for &value in values.iter().chain(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]) {
            let mut bad = group(Format::E4);
            change(&mut bad, value);
            let groups = [group(Format::E4), bad];
            let error = CpuAdamW::new(&specs(&[(1, 0)]), &groups, Options::default()).unwrap_err();
            let message = error.to_string();
            assert!(message.starts_with(&format!("group 1: expected {name} to be ")), "{message}");
            assert!(message.ends_with(&format!("found {value}")), "{message}");
        }
    }
}

#[test]
fn extreme_hyperparameters_that_are_allowed() {
    let edge = Group {
        betas: [0.0, 0.0],
        eps: 1e-44,
        weight_decay: 0.0,
        learning_rate: 0.0,
        ..group(Format::E4)
    };
    let mut optimizer = CpuAdamW::new(&specs(&[(1, 0)]), &[edge], Options::default()).unwrap();
    optimizer.set_next_update().unwrap();
    let mut parameters = vec![1.0];
    optimizer.step(&mut parameters, &vec![1.0]).unwrap();
    assert_eq!(parameters, [1.0]);
}

#[test]
fn clip_norms() {
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let options = Options { clip_norm: Some(bad), ..Options::default() };
        let message = format!(
            "expected clip_norm to be finite and above 0, found {bad}; leave it out to not clip"
        );
        refused(&specs(&[(1, 0)]), &[group(Format::E4)], options, &message);
    }
}

#[test]
fn groups_and_names() {
    let (groups, options) = ([group(Format::E4)], Options::default());
    let message = "tensor \"t1\": expected a group below 1, found 3";
    refused(&specs(&[(1, 0), (1, 3)]), &groups, options, message);
    let message = "tensor \"t0\": expected a group below 0, found 0";
    refused(&specs(&[(1, 0)]), &[], options, message);
    let mut tensors = specs(&[(1, 0), (1, 0)]);
    tensors[1].name = "t0".to_owned();
    refused(&tensors, &groups, options, "expected distinct tensor names, found \"t0\" twice");
    tensors[1].name = String::new();
    refused(
        &tensors,
        &groups,
        options,
        "tensor 1: expected a name, found none; checkpoints need one",
    );
    let huge = specs(&[(usize::MAX, 0), (2, 0)]);
    refused(&huge, &groups, options, "expected the number of elements to fit a usize, found more");
}

#[test]
fn no_tensors_at_all() {
    let mut optimizer = CpuAdamW::new(&[], &[], Options::default()).unwrap();
    optimizer.set_update(1, &[]).unwrap();
    optimizer.step(&mut vec![], &vec![]).unwrap();
    let report = optimizer.report().unwrap();
    assert_eq!((report.gradient_norm, report.nonfinite), (0.0, 0));
    assert_eq!(optimizer.state_bytes(), 0);
}

#[test]
fn buffers_of_another_length() {
    let mut optimizer =
        CpuAdamW::new(&specs(&[(2, 0), (3, 0)]), &[group(Format::E4)], Options::default()).unwrap();
    optimizer.set_next_update().unwrap();
    let error = optimizer.step(&mut vec![0.0; 4], &vec![0.0; 5]).unwrap_err();
    assert_eq!(error.to_string(), "parameters: expected 5 elements, found 4");
    let error = optimizer.step(&mut vec![0.0; 5], &vec![0.0; 6]).unwrap_err();
    assert_eq!(error.to_string(), "gradients: expected 5 elements, found 6");
    assert_eq!(optimizer.report(), Err(Error::NoStepTaken), "nothing was done");
}

#[test]
fn updates_that_cannot_be_set() {
    let groups = [group(Format::E4), group(Format::Fp32)];
    let mut optimizer =
        CpuAdamW::new(&specs(&[(1, 0), (1, 1)]), &groups, Options::default()).unwrap();
    let error = optimizer.step(&mut vec![0.0; 2], &vec![0.0; 2]).unwrap_err();
    assert_eq!(error, Error::NoUpdateSet);
    assert_eq!(optimizer.set_update(0, &[0.1, 0.1]), Err(Error::UpdateZero));
    let error = optimizer.set_update(1, &[0.1]).unwrap_err();
    assert_eq!(error.to_string(), "expected 2 learning rates, one per group, found 1");
    for bad in [f64::NAN, -0.1, f64::INFINITY, 1e38] {
        let error = optimizer.set_update(1, &[0.1, bad]).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("group 1: expected learning_rate to be "), "{message}");
    }
    assert_eq!(optimizer.step(&mut vec![0.0; 2], &vec![0.0; 2]), Err(Error::NoUpdateSet));
    optimizer.set_update(u64::MAX, &[0.1, 0.0]).unwrap();
    optimizer.step(&mut vec![0.0; 2], &vec![0.1; 2]).unwrap();
}

#[test]
fn tensors_beyond_the_last() {
    let optimizer =
        CpuAdamW::new(&specs(&[(1, 0)]), &[group(Format::E4)], Options::default()).unwrap();
    let error = optimizer.moments(1).unwrap_err();
    assert_eq!(error.to_string(), "expected a tensor position below 1, found 1");
}
