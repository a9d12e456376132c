//! A simulated accelerator that serves a queue.

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use arrow_array::{Float32Array, RecordBatch};
use forebay_client::{Client, Config};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::setup::{QUEUE, Setup, batch_time};

/// Work of the accelerator.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) batches: u64,
    pub(super) rows: u64,
    pub(super) busy_seconds: f64,
}

/// A worker that sleeps instead of computing, on its own thread.
pub(super) struct Worker {
    totals: Arc<Mutex<Totals>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Connects to the server at `url`, and serves until the server stops.
    pub(super) fn start(runtime: &Handle, url: &str, setup: &Setup) -> anyhow::Result<Self> {
        let totals = Arc::<Mutex<Totals>>::default();
        let client =
            Client::new([url], Config { retry_deadline: Duration::from_secs(1), ..Config::default() })?;
        let mut worker = runtime.block_on(client.worker(QUEUE, 2))?;
        let (counted, runtime) = (Arc::clone(&totals), runtime.clone());
        let (fixed, row) = (setup.fixed, setup.row);
        let thread = std::thread::spawn(move || {
            while let Ok(Some(work)) = runtime.block_on(worker.next()) {
                let began = Instant::now();
                let rows = work.batch.rows();
                // A thread wakes up about 60 us late, which counts as compute time.
                std::thread::sleep(batch_time(fixed, row, rows));
                let scores = Float32Array::from_iter_values((0..rows).map(|row| row as f32));
                let scores = RecordBatch::try_from_iter([("score", Arc::new(scores) as _)]);
                let replied = scores.map_err(anyhow::Error::from).and_then(|scores| Ok(work.reply(&scores)?));
                if replied.is_err() {
                    break;
                }
                let mut totals = counted.lock();
                totals.batches += 1;
                totals.rows += rows;
                totals.busy_seconds += began.elapsed().as_secs_f64();
            }
        });
        Ok(Self { totals, thread: Some(thread) })
    }

    /// Waits for the end of the thread, which follows the end of the server.
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }

    /// Returns the work since the last call.
    pub(super) fn take_totals(&self) -> Totals {
        std::mem::take(&mut *self.totals.lock())
    }
}
