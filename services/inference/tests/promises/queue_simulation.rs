//! What the policy makes of a load, in simulated time: a worker that takes exactly `2 ms + 10 us a row` (and, where it says so, is
//! noisy), Poisson arrivals, no clock and no thread, so that a run of minutes takes milliseconds and is the same every time.

use std::{collections::VecDeque, time::Duration};

use forebay_inference::queue::{BatchId, Batcher, Next, QueueConfig, RequestId, Time, WorkerId};

/// Rows of a request.
const ROWS: u64 = 10;
const FIXED: f64 = 2e-3;
const ROW: f64 = 10e-6;

fn took(rows: u64) -> Duration {
    Duration::from_secs_f64(FIXED + ROW * rows as f64)
}

/// Requests a second that the worker can compute at most, in batches of so many rows.
fn capacity(max_batch_rows: u64) -> f64 {
    max_batch_rows as f64 / took(max_batch_rows).as_secs_f64() / ROWS as f64
}

#[derive(Debug, Default)]
struct Seen {
    seconds: f64,
    /// From arrival to answer, of those that were in time.
    latencies: Vec<f64>,
    late: u64,
    refused: u64,
    expired: u64,
    /// Requests that a worker computed though they had expired before it began.
    in_vain: u64,
    batches: u64,
}

impl Seen {
    /// Answers in time, a second.
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

/// How a worker is off.
#[derive(Debug, Clone, Copy)]
enum Off {
    /// Each batch by up to this share.
    Noise(f64),
    /// For half a second of every two it takes this many times as long.
    Phases(f64),
    /// At 5 s it takes so many seconds more for one batch.
    Stall(f64),
}

impl Off {
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

