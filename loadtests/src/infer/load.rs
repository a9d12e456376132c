//! Requests that come when they come.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use arrow_array::{Int64Array, RecordBatch};
use forebay_client::{Caller, Client, Config, Error};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::{Arrivals, QUEUE, Setup};

/// Requests of a burst.
const BURST: u64 = 8;
/// Histograms tell times up to this apart.
const LONGEST: Duration = Duration::from_secs(60);
/// Of a histogram; a thousandth is told apart.
const DIGITS: u8 = 3;

/// Requests against one queue.
pub(super) struct Load {
    url: String,
    rows: usize,
    callers: usize,
    timeout: Duration,
    arrivals: Arrivals,
    fixed: Duration,
    row: Duration,
    keys: Keys,
    pub(super) time: Duration,
}

/// What came of them.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Measured {
    /// That were due.
    pub(super) due: u64,
    /// In time.
    pub(super) answered: u64,
    pub(super) refused: u64,
    pub(super) expired: u64,
    pub(super) failed: u64,
    pub(super) answers_per_second: f64,
    /// Seconds from when a request was due until its answer was there, of those that were answered.
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) most: f64,
    /// Of the mean latency: what was neither waiting in the queue nor for the accelerator, but gathering, encoding, the wire.
    pub(super) overhead_share: f64,
    /// Mean seconds until a refusal was there.
    pub(super) refusal_seconds: f64,
    /// Share of the time that the accelerator was busy.
    pub(super) busy: f64,
    /// Mean rows of a batch.
    pub(super) batch_rows: f64,
}

impl Measured {
    pub(super) fn answered_share(&self) -> f64 {
        self.answered as f64 / self.due.max(1) as f64
    }
}

struct Seen {
    latencies: Histogram<u64>,
    measured: Measured,
    seconds: f64,
    overhead: f64,
    refusals: f64,
}

/// Keys by popularity: the k-th has a probability of `1 / k^s`.
struct Keys {
    sums: Vec<f64>,
}

impl Keys {
    fn new(count: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self { sums: sums.collect() }
    }

    fn some(&self, count: usize, random: &mut fastrand::Rng) -> Int64Array {
        let all = self.sums.last().copied().unwrap_or_default();
        let one = |_| {
            let at = random.f64() * all;
            self.sums.partition_point(|sum| *sum <= at) as i64
        };
        (0..count).map(one).collect::<Vec<_>>().into()
    }
}

impl Load {
    pub(super) fn new(setup: &Setup, url: &str, keys: u64) -> Self {
        Self {
            url: url.to_owned(),
            rows: setup.rows,
            callers: setup.callers,
            timeout: setup.timeout,
            arrivals: setup.arrivals,
            fixed: setup.fixed,
            row: setup.row,
            keys: Keys::new(keys, setup.zipf),
            time: setup.time,
        }
    }

    /// `rate` requests a second for `time`.
    pub(super) fn measure(&self, runtime: &Runtime, rate: f64, time: Duration) -> anyhow::Result<Measured> {
        let config = Config { max_requests: 100_000, ..Config::default() };
        let client = Client::new([&self.url], config)?;
        let callers = (0..self.callers).map(|_| runtime.block_on(client.infer(QUEUE)).map(Arc::new));
        let callers = callers.collect::<Result<Vec<_>, _>>()?;
        let latencies = Histogram::new_with_max(LONGEST.as_nanos() as u64, DIGITS)?;
        let seen =
            Seen { latencies, measured: Measured::default(), seconds: 0.0, overhead: 0.0, refusals: 0.0 };
        let seen = Arc::new(Mutex::new(seen));
        let requests = self.requests(rate, time)?;
        let mut running = Vec::with_capacity(requests.len());
        let began = Instant::now() + Duration::from_millis(20);
        for (number, (due, keys)) in requests.into_iter().enumerate() {
            let due = began + due;
            // This thread does nothing else, and wakes up within some 60 us; what it is late counts as latency.
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let (caller, seen) = (Arc::clone(&callers[number % callers.len()]), Arc::clone(&seen));
            let (timeout, fixed, row) = (self.timeout, self.fixed, self.row);
            running.push(
                runtime.spawn(async move { ask(&caller, &keys, due, timeout, (fixed, row), &seen).await }),
            );
        }
        runtime.block_on(async {
            for request in running {
                request.await?;
            }
            anyhow::Ok(())
        })?;
        let seen = Arc::into_inner(seen).context("requests are still running")?;
        let Seen { latencies, mut measured, seconds, overhead, refusals } =
            seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e9;
        measured.answers_per_second = measured.answered as f64 / time.as_secs_f64();
        (measured.p50, measured.p99, measured.most) = (at(0.5), at(0.99), latencies.max() as f64 / 1e9);
        measured.overhead_share = (overhead / seconds).max(0.0);
        measured.refusal_seconds = refusals / measured.refused.max(1) as f64;
        Ok(measured)
    }

    /// When each is due, and its keys.
    fn requests(&self, rate: f64, time: Duration) -> anyhow::Result<Vec<(Duration, RecordBatch)>> {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut due, mut requests) = (0.0, Vec::new());
        let at_once = if self.arrivals == Arrivals::Bursts { BURST } else { 1 };
        loop {
            due -= (1.0 - random.f64()).ln() / rate * at_once as f64;
            if due >= time.as_secs_f64() {
                return Ok(requests);
            }
            for _ in 0..at_once {
                let keys = self.keys.some(self.rows, &mut random);
                requests.push((
                    Duration::from_secs_f64(due),
                    RecordBatch::try_from_iter([("id", Arc::new(keys) as _)])?,
                ));
            }
        }
    }
}

async fn ask(
    caller: &Caller,
    keys: &RecordBatch,
    due: Instant,
    timeout: Duration,
    (fixed, row): (Duration, Duration),
    seen: &Mutex<Seen>,
) {
    let answer = caller.ask(keys, Some(timeout)).await;
    let latency = due.elapsed();
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.measured.due += 1;
    match answer {
        Ok(answer) if latency <= timeout => {
            seen.measured.answered += 1;
            // Longer than a minute was not in time.
            let _ = seen.latencies.record(latency.as_nanos() as u64);
            let computing = fixed.as_secs_f64() + row.as_secs_f64() * answer.about.batch_rows as f64;
            seen.seconds += latency.as_secs_f64();
            seen.overhead += latency.as_secs_f64() - answer.about.queue_seconds - computing;
        }
        Ok(_) => seen.measured.expired += 1,
        Err(Error::Refused { code: tonic::Code::ResourceExhausted, .. }) => {
            seen.measured.refused += 1;
            seen.refusals += latency.as_secs_f64();
        }
        Err(Error::Refused { code: tonic::Code::DeadlineExceeded, .. }) => seen.measured.expired += 1,
        Err(_) => seen.measured.failed += 1,
    }
}
