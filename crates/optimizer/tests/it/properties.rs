//! Random models, options and gradients, a few updates each.

use formats::{Bias, Format};
use optimizer::{BiasChoice, Group, Instructions, OnNonfinite, Options};
use proptest::prelude::*;

use crate::equality::OPTIONS;
use crate::pair::{Setup, noise};

fn any_group() -> impl Strategy<Value = Group> {
    let bias = prop_oneof![
        Just(BiasChoice::Auto),
        (0..=40u32).prop_map(|bias| BiasChoice::Fixed(Bias::new(bias).unwrap())),
    ];
    let whole = Format::ALL.into_iter();
    let formats = whole.chain(OPTIONS.into_iter().map(|text| text.parse().unwrap()));
    let format = prop::sample::select(formats.collect::<Vec<Format>>());
    let beta = prop_oneof![Just(0.0), 0.0..1.0 - 1e-6, Just(0.9), Just(0.999)];
    let beta2 = prop_oneof![Just(0.0), 0.0..1.0 - 1e-6, Just(0.95), Just(0.999)];
    (format, bias, beta, beta2, -12.0..0.0f64, 0.0..1.0f64, -6.0..0.0f64).prop_map(
        |(format, bias, beta1, beta2, log_eps, weight_decay, log_rate)| Group {
            learning_rate: 10f64.powf(log_rate),
            betas: [beta1, beta2],
            eps: 10f64.powf(log_eps),
            weight_decay,
            format: if beta1 * beta1 < beta2 { format } else { Format::E4 },
            bias,
        },
    )
}

fn any_setup() -> impl Strategy<Value = Setup> {
    let options = (
        prop_oneof![Just(None), (-6.0..3.0f64).prop_map(|log| Some(10f64.powf(log)))],
        any::<bool>(),
        any::<u64>(),
    )
        .prop_map(|(clip_norm, skips, seed)| Options {
            clip_norm,
            on_nonfinite: if skips { OnNonfinite::Skip } else { OnNonfinite::Stop },
            seed,
        });
    let groups = prop::collection::vec(any_group(), 1..4);
    let tensors = prop::collection::vec((0..3_000usize, any::<prop::sample::Index>()), 0..6);
    (tensors, groups, options).prop_map(|(tensors, groups, options)| {
        let tensors = tensors
            .into_iter()
            .map(|(length, group)| (length, group.index(groups.len())))
            .collect();
        Setup { tensors, groups, options }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_model_has_the_bits_of_the_authority(
        setup in any_setup(),
        seed in any::<u64>(),
        log_largest in -9.0..9.0f32,
        bad in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 0..3),
    ) {
        let mut pair = setup.build(Instructions::best());
        for update in 1..=4u64 {
            let mut gradients =
                noise(setup.elements(), seed.wrapping_add(update), 10f32.powf(log_largest));
            // Any bits at all, now and then.
            for (place, bits) in &bad {
                if update == 3 && !gradients.is_empty() {
                    let place = place.index(gradients.len());
                    gradients[place] = f32::from_bits(*bits);
                }
            }
            pair.step(update, &gradients);
        }
    }
}