    /// Of the time, what such a worker has for computing.
    fn speed(self) -> f64 {
        match self {
            Self::Noise(_) | Self::Stall(_) => 1.0,
            Self::Phases(times) => 0.75 + 0.25 / times,
        }
    }
}

const EXACT: Off = Off::Noise(0.0);

/// `seconds` of Poisson arrivals at `rate` requests a second, each of use for `timeout`.
fn simulate(config: QueueConfig, rate: f64, timeout: Duration, seconds: f64, off: Off) -> Seen {
    let mut random = fastrand::Rng::with_seed(7);
    let mut batcher = Batcher::new(config);
    let worker = batcher.join(Time::ZERO, 2);
    let mut seen = Seen { seconds, ..Seen::default() };
    let (mut now, mut arrived) = (0.0, vec![]);
    // What the worker has, and when it is done with the first.
    let mut has: VecDeque<(BatchId, Vec<RequestId>, u64)> = VecDeque::new();
    let mut done = f64::INFINITY;
    let mut arrival = 0.0;
    let mut look = f64::INFINITY;
    while now < seconds {
        now = f64::min(arrival, f64::min(done, look));
        let time = Duration::from_secs_f64(now);
        seen.expired += batcher.expire(time).len() as u64;
        if now == done {
            complete(&mut batcher, &mut seen, worker, &mut has, time, (&arrived, timeout));
            done = f64::INFINITY;
        } else if now == arrival {
            match batcher.admit(time, ROWS, ROWS * 160, Some(timeout)) {
                Ok(id) => {
                    assert_eq!(id.0 as usize, arrived.len());
                    arrived.push(now);
                }
                Err(_) => seen.refused += 1,
            }
            arrival = now - random.f64().max(1e-12).ln() / rate;
        }
        look = loop {
            match batcher.next(time) {
                Next::Batch(formed) => {
                    seen.batches += 1;
                    batcher.gathered(time, formed.batch);
                    has.push_back((formed.batch, formed.requests, formed.padded));
                }
                Next::Wait(until) => {
                    let until = [until, batcher.next_expiry()].into_iter().flatten().min();
                    break until.map_or(f64::INFINITY, |until| until.as_secs_f64().max(now + 1e-9));
                }
            }
        };
        if done == f64::INFINITY
            && let Some((_, requests, rows)) = has.front()
        {
            let begun = |id: &&RequestId| now > arrived[id.0 as usize] + timeout.as_secs_f64();
            seen.in_vain += requests.iter().filter(begun).count() as u64;
            done = now + took(*rows).as_secs_f64() * off.factor(now, &mut random);
        }
    }
    seen
}

fn complete(
    batcher: &mut Batcher,
    seen: &mut Seen,
    worker: WorkerId,
    has: &mut VecDeque<(BatchId, Vec<RequestId>, u64)>,
    now: Time,
    (arrived, timeout): (&[f64], Duration),
) {
    let (batch, requests, _) = has.pop_front().expect("the worker has it");
    let answered = batcher.complete(now, worker, batch, true).expect("the queue knows of it");
    for (id, answered) in requests.iter().zip(answered) {
        let latency = now.as_secs_f64() - arrived[id.0 as usize];
        if answered.is_some() && latency <= timeout.as_secs_f64() {
            seen.latencies.push(latency);
        } else {
            seen.late += 1;
        }
    }
}

const ENOUGH: Duration = Duration::from_secs(30);

#[test]
fn more_rows_and_more_delay_give_more_throughput_until_the_worker_saturates() {
    let mut before = 0.0;
    for max_batch_rows in [10, 40, 160, 640, 2560] {
        let config = QueueConfig { max_batch_rows, ..QueueConfig::default() };
        let seen = simulate(config, 20_000.0, Duration::from_millis(100), 20.0, EXACT);
        let (goodput, limit) = (seen.goodput(), capacity(max_batch_rows));
        assert!(goodput > before, "{max_batch_rows} rows: {goodput} after {before}");
        assert!(
            goodput <= 1.01 * limit && goodput > 0.85 * limit.min(20_000.0),
            "{max_batch_rows}: {goodput} of {limit}"
        );
        before = goodput;
    }
    // Below the limit more delay makes fewer and larger batches.
    let mut before = u64::MAX;
    for delay in [0, 2, 8, 32] {
        let delay = Duration::from_millis(delay);
        let config = QueueConfig { max_queue_delay: delay, idle: false, ..QueueConfig::default() };
        let seen = simulate(config, 1_000.0, ENOUGH, 20.0, EXACT);
        assert!(seen.batches < before, "{delay:?}: {} after {before}", seen.batches);
        before = seen.batches;
    }
}

#[test]
fn a_lone_request_takes_as_long_as_without_batching() {
    let mut seen = simulate(QueueConfig::default(), 5.0, ENOUGH, 200.0, EXACT);
    let alone = took(ROWS).as_secs_f64();
    assert!(seen.median() < 1.1 * alone, "{} instead of {alone}", seen.median());
}

#[test]
fn at_three_times_the_capacity_goodput_stays_at_the_peak_and_nothing_expired_is_computed() {
    for off in [EXACT, Off::Noise(0.3), Off::Phases(2.0)] {
        for timeout in [50, 200] {
            let timeout = Duration::from_millis(timeout);
            let config = || QueueConfig { max_batch_rows: 640, ..QueueConfig::default() };
            let limit = capacity(640) * off.speed();
            let at = |share: f64| simulate(config(), share * limit, timeout, 40.0, off);
            let peak =
                [0.7, 0.8, 0.9, 1.0, 1.1].map(|share| at(share).goodput()).into_iter().fold(0.0, f64::max);
            let seen = at(3.0);
            let (goodput, late, expired) = (seen.goodput(), seen.late, seen.expired);
            assert!(
                goodput >= 0.9 * peak,
                "{off:?}, {timeout:?}: {goodput} of {peak}, {late} late, {expired} expired"
            );
            assert!(peak >= 0.85 * limit, "{off:?}, {timeout:?}: {peak} of {limit}");
            // What is given to a busy worker just in time can expire there when that worker slows down at this moment.
            let tolerated =
                if matches!(off, Off::Phases(_)) { seen.latencies.len() as u64 / 1000 } else { 0 };
            assert!(seen.in_vain <= tolerated, "{off:?}, {timeout:?}: {} in vain", seen.in_vain);
            assert!(
                seen.refused > 20 * expired,
                "{off:?}, {timeout:?}: {} refused, {expired} expired",
                seen.refused
            );
        }
    }
}

#[test]
fn one_stall_of_a_worker_costs_little_more_than_its_time() {
    for (timeout, stall) in [(5, 0.1), (8, 0.2), (50, 1.0), (200, 1.0)] {
        let timeout = Duration::from_millis(timeout);
        for rate in [200.0, 0.6 * capacity(4096)] {
            let at = |off| simulate(QueueConfig::default(), rate, timeout, 20.0, off).goodput();
            let (calm, stalled) = (at(EXACT), at(Off::Stall(stall)));
            assert!(stalled > 0.85 * calm, "{timeout:?} at {rate}: {stalled} instead of {calm}");
        }
    }
}

#[test]
fn no_fixed_delay_beats_the_idle_rule_by_a_tenth_at_any_load() {
    for share in [0.05, 0.2, 0.4, 0.6, 0.8] {
        let rate = share * capacity(4096);
        let mean = |idle, delay| {
            let max_queue_delay = Duration::from_micros(delay);
            simulate(
                QueueConfig { idle, max_queue_delay, ..QueueConfig::default() },
                rate,
                ENOUGH,
                20.0,
                Off::Noise(0.1),
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
