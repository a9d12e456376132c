use proptest::prelude::*;

use super::*;

fn assert_finds_every_position(lengths: &[u32]) {
    let spans = Spans::new(lengths.iter().copied());
    let mut position = 0;
    for (span, &length) in lengths.iter().enumerate() {
        assert_eq!(spans.start(span), position);
        for offset in 0..length {
            assert_eq!(spans.find(position), (span, offset));
            position += 1;
        }
    }
    assert_eq!(spans.end(), position);
    assert!(spans.guide.len() <= 2 * lengths.len() + 2);
}

#[test]
fn empty_spans_contain_no_position() {
    for lengths in
        [&[][..], &[0], &[0, 0, 0], &[0, 1], &[1, 0], &[0, 0, 3, 0, 0, 2, 0], &[5, 0, 0, 0, 0, 0, 0, 1]]
    {
        assert_finds_every_position(lengths);
    }
}

#[test]
fn many_small_spans_in_one_bucket_are_distinguished() {
    let mut lengths = vec![1; 3000];
    lengths.extend([100_000, 0, 7, 0]);
    lengths.extend(vec![1; 3000]);
    assert_finds_every_position(&lengths);
}

proptest! {
    #![proptest_config(crate::testing::cases(200))]

    #[test]
    fn every_position_is_in_its_span(lengths in prop::collection::vec(crate::testing::block(), 0..60)) {
        assert_finds_every_position(&lengths);
    }
}
