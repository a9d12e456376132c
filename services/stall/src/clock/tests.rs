use proptest::prelude::*;

use super::*;

struct Told {
    clock: Clock,
    origin: Instant,
}

impl Told {
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
fn the_most_downstream_stage_at_work_is_charged_and_admission_if_none_is() {
    let mut told = Told::new(false);
    let (one, two, three, four, five) =
        (told.at(1.0), told.at(2.0), told.at(3.0), told.at(4.0), told.at(5.0));
    told.clock.asks(one, 0);
    told.clock.begin(two, 0, Stage::Storage);
    told.clock.begin(three, 0, Stage::Decode);
    told.clock.end(four, 0, Stage::Decode);
    told.clock.end(five, 0, Stage::Storage);
    let expected =
        [(Bucket::Decode, 1.0), (Bucket::Storage, 2.0), (Bucket::Admission, 2.0), (Bucket::Downstream, 1.0)];
    assert_eq!(told.total(6.0), expected);
    told.clock.served(told.at(6.0), 0, (0, 1));
    // What is made ahead is not waited for.
    told.clock.begin(told.at(6.0), 0, Stage::Gather);
    assert_eq!(told.total(8.0)[3], (Bucket::Downstream, 3.0));
    told.clock.asks(told.at(8.0), 0);
    assert_eq!(told.total(9.0)[0], (Bucket::Gather, 1.0));
}

#[test]
fn of_several_lanes_the_one_whose_batch_is_due_counts() {
    let mut told = Told::new(false);
    told.clock.enter(told.origin, 1, (0, 1));
    told.clock.asks(told.at(0.0), 1);
    assert_eq!(told.total(1.0), [(Bucket::Downstream, 1.0)]);
    told.clock.served(told.at(1.0), 0, (0, 2));
    assert_eq!(told.total(2.0), [(Bucket::Admission, 1.0), (Bucket::Downstream, 1.0)]);
    // An epoch goes before a step.
    told.clock.served(told.at(2.0), 1, (1, 0));
    told.clock.leave(told.at(3.0), 0);
    assert_eq!(told.total(3.0), [(Bucket::Admission, 1.0), (Bucket::Downstream, 2.0)]);
    told.clock.leave(told.at(3.0), 1);
    assert_eq!(told.total(9.0), [(Bucket::Admission, 1.0), (Bucket::Downstream, 2.0)]);
}

#[test]
fn a_trainer_that_reports_is_taken_at_its_word() {
    // It is being served all the time, and never waits.
    let mut told = Told::new(true);
    told.clock.asks(told.at(0.0), 0);
    told.clock.begin(told.at(0.0), 0, Stage::Decode);
    told.clock.report(told.at(1.0), Report { seconds: 1.0, wait_seconds: 0.0 });
    assert_eq!(told.total(1.0), [(Bucket::Consumer, 1.0)]);
    // It waits for half of the time, in which decoding goes on.
    told.clock.report(told.at(2.0), Report { seconds: 1.0, wait_seconds: 0.5 });
    assert_eq!(told.total(2.0), [(Bucket::Consumer, 1.5), (Bucket::Decode, 0.5)]);
    // It waits, and nobody asks here: the batch is on its way.
    told.clock.served(told.at(2.0), 0, (0, 1));
    told.clock.report(told.at(3.0), Report { seconds: 2.0, wait_seconds: 1.5 });
    assert_eq!(told.total(3.0), [(Bucket::Consumer, 1.75), (Bucket::Network, 0.75), (Bucket::Decode, 0.5)]);
    // Until the next report, as the last one said.
    assert_eq!(told.clock.tick(told.at(4.0)), Buckets::default());
    assert_eq!(told.total(4.0)[1], (Bucket::Network, 1.5));
    // Nothing is heard of it any more: nobody knows.
    told.clock.tick(told.at(9.0));
    assert_eq!(told.total(9.0)[3], (Bucket::Downstream, 6.0));
    assert!(!told.clock.reports());
}

#[test]
fn a_report_that_makes_no_sense_is_not_believed() {
    let mut told = Told::new(true);
    for (seconds, wait_seconds) in [(f64::NAN, 1.0), (0.0, 0.0), (-1.0, 1.0), (1.0, f64::INFINITY)] {
        told.clock.report(told.at(1.0), Report { seconds, wait_seconds });
    }
    assert_eq!(told.total(1.0), [(Bucket::Downstream, 1.0)]);
    told.clock.report(told.at(2.0), Report { seconds: 1.0, wait_seconds: 7.0 });
    assert_eq!(told.total(2.0), [(Bucket::Network, 1.0), (Bucket::Downstream, 1.0)]);
}

#[derive(Debug, Clone)]
enum Event {
    Enter(u64),
    Leave(u64),
    Asks(u64),
    Served(u64, u64),
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
        lane.clone().prop_map(Event::Asks),
        (lane.clone(), 0..9u64).prop_map(|(lane, step)| Event::Served(lane, step)),
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
                Event::Asks(lane) => clock.asks(now, lane),
                Event::Served(lane, step) => clock.served(now, lane, (0, step)),
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
