use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(crate::testing::cases(2000))]

    #[test]
    fn solutions_are_counted_as_if_one_by_one(
        first in 0u64..200, stride in 0u64..200, modulus in 1u32..40, residue in 0u32..40, end in 0u64..200,
    ) {
        let residue = residue % modulus;
        let solves = |e: &u64| (first + e * stride) % u64::from(modulus) == u64::from(residue);
        let counted = Solutions::new(first, stride, residue, modulus).map_or(0, |solutions| solutions.below(end));
        prop_assert_eq!(counted, (0..end).filter(solves).count() as u64);
    }
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let solutions = Solutions::new(u64::MAX, u64::MAX, u32::MAX - 1, u32::MAX);
    // 2^64 - 1 is 0 modulo 2^32 - 1, so only residue 0 is reached.
    assert_eq!(solutions, None);
    let solutions = Solutions::new(u64::MAX, u64::MAX - 1, u32::MAX - 1, u32::MAX).unwrap();
    assert_eq!((solutions.smallest, solutions.period), (1, u64::from(u32::MAX)));
    assert_eq!(solutions.below(u64::MAX), u64::from(u32::MAX) + 2);
}
