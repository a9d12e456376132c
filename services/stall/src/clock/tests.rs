#![allow(clippy::disallowed_methods)] // The origin of the simulated time.

use proptest::prelude::*;

use super::*;

struct Fixture {
    clock: Clock,
    origin: Instant,
}

impl Fixture {
    fn new(reports: bool) -> Self {
        let origin = Instant::now();
        let mut clock = Clock::new(origin, reports);
        clock.enter(origin, 0, (0, 0));
        Self { clock, origin }
    }

    fn at(&self, seconds: f64) -> Instant {
        self.origin + Duration::from_secs_f64(seconds)
    }

    /// Seconds in each bucket that has any.
    fn total(&self, now: f64) -> Vec<(Bucket, f64)> {
        let total = self.clock.total(self.at(now));
        total
            .iter()
            .filter(|(_, time)| !time.is_zero())
            .map(|(bucket, time)| (bucket, time.as_secs_f64()))
            .collect()
    }
}

#[test]
fn the_last_stage_at_work_is_charged_and_queued_if_no_stage_works() {
    let mut fixture = Fixture::new(false);
    let (one, two, three, four, five) =
        (fixture.at(1.0), fixture.at(2.0), fixture.at(3.0), fixture.at(4.0), fixture.at(5.0));
    fixture.clock.batch_requested(one, 0);
    fixture.clock.begin(two, 0, Stage::Storage);
    fixture.clock.begin(three, 0, Stage::Decode);
    fixture.clock.end(four, 0, Stage::Decode);
    fixture.clock.end(five, 0, Stage::Storage);
    let expected = [
        (Bucket::Decode, 1.0),
        (Bucket::Storage, 2.0),
        (Bucket::Queued, 2.0),
        (Bucket::ComputeOrNetwork, 1.0),
    ];
    assert_eq!(fixture.total(6.0), expected);
    fixture.clock.batch_sent(fixture.at(6.0), 0, (0, 1));
    // Prefetched work is not waited for.
    fixture.clock.begin(fixture.at(6.0), 0, Stage::Gather);
    assert_eq!(fixture.total(8.0)[3], (Bucket::ComputeOrNetwork, 3.0));
    fixture.clock.batch_requested(fixture.at(8.0), 0);
    assert_eq!(fixture.total(9.0)[0], (Bucket::Gather, 1.0));
}

#[test]
fn the_lane_with_the_smallest_next_step_is_charged() {
    let mut fixture = Fixture::new(false);
    fixture.clock.enter(fixture.origin, 1, (0, 1));
    fixture.clock.batch_requested(fixture.at(0.0), 1);
    assert_eq!(fixture.total(1.0), [(Bucket::ComputeOrNetwork, 1.0)]);
    fixture.clock.batch_sent(fixture.at(1.0), 0, (0, 2));
    assert_eq!(fixture.total(2.0), [(Bucket::Queued, 1.0), (Bucket::ComputeOrNetwork, 1.0)]);
    // The epoch is compared before the step.
    fixture.clock.batch_sent(fixture.at(2.0), 1, (1, 0));
    fixture.clock.leave(fixture.at(3.0), 0);
    assert_eq!(fixture.total(3.0), [(Bucket::Queued, 1.0), (Bucket::ComputeOrNetwork, 2.0)]);
    fixture.clock.leave(fixture.at(3.0), 1);
    assert_eq!(fixture.total(9.0), [(Bucket::Queued, 1.0), (Bucket::ComputeOrNetwork, 2.0)]);
}

