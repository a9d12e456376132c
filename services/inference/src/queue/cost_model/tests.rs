use super::*;

/// 2 ms per batch and 10 us per row.
fn took(rows: u64) -> Duration {
    Duration::from_micros(2000 + 10 * rows)
}

fn off(model: &CostModel, rows: u64, bytes: u64, truth: Duration) -> f64 {
    (model.predict(rows, bytes).as_secs_f64() / truth.as_secs_f64() - 1.0).abs()
}

#[test]
fn predictions_are_within_a_tenth_of_the_truth_under_noise() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut model = CostModel::default();
    for _ in 0..2000 {
        let rows = 1 << random.u32(0..11);
        let noise = 0.8 + 0.4 * random.f64();
        model.observe(rows, rows * 156, took(rows).mul_f64(noise));
    }
    for rows in [1, 8, 100, 700, 1024] {
        let off = off(&model, rows, rows * 156, took(rows));
        assert!(off < 0.1, "{rows} rows: {:?} is off by {off}", model.predict(rows, rows * 156));
    }
}

#[test]
fn unseen_sizes_are_interpolated_and_extrapolated_from_seen_ones() {
    let mut model = CostModel::default();
    for rows in [64, 512].repeat(20) {
        model.observe(rows, rows * 100, took(rows));
    }
    for rows in [1, 256, 2048] {
        let off = off(&model, rows, rows * 100, took(rows));
        assert!(off < 0.05, "{rows} rows: off by {off}");
    }
}

#[test]
fn a_single_size_is_attributed_to_the_fixed_cost() {
    let mut model = CostModel::default();
    (0..5).for_each(|_| model.observe(1, 100, Duration::from_millis(3)));
    assert!(off(&model, 1, 100, Duration::from_millis(3)) < 0.01);
    assert!(model.predict(500, 50_000) < Duration::from_millis(6), "{:?}", model.coefficients());
}

#[test]
fn bytes_and_rows_are_separated_when_they_are_not_proportional() {
    let mut random = fastrand::Rng::with_seed(9);
    let mut model = CostModel::default();
    let truth = |rows: u64, bytes: u64| Duration::from_nanos(1_000_000 + 2_000 * rows + 5 * bytes);
    for _ in 0..3000 {
        let rows = random.u64(1..1000);
        let bytes = rows * random.u64(50..2000);
        model.observe(rows, bytes, truth(rows, bytes));
    }
    for (rows, bytes) in [(10, 500), (10, 100_000), (800, 50_000), (800, 1_500_000)] {
        let off = off(&model, rows, bytes, truth(rows, bytes));
        assert!(off < 0.15, "{rows} rows, {bytes} bytes: off by {off}");
    }
}

#[test]
fn a_slower_worker_is_detected_and_a_single_outlier_is_ignored() {
    let mut model = CostModel::default();
    for rows in [1, 32, 256].repeat(30) {
        model.observe(rows, rows * 100, took(rows));
    }
    model.observe(32, 3200, Duration::from_secs(2));
    assert!(off(&model, 32, 3200, took(32)) < 0.3);
    for rows in [1, 32, 256].repeat(60) {
        model.observe(rows, rows * 100, took(rows) * 5);
    }
    for rows in [1, 32, 256] {
        assert!(off(&model, rows, rows * 100, took(rows) * 5) < 0.15, "{rows}");
    }
}

#[test]
fn no_observation_leads_to_an_invalid_prediction() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut model = CostModel::default();
    for _ in 0..2000 {
        let (rows, bytes) = (random.u64(..) >> random.u32(0..64), random.u64(..) >> random.u32(0..64));
        model.observe(rows, bytes, Duration::from_nanos(random.u64(..) >> random.u32(0..64)));
        let Coefficients { fixed, row, byte } = model.coefficients();
        assert!([fixed, row, byte].iter().all(|value| value.is_finite() && *value >= 0.0));
        model.predict(u64::MAX, u64::MAX);
    }
}

#[test]
fn a_batch_that_takes_a_hundred_times_as_long_counts_as_one_that_takes_four_times_as_long() {
    let mut model = CostModel::default();
    (0..40).for_each(|_| model.observe(32, 3200, took(32)));
    model.observe(32, 3200, took(32) * 100);
    let ratio = model.predict(32, 3200).as_secs_f64() / took(32).as_secs_f64();
    // A mean over 32 batches, one of which takes four times as long.
    assert!((ratio - (1.0 + 3.0 / 32.0)).abs() < 0.01, "{ratio}");
}

#[test]
fn sizes_that_no_longer_occur_yield_to_those_that_do() {
    let mut model = CostModel::default();
    for rows in [1, 32, 256].repeat(30) {
        model.observe(rows, rows * 100, took(rows));
    }
    (0..6000).for_each(|_| model.observe(64, 6400, took(64) * 5));
    let off = off(&model, 64, 6400, took(64) * 5);
    assert!(off < 0.02, "off by {off}");
}

#[test]
fn sizes_that_differ_by_a_quarter_have_predictions_of_their_own() {
    let mut model = CostModel::default();
    for rows in [64, 80].repeat(40) {
        model.observe(rows, 1, Duration::from_micros(100 + 50 * rows));
    }
    for rows in [64, 80] {
        let off = off(&model, rows, 1, Duration::from_micros(100 + 50 * rows));
        assert!(off < 0.01, "{rows} rows: off by {off}");
    }
}

#[test]
fn costs_that_fall_with_the_size_are_attributed_to_the_fixed_cost() {
    let mut model = CostModel::default();
    for rows in [1, 64, 512].repeat(30) {
        model.observe(rows, rows * 100, Duration::from_micros(3000 - rows));
    }
    let Coefficients { fixed, row, byte } = model.coefficients();
    assert_eq!((row, byte), (0.0, 0.0));
    assert!((2.488e-3..3e-3).contains(&fixed), "between the times of 512 rows and of none: {fixed}");
}

#[test]
fn costs_in_proportion_to_the_rows_have_no_fixed_part() {
    let mut model = CostModel::default();
    for rows in [64, 512, 4096].repeat(30) {
        model.observe(rows, 1, Duration::from_micros(10 * rows));
    }
    let Coefficients { fixed, row, byte } = model.coefficients();
    assert!(fixed + byte < 1e-6 && (row / 10e-6 - 1.0).abs() < 0.01, "{:?}", model.coefficients());
}

#[test]
fn a_model_of_two_sizes_does_not_depend_on_the_number_of_batches() {
    let trained = |rounds| {
        let mut model = CostModel::default();
        for rows in [64, 91].repeat(rounds) {
            model.observe(rows, 1, took(rows));
        }
        let Coefficients { fixed, row, .. } = model.coefficients();
        (fixed, row)
    };
    let (one, hundred) = (trained(1), trained(100));
    let near = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-5;
    assert!(near(one.0, hundred.0) && near(one.1, hundred.1), "{one:?} and {hundred:?}");
}
