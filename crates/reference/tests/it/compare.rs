//! The comparisons themselves.

use reference::compare::{first_difference, ulp_distance, ulps_at};

#[test]
fn neighbours_are_one_ulp_apart() {
    for number in [0.0f32, 1.0, -1.0, 1e-40, -2.5e10, f32::MIN_POSITIVE] {
        assert_eq!(ulp_distance(number, number), 0);
        assert_eq!(ulp_distance(number, number.next_up()), 1);
        assert_eq!(ulp_distance(number, number.next_down()), 1);
    }
    assert_eq!(ulp_distance(0.0, -0.0), 0);
    assert_eq!(ulp_distance(0f32.next_down(), 0f32.next_up()), 2);
    assert_eq!(ulp_distance(f32::MAX, f32::INFINITY), 1);
    assert_eq!(ulp_distance(f32::NAN, 1.0), u32::MAX);
    assert_eq!(ulp_distance(f32::NAN, f32::NAN), 0);
    assert_eq!(ulp_distance(f32::MIN, f32::MAX), 2 * f32::MAX.to_bits());
}

#[test]
fn ulps_at_a_magnitude_scale_with_it() {
    assert_eq!(ulps_at(1.0, 0.5, 0.5f32.next_up()), 0.5);
    assert_eq!(ulps_at(-1.0, 0.0, f32::EPSILON), 1.0);
    assert_eq!(ulps_at(1.0, f32::INFINITY, 1.0), f64::INFINITY);
    assert_eq!(ulps_at(1.0, f32::NAN, f32::NAN), 0.0);
}

#[test]
fn the_first_difference_is_by_bits() {
    assert_eq!(first_difference(&[1.0, f32::NAN], &[1.0, f32::NAN]), None);
    let difference = first_difference(&[1.0, 0.0, 2.0], &[1.0, -0.0, 3.0]).unwrap();
    assert_eq!((difference.index, difference.ulps), (1, 0));
    let difference = first_difference(&[1.0, 2.0], &[1.0, 2f32.next_up()]).unwrap();
    assert_eq!((difference.index, difference.ulps), (1, 1));
}

#[test]
#[should_panic(expected = "only slices of one length")]
fn slices_of_other_lengths_are_a_mistake() {
    let _ = first_difference(&[1.0], &[]);
}
