//! Rows of a view, from the columns of a block.

use std::{ops::Range, sync::Arc};

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::SchemaRef;

use super::align;
use crate::{
    Error, View,
    cpu::turns::TurnClock,
    view::{kept_range::KeptRange, source::Reads},
};

/// Values of one column of a block, in chunks of a few thousand rows.
pub(super) type Chunks = Arc<Vec<ArrayRef>>;

/// Columns of a block, of which [`take`](Self::take) makes the rows of a view.
pub(crate) struct CachedRows {
    pub(super) columns: Vec<Chunks>,
    /// Positions and schema of the columns if they are stored columns, from which the columns of the view have to be
    /// computed. `None` if they are the columns of the view.
    pub(super) stored: Option<(Reads, SchemaRef)>,
    /// True if the filter keeps all rows.
    pub(super) keeps_all: bool,
    pub(super) place: String,
}

impl CachedRows {
    /// Gives the rows that pass the filter of `view` and are in `rows` to `take`, in chunks. This is CPU work, in turns.
    ///
    /// # Errors
    /// [`Error::Internal`] if the columns differ in their rows, [`Error::Row`] if a column has no value for a row, and the errors of
    /// `take`.
    pub(crate) async fn take(
        self,
        view: &View,
        rows: Range<u32>,
        mut take: impl FnMut(&RecordBatch) -> Result<(), Error> + Send,
    ) -> Result<(), Error> {
        let mut range = KeptRange::new(rows);
        let mut take = |rows: &RecordBatch| if rows.num_rows() > 0 { take(rows) } else { Ok(()) };
        let columns: Vec<&[ArrayRef]> = self.columns.iter().map(|chunks| &chunks[..]).collect();
        let aligned = align::align(&columns)
            .ok_or_else(|| Error::Internal("columns of one block differ in their rows".into()))?;
        let (stored, keeps_all, place) = (self.stored, self.keeps_all, self.place);
        let mut turn = TurnClock::default();
        for arrays in aligned {
            turn.step().await;
            let rows = arrays.first().map_or(0, Array::len);
            let Some((stored, schema)) = &stored else {
                let kept = view.batch(arrays, rows).and_then(|batch| view.kept_rows(batch))?;
                let wanted = range.next(kept.num_rows());
                take(&kept.slice(wanted.start, wanted.len()))?;
                if range.has_ended() {
                    return Ok(());
                }
                continue;
            };
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            let chunk = RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options)
                .map_err(|error| Error::Internal(error.to_string()))?;
            for slice in view.slices(chunk, stored, keeps_all) {
                take(&view.rows_of(slice, stored, keeps_all, &place, &mut range, &mut turn).await?)?;
                if range.has_ended() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
