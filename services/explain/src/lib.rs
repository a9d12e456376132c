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
mod record;
mod row_ranges;
mod summary;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_loader::{Error, Job, Loader, Pool, Priority, WireBatch, check_mixture};
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
        mut readers: Vec<Reader>,
        at: At,
    ) -> Result<Self, Error> {
        if readers.is_empty() {
            return Err(Error::Internal("a job without a dataset".into()));
        }
        let others = readers.split_off(1);
        let [own]: [Reader; 1] =
            readers.try_into().map_err(|_| Error::Internal("more than one first dataset".into()))?;
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
        let job = Arc::new(loader.job(only, own, others).await?);
        // The job was resolved with this rank, so the rank fits.
        let mut batches = loader.batches(Arc::clone(&job), rank as u32, 0);
        let missing = || Error::Internal("the stream ended without its batch".into());
        let (metadata, batch) = batches.next().await.ok_or_else(missing)??;
        let (header, body) = (batch.header, batch.body.into_bytes());
        let batch = WireBatch::decode(job.view().schema(), &header, &body)?;
        Ok(Self { job, metadata, steps, header, body, batch })
    }

    /// Summarizes the batch, and lists at most `max_listed_rows` rows per row group.
    ///
    /// # Errors
    /// With a filter or groups, the error of the first block that can't be read; the errors of the label column.
    pub async fn summary(
        self: &Arc<Self>,
        loader: &Loader,
        pool: &Pool,
        max_listed_rows: usize,
    ) -> Result<Summary, Error> {
        let BatchMetadata { epoch, step, rank, .. } = self.metadata;
        let rows = loader.locate(&self.job, epoch, step, rank as u32).await?;
        if rows.len() as u64 != self.metadata.rows {
            let (found, sent) = (rows.len(), self.metadata.rows);
            return Err(Error::Internal(format!("located {found} rows of a batch of {sent}")));
        }
        let label = self.label(loader).await?;
        let explained = Arc::clone(self);
        let summary = move || Summary::new(&explained, &rows, label.as_ref(), max_listed_rows);
        pool.run(Priority::Background, summary).await
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

    /// Returns a batch with the label of each row: this batch if it has the column, else one of the same rows.
    async fn label(&self, loader: &Loader) -> Result<Option<RecordBatch>, Error> {
        let train = self.train();
        if train.label_column.is_empty() {
            return Ok(None);
        }
        let is_label = |field: &arrow_schema::Field| {
            field.name() == &train.label_column && !field.data_type().is_nested()
        };
        if self.schema().fields().iter().any(|field| is_label(field)) {
            return Ok(Some(self.rows()));
        }
        let only = v1::Train {
            columns: vec![train.label_column.clone()],
            tensors: Vec::new(),
            dedupe: Vec::new(),
            ..train.clone()
        };
        let mut readers = self.job.readers().map(|(_, reader)| reader.clone()).collect();
        // Other datasets of a mixture may not have the column.
        let is_mixture = !train.mix.is_empty();
        let made = Box::pin(Self::build(loader, &only, std::mem::take(&mut readers), At::default())).await;
        match made {
            Ok(labels) => Ok(Some(labels.rows())),
            Err(Error::Invalid { .. }) if is_mixture => Ok(None),
            Err(error) => Err(error),
        }
    }
}
