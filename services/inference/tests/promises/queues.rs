//! Promises of batch queues, in simulated time: Poisson arrivals and a worker that takes `2 ms + 10 us per row`, with noise
//! where a test adds it. Without a clock and threads, minutes take milliseconds and every run is equal.

use std::{collections::VecDeque, time::Duration};

use forebay_inference::queue::{BatchId, Batcher, Decision, QueueConfig, RequestId, Time, WorkerId};

/// Rows per request.
const ROWS: u64 = 10;
const FIXED: f64 = 2e-3;
const ROW: f64 = 10e-6;

fn took(rows: u64) -> Duration {
    Duration::from_secs_f64(FIXED + ROW * rows as f64)
}

/// Requests per second that the worker can compute in batches of `max_batch_rows` rows.
fn capacity(max_batch_rows: u64) -> f64 {
    max_batch_rows as f64 / took(max_batch_rows).as_secs_f64() / ROWS as f64
}

#[derive(Debug, Default)]
struct Measured {
    seconds: f64,
    /// Seconds from arrival to answer of the requests that were answered in time.
    latencies: Vec<f64>,
    late: u64,
    refused: u64,
    expired: u64,
    /// Requests that expired before a worker computed them.
    wasted: u64,
    batches: u64,
}

impl Measured {
    /// Answers in time per second.
    fn goodput(&self) -> f64 {
        self.latencies.len() as f64 / self.seconds
    }

    fn mean(&self) -> f64 {
        self.latencies.iter().sum::<f64>() / self.latencies.len() as f64
    }

    fn median(&mut self) -> f64 {
        self.latencies.sort_by(f64::total_cmp);
        self.latencies[self.latencies.len() / 2]
    }
}

/// Deviation of a worker from its expected time.
#[derive(Debug, Clone, Copy)]
enum Deviation {
    /// Each batch deviates by up to this fraction.
    Noise(f64),
    /// For half a second of every two seconds, batches take this many times as long.
    Phases(f64),
    /// At 5 s, one batch takes this many seconds longer.
    Stall(f64),
}

impl Deviation {
    fn factor(self, now: f64, random: &mut fastrand::Rng) -> f64 {
        match self {
            Self::Noise(share) => 1.0 + share * (2.0 * random.f64() - 1.0),
            Self::Phases(times) if now % 2.0 > 1.5 => times,
            Self::Stall(seconds) if (5.0..5.0 + seconds).contains(&now) => {
                1.0 + (5.0 + seconds - now) / FIXED
            }
            Self::Phases(_) | Self::Stall(_) => 1.0,
        }
    }

    /// Mean speed relative to a worker without deviation.
    fn speed(self) -> f64 {
        match self {
            Self::Noise(_) | Self::Stall(_) => 1.0,
            Self::Phases(times) => 0.75 + 0.25 / times,
        }
    }
}

const EXACT: Deviation = Deviation::Noise(0.0);

/// Simulates `seconds` of Poisson arrivals at `rate` requests per second, each with a deadline of `timeout`.
fn simulate(
    config: QueueConfig,
    rate: f64,
    timeout: Duration,
    seconds: f64,
    deviation: Deviation,
) -> Measured {
    let mut random = fastrand::Rng::with_seed(7);
    let mut batcher = Batcher::new(config);
    let worker = batcher.add_worker(Time::ZERO, 2);
    let mut measured = Measured { seconds, ..Measured::default() };
    let (mut now, mut arrived) = (0.0, vec![]);
    // Batches of the worker, and the completion time of the first.
    let mut has: VecDeque<(BatchId, Vec<RequestId>, u64)> = VecDeque::new();
    let mut done = f64::INFINITY;
    let mut arrival = 0.0;
    let mut look = f64::INFINITY;
    while now < seconds {
        now = f64::min(arrival, f64::min(done, look));
        let time = Duration::from_secs_f64(now);
        measured.expired += batcher.expire(time).len() as u64;
        if now == done {
            complete(&mut batcher, &mut measured, worker, &mut has, time, (&arrived, timeout));
            done = f64::INFINITY;
        } else if now == arrival {
            match batcher.admit(time, ROWS, ROWS * 160, Some(timeout)) {
                Ok(id) => {
                    assert_eq!(id.0 as usize, arrived.len());
                    arrived.push(now);
                }
                Err(_) => measured.refused += 1,
            }
            arrival = now - random.f64().max(1e-12).ln() / rate;
        }
        look = loop {
            match batcher.next(time) {
                Decision::Send(formed) => {
                    measured.batches += 1;
                    batcher.gathered(time, formed.batch);
                    has.push_back((formed.batch, formed.requests, formed.padded_rows));
                }
                Decision::Wait(until) => {
                    let until = [until, batcher.next_expiry()].into_iter().flatten().min();
                    break until.map_or(f64::INFINITY, |until| until.as_secs_f64().max(now + 1e-9));
                }
            }
        };
        if done == f64::INFINITY
            && let Some((_, requests, rows)) = has.front()
        {
            let begun = |id: &&RequestId| now > arrived[id.0 as usize] + timeout.as_secs_f64();
            measured.wasted += requests.iter().filter(begun).count() as u64;
            done = now + took(*rows).as_secs_f64() * deviation.factor(now, &mut random);
        }
    }
    measured
}

