//! Any batch again, and where its rows come from: because the order is pure, (job, step, rank) is all that it takes.
//!
//! ```text
//! job's record or ticket --> request --+-- loader.batches --> Explained --+-- written    Parquet, JSON, Arrow
//!                      At --/          |   (as any stream)                |
//!                                      +-- loader.locate ---> rows -------+-- Summary    pieces, statistics --> text
//! ```
//!
//! - [`Explained`]: the batch, made by the path that every stream takes, so it is the same byte for byte.
//! - [`Explainer`]: the same for callers of a running server, bounded in number and time.
//! - `command`: `forebay explain`, over HTTP (`remote`) or without any server (`local`).

pub(crate) mod command;
mod explainer;
mod listed;
mod local;
mod pieces;
mod remote;
mod statistics;
mod summary;
mod text;
mod written;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_loader::{Error, Job, Loader, Pool, Priority};
use forebay_proto::v1::{self, BatchMetadata};
use forebay_storage::Reader;
use serde::Deserialize;

use crate::flight::{in_one_piece, read_own};

pub(crate) use explainer::Explainer;
pub(crate) use listed::JobList;
pub(crate) use summary::Summary;
pub(crate) use written::Format;

/// Row numbers that are listed of each piece, if nothing else is asked for.
pub(crate) const DEFAULT_LISTED_ROWS: usize = 1000;

/// Which batch of a job; what is left out is what its request says.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct At {
    pub(crate) epoch: Option<u64>,
    pub(crate) step: Option<u64>,
    pub(crate) rank: Option<u64>,
}

/// A batch as it was sent, and what it was made from.
pub(crate) struct Explained {
    /// The job, whose only batch is this one.
    job: Arc<Job>,
    metadata: BatchMetadata,
    /// Steps of an epoch.
    steps: u64,
    header: Bytes,
    body: Bytes,
    /// With what pads it.
    batch: RecordBatch,
}

impl Explained {
    /// Makes the batch at `at` of the job that `train` asks for; `readers` are those of its datasets, its own first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a step or rank that the job doesn't have, with those that it has; those of any stream.
    pub(crate) async fn make(
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
            readers.try_into().map_err(|_| Error::Internal("several datasets are the first".into()))?;
        let (epoch, step, rank) = (
            at.epoch.unwrap_or(train.epoch),
            at.step.unwrap_or(train.start_step),
            at.rank.or(train.rank).unwrap_or(0),
        );
        // An epoch from its beginning, in one lane: lanes only deal batches out.
        let whole = v1::Train {
            epoch,
            epochs: Some(1),
            start_step: 0,
            steps: 0,
            rank: Some(rank),
            lane: Some(0),
            lanes: Some(1),
            hash: Some(true),
            ..train.clone()
        };
        let steps = loader.job(whole.clone(), own.clone(), others.clone()).await?.steps();
        if step >= steps {
            let range = match steps {
                0 => "an epoch has none".to_owned(),
                _ => format!("expected 0 to {}: an epoch has {steps} steps", steps - 1),
            };
            return Err(Error::invalid("step", format!("is {step}, {range}")));
        }
        let only = v1::Train { start_step: step, steps: 1, ..whole };
        let job = Arc::new(loader.job(only, own, others).await?);
        // The job was resolved with this rank.
        let mut batches = loader.batches(Arc::clone(&job), rank as u32, 0);
        let none = || Error::Internal("the batch is none".into());
        let (metadata, batch) = batches.next().await.ok_or_else(none)??;
        let (header, body) = (batch.header, in_one_piece(batch.body));
        let batch = read_own(job.view().schema(), &header, &body)
            .map_err(|status| Error::Internal(status.message().to_owned()))?;
        Ok(Self { job, metadata, steps, header, body, batch })
    }

    /// Where its rows come from, and what they hold. Of each piece at most `listed_rows` row numbers are listed.
    ///
    /// # Errors
    /// With a filter or groups, those of the first block that can't be read; those of the label's column.
    pub(crate) async fn summary(
        self: &Arc<Self>,
        loader: &Loader,
        pool: &Pool,
        listed_rows: usize,
    ) -> Result<Summary, Error> {
        let BatchMetadata { epoch, step, rank, .. } = self.metadata;
        let rows = loader.locate(&self.job, epoch, step, rank as u32).await?;
        if rows.len() as u64 != self.metadata.rows {
            let (found, sent) = (rows.len(), self.metadata.rows);
            return Err(Error::Internal(format!("{found} rows were found of a batch of {sent}")));
        }
        let label = self.label(loader).await?;
        let explained = Arc::clone(self);
        let summary = move || Summary::of(&explained, &rows, label.as_ref(), listed_rows);
        pool.run(Priority::Second, summary).await
    }

    /// The request that the batch answers.
    fn train(&self) -> &v1::Train {
        self.job.train()
    }

    fn schema(&self) -> &SchemaRef {
        self.job.view().schema()
    }

    /// The rows of the batch, without those that pad it.
    fn rows(&self) -> RecordBatch {
        self.batch.slice(0, self.batch.num_rows().min(self.metadata.rows as usize))
    }

    /// A batch that holds the label of each row: this one, or one of the same rows that has nothing else.
    async fn label(&self, loader: &Loader) -> Result<Option<RecordBatch>, Error> {
        let train = self.train();
        if train.label.is_empty() {
            return Ok(None);
        }
        let is_label =
            |field: &arrow_schema::Field| field.name() == &train.label && !field.data_type().is_nested();
        if self.schema().fields().iter().any(|field| is_label(field)) {
            return Ok(Some(self.rows()));
        }
        let only = v1::Train {
            columns: vec![train.label.clone()],
            tensors: Vec::new(),
            dedupe: Vec::new(),
            ..train.clone()
        };
        let mut readers = self.job.readers().map(|(_, reader)| reader.clone()).collect();
        // Others of a mixture may have no such column.
        let beside = train.mix.len();
        let made = Box::pin(Self::make(loader, &only, std::mem::take(&mut readers), At::default())).await;
        match made {
            Ok(labels) => Ok(Some(labels.rows())),
            Err(Error::Invalid { .. }) if beside > 0 => Ok(None),
            Err(error) => Err(error),
        }
    }
}
