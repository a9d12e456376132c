use proptest::prelude::*;

use super::*;

/// Returns the skew of labels in batches of `size`.
fn stream(labels: impl IntoIterator<Item = f64>, size: usize, known: Option<Known>) -> Skew {
    let labels: Vec<f64> = labels.into_iter().collect();
    let mut skew = Skew::default();
    for (index, batch) in labels.chunks(size).enumerate() {
        if index == 5 {
            known.into_iter().for_each(|known| skew.set_known(known));
        }
        skew.add(&Moments::of(batch.iter().copied()));
    }
    skew
}

/// Returns pseudo-random numbers in [0, 1) by `seed`.
fn scattered(seed: u64, count: u64) -> impl Iterator<Item = f64> {
    (0..count).map(move |index| {
        let mut z = (index + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    })
}

proptest! {
    #[test]
    fn a_shuffled_stream_is_never_flagged(seed: u64, scale in 1e-6..1e6f64, offset in -10.0..10.0f64, knows: bool) {
        let (mean, variance) = (scale * (0.5 + offset), scale * scale / 12.0);
        let labels = scattered(seed >> 1, 100_000).map(|label| scale * (label + offset));
        let skew = stream(labels, 256, knows.then_some(Known { mean, error: 0.0, variance }));
        prop_assert!((0.7..1.4).contains(&skew.std_ratio().unwrap()), "{:?}", skew.std_ratio());
        prop_assert!(!skew.is_skewed());
    }

    #[test]
    fn an_imprecise_dataset_mean_does_not_flag_a_shuffled_stream(seed: u64, error in 0.0..0.3f64, off in -3.0..3.0f64) {
        let labels = scattered(seed >> 1, 100_000);
        let skew = stream(labels, 1024, Some(Known { mean: 0.5 + off * error, error, variance: 1.0 / 12.0 }));
        prop_assert!(!skew.is_skewed(), "{:?}", skew.std_ratio());
    }

    #[test]
    fn a_large_offset_does_not_hide_a_skew(seed: u64, offset in 1e3..1e9f64) {
        let labels: Vec<f64> = scattered(seed >> 1, 50_000).map(|label| label + offset).collect();
        let std_ratio = |labels: Vec<f64>| stream(labels, 256, None).std_ratio().unwrap();
        prop_assert!((0.7..1.4).contains(&std_ratio(labels.clone())));
        let mut sorted = labels;
        sorted.sort_by(f64::total_cmp);
        prop_assert!((13.0..17.0).contains(&std_ratio(sorted)));
    }

    #[test]
    fn rare_clicks_are_not_flagged_when_they_are_shuffled(seed: u64, rate in 0.001..0.5f64) {
        let labels = scattered(seed >> 1, 200_000).map(|label| f64::from(label < rate));
        let skew = stream(labels, 512, Some(Known { mean: rate, error: 0.0, variance: rate * (1.0 - rate) }));
        prop_assert!(!skew.is_skewed(), "{:?}", skew.std_ratio());
    }
}

#[test]
fn a_sorted_stream_is_flagged_before_its_second_label_appears() {
    let known = Known { mean: 0.5, error: 0.02, variance: 0.25 };
    let skew = stream(std::iter::repeat_n(0.0, 40 * 64), 64, Some(known));
    assert!((7.0..9.0).contains(&skew.std_ratio().unwrap()), "{:?}", skew.std_ratio());
    assert!(skew.is_skewed());
    // Not flagged if the imprecise mean allows a constant label.
    assert!(!stream(std::iter::repeat_n(0.0, 40 * 64), 64, Some(Known { error: 0.2, ..known })).is_skewed());
    // Without dataset statistics, both labels must appear.
    assert_eq!(stream(std::iter::repeat_n(0.0, 40 * 64), 64, None).std_ratio(), None);
    let sorted = (0..80 * 64).map(|row| f64::from(row >= 40 * 64));
    assert!(stream(sorted, 64, None).is_skewed());
}

#[test]
fn a_constant_label_and_few_batches_give_no_result() {
    assert_eq!(stream(std::iter::repeat_n(3.0, 10_000), 64, None).std_ratio(), None);
    assert_eq!(stream(scattered(1, 31 * 64), 64, None).std_ratio(), None);
    assert_eq!(stream(scattered(1, 1000), 4, None).batches(), 0);
}
