use std::time::Duration;

use super::*;

/// A model that was trained on batches of 2 ms plus 10 us per row, with 100 bytes per row.
fn model() -> CostModel {
    let mut model = CostModel::default();
    for rows in [1, 64, 512].repeat(20) {
        model.observe(rows, rows * 100, Duration::from_micros(2000 + 10 * rows));
    }
    model
}

fn load(workers: usize, requests_per_second: f64) -> Load {
    Load {
        workers,
        overdue_workers: 0,
        suspended_workers: 0,
        queued_requests: 0,
        queued_rows: 0,
        batches: 0,
        requests_per_second,
        predicted_wait_seconds: None,
    }
}

fn requests_of(rows: f64) -> Option<MeanRequest> {
    Some(MeanRequest { rows, row_bytes: 100.0 })
}

/// Time of a batch of `rows` rows, in seconds.
fn time(rows: u64) -> f64 {
    model().predict(rows, rows * 100).as_secs_f64()
}

/// Forecast for requests of `rows` rows.
fn forecast(config: &QueueConfig, workers: usize, rate: f64, rows: f64) -> Forecast {
    Forecast::of(config, &model(), &load(workers, rate), requests_of(rows)).expect("trained, with workers")
}

#[track_caller]
fn assert_near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 1e-6, "{value}, expected {expected}");
}

#[test]
fn there_is_no_forecast_without_workers_measurements_or_requests() {
    let config = QueueConfig::default();
    assert!(Forecast::of(&config, &model(), &load(1, 1.0), requests_of(1.0)).is_some());
    assert_eq!(Forecast::of(&config, &model(), &load(0, 1.0), requests_of(1.0)), None);
    assert_eq!(Forecast::of(&config, &CostModel::default(), &load(1, 1.0), requests_of(1.0)), None);
    assert_eq!(Forecast::of(&config, &model(), &load(1, 1.0), None), None);
}

#[test]
fn the_capacity_is_that_of_the_largest_batches_of_whole_requests() {
    let config = QueueConfig { max_batch_rows: 64, ..QueueConfig::default() };
    let capacity = |config, workers, rows| forecast(config, workers, 1.0, rows).capacity_rows_per_second;
    assert_near(capacity(&config, 2, 3.0), 2.0 * 63.0 / time(63));
    assert_near(capacity(&config, 2, 100.0), 2.0 * 100.0 / time(100));
    // 25 requests of 2.5 rows are 62.5 rows, which are rounded up to 63.
    let seconds = model().predict(63, 6250).as_secs_f64();
    assert_near(capacity(&config, 1, 2.5), 62.5 / seconds);
    let limited = QueueConfig { max_batch_bytes: 1000, ..config.clone() };
    assert_near(capacity(&limited, 1, 3.0), 9.0 / time(9));
    let padded = QueueConfig { pad_to: vec![64], ..config.clone() };
    let full = model().predict(64, 6300).as_secs_f64();
    assert_near(capacity(&padded, 1, 3.0), 63.0 / full);
    // A row without bytes counts as one byte.
    let empty = Some(MeanRequest { rows: 3.0, row_bytes: 0.0 });
    let limited = QueueConfig { max_batch_bytes: 32, ..config };
    let forecast = Forecast::of(&limited, &model(), &load(1, 1.0), empty).expect("trained, with workers");
    assert_near(forecast.capacity_rows_per_second, 30.0 / model().predict(30, 0).as_secs_f64());
}

#[test]
fn the_utilization_is_the_part_of_the_capacity_that_requests_need() {
    let config = QueueConfig { max_batch_rows: 64, ..QueueConfig::default() };
    let limit = 2.0 * 63.0 / time(63) / 3.0;
    for part in [0.1, 0.5, 0.99] {
        let forecast = forecast(&config, 2, part * limit, 3.0);
        assert_near(forecast.utilization, part);
        assert!(forecast.latency_seconds.is_some());
    }
    for part in [1.001, 5.0] {
        let forecast = forecast(&config, 2, part * limit, 3.0);
        assert_near(forecast.utilization, part);
        assert_eq!(forecast.latency_seconds, None);
        assert_near(forecast.batch_rows, 63.0);
        assert_near(forecast.batch_seconds, time(63));
    }
    let capacity = forecast(&config, 2, 1.0, 1.0).capacity_rows_per_second;
    let full = forecast(&config, 2, capacity, 1.0);
    assert_eq!((full.utilization, full.latency_seconds), (1.0, None));
}

#[test]
fn a_request_alone_in_its_batch_waits_for_half_a_batch_with_the_probability_that_the_workers_are_busy() {
    for (workers, rate) in [(1, 100.0), (2, 100.0), (1, 300.0)] {
        let forecast = forecast(&QueueConfig::default(), workers, rate, 4.0);
        assert_near(forecast.batch_rows, 4.0);
        assert_near(forecast.batch_seconds, time(4));
        let busy = rate * time(4) / workers as f64;
        assert_near(forecast.latency_seconds.unwrap(), time(4) * (1.0 + busy / workers as f64 / 2.0));
    }
}

