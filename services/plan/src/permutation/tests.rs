use proptest::prelude::*;

use super::*;
use crate::testing::{cases, deviation_from_uniform};
use crate::{Level, PLAN_VERSION};

fn permutation(n: u64, seed: u64) -> Permutation {
    Permutation::new(n, Key::derive(PLAN_VERSION, seed, 0, Level::Rows, 0))
}

fn filled(permutation: &Permutation, positions: Range<u64>) -> Vec<u64> {
    let mut values = Vec::new();
    permutation.fill(positions, &mut values);
    values
}

fn assert_bijection(n: u64, seed: u64) {
    let values = filled(&permutation(n, seed), 0..n);
    assert_eq!(values.len() as u64, n);
    let mut seen = vec![false; n as usize];
    for value in values {
        assert!(
            !std::mem::replace(&mut seen[value as usize], true),
            "{value} twice for n = {n}, seed {seed}"
        );
    }
}

#[test]
fn every_value_comes_exactly_once() {
    for n in 0..300 {
        for seed in 0..20 {
            assert_bijection(n, seed);
        }
    }
    for exponent in 8..22 {
        for n in [(1 << exponent) - 1, 1 << exponent, (1 << exponent) + 1] {
            assert_bijection(n, 0);
        }
    }
    for n in [4095, 4096, 4097, 999_999, 1_000_000, 1_048_576 + 16_384, 3_000_017] {
        assert_bijection(n, 1);
    }
}

#[test]
fn a_domain_of_zero_or_one_value_has_one_order() {
    let none = permutation(0, 0);
    assert_eq!(filled(&none, 0..0), []);
    for seed in 0..50 {
        assert_eq!(permutation(1, seed).get(0), 0);
        assert_eq!(filled(&permutation(1, seed), 0..1), [0]);
    }
}

#[test]
fn the_largest_domain_is_permuted() {
    for n in [10_000_000_000, (1 << 32) + 1, (1 << 62) - 1, 1 << 62] {
        let permutation = permutation(n, 3);
        let mut values = filled(&permutation, n - 5000..n);
        values.extend(filled(&permutation, 0..5000));
        assert!(values.iter().all(|&value| value < n));
        assert_eq!(values[4999], permutation.get(n - 1));
        assert_eq!(values[5000], permutation.get(0));
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), 10_000);
    }
}

#[test]
#[should_panic = "position 5 of a permutation of 5"]
fn a_position_outside_the_domain_panics() {
    let _ = permutation(5, 0).get(5);
}

#[test]
#[should_panic = "more than 2^62"]
fn a_domain_that_does_not_fit_panics() {
    let _ = permutation((1 << 62) + 1, 0);
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn batch_form_equals_single_form(
        n in prop_oneof![1u64..200, 4000u64..5000, 65_530u64..65_545, 1u64..1 << 40, 1u64..=1 << 62],
        start in any::<u64>(), count in 0u64..400, seed in any::<u64>(),
    ) {
        let permutation = permutation(n, seed);
        let start = start % n;
        let end = n.min(start + count);
        let mut values = vec![7];
        permutation.fill(start..end, &mut values);
        prop_assert_eq!(values[0], 7, "what was there stays");
        let single: Vec<u64> = (start..end).map(|i| permutation.get(i)).collect();
        prop_assert_eq!(&values[1..], &single);
    }
}

/// Rank of an order among all permutations of its values.
fn rank_of(order: &[u64]) -> usize {
    let mut rank = 0;
    for (i, value) in order.iter().enumerate() {
        let smaller_later = order[i + 1..].iter().filter(|&later| later < value).count();
        rank = rank * (order.len() - i) + smaller_later;
    }
    rank
}

fn is_odd(order: &[u64]) -> bool {
    let mut inversions = 0;
    for (i, value) in order.iter().enumerate() {
        inversions += order[i + 1..].iter().filter(|&later| later < value).count();
    }
    inversions % 2 == 1
}

#[test]
fn every_order_of_a_few_items_is_equally_likely() {
    for n in 2..=6u64 {
        let orders: u64 = (1..=n).product();
        let mut counts = vec![0; orders as usize];
        for seed in 0..orders * 1000 {
            let permutation = permutation(n, seed);
            let order: Vec<u64> = (0..n).map(|i| permutation.get(i)).collect();
            counts[rank_of(&order)] += 1;
        }
        let deviation = deviation_from_uniform(&counts);
        assert!(deviation.abs() < 4.0, "n = {n}: {deviation}");
    }
}

#[test]
fn odd_and_even_orders_are_equally_likely_on_a_grid_with_odd_sides() {
    for n in [7, 8, 9, 15, 25, 49] {
        let mut counts = [0; 2];
        for seed in 0..40_000 {
            counts[usize::from(is_odd(&filled(&permutation(n, seed), 0..n)))] += 1;
        }
        let deviation = deviation_from_uniform(&counts);
        assert!(deviation < 4.0, "n = {n}: {counts:?}");
    }
}

#[test]
fn every_value_is_equally_likely_at_every_position() {
    for n in [7u64, 9, 16, 17, 50, 64, 100, 257] {
        let mut counts = vec![0; (n * n) as usize];
        for seed in 0..n * 100 {
            for (position, value) in filled(&permutation(n, seed), 0..n).into_iter().enumerate() {
                counts[position * n as usize + value as usize] += 1;
            }
        }
        let deviation = deviation_from_uniform(&counts);
        assert!(deviation < 4.0, "n = {n}: {deviation}");
    }
}

/// A poor round function would first show as neighbours that stay at a fixed distance.
#[test]
fn distances_of_neighbours_are_uniform() {
    for n in [5u64, 9, 100, 5000, 65_537] {
        let keys = 400_000 / n + 1;
        let buckets = (n - 1).min(97);
        let mut counts = vec![0; buckets as usize];
        for seed in 0..keys {
            for pair in filled(&permutation(n, seed), 0..n).chunks_exact(2) {
                let distance = (pair[0] + n - pair[1]) % n - 1;
                // Only whole rounds of buckets, so that each bucket is equally likely.
                if distance < (n - 1) / buckets * buckets {
                    counts[(distance % buckets) as usize] += 1;
                }
            }
        }
        let deviation = deviation_from_uniform(&counts);
        assert!(deviation.abs() < 4.0, "n = {n}: {deviation}");
    }
}
