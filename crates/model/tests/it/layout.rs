//! Names, counts and initial values of the parameters.

use model::{Layout, Role};

use crate::samples::{self, config};

const REFERENCE_12M: [usize; 5] = [12096, 1152, 320, 6, 5];

#[test]
fn reference_12m_counts_exactly() {
    let config = config(REFERENCE_12M);
    assert_eq!(config.parameters(), 11_637_760);
    assert_eq!(Layout::new(config).parameters(), 11_637_760);
    assert_eq!(config.product_parameters(), 11_243_520);
    // 77.7 GFLOP of products and 15.3 of attention in a step of 1152 tokens.
    let step = config.training_flops_per_token(1152) * 1152.0;
    assert!((step / 1e9 - 93.0).abs() < 0.1, "{step}");
}

#[test]
fn other_shapes_count_exactly() {
    assert_eq!(config([50304, 1024, 768, 12, 12]).parameters(), 124_475_904);
    for dimensions in [[1, 1, 1, 1, 1], [7, 6, 6, 2, 3], [300, 10, 40, 5, 8]] {
        let config = config(dimensions);
        assert_eq!(Layout::new(config).parameters(), config.parameters());
    }
}

#[test]
fn slots_follow_each_other_without_gaps() {
    let layout = Layout::new(config([7, 6, 6, 2, 3]));
    let mut end = 0;
    for slot in layout.slots() {
        assert_eq!(slot.offset, end, "{}", slot.name);
        assert_eq!(slot.length, slot.shape.iter().product::<usize>());
        assert_eq!(layout.slot(&slot.name), Some(slot));
        assert_eq!(layout.slot_of(slot.offset), Some(slot));
        assert_eq!(layout.slot_of(slot.range().end - 1), Some(slot));
        end = slot.range().end;
    }
    assert_eq!(layout.slot_of(end), None);
    assert_eq!(layout.slot("wte"), None);
}

#[test]
fn names_and_shapes_are_those_of_gpt2() {
    let layout = Layout::new(config([7, 6, 4, 2, 2]));
    let shapes: Vec<String> = layout
        .slots()
        .iter()
        .map(|slot| format!("{} {:?} {:?}", slot.name, slot.shape, slot.role))
        .collect();
    let block = |layer: usize| {
        [
            format!("h.{layer}.ln_1.weight [4] Gain"),
            format!("h.{layer}.ln_1.bias [4] Bias"),
            format!("h.{layer}.attn.c_attn.weight [4, 12] Weight"),
            format!("h.{layer}.attn.c_attn.bias [12] Bias"),
            format!("h.{layer}.attn.c_proj.weight [4, 4] ResidualWeight"),
            format!("h.{layer}.attn.c_proj.bias [4] Bias"),
            format!("h.{layer}.ln_2.weight [4] Gain"),
            format!("h.{layer}.ln_2.bias [4] Bias"),
            format!("h.{layer}.mlp.c_fc.weight [4, 16] Weight"),
            format!("h.{layer}.mlp.c_fc.bias [16] Bias"),
            format!("h.{layer}.mlp.c_proj.weight [16, 4] ResidualWeight"),
            format!("h.{layer}.mlp.c_proj.bias [4] Bias"),
        ]
    };
    let mut expected =
        vec!["wte.weight [7, 4] TokenTable".to_owned(), "wpe.weight [6, 4] Positions".to_owned()];
    expected.extend(block(0));
    expected.extend(block(1));
    expected.extend(["ln_f.weight [4] Gain".to_owned(), "ln_f.bias [4] Bias".to_owned()]);
    assert_eq!(shapes, expected);
}