#[test]
fn reports_take_precedence_over_observations() {
    // The server works all the time, and the trainer never waits.
    let mut fixture = Fixture::new(true);
    fixture.clock.batch_requested(fixture.at(0.0), 0);
    fixture.clock.begin(fixture.at(0.0), 0, Stage::Decode);
    fixture.clock.report(fixture.at(1.0), Report { seconds: 1.0, wait_seconds: 0.0 });
    assert_eq!(fixture.total(1.0), [(Bucket::Compute, 1.0)]);
    // The trainer waits for half of the time while the server decodes.
    fixture.clock.report(fixture.at(2.0), Report { seconds: 1.0, wait_seconds: 0.5 });
    assert_eq!(fixture.total(2.0), [(Bucket::Compute, 1.5), (Bucket::Decode, 0.5)]);
    // The trainer waits without a pending request: the batch is in transit.
    fixture.clock.batch_sent(fixture.at(2.0), 0, (0, 1));
    fixture.clock.report(fixture.at(3.0), Report { seconds: 2.0, wait_seconds: 1.5 });
    assert_eq!(fixture.total(3.0), [(Bucket::Compute, 1.75), (Bucket::Network, 0.75), (Bucket::Decode, 0.5)]);
    // Until the next report, time is split by the last report.
    assert_eq!(fixture.clock.tick(fixture.at(4.0)), Buckets::default());
    assert_eq!(fixture.total(4.0)[1], (Bucket::Network, 1.5));
    // Without reports, compute and network cannot be fixture apart.
    fixture.clock.tick(fixture.at(9.0));
    assert_eq!(fixture.total(9.0)[3], (Bucket::ComputeOrNetwork, 6.0));
    assert!(!fixture.clock.reports());
}

#[test]
fn an_invalid_report_is_ignored() {
    let mut fixture = Fixture::new(true);
    for (seconds, wait_seconds) in [(f64::NAN, 1.0), (0.0, 0.0), (-1.0, 1.0), (1.0, f64::INFINITY)] {
        fixture.clock.report(fixture.at(1.0), Report { seconds, wait_seconds });
    }
    assert_eq!(fixture.total(1.0), [(Bucket::ComputeOrNetwork, 1.0)]);
    fixture.clock.report(fixture.at(2.0), Report { seconds: 1.0, wait_seconds: 7.0 });
    assert_eq!(fixture.total(2.0), [(Bucket::Network, 1.0), (Bucket::ComputeOrNetwork, 1.0)]);
}

#[derive(Debug, Clone)]
enum Event {
    Enter(u64),
    Leave(u64),
    Requested(u64),
    Sent(u64, u64),
    Begin(u64, usize),
    End(u64, usize),
    Report(f64, f64),
    Tick,
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let lane = 0..3u64;
    let event = prop_oneof![
        lane.clone().prop_map(Event::Enter),
        lane.clone().prop_map(Event::Leave),
        lane.clone().prop_map(Event::Requested),
        (lane.clone(), 0..9u64).prop_map(|(lane, step)| Event::Sent(lane, step)),
        (lane.clone(), 0..3usize).prop_map(|(lane, stage)| Event::Begin(lane, stage)),
        (lane, 0..3usize).prop_map(|(lane, stage)| Event::End(lane, stage)),
        (-1.0..10.0, -1.0..10.0).prop_map(|(seconds, wait)| Event::Report(seconds, wait)),
        Just(Event::Tick),
    ];
    prop::collection::vec((0..3_000_000_000u64, event), 0..200)
}

proptest! {
    #[test]
    fn the_buckets_sum_to_wall_time(events in events(), reports: bool) {
        let mut now = Instant::now();
        let mut clock = Clock::new(now, reports);
        let (mut wall, mut settled) = (Duration::ZERO, Buckets::default());
        for (nanos, event) in events {
            if clock.lanes() > 0 {
                wall += Duration::from_nanos(nanos);
            }
            now += Duration::from_nanos(nanos);
            match event {
                Event::Enter(lane) => clock.enter(now, lane, (0, 0)),
                Event::Leave(lane) => clock.leave(now, lane),
                Event::Requested(lane) => clock.batch_requested(now, lane),
                Event::Sent(lane, step) => clock.batch_sent(now, lane, (0, step)),
                Event::Begin(lane, stage) => clock.begin(now, lane, Stage::ALL[stage]),
                Event::End(lane, stage) => clock.end(now, lane, Stage::ALL[stage]),
                Event::Report(seconds, wait_seconds) => settled += clock.report(now, Report { seconds, wait_seconds }),
                Event::Tick => settled += clock.tick(now),
            }
            prop_assert_eq!(clock.total(now).sum(), wall);
        }
        settled += clock.report(now, Report { seconds: 1.0, wait_seconds: 0.3 });
        prop_assert_eq!(settled.sum(), wall);
        prop_assert_eq!(settled, clock.total(now));
    }
}
