//! Rows of a batch by the row group that stores them.

use std::collections::BTreeMap;

use forebay_loader::{Error, Job, StoredRow};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Maximum number of row groups that are listed per batch.
const MAX_RANGES: usize = 10_000;

/// Rows of a batch that are stored in one row group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BatchRowRange)]
pub struct RowRange {
    /// Name of the dataset.
    pub dataset: String,
    /// Path of the file, relative to the dataset.
    pub file: String,
    /// URL of the file.
    pub url: String,
    /// Index of the row group in the file, counted from 0.
    pub row_group: u32,
    /// Number of rows of the file before this row group.
    pub row_group_offset: u64,
    /// Number of rows of the batch in this row group.
    pub row_count: usize,
    /// Indices of these rows in the row group, counted from 0, in batch order; at most `max_listed_rows`.
    pub rows: Vec<u32>,
    /// Indices of the rows of `rows` in the batch, counted from 0.
    pub batch_row_indices: Vec<u32>,
}

/// Groups the rows of a batch by dataset, file and row group, and lists at most `max_listed_rows` rows of each. Also returns the
/// total number of row groups.
///
/// # Errors
/// If a file has no URL.
pub(crate) fn row_ranges(
    job: &Job,
    rows: &[StoredRow],
    max_listed_rows: usize,
) -> Result<(Vec<RowRange>, usize), Error> {
    let mut by_group: BTreeMap<(u32, u32, u32), Vec<(u32, u32)>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        by_group.entry((row.dataset, row.file, row.row_group)).or_default().push((row.row, at as u32));
    }
    let (count, datasets) = (by_group.len(), job.readers().collect::<Vec<_>>());
    let mut ranges = Vec::new();
    for ((dataset, file, row_group), rows) in by_group.into_iter().take(MAX_RANGES) {
        let (name, reader) = datasets[dataset as usize];
        let stored = &reader.snapshot().files()[file as usize];
        let before = &stored.row_groups[..row_group as usize];
        let (listed, batch_row_indices) = rows.iter().take(max_listed_rows).copied().unzip();
        ranges.push(RowRange {
            dataset: name.to_owned(),
            file: stored.path.clone(),
            url: reader.file_url(file)?,
            row_group,
            row_group_offset: before.iter().map(|group| u64::from(group.rows)).sum(),
            row_count: rows.len(),
            rows: listed,
            batch_row_indices,
        });
    }
    Ok((ranges, count))
}
