//! An emulated accelerator that serves a queue.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use arrow_array::{Float32Array, RecordBatch};
use forebay_client::{Client, Config};
use tokio::runtime::Handle;

use super::QUEUE;

/// What it takes for a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Model {
    pub(super) fixed: Duration,
    pub(super) row: Duration,
}

impl Model {
    pub(super) fn takes(self, rows: u64) -> Duration {
        self.fixed + self.row * u32::try_from(rows).unwrap_or(u32::MAX)
    }
}

/// What it did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Done {
    pub(super) batches: u64,
    pub(super) rows: u64,
    /// That it was busy.
    pub(super) seconds: f64,
}

/// A worker that sleeps instead of computing, on a thread of its own.
pub(super) struct Worker {
    done: Arc<Mutex<Done>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// It serves until the server is gone.
    pub(super) fn start(runtime: &Handle, url: &str, model: Model) -> anyhow::Result<Self> {
        let done = Arc::<Mutex<Done>>::default();
        let client = Client::new([url], Config { deadline: Duration::from_secs(1), ..Config::default() })?;
        let mut worker = runtime.block_on(client.serve(QUEUE, 2))?;
        let (counted, runtime) = (Arc::clone(&done), runtime.clone());
        let thread = std::thread::spawn(move || {
            while let Ok(Some(work)) = runtime.block_on(worker.next()) {
                let began = Instant::now();
                let rows = work.batch.rows();
                // Threads wake up some 60 us late; that is part of what it takes.
                std::thread::sleep(model.takes(rows));
                let scores = Float32Array::from_iter_values((0..rows).map(|row| row as f32));
                let scores = RecordBatch::try_from_iter([("score", Arc::new(scores) as _)]);
                let replied = scores.map_err(anyhow::Error::from).and_then(|scores| Ok(work.reply(&scores)?));
                if replied.is_err() {
                    break;
                }
                let mut done = counted.lock().unwrap_or_else(PoisonError::into_inner);
                done.batches += 1;
                done.rows += rows;
                done.seconds += began.elapsed().as_secs_f64();
            }
        });
        Ok(Self { done, thread: Some(thread) })
    }

    /// Waits until it has ended, which it does when its server has.
    pub(super) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }

    pub(super) fn done(&self) -> Done {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts from now on.
    pub(super) fn forget(&self) {
        *self.done.lock().unwrap_or_else(PoisonError::into_inner) = Done::default();
    }
}
