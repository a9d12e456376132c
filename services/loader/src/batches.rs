//! The stream of one rank and lane, as its consumer sees it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_proto::v1::BatchMetadata;
use forebay_stall::{Lane, Moments, Stage};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Config, Error, Job, Pool, Submitted, WireBatch, activity::Seen, cpu::Flow, producer::Producer,
    space::Share, window::Windows,
};

/// Batches of one rank and lane, made ahead of their consumer up to a number of bytes.
///
/// Dropping it ends the work for it. A consumer that takes nothing costs the batches that are ready,
/// and after a while no window.
pub struct Batches {
    remaining: u64,
    made: mpsc::UnboundedReceiver<Result<Making, Error>>,
    /// The one that is waited for.
    next: Option<Making>,
    producer: Option<AbortOnDropHandle<()>>,
}

/// Which batches.
#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) job: Arc<Job>,
    pub(crate) rank: u32,
    pub(crate) lane: u32,
    /// Whose time it takes.
    pub(crate) watch: Lane,
    /// What was done for the batch at hand while its windows were waited for.
    pub(crate) seen: Arc<Seen>,
    /// Whose turns gathering for it takes.
    pub(crate) gathering: Flow,
}

/// A batch on its way, and its share of the bytes that may be ready.
pub(crate) struct Making {
    /// All but rows and hash.
    pub(crate) metadata: BatchMetadata,
    pub(crate) batch: Submitted<Gathered>,
    /// When it was begun, how long it waited for its windows, and what was done meanwhile.
    pub(crate) begun: Instant,
    pub(crate) windows: Duration,
    pub(crate) seen: Vec<(Stage, Instant, Instant)>,
    pub(crate) _share: Arc<Share>,
}

/// A batch that was put together.
pub(crate) struct Gathered {
    pub(crate) batch: WireBatch,
    pub(crate) label: Option<Moments>,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
}

/// A finished batch, and how it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// What goes with it.
    pub metadata: BatchMetadata,
    /// The batch.
    pub batch: WireBatch,
    /// What the labels of some of its rows are like, if the job names a label and delivers it.
    pub label: Option<Moments>,
    /// When its rows were begun to be looked for.
    pub begun: Instant,
    /// For how long they were waited for from then on.
    pub windows: Duration,
    /// What was done for them meanwhile: of each stage when the first work began, or the wait, and when the last one ended. Nothing
    /// is noted for a stream that is not [watched](crate::Loader::watched_batches).
    pub seen: Vec<(Stage, Instant, Instant)>,
    /// When it was begun to be put together, and when it was finished.
    pub gathered: (Instant, Instant),
}

impl Batches {
    pub(crate) fn start(stream: Stream, windows: &Arc<Windows>, pool: Pool, config: Config) -> Self {
        // Bounded by the shares of what is in it.
        let (sender, made) = mpsc::unbounded_channel();
        let remaining = stream.job.batches(stream.lane);
        let producer = Producer::new(stream, windows, pool, config, sender);
        let producer = AbortOnDropHandle::new(tokio::spawn(producer.run()));
        Self { remaining, made, next: None, producer: Some(producer) }
    }

    /// Batches that have not been taken yet.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The next batch; `None` after the last, never before. Cancel-safe. After an error the stream is over.
    pub async fn next(&mut self) -> Option<Result<(BatchMetadata, WireBatch), Error>> {
        Some(self.next_made().await?.map(|made| (made.metadata, made.batch)))
    }

    /// ... with how it was made. Cancel-safe.
    pub async fn next_made(&mut self) -> Option<Result<Made, Error>> {
        if self.remaining == 0 {
            return None;
        }
        let batch = self.wait().await;
        self.next = None;
        self.remaining = if batch.is_ok() { self.remaining - 1 } else { 0 };
        if self.remaining == 0 {
            self.producer = None;
        }
        Some(batch)
    }

    async fn wait(&mut self) -> Result<Made, Error> {
        if self.next.is_none() {
            let early = || Error::Internal("the stream's producer stopped before its last batch".into());
            self.next = Some(self.made.recv().await.ok_or_else(early)??);
        }
        let making = self.next.as_mut().expect("it was there or has just been set");
        let Gathered { batch, label, begun, ended } = (&mut making.batch).await?;
        metrics::counter!("forebay_batches_total").increment(1);
        metrics::counter!("forebay_batch_rows_total").increment(batch.rows);
        metrics::counter!("forebay_batch_bytes_total").increment(batch.body.len() as u64);
        let metadata = BatchMetadata {
            rows: batch.rows,
            hash: batch.hash,
            group_offsets: batch.group_offsets.clone(),
            ..making.metadata.clone()
        };
        let (windows, seen, gathered) = (making.windows, std::mem::take(&mut making.seen), (begun, ended));
        Ok(Made { metadata, batch, label, begun: making.begun, windows, seen, gathered })
    }
}
