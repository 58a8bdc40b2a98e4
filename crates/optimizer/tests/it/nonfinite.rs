//! Elements that are not finite: left alone, counted, located; or the whole update
//! dropped.

use formats::Format;
use optimizer::{AdamW, BiasChoice, Instructions, Location, OnNonfinite, Options};

use crate::pair::{Pair, Setup, noise};

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
/// A start, a vector border, chunk borders, an odd tail, the end.
const PLACES: [usize; 9] = [0, 1, 15, 16, 16_383, 16_384, 16_385, 39_998, 39_999];

/// A pair after one good update.
fn warm(format: Format, on_nonfinite: OnNonfinite) -> (Pair, usize) {
    let mut setup = Setup::of(format, &[3, 40_000, 0, 17]);
    setup.options = Options { on_nonfinite, clip_norm: Some(1.0), ..setup.options };
    let mut pair = setup.build(Instructions::best());
    pair.step(1, &noise(setup.elements(), 1, 1e-1));
    (pair, setup.elements())
}

#[test]
fn one_bad_gradient_anywhere_changes_nothing_else() {
    for format in Format::ALL {
        let (mut pair, elements) = warm(format, OnNonfinite::Stop);
        for (update, place) in (2..).zip(PLACES) {
            let mut gradients = noise(elements, update, 1e-1);
            gradients[3 + place] = BAD[place % 3];
            let before = pair.parameters[3 + place];
            let report = pair.step(update, &gradients);
            assert_eq!((report.nonfinite, report.skipped), (1, false));
            assert_eq!(report.first_nonfinite, Some(Location { tensor: 1, index: place }));
            assert_eq!(pair.parameters[3 + place], before);
        }
    }
}

#[test]
fn the_first_of_many_is_named() {
    for format in Format::ALL {
        let (mut pair, elements) = warm(format, OnNonfinite::Stop);
        let mut gradients = noise(elements, 2, 1e-1);
        for place in [20_000, 20_001, 39_000, 40_010] {
            gradients[place] = f32::NAN;
        }
        let report = pair.step(2, &gradients);
        assert_eq!(report.nonfinite, 4);
        assert_eq!(report.first_nonfinite, Some(Location { tensor: 1, index: 19_997 }));
        let report = pair.step(3, &vec![f32::INFINITY; elements]);
        assert_eq!(report.nonfinite, elements as u64);
        assert_eq!(report.first_nonfinite, Some(Location { tensor: 0, index: 0 }));
        assert_eq!(report.gradient_norm, 0.0);
    }
}

#[test]
fn results_that_overflow_count_too() {
    for format in Format::ALL {
        let mut setup = Setup::of(format, &[100]);
        setup.groups[0].weight_decay = 0.0;
        let mut pair = setup.build(Instructions::best());
        pair.step(1, &noise(100, 1, 1e-1));
        for (place, bad) in [(5, f32::NAN), (50, f32::INFINITY), (51, f32::NEG_INFINITY)] {
            pair.parameters[place] = bad;
            pair.authority.tensors[0].parameters[place] = bad;
        }
        // The square of this gradient overflows v.
        let mut gradients = noise(100, 2, 1e-1);
        gradients[99] = 1e20;
        let report = pair.step(2, &gradients);
        assert_eq!((report.nonfinite, report.first_nonfinite.unwrap().index), (4, 5));
    }
}

#[test]
fn skipping_writes_nothing() {
    for format in Format::ALL {
        for place in PLACES {
            let (mut pair, elements) = warm(format, OnNonfinite::Skip);
            let before = pair.parameters.clone();
            let mut gradients = noise(elements, 2, 1e-1);
            gradients[3 + place] = BAD[place % 3];
            let report = pair.step(2, &gradients);
            assert!(report.skipped);
            assert_eq!(report.first_nonfinite, Some(Location { tensor: 1, index: place }));
            assert_eq!((report.nonfinite, report.saturated_m, report.saturated_r), (1, 0, 0));
            assert_eq!(pair.parameters, before);
            let report = pair.step(3, &noise(elements, 3, 1e-1));
            assert!(!report.skipped);
            assert_ne!(pair.parameters, before);
        }
    }
}

