//! Explanations of batches: a batch of a past job, rebuilt, and the rows it was assembled from.
//!
//! The order is a pure function of the request, so a job, an epoch, a step and a rank identify a batch.
//!
//! ```text
//! job record or ticket --> request --+-- loader.batches --> Explained --+-- export    Parquet, JSON, Arrow
//!                    At (step...) ---/   (as for any stream)            |
//!                                    +-- loader.locate ---> rows -------+-- Summary   row ranges, column statistics
//! ```
//!
//! - [`Explained`]: a batch, built by the same code path as every stream, so that its bytes are identical.
//! - [`Summary`]: the rows of the batch by file and row group, and statistics of its columns.
//! - [`Format`]: file formats of an exported batch.
//! - [`JobRecord`], [`JobList`]: identity of a job, and jobs as they are listed.

#![forbid(unsafe_code)]

mod column;
mod export;
mod job_list;
mod json;
mod record;
mod row_ranges;
mod summary;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_loader::{Error, Job, Loader, WireBatch, check_mixture};
use forebay_proto::v1::{self, BatchMetadata};
use forebay_storage::Reader;
use serde::Deserialize;

pub use column::Column;
pub use export::Format;
pub use job_list::JobList;
pub use record::{JobRecord, name_prefix};
pub use row_ranges::RowRange;
pub use summary::{Label, Summary};

/// Default of the maximum number of rows that are listed per row group.
pub const DEFAULT_MAX_LISTED_ROWS: usize = 1000;

/// Position of a batch in a job. Absent fields default to those of the request.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct At {
    /// Epoch.
    pub epoch: Option<u64>,
    /// Step in the epoch.
    pub step: Option<u64>,
    /// Rank. Default: the request's, or 0.
    pub rank: Option<u64>,
}

/// Checks that a request names the snapshot of every dataset.
///
/// # Errors
/// [`Error::Invalid`] with the missing field.
pub fn check_pinned(train: &v1::Train) -> Result<(), Error> {
    if train.dataset.is_empty() {
        return Err(Error::invalid("dataset", "is missing, expected the name of a dataset"));
    }
    check_mixture(train)?;
    let advice = "is missing: only a request with a pinned snapshot identifies its batches; use a ticket, or add the snapshot id";
    if train.snapshot.is_empty() {
        return Err(Error::invalid("snapshot", advice));
    }
    match train.mix.iter().find(|mixed| mixed.snapshot.is_empty()) {
        Some(mixed) => Err(Error::invalid(format!("mix.{}.snapshot", mixed.dataset), advice)),
        None => Ok(()),
    }
}

/// A rebuilt batch.
pub struct Explained {
    /// A job whose only batch is this one.
    job: Arc<Job>,
    metadata: BatchMetadata,
    /// Steps per epoch.
    steps: u64,
    header: Bytes,
    body: Bytes,
    /// Rows of the batch, padding included.
    batch: RecordBatch,
}

impl Explained {
    /// Rebuilds the batch at `at` of the job of `train`. `readers` are those of its datasets; the reader of `dataset` comes first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a step or rank out of range, with the range; otherwise the errors of a stream.
    pub async fn build(
        loader: &Loader,
        train: &v1::Train,
        readers: Vec<Reader>,
        at: At,
    ) -> Result<Self, Error> {
        let mut readers = readers.into_iter();
        let own = readers.next().ok_or_else(|| Error::Internal("a job without a dataset".into()))?;
        let others: Vec<Reader> = readers.collect();
        let (epoch, step, rank) = (
            at.epoch.unwrap_or(train.epoch),
            at.step.unwrap_or(train.start_step),
            at.rank.or(train.rank).unwrap_or(0),
        );
        // A whole epoch in one lane: lanes only distribute batches.
        let whole = v1::Train {
            epoch,
            epochs: Some(1),
            start_step: 0,
            steps: 0,
            rank: Some(rank),
            lane: Some(0),
            lanes: Some(1),
            content_hash: Some(true),
            ..train.clone()
        };
        let steps = loader.job(whole.clone(), own.clone(), others.clone()).await?.steps();
        if step >= steps {
            let range = match steps {
                0 => "an epoch has no steps".to_owned(),
                _ => format!("expected 0 to {}: an epoch has {steps} steps", steps - 1),
            };
            return Err(Error::invalid("step", format!("is {step}, {range}")));
        }
        let only = v1::Train { start_step: step, steps: 1, ..whole };
        let job = loader.job(only, own, others).await?;
        // The job was resolved with this rank, so the rank fits.
        let mut batches = loader.batches(Arc::clone(&job), rank as u32, 0);
        let missing = || Error::Internal("the stream ended without its batch".into());
        let (metadata, batch) = batches.next().await.ok_or_else(missing)??;
        let (header, body) = (batch.header, batch.body.into_bytes());
        let batch = WireBatch::decode(job.view().schema(), &header, &body)?;
        Ok(Self { job, metadata, steps, header, body, batch })
    }

    /// Request of the batch.
    fn train(&self) -> &v1::Train {
        self.job.train()
    }

    fn schema(&self) -> &SchemaRef {
        self.job.view().schema()
    }

    /// Rows of the batch, without padding.
    fn rows(&self) -> RecordBatch {
        self.batch.slice(0, self.batch.num_rows().min(self.metadata.rows as usize))
    }
}
