//! An open-loop load: requests are sent when they are due, independently of earlier answers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use arrow_array::{Int64Array, RecordBatch};
use forebay_client::{Caller, Client, Config, Error};
use futures::future::try_join_all;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use super::{
    cell::Measured,
    setup::{Arrivals, QUEUE, Setup, batch_time},
};

/// Requests per burst.
const BURST: u64 = 8;
/// Upper bound of the latency histogram.
const LONGEST: Duration = Duration::from_secs(60);
/// Significant digits of the latency histogram.
const DIGITS: u8 = 3;

/// A load of requests for one queue.
pub(super) struct Load<'a> {
    setup: &'a Setup,
    url: String,
    keys: Keys,
}

/// Outcomes of the requests so far.
struct Outcomes {
    latencies: Histogram<u64>,
    measured: Measured,
    seconds: f64,
    overhead: f64,
    rejection_seconds: f64,
}

/// Keys by popularity: the probability of the k-th key is proportional to `1 / k^s`.
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

    fn sample(&self, count: usize, random: &mut fastrand::Rng) -> Int64Array {
        let all = self.sums.last().copied().unwrap_or_default();
        let one = |_| {
            let at = random.f64() * all;
            self.sums.partition_point(|sum| *sum <= at) as i64
        };
        (0..count).map(one).collect::<Vec<_>>().into()
    }
}

impl<'a> Load<'a> {
    pub(super) fn new(setup: &'a Setup, url: &str, keys: u64) -> Self {
        Self { setup, url: url.to_owned(), keys: Keys::new(keys, setup.zipf) }
    }

    /// Sends `rate` requests per second for `time`.
    pub(super) fn measure(&self, runtime: &Runtime, rate: f64, time: Duration) -> anyhow::Result<Measured> {
        let config = Config { max_in_flight: 100_000, ..Config::default() };
        let client = Client::new([&self.url], config)?;
        let callers = (0..self.setup.callers).map(|_| runtime.block_on(client.infer(QUEUE)).map(Arc::new));
        let callers = callers.collect::<Result<Vec<_>, _>>()?;
        let latencies = Histogram::new_with_max(LONGEST.as_nanos() as u64, DIGITS)?;
        let outcomes = Outcomes {
            latencies,
            measured: Measured::default(),
            seconds: 0.0,
            overhead: 0.0,
            rejection_seconds: 0.0,
        };
        let outcomes = Arc::new(Mutex::new(outcomes));
        let requests = self.requests(rate, time)?;
        let mut running = Vec::with_capacity(requests.len());
        let began = Instant::now() + Duration::from_millis(20);
        for (number, (due, keys)) in requests.into_iter().enumerate() {
            let due = began + due;
            // This thread has no other work and wakes up about 60 us late, which counts as latency.
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let (caller, outcomes) = (Arc::clone(&callers[number % callers.len()]), Arc::clone(&outcomes));
            let &Setup { timeout, fixed, row, .. } = self.setup;
            running.push(
                runtime
                    .spawn(async move { send(&caller, &keys, due, timeout, (fixed, row), &outcomes).await }),
            );
        }
        runtime.block_on(try_join_all(running))?;
        let outcomes = Arc::into_inner(outcomes).context("requests are still running")?;
        let Outcomes { latencies, mut measured, seconds, overhead, rejection_seconds } =
            outcomes.into_inner();
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e9;
        measured.answers_per_second = measured.answered as f64 / time.as_secs_f64();
        (measured.p50, measured.p99, measured.max) = (at(0.5), at(0.99), latencies.max() as f64 / 1e9);
        measured.overhead_fraction = (overhead / seconds).max(0.0);
        measured.rejection_seconds = rejection_seconds / measured.rejected.max(1) as f64;
        Ok(measured)
    }

    /// Returns the due time and the keys of each request.
    fn requests(&self, rate: f64, time: Duration) -> anyhow::Result<Vec<(Duration, RecordBatch)>> {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut due, mut requests) = (0.0, Vec::new());
        let at_once = if self.setup.arrivals == Arrivals::Bursts { BURST } else { 1 };
        loop {
            due -= (1.0 - random.f64()).ln() / rate * at_once as f64;
            if due >= time.as_secs_f64() {
                return Ok(requests);
            }
            for _ in 0..at_once {
                let keys = self.keys.sample(self.setup.rows, &mut random);
                requests.push((
                    Duration::from_secs_f64(due),
                    RecordBatch::try_from_iter([("id", Arc::new(keys) as _)])?,
                ));
            }
        }
    }
}

async fn send(
    caller: &Caller,
    keys: &RecordBatch,
    due: Instant,
    timeout: Duration,
    (fixed, row): (Duration, Duration),
    outcomes: &Mutex<Outcomes>,
) {
    let answer = caller.ask(keys, Some(timeout)).await;
    let latency = due.elapsed();
    let mut outcomes = outcomes.lock();
    outcomes.measured.due += 1;
    match answer {
        Ok(answer) if latency <= timeout => {
            outcomes.measured.answered += 1;
            // A latency above the bound of the histogram exceeds every timeout.
            let _ = outcomes.latencies.record(latency.as_nanos() as u64);
            let computing = batch_time(fixed, row, answer.metadata.batch_rows).as_secs_f64();
            outcomes.seconds += latency.as_secs_f64();
            outcomes.overhead += latency.as_secs_f64() - answer.metadata.queue_seconds - computing;
        }
        Ok(_) => outcomes.measured.expired += 1,
        Err(Error::RequestRejected { code: tonic::Code::ResourceExhausted, .. }) => {
            outcomes.measured.rejected += 1;
            outcomes.rejection_seconds += latency.as_secs_f64();
        }
        Err(Error::RequestRejected { code: tonic::Code::DeadlineExceeded, .. }) => {
            outcomes.measured.expired += 1;
        }
        Err(_) => outcomes.measured.failed += 1,
    }
}