#[test]
fn a_skipped_update_chooses_no_bias() {
    let mut setup = Setup::of(Format::E4, &[40]);
    setup.groups[0].bias = BiasChoice::Auto;
    for clip_norm in [None, Some(1.0)] {
        setup.options = Options { on_nonfinite: OnNonfinite::Skip, clip_norm, seed: 0 };
        let mut pair = setup.build(Instructions::best());
        let mut gradients = noise(40, 1, 1.0);
        gradients[7] = f32::NAN;
        assert!(pair.step(1, &gradients).skipped);
        assert_eq!(pair.optimizer.bias(0), None);
        pair.step(2, &noise(40, 2, 1e-3));
        assert!(pair.optimizer.bias(0).is_some());
    }
}

/// A step that is told to hold is one that stops, as long as everything is finite.
#[test]
fn holding_changes_no_finite_update() {
    for format in Format::ALL {
        for clip_norm in [None, Some(1.0)] {
            let mut setup = Setup::of(format, &[3, 20_000]);
            setup.options = Options { on_nonfinite: OnNonfinite::Hold, clip_norm, seed: 0 };
            let mut pair = setup.build(Instructions::best());
            for update in 1..4 {
                // Compared with the authority, which knows of no holding.
                pair.step(update, &noise(setup.elements(), update, 1e-1));
            }
        }
    }
}

#[test]
fn what_is_held_stays_until_a_state_is_loaded() {
    for format in Format::ALL {
        for place in PLACES {
            let (mut pair, elements) = warm(format, OnNonfinite::Hold);
            let before = (pair.parameters.clone(), pair.optimizer.save().unwrap().into_owned());
            let mut gradients = noise(elements, 2, 1e-1);
            gradients[3 + place] = BAD[place % 3];
            let Pair { optimizer, parameters, .. } = &mut pair;
            optimizer.set_update(2, &[1e-2]).unwrap();
            optimizer.step(parameters, &gradients).unwrap();
            let report = optimizer.report().unwrap();
            assert!(report.skipped);
            assert_eq!((report.nonfinite, report.saturated_m, report.saturated_r), (1, 0, 0));
            assert_eq!(report.first_nonfinite, Some(Location { tensor: 1, index: place }));

            // What was queued behind it does nothing either.
            let good = noise(elements, 3, 1e-1);
            optimizer.set_update(3, &[1e-2]).unwrap();
            optimizer.step(parameters, &good).unwrap();
            let report = optimizer.report().unwrap();
            assert_eq!((report.skipped, report.nonfinite, report.first_nonfinite), (true, 0, None));
            assert_eq!(*parameters, before.0);
            assert_eq!(optimizer.save().unwrap().arrays, before.1.arrays);

            optimizer.load(&before.1).unwrap();
            optimizer.set_update(2, &[1e-2]).unwrap();
            optimizer.step(parameters, &good).unwrap();
            assert!(!optimizer.report().unwrap().skipped);
            assert_ne!(*parameters, before.0);
        }
    }
}

#[test]
fn a_result_that_overflows_holds_up_later_updates() {
    let mut setup = Setup::of(Format::E4, &[100]);
    setup.options.on_nonfinite = OnNonfinite::Hold;
    let mut pair = setup.build(Instructions::best());
    // The square of this gradient overflows v.
    let mut gradients = noise(100, 1, 1e-1);
    gradients[99] = 1e20;
    let report = pair.step(1, &gradients);
    assert_eq!((report.skipped, report.nonfinite), (false, 1));
    let before = pair.parameters.clone();
    pair.optimizer.set_update(2, &[1e-2]).unwrap();
    pair.optimizer.step(&mut pair.parameters, &noise(100, 2, 1e-1)).unwrap();
    assert!(pair.optimizer.report().unwrap().skipped);
    assert_eq!(pair.parameters, before);
}

#[test]
fn a_loss_that_is_not_finite_counts_as_asked() {
    for (on_nonfinite, is_skipped, is_next_skipped) in [
        (OnNonfinite::Stop, false, false),
        (OnNonfinite::Skip, true, false),
        (OnNonfinite::Hold, true, true),
    ] {
        let (mut pair, elements) = warm(Format::E4, on_nonfinite);
        let Pair { optimizer, parameters, .. } = &mut pair;
        for (update, loss, is_skipped) in
            [(2, 3.0, false), (3, f64::INFINITY, is_skipped), (4, 3.0, is_next_skipped)]
        {
            let before = parameters.clone();
            optimizer.set_update(update, &[1e-2]).unwrap();
            optimizer.step_watching(parameters, &noise(elements, update, 1e-1), &loss).unwrap();
            let report = optimizer.report().unwrap();
            assert_eq!((report.skipped, report.nonfinite), (is_skipped, 0), "{on_nonfinite:?}");
            assert_eq!(*parameters == before, is_skipped);
        }
    }
}
