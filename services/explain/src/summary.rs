//! The explanation of a batch.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, Field};
use forebay_loader::{Error, Flow, Loader, Pool, Priority, StoredRow, described_filter};
use forebay_proto::v1::{self, BatchMetadata};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    At, Explained, JobRecord,
    column::Column,
    row_ranges::{RowRange, row_ranges},
};

/// Explanation of a batch: where its rows are stored, and statistics of its columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Explanation)]
pub struct Summary {
    /// Name of the job; empty if the request has none.
    pub job_name: String,
    /// Id of the job: 32 hexadecimal digits.
    pub id: String,
    /// Name of the dataset.
    pub dataset: String,
    /// Id of the pinned snapshot.
    pub snapshot: String,
    /// Filter of the dataset; empty without one. The name of a set of values is followed by the number of its values, as in
    /// `id IN (:ids: 100000 values)`.
    #[serde(default)]
    pub filter: String,
    /// Epoch of the batch, counted from 0.
    pub epoch: u64,
    /// Step of the batch in its epoch, counted from 0.
    pub step: u64,
    /// Number of steps per epoch.
    pub steps: u64,
    /// Rank that received the batch, counted from 0.
    pub rank: u64,
    /// Number of ranks.
    pub world_size: u64,
    /// Number of rows, groups or packs per rank and step.
    pub batch_size: u64,
    /// Number of partitions of the order; null without partitions.
    #[schema(required)]
    pub partitions: Option<u64>,
    /// With partitions: mean number of blocks whose rows one batch of a rank mixes, in the epoch of the batch. Null without
    /// partitions.
    #[schema(required)]
    pub rank_blocks: Option<f64>,
    /// True with partitions: a rank reads the same blocks in every epoch.
    #[serde(default)]
    pub same_blocks_every_epoch: bool,
    /// Number of rows of the batch, without padding.
    pub rows: u64,
    /// Number of rows of padding.
    pub padding: u64,
    /// Number of groups; null without `group_by`.
    #[schema(required)]
    pub groups: Option<usize>,
    /// Maximum number of rows per pack of groups; 0 without packs.
    #[serde(default)]
    pub max_pack_rows: u64,
    /// Position of the first row, group or pack in the global order of the epoch, counted from 0.
    pub position: u64,
    /// Positions of the first rows of the other datasets of a mixture, counted over all their epochs.
    pub mixed_positions: Vec<u64>,
    /// Hash (XXH3-64) of the body of the Arrow IPC message, 16 hexadecimal digits; null if it was not computed.
    #[schema(required)]
    pub content_hash: Option<String>,
    /// Size of the body of the Arrow IPC message, in bytes.
    pub body_bytes: usize,
    /// Number of row groups that store rows of the batch.
    pub row_range_count: usize,
    /// Rows of the batch by row group; at most 10,000 row groups.
    pub row_ranges: Vec<RowRange>,
    /// Statistics of the columns.
    pub columns: Vec<Column>,
    /// Statistics of the label; null if the request names no label column, or not all datasets of a mixture have it.
    #[schema(required)]
    pub label: Option<Label>,
    /// Ids of the less recently streamed jobs with this name.
    #[serde(default)]
    pub others: Vec<String>,
}

/// Statistics of the label of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BatchLabel)]
pub struct Label {
    /// Name of the label column.
    pub column: String,
    /// Number of null labels.
    pub nulls: usize,
    /// Minimum, of the same type as `BatchColumn.min`.
    pub min: Value,
    /// Maximum, of the same type as `BatchColumn.min`.
    pub max: Value,
    /// Mean; null if the label is not numeric.
    pub mean: Value,
}

impl Summary {
    /// Summarizes a batch whose rows are stored at `rows`; `labels` holds the label of each row.
    ///
    /// # Errors
    /// Internal errors, and files without a URL.
    pub(crate) fn new(
        explained: &Explained,
        rows: &[StoredRow],
        labels: Option<&RecordBatch>,
        max_listed_rows: usize,
    ) -> Result<Self, Error> {
        let internal = |error: ArrowError| Error::Internal(error.to_string());
        let (train, metadata, batch) = (explained.train(), &explained.metadata, explained.rows());
        let schema = explained.schema();
        let columns =
            schema.fields().iter().zip(batch.columns()).map(|(field, array)| Column::new(field, array));
        let label =
            labels.and_then(|labels| label(&train.label_column, labels)).transpose().map_err(internal)?;
        let plan = explained.job.summary();
        let (row_ranges, row_range_count) = row_ranges(&explained.job, rows, max_listed_rows)?;
        Ok(Self {
            job_name: train.job_name.clone(),
            id: JobRecord::new(train, 0.0).id,
            dataset: train.dataset.clone(),
            snapshot: train.snapshot.clone(),
            filter: described_filter(&train.filter, &train.values),
            epoch: metadata.epoch,
            step: metadata.step,
            steps: explained.steps,
            rank: metadata.rank,
            world_size: train.world_size(),
            batch_size: train.batch_size,
            partitions: plan.partitions,
            rank_blocks: plan.rank_blocks,
            same_blocks_every_epoch: plan.same_blocks_every_epoch,
            rows: metadata.rows,
            padding: (explained.batch.num_rows() as u64).saturating_sub(metadata.rows),
            groups: metadata.group_offsets.len().checked_sub(1),
            max_pack_rows: train.max_pack_rows,
            position: metadata.position,
            mixed_positions: metadata.mixed_positions.clone(),
            content_hash: metadata.content_hash.map(|hash| format!("{hash:016x}")),
            body_bytes: explained.body.len(),
            row_range_count,
            row_ranges,
            columns: columns.collect::<Result<_, _>>().map_err(internal)?,
            label,
            others: Vec::new(),
        })
    }
}

impl Explained {
    /// Summarizes the batch as an operation of `flow` on `pool`, and lists at most `max_listed_rows` rows per row group.
    ///
    /// # Errors
    /// With a filter or groups, the error of the first block that can't be read; the errors of the label column.
    pub async fn summary(
        self: &Arc<Self>,
        loader: &Loader,
        pool: &Pool,
        flow: Flow,
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
        pool.run_for(flow, Priority::Background, summary).await
    }

    /// Returns a batch with the label of each row: this batch if it has the column, else one of the same rows.
    async fn label(&self, loader: &Loader) -> Result<Option<RecordBatch>, Error> {
        let train = self.train();
        if train.label_column.is_empty() {
            return Ok(None);
        }
        let is_label = |field: &Field| field.name() == &train.label_column && !field.data_type().is_nested();
        if self.schema().fields().iter().any(|field| is_label(field)) {
            return Ok(Some(self.rows()));
        }
        let only = v1::Train {
            columns: vec![train.label_column.clone()],
            tensors: Vec::new(),
            dedupe: Vec::new(),
            rank: Some(self.metadata.rank),
            ..train.clone()
        };
        let readers = self.job.readers().map(|(_, reader)| reader.clone()).collect();
        // Other datasets of a mixture may not have the column.
        let is_mixture = !train.mix.is_empty();
        let made = Box::pin(Self::build(loader, &only, readers, At::default())).await;
        match made {
            Ok(labels) => Ok(Some(labels.rows())),
            Err(Error::Invalid { .. }) if is_mixture => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn label(name: &str, labels: &RecordBatch) -> Option<Result<Label, ArrowError>> {
    let (index, field) = labels.schema_ref().column_with_name(name)?;
    let of = |column: Column| Label {
        column: column.name,
        nulls: column.nulls,
        min: column.min,
        max: column.max,
        mean: column.mean,
    };
    Some(Column::new(field, labels.column(index)).map(of))
}