#[test]
fn initial_values_have_their_distribution() {
    let layout = Layout::new(config([2000, 100, 64, 8, 4]));
    let values = layout.initial(1);
    for slot in layout.slots() {
        let values = &values[slot.range()];
        let deviation = match slot.role {
            Role::Bias => {
                assert!(values.iter().all(|&value| value == 0.0));
                continue;
            }
            Role::Gain => {
                assert!(values.iter().all(|&value| value == 1.0));
                continue;
            }
            Role::TokenTable | Role::Positions => 0.02,
            // C is 64 and L is 8.
            Role::Weight => 0.02 * f64::sqrt(12.0),
            Role::ResidualWeight => 0.02 * f64::sqrt(12.0) / 4.0,
        };
        let count = values.len() as f64;
        let moment = |power: i32| {
            values.iter().map(|&x| (f64::from(x) / deviation).powi(power)).sum::<f64>() / count
        };
        // Five standard errors of each moment's estimate; the fourth moment of the sum of twelve
        // uniforms is 2.9, a normal's is 3.
        assert!(moment(1).abs() < 5.0 / count.sqrt(), "{}: mean {}", slot.name, moment(1));
        assert!((moment(2) - 1.0).abs() < 5.0 * (2.0 / count).sqrt(), "{}", slot.name);
        assert!((moment(4) - 2.9).abs() < 5.0 * (96.0 / count).sqrt(), "{}", slot.name);
    }
}

#[test]
fn initial_values_depend_on_seed_slot_and_index_alone() {
    let layout = Layout::new(config([500, 60, 32, 3, 4]));
    let values = layout.initial(11);
    assert_eq!(values, layout.initial(11));
    assert_ne!(values, layout.initial(12));
    let single = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert_eq!(values, single.install(|| layout.initial(11)));
    // Another vocabulary moves every later slot, and changes none of them.
    let wider = Layout::new(config([700, 60, 32, 3, 4]));
    let wider_values = wider.initial(11);
    for (slot, wider) in layout.slots().iter().zip(wider.slots()) {
        assert_eq!(values[slot.range()], wider_values[wider.range()][..slot.length]);
    }
}

#[test]
fn initial_bits_are_pinned() {
    let layout = Layout::new(config([7, 6, 4, 2, 2]));
    let values = layout.initial(1234);
    let text: String = layout
        .slots()
        .iter()
        .map(|slot| {
            let bits = values[slot.range()].iter().take(4).map(|x| format!(" {:08x}", x.to_bits()));
            format!("{}{}\n", slot.name, bits.collect::<String>())
        })
        .collect();
    samples::check_golden("initial_bits.txt", &text);
}

#[test]
fn pieces_cover_everything_once_from_the_end() {
    for (dimensions, most) in
        [([50304, 1024, 768, 12, 12], 6), (REFERENCE_12M, 3), ([7, 6, 6, 2, 3], 1)]
    {
        let layout = Layout::new(config(dimensions));
        let pieces = layout.finished_pieces();
        assert_eq!(pieces.len(), most);
        let mut end = layout.parameters();
        let mut last = usize::MAX;
        let (at_the_end, behind): (Vec<_>, Vec<_>) =
            pieces.iter().partition(|(block, _)| block.is_none());
        for (block, piece) in behind {
            assert_eq!(piece.end, end);
            end = piece.start;
            // Blocks come in the order of the backward pass, and a piece begins where one of them does: at the bias
            // before its first LayerNorm.
            let block = block.unwrap();
            assert!(0 < block && block < last, "{block} {last}");
            last = block;
            let norm = layout.slot(&format!("h.{block}.ln_1.weight")).unwrap().offset;
            assert_eq!(piece.start, norm - layout.config().channels());
        }
        // The tables go before the first block, if that has a piece of its own.
        let first_block = layout.slot("h.0.ln_1.weight").unwrap().offset;
        match &at_the_end[..] {
            [(_, all)] => assert_eq!(*all, 0..end),
            [(_, tables), (_, first)] => {
                assert_eq!([tables.clone(), first.clone()], [0..first_block, first_block..end]);
            }
            _ => panic!("{at_the_end:?}"),
        }
        assert_eq!(pieces.last().unwrap().0, None);
    }
}
