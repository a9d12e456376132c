//! The running part of the training path.

use std::sync::Arc;

use forebay_cache::Weigh;
use forebay_proto::v1;
use forebay_storage::Reader;
use futures::{StreamExt, stream};

use crate::{Batches, Config, Error, Job, Pool, Priority, window::Windows};

/// Loads windows and opens streams. Cheap to clone; clones share memory and threads.
#[derive(Clone)]
pub struct Loader {
    windows: Arc<Windows>,
    memory_bytes: u64,
    config: Config,
    pool: Pool,
}

/// How far [`Loader::warm`] has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Warmed {
    /// Blocks of the snapshot.
    pub blocks: u64,
    /// Blocks that are in memory now.
    pub blocks_done: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}

impl Loader {
    /// A loader that keeps frames in `memory_bytes` and does its CPU work on `pool`.
    pub fn new(memory_bytes: u64, config: Config, pool: Pool) -> Self {
        let windows = Arc::new(Windows::new(memory_bytes, config.clone(), pool.clone()));
        Self { windows, memory_bytes, config, pool }
    }

    /// The job that `train` asks for, resolved against the snapshot of `reader` and admitted.
    ///
    /// # Errors
    /// Those of [`Job::resolve`] and [`Self::admit`].
    pub async fn job(&self, train: v1::Train, reader: Reader) -> Result<Job, Error> {
        let loader = self.clone();
        // It looks at every block and every window.
        let resolve = move || {
            let job = Job::resolve(&train, reader)?;
            loader.admit(&job)?;
            Ok(job)
        };
        self.pool.run(Priority::First, resolve).await
    }

    /// Refuses a job that can never run here.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with the bytes that a batch or a window needs, and the largest window that fits.
    pub fn admit(&self, job: &Job) -> Result<(), Error> {
        job.check_fits(self.memory_bytes, self.config.max_batch_bytes)
    }

    /// The batches of one rank and lane. Dropping the stream ends its work.
    pub fn batches(&self, job: Arc<Job>, rank: u32, lane: u32) -> Batches {
        Batches::start(job, rank, lane, Arc::clone(&self.windows), self.pool.clone(), self.config.clone())
    }

    /// Loads the blocks of the job's snapshot into memory, in the order in which its first epoch needs them,
    /// until they would no longer all fit; calls `progress` after each.
    ///
    /// # Errors
    /// Those of the first block that can't be read.
    pub async fn warm(&self, job: &Job, progress: impl Fn(Warmed)) -> Result<Warmed, Error> {
        let blocks = job.snapshot().blocks().len();
        let order = job.order(job.train().epoch);
        let mut room = self.memory_bytes;
        let needed = (0..order.windows()).flat_map(|window| order.window(window).blocks);
        let mut fits = Vec::new();
        for block in needed.copied() {
            let bytes = job.bytes_of(&[block]);
            if bytes > room {
                break;
            }
            room -= bytes;
            fits.push(block);
        }
        let mut warmed = Warmed { blocks: blocks as u64, blocks_done: 0, bytes: 0 };
        let mut frames = stream::iter(fits)
            .map(|block| self.windows.frame(job, block))
            .buffer_unordered(self.config.concurrent_blocks.max(1));
        while let Some(frame) = frames.next().await {
            warmed.blocks_done += 1;
            warmed.bytes += frame?.weight();
            progress(warmed);
        }
        Ok(warmed)
    }

    /// Bytes of frames in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.windows.memory().resident_bytes()
    }
}
