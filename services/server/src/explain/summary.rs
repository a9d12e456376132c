//! What there is to say of a batch.

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;
use forebay_loader::{Error, StoredRow};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    Explained,
    pieces::{Piece, pieces},
    statistics::Column,
};
use crate::jobs::Record;

/// A batch, explained; what is not known is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Explanation)]
pub(crate) struct Summary {
    /// The job's name, which may be empty, and its id.
    pub(crate) job: String,
    pub(crate) id: String,
    pub(crate) dataset: String,
    pub(crate) snapshot: String,
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    /// Steps of an epoch.
    pub(crate) steps: u64,
    pub(crate) rank: u64,
    pub(crate) world_size: u64,
    pub(crate) batch_size: u64,
    /// Rows without those that pad it.
    pub(crate) rows: u64,
    pub(crate) padding: u64,
    /// With groups, how many there are.
    #[schema(required)]
    pub(crate) groups: Option<usize>,
    /// Rows that a pack of groups has at most; 0 without packs.
    #[serde(default)]
    pub(crate) batch_rows: u64,
    /// Of the first row, or group or pack, in the epoch's global order.
    pub(crate) position: u64,
    /// In a mixture, of the other datasets over all of their epochs.
    pub(crate) mixed_positions: Vec<u64>,
    /// XXH3-64 of the body as it was sent, 16 hexadecimal digits.
    #[schema(required)]
    pub(crate) hash: Option<String>,
    pub(crate) body_bytes: usize,
    /// How many row groups have a row of it.
    pub(crate) piece_count: usize,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) columns: Vec<Column>,
    /// `None` if the request names none, or not all datasets of a mixture have it.
    #[schema(required)]
    pub(crate) label: Option<Label>,
    /// Ids of other jobs of this name, seen before this one.
    #[serde(default)]
    pub(crate) others: Vec<String>,
}

/// What the label of a batch is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BatchLabel)]
pub(crate) struct Label {
    pub(crate) column: String,
    pub(crate) nulls: usize,
    pub(crate) min: Value,
    pub(crate) max: Value,
    pub(crate) mean: Value,
}

impl Summary {
    /// Of a batch whose rows are stored at `rows`; `labels` holds its label, row by row.
    ///
    /// # Errors
    /// Defects, and files that have no name in their store.
    pub(super) fn of(
        explained: &Explained,
        rows: &[StoredRow],
        labels: Option<&RecordBatch>,
        listed_rows: usize,
    ) -> Result<Self, Error> {
        let internal = |error: ArrowError| Error::Internal(error.to_string());
        let (train, metadata, batch) = (explained.train(), &explained.metadata, explained.rows());
        let schema = explained.schema();
        let columns =
            schema.fields().iter().zip(batch.columns()).map(|(field, array)| Column::of(field, array));
        let label = labels.and_then(|labels| label(&train.label, labels)).transpose().map_err(internal)?;
        let (pieces, piece_count) = pieces(&explained.job, rows, listed_rows)?;
        Ok(Self {
            job: train.job.clone(),
            id: Record::of(train, 0.0).id,
            dataset: train.dataset.clone(),
            snapshot: train.snapshot.clone(),
            epoch: metadata.epoch,
            step: metadata.step,
            steps: explained.steps,
            rank: metadata.rank,
            world_size: train.world_size(),
            batch_size: train.batch_size,
            rows: metadata.rows,
            padding: (explained.batch.num_rows() as u64).saturating_sub(metadata.rows),
            groups: metadata.group_offsets.len().checked_sub(1),
            batch_rows: train.batch_rows,
            position: metadata.position,
            mixed_positions: metadata.mixed_positions.clone(),
            hash: metadata.hash.map(|hash| format!("{hash:016x}")),
            body_bytes: explained.body.len(),
            piece_count,
            pieces,
            columns: columns.collect::<Result<_, _>>().map_err(internal)?,
            label,
            others: Vec::new(),
        })
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
    Some(Column::of(field, labels.column(index)).map(of))
}
