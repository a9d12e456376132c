//! The rows of a batch by the row groups that they are stored in.

use std::collections::BTreeMap;

use forebay_loader::{Error, Job, StoredRow};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Row groups that are listed of a batch.
const MAX_PIECES: usize = 10_000;

/// The rows of a batch that one row group has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = BatchPiece)]
pub(crate) struct Piece {
    pub(crate) dataset: String,
    /// The file's path below the dataset.
    pub(crate) file: String,
    /// How to get at it.
    pub(crate) url: String,
    pub(crate) row_group: u32,
    /// Rows of the file before this row group.
    pub(crate) first_row: u64,
    /// Rows of the batch that are stored there.
    pub(crate) row_count: usize,
    /// Their numbers in the row group, in the order of the batch; the first ones.
    pub(crate) rows: Vec<u32>,
    /// ... and which rows of the batch these are.
    pub(crate) batch_rows: Vec<u32>,
}

/// The pieces of a batch, by dataset, file and row group, with the first `listed_rows` rows of each; and how many there are.
///
/// # Errors
/// When a file has no name in its store.
pub(crate) fn pieces(
    job: &Job,
    rows: &[StoredRow],
    listed_rows: usize,
) -> Result<(Vec<Piece>, usize), Error> {
    let mut by_group: BTreeMap<(u32, u32, u32), Vec<(u32, u32)>> = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        by_group.entry((row.dataset, row.file, row.row_group)).or_default().push((row.row, at as u32));
    }
    let (count, datasets) = (by_group.len(), job.readers().collect::<Vec<_>>());
    let mut pieces = Vec::new();
    for ((dataset, file, row_group), rows) in by_group.into_iter().take(MAX_PIECES) {
        let (name, reader) = datasets[dataset as usize];
        let stored = &reader.snapshot().files()[file as usize];
        let before = &stored.row_groups[..row_group as usize];
        let (listed, batch_rows) = rows.iter().take(listed_rows).copied().unzip();
        pieces.push(Piece {
            dataset: name.to_owned(),
            file: stored.path.clone(),
            url: reader.url_of(file)?,
            row_group,
            first_row: before.iter().map(|group| u64::from(group.rows)).sum(),
            row_count: rows.len(),
            rows: listed,
            batch_rows,
        });
    }
    Ok((pieces, count))
}
