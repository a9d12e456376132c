#![allow(clippy::disallowed_methods)] // The origin of the simulated time.

use super::*;

fn charged(seconds: f64) -> Buckets {
    let mut buckets = Buckets::default();
    buckets[Bucket::Decode] = Duration::from_secs_f64(seconds);
    buckets
}

#[test]
fn added_time_is_distributed_over_its_seconds_and_dropped_when_old() {
    let origin = Instant::now();
    let at = |seconds: f64| origin + Duration::from_secs_f64(seconds);
    let mut history = History::new(origin, 10);
    history.add(at(0.5), at(2.5), &charged(2.0));
    let decode = |history: &History, now: f64, count| -> Vec<f64> {
        let intervals = history.before(at(now), count);
        intervals.iter().map(|interval| interval.buckets[Bucket::Decode].as_secs_f64()).collect()
    };
    assert_eq!(decode(&history, 4.0, 4), [0.5, 1.0, 0.5, 0.0]);
    assert_eq!(history.before(at(4.2), 1)[0].end, at(4.0));
    // The time of a second trainer is added.
    history.add(at(1.0), at(2.0), &charged(1.0));
    assert_eq!(decode(&history, 3.0, 3), [0.5, 2.0, 0.5]);
    assert_eq!(history.sum(at(1.0), at(3.0)), charged(2.5));
    // An instant, and a long pause.
    history.add(at(100.25), at(100.25), &charged(0.25));
    assert_eq!(decode(&history, 101.0, 2), [0.0, 0.25]);
    assert_eq!(history.sum(at(0.0), at(50.0)), Buckets::default());
    // An interval longer than the kept seconds.
    history.add(at(100.0), at(200.0), &charged(100.0));
    assert_eq!(decode(&history, 200.0, 12).iter().sum::<f64>(), 10.0);
    // An interval older than the kept seconds.
    history.add(at(1.0), at(2.0), &charged(1.0));
    assert_eq!(decode(&history, 200.0, 12).iter().sum::<f64>(), 10.0);
}