fn complete(
    batcher: &mut Batcher,
    measured: &mut Measured,
    worker: WorkerId,
    has: &mut VecDeque<(BatchId, Vec<RequestId>, u64)>,
    now: Time,
    (arrived, timeout): (&[f64], Duration),
) {
    let (batch, requests, _) = has.pop_front().expect("the worker has a batch");
    let answered = batcher.complete(now, worker, batch).expect("the worker has the batch");
    for (id, answered) in requests.iter().zip(answered) {
        let latency = now.as_secs_f64() - arrived[id.0 as usize];
        if answered.is_some() && latency <= timeout.as_secs_f64() {
            measured.latencies.push(latency);
        } else {
            measured.late += 1;
        }
    }
}

const ENOUGH: Duration = Duration::from_secs(30);

#[test]
fn more_rows_and_more_delay_give_more_throughput_until_the_worker_saturates() {
    let mut before = 0.0;
    for max_batch_rows in [10, 40, 160, 640, 2560] {
        let config = QueueConfig { max_batch_rows, ..QueueConfig::default() };
        let measured = simulate(config, 20_000.0, Duration::from_millis(100), 20.0, EXACT);
        let (goodput, limit) = (measured.goodput(), capacity(max_batch_rows));
        assert!(goodput > before, "{max_batch_rows} rows: {goodput} after {before}");
        assert!(
            goodput <= 1.01 * limit && goodput > 0.85 * limit.min(20_000.0),
            "{max_batch_rows}: {goodput} of {limit}"
        );
        before = goodput;
    }
    // Below the capacity, more delay leads to fewer and larger batches.
    let mut before = u64::MAX;
    for delay in [0, 2, 8, 32] {
        let delay = Duration::from_millis(delay);
        let config = QueueConfig { max_batch_delay: delay, eager_dispatch: false, ..QueueConfig::default() };
        let measured = simulate(config, 1_000.0, ENOUGH, 20.0, EXACT);
        assert!(measured.batches < before, "{delay:?}: {} after {before}", measured.batches);
        before = measured.batches;
    }
}

#[test]
fn a_lone_request_takes_as_long_as_without_batching() {
    let mut measured = simulate(QueueConfig::default(), 5.0, ENOUGH, 200.0, EXACT);
    let alone = took(ROWS).as_secs_f64();
    assert!(measured.median() < 1.1 * alone, "{} instead of {alone}", measured.median());
}

#[test]
fn at_three_times_the_capacity_goodput_stays_at_the_peak_and_no_expired_request_is_computed() {
    for deviation in [EXACT, Deviation::Noise(0.3), Deviation::Phases(2.0)] {
        for timeout in [50, 200] {
            let timeout = Duration::from_millis(timeout);
            let config = || QueueConfig { max_batch_rows: 640, ..QueueConfig::default() };
            let limit = capacity(640) * deviation.speed();
            let at = |share: f64| simulate(config(), share * limit, timeout, 20.0, deviation);
            let peak = [0.8, 0.9, 1.0, 1.1].map(|share| at(share).goodput()).into_iter().fold(0.0, f64::max);
            let measured = at(3.0);
            let (goodput, late, expired) = (measured.goodput(), measured.late, measured.expired);
            assert!(
                goodput >= 0.9 * peak,
                "{deviation:?}, {timeout:?}: {goodput} of {peak}, {late} late, {expired} expired"
            );
            assert!(peak >= 0.85 * limit, "{deviation:?}, {timeout:?}: {peak} of {limit}");
            // A batch that is sent to a busy worker just in time can expire there if the worker slows down at this moment.
            let tolerated = if matches!(deviation, Deviation::Phases(_)) {
                measured.latencies.len() as u64 / 1000
            } else {
                0
            };
            assert!(measured.wasted <= tolerated, "{deviation:?}, {timeout:?}: {} wasted", measured.wasted);
            assert!(
                measured.refused > 20 * expired,
                "{deviation:?}, {timeout:?}: {} refused, {expired} expired",
                measured.refused
            );
        }
    }
}

#[test]
fn one_stall_of_a_worker_costs_little_more_than_its_time() {
    for (timeout, stall) in [(5, 0.1), (8, 0.2), (50, 1.0), (200, 1.0)] {
        let timeout = Duration::from_millis(timeout);
        for rate in [200.0, 0.6 * capacity(4096)] {
            let at = |deviation| simulate(QueueConfig::default(), rate, timeout, 20.0, deviation).goodput();
            let (calm, stalled) = (at(EXACT), at(Deviation::Stall(stall)));
            assert!(stalled > 0.85 * calm, "{timeout:?} at {rate}: {stalled} instead of {calm}");
        }
    }
}

#[test]
fn no_fixed_delay_beats_eager_dispatch_by_a_tenth_at_any_load() {
    for share in [0.05, 0.2, 0.4, 0.6, 0.8] {
        let rate = share * capacity(4096);
        let mean = |eager_dispatch, delay| {
            let max_batch_delay = Duration::from_micros(delay);
            simulate(
                QueueConfig { eager_dispatch, max_batch_delay, ..QueueConfig::default() },
                rate,
                ENOUGH,
                20.0,
                Deviation::Noise(0.1),
            )
            .mean()
        };
        let best = [0, 250, 500, 1000, 2000, 4000]
            .map(|delay| mean(false, delay))
            .into_iter()
            .fold(f64::INFINITY, f64::min);
        let adaptive = mean(true, 5000);
        assert!(adaptive <= 1.1 * best, "load {share}: {adaptive} against {best}");
    }
}