#[test]
fn an_eager_queue_waits_as_long_as_a_further_request_saves_time() {
    // Ten workers are free most of the time. A batch costs 2 ms, and a request arrives every millisecond.
    let fixed = model().coefficients().fixed;
    let eager = forecast(&QueueConfig::default(), 10, 1000.0, 4.0);
    let rows = 4.0 + 4.0 * 1000.0 * (fixed - 1e-3);
    assert_near(eager.batch_rows, rows);
    let takes = model().predict(rows.ceil() as u64, (rows * 100.0) as u64).as_secs_f64();
    assert_near(eager.batch_seconds, takes);
    assert_near(eager.latency_seconds.unwrap(), (fixed - 1e-3) / 2.0 + takes);
    let short = QueueConfig { max_batch_delay: Duration::from_micros(250), ..QueueConfig::default() };
    let limited = forecast(&short, 10, 1000.0, 4.0);
    assert_near(limited.batch_rows, 5.0);
    assert_near(limited.latency_seconds.unwrap(), 125e-6 + time(5));
}

#[test]
fn a_queue_that_is_not_eager_waits_for_the_delay_or_a_full_batch() {
    let config = QueueConfig { eager_dispatch: false, max_batch_rows: 64, ..QueueConfig::default() };
    let delayed = forecast(&config, 10, 1000.0, 2.0);
    assert_near(delayed.batch_rows, 2.0 + 1000.0 * 2.0 * 5e-3);
    assert_near(delayed.latency_seconds.unwrap(), 2.5e-3 + time(12));
    let full = forecast(&config, 10, 10_000.0, 2.0);
    assert_near(full.batch_rows, 64.0);
    assert_near(full.latency_seconds.unwrap(), 64.0 / 20_000.0 / 2.0 + time(64));
}

#[test]
fn a_batch_of_busy_workers_has_the_rows_that_arrive_during_the_one_before() {
    let config = QueueConfig { max_batch_delay: Duration::ZERO, ..QueueConfig::default() };
    for (workers, rate, rows) in [(1, 5000.0, 1.0), (2, 10_000.0, 1.0), (3, 15_000.0, 2.0)] {
        let forecast = forecast(&config, workers, rate, rows);
        assert!(forecast.batch_rows > 8.0 && forecast.utilization < 1.0, "{forecast:?}");
        assert_near(forecast.batch_rows, rate * rows * forecast.batch_seconds / workers as f64);
        let before = forecast.batch_seconds / workers as f64 / 2.0;
        assert_near(forecast.latency_seconds.unwrap(), before + forecast.batch_seconds);
    }
}

/// Batch sizes of the curve for requests of one row. Checks that each point has the forecast for its size.
fn sizes(config: &QueueConfig) -> Vec<u64> {
    let curve = ThroughputLatencyCurve::of(config, &model(), &load(1, 100.0), requests_of(1.0));
    for point in &curve.points {
        let changed = QueueConfig { max_batch_rows: point.max_batch_rows, ..config.clone() };
        assert_eq!(point.forecast, forecast(&changed, 1, 100.0, 1.0));
    }
    curve.points.iter().map(|point| point.max_batch_rows).collect()
}

#[test]
fn a_curve_has_the_powers_of_two_up_to_the_largest_useful_and_valid_batch() {
    let config = |max_queue_rows, max_batch_bytes| QueueConfig {
        max_queue_rows,
        max_batch_bytes,
        ..QueueConfig::default()
    };
    let large = u64::MAX;
    assert_eq!(sizes(&config(128, large)), [16, 32, 64, 128]);
    assert_eq!(sizes(&config(127, large)), [16, 32, 64]);
    assert_eq!(sizes(&config(large, 6400)), [16, 32, 64]);
    assert_eq!(sizes(&config(large, 6399)), [16, 32]);
    assert!(sizes(&config(15, large)).is_empty());
    assert_eq!(sizes(&config(large, large)).last(), Some(&QueueConfig::MAX_BATCH_ROWS));
    let padded = QueueConfig { pad_to: vec![32], ..config(128, large) };
    assert_eq!(
        sizes(&padded),
        [32, 64, 128],
        "16 is left out, because batches of at most 16 rows cannot be padded to 32"
    );
}

#[test]
fn a_curve_has_the_current_settings_with_their_forecast() {
    let config = QueueConfig { max_batch_rows: 100, ..QueueConfig::default() };
    let curve = ThroughputLatencyCurve::of(&config, &model(), &load(1, 100.0), requests_of(1.0));
    let CurrentSettings { max_batch_rows, max_batch_delay_seconds, forecast: current } = curve.current;
    assert_eq!((max_batch_rows, max_batch_delay_seconds), (100, 0.005));
    assert_eq!(current, Some(forecast(&config, 1, 100.0, 1.0)));
    assert_eq!((curve.requests_per_second, curve.default_timeout_seconds), (100.0, 0.1));
    let idle = ThroughputLatencyCurve::of(&config, &CostModel::default(), &load(1, 0.0), None);
    assert_eq!((idle.points, idle.current.forecast), (vec![], None));
}
