//! What ranks do together gives every rank the right values, in one order of summing.

use std::ops::Range;

use ranks::{Alone, Communicator, part_of};

use crate::job::outcomes;

/// Numbers whose sums depend on their order.
fn values(rank: usize, length: usize) -> Vec<f32> {
    let value = |index: usize| (1.0 + index as f32).sqrt() * 10f32.powi((rank * 3 % 5) as i32 - 2);
    (0..length).map(value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The sum over ranks, in their order.
fn sums(world_size: usize, length: usize) -> Vec<f32> {
    let add = |sum: Vec<f32>, terms: Vec<f32>| sum.iter().zip(terms).map(|(a, b)| a + b).collect();
    (0..world_size).map(|rank| values(rank, length)).reduce(add).unwrap()
}

#[test]
fn sums_are_those_in_the_order_of_ranks() {
    for world_size in 2..=5 {
        for length in [0, 1, 3, 1000, 70_001] {
            let found = outcomes(world_size, |tcp| {
                let mut own = values(tcp.rank(), length);
                tcp.all_reduce(&mut own)?;
                Ok(own)
            });
            let expected = bits(&sums(world_size, length));
            assert!(found.iter().all(|found| bits(found) == expected), "{world_size} {length}");
        }
    }
}

#[test]
fn parts_may_have_any_length() {
    // Not in the order of ranks, one of them empty.
    let parts: [Range<usize>; 3] = [7..10, 0..7, 10..10];
    let found = outcomes(3, |tcp| {
        let mut own = values(tcp.rank(), 10);
        tcp.reduce_scatter(&mut own, &parts)?;
        let scattered = own.clone();
        tcp.all_gather(&mut own, &parts)?;
        Ok((scattered, own))
    });
    let expected = sums(3, 10);
    for (rank, (scattered, gathered)) in found.iter().enumerate() {
        assert_eq!(bits(gathered), bits(&expected));
        for index in 0..10 {
            let own = values(rank, 10)[index];
            let value = if parts[rank].contains(&index) { expected[index] } else { own };
            assert_eq!(scattered[index].to_bits(), value.to_bits(), "{rank} {index}");
        }
    }
}

#[test]
fn bytes_arrive_in_the_order_of_ranks() {
    let found = outcomes(4, |tcp| {
        let rank = tcp.rank() as u8;
        let gathered = tcp.gather(&vec![rank; usize::from(rank)])?;
        let exchanged = tcp.all_to_all((0..4).map(|to| vec![rank, to]).collect())?;
        let mut word = if rank == 2 { b"from two".to_vec() } else { vec![rank] };
        tcp.broadcast(&mut word, 2)?;
        tcp.barrier()?;
        Ok((gathered, exchanged, word))
    });
    for (rank, (gathered, exchanged, word)) in found.into_iter().enumerate() {
        assert_eq!(gathered, [vec![], vec![1], vec![2, 2], vec![3, 3, 3]]);
        assert_eq!(exchanged, [0, 1, 2, 3].map(|from| vec![from, rank as u8]));
        assert_eq!(word, b"from two");
    }
}

#[test]
fn much_at_once_does_not_wait_for_itself() {
    let length = 5_000_000;
    let found = outcomes(2, |tcp| {
        let mut own = vec![tcp.rank() as f32 + 1.0; length];
        tcp.all_reduce(&mut own)?;
        Ok(own.iter().all(|&value| value == 3.0))
    });
    assert_eq!(found, [true, true]);
}

#[test]
fn a_process_that_is_alone_keeps_its_values() {
    let mut alone = Alone::default();
    let mut own = values(0, 9);
    alone.all_reduce(&mut own).unwrap();
    assert_eq!(own, values(0, 9));
    assert_eq!(alone.gather(b"x").unwrap(), [b"x"]);
    assert_eq!(part_of(9, alone.rank(), alone.world_size()), 0..9);
}
