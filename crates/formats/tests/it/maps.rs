//! The 8-bit maps: the published entries, and the law that a code is nearest.

use std::collections::BTreeMap;

use formats::block8::Maps;
use formats::dynamic_map::{Map, Nearest, Quantizer, signed, unsigned};
use formats::{RandomStream, Rules};
use proptest::prelude::*;

#[test]
fn dynamic_maps_are_the_published_ones() {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let path = format!("{root}/tests/it/golden/dynamic-maps.txt");
    let golden = std::fs::read_to_string(path).unwrap();
    let maps = BTreeMap::from([("signed", signed()), ("unsigned", unsigned())]);
    let mut rows = 0;
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.split(' ');
        let mut next = || fields.next().unwrap();
        let (name, code, bits) = (next(), next(), next());
        let entry = maps[name][code.parse::<usize>().unwrap()];
        assert_eq!(format!("{:08x}", entry.to_bits()), bits, "{name} {code}");
        rows += 1;
    }
    assert_eq!(rows, 512);
    for map in maps.values() {
        assert!(map.windows(2).all(|pair| pair[0] < pair[1]));
    }
    assert_eq!((signed()[127], signed()[0], signed()[255]), (0.0, -0.992_968_74, 1.0));
    assert_eq!((unsigned()[0], unsigned()[254], unsigned()[255]), (0.0, 0.996_484_4, 1.0));
}

/// Numbers around every entry and every middle, and over the whole range.
fn probes(map: &Map) -> Vec<f32> {
    let stream = RandomStream::new(5, 0, 0, 0);
    let mut probes: Vec<f32> = (0..20_000u32)
        .map(|index| stream.word(index) as i32 as f32 / 2f32.powi(31))
        .flat_map(|x| [x, x * x * x, x.powi(9)])
        .collect();
    for pair in map.windows(2) {
        let middle = (pair[0] + pair[1]) / 2.0;
        probes.extend([middle.next_down(), middle, middle.next_up()]);
        probes.extend([pair[0].next_down(), pair[0], pair[0].next_up()]);
    }
    probes.extend([0.0, -0.0, 1.0, -1.0, f32::MIN_POSITIVE, -f32::MIN_POSITIVE]);
    probes
}

/// The nearest entry by distances in f64, the even code in the middle.
fn nearest(map: &Map, x: f32) -> u8 {
    let distance = |code: usize| (f64::from(map[code]) - f64::from(x)).abs();
    let mut best = 0;
    for code in 1..256 {
        let is_nearer = distance(code) < distance(best);
        if is_nearer || (distance(code) == distance(best) && code % 2 == 0) {
            best = code;
        }
    }
    best as u8
}

#[test]
fn a_plain_code_is_nearest_with_ties_to_the_even_code() {
    for map in [signed(), unsigned()] {
        let quantizer = Quantizer::new(map, Nearest::Plain);
        for x in probes(&map) {
            assert_eq!(quantizer.code(x), nearest(&map, x), "{x:e}");
            assert_eq!(quantizer.code(x), quantizer.bisected(x), "{x:e}");
        }
    }
}

#[test]
fn lines_guess_codes_of_dynamic_maps() {
    for rules in [Rules::Repaired, Rules::Published] {
        let maps = Maps::dynamic(rules);
        for quantizer in [&maps.first, &maps.second] {
            let lines = quantizer.lines().expect("a dynamic map has lines");
            let probes = probes(&quantizer.map).into_iter();
            for x in probes.filter(|x| quantizer.is_signed() || x.is_sign_positive()) {
                let guess = lines.guess(x);
                let settled = guess + u8::from(x > quantizer.thresholds[guess as usize]);
                assert_eq!(settled, quantizer.bisected(x), "{x:e}");
            }
        }
    }
    let even: Vec<f32> = (0..256).map(|code| code as f32 / 255.0).collect();
    assert_eq!(Maps::plain(&even, &even).unwrap().second.lines(), None);
}

#[test]
fn mended_codes_differ_beside_zero_alone() {
    let maps = Maps::dynamic(Rules::Repaired);
    let plain = Maps::plain(&signed(), &unsigned()).unwrap();
    for x in probes(&signed()) {
        let (code, plain) = (maps.first.code(x), plain.first.code(x));
        let magnitude = |code: u8| signed()[code as usize].abs();
        assert!(code == plain || magnitude(code) < magnitude(plain), "{x:e}");
        assert!(code.abs_diff(plain) <= 1);
        // Where entries lie closer than a fifth apart, nothing differs.
        assert!(code == plain || x.abs() < 4e-3, "{x:e}");
    }
    for x in probes(&unsigned()).into_iter().filter(|&x| x >= 0.0) {
        let (code, plain) = (maps.second.code(x), plain.second.code(x));
        assert_eq!(code, if x > 0.0 { plain.max(1) } else { 0 }, "{x:e}");
    }
    let published = Maps::dynamic(Rules::Published);
    assert_eq!(published.first.code(-1e-30), 126);
    assert_eq!(published.first.code(1e-30), 127);
    assert_eq!(published.second.code(1e-30), 0);
}

#[test]
fn what_fades_by_a_tenth_ends_at_zero() {
    let maps = Maps::dynamic(Rules::Repaired);
    for start in 0..=255u8 {
        let mut code = start;
        for _ in 0..400 {
            code = maps.first.code(maps.first.map[code as usize] * 0.9);
        }
        assert_eq!(code, 127, "from {start}");
    }
}

#[test]
fn blocks_of_zeros_have_the_code_of_zero() {
    let maps = Maps::dynamic(Rules::Repaired);
    assert_eq!(maps.first.code_in_block(0.0, 0.0), 127);
    assert_eq!(maps.second.code_in_block(0.0, 0.0), 0);
    assert_eq!(maps.first.value_in_block(0, 0.0), 0.0);
}

#[test]
fn bad_maps_are_refused() {
    let good = signed();
    let message = |map: &[f32]| Maps::new(map, &good, Rules::Repaired).unwrap_err().to_string();
    assert_eq!(message(&good[..255]), "expected a map of 256 entries, found 255");
    let with = |index: usize, entry: f32| {
        let mut map = good;
        map[index] = entry;
        message(&map)
    };
    let order = "expected finite map entries in strictly ascending order, found";
    assert_eq!(with(10, good[9]), format!("{order} {:e} after {:e} at entry 10", good[9], good[9]));
    assert_eq!(with(0, f32::NAN), format!("{order} NaN after -inf at entry 0"));
    assert_eq!(with(255, f32::INFINITY), format!("{order} inf after {:e} at entry 255", good[254]));
    assert_eq!(with(3, -2.0), format!("{order} -2e0 after {:e} at entry 3", good[2]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_ascending_map_works(seed in any::<u64>(), power in 1u32..12) {
        let stream = RandomStream::new(seed, 0, 0, 0);
        let mut entries: Vec<f32> = (0..256)
            .map(|index| (stream.word(index) as i32 as f32 / 2f32.powi(31)).powi(power as i32))
            .collect();
        entries.sort_by(f32::total_cmp);
        entries.dedup();
        prop_assume!(entries.len() == 256);
        let maps = Maps::plain(&entries, &entries).unwrap();
        let map = &maps.first.map;
        for x in probes(map) {
            // Far from all entries, distances of different ones may round to the same number.
            let distance = |code: u8| (f64::from(map[code as usize]) - f64::from(x)).abs();
            prop_assert_eq!(distance(maps.first.code(x)), distance(nearest(map, x)), "{:e}", x);
        }
    }
}
