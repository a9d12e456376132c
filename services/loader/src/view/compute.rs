//! Computation of a view's columns from stored columns.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, cast::AsArray};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use forebay_sql::Expression;

use super::source::{Source, reads};
use crate::{Error, View};

/// Computes `columns` for the rows of `chunk`, which holds the stored columns `reads`. `place` identifies the rows in
/// errors.
pub(crate) fn compute(
    columns: &[Source],
    reads: &[usize],
    chunk: &RecordBatch,
    place: &str,
) -> Result<Vec<ArrayRef>, Error> {
    let at = |column: usize| {
        let found = reads.iter().position(|read| *read == column);
        found.ok_or_else(|| Error::Internal(format!("{place}: column {column} was not read")))
    };
    let evaluate = |expression: &Arc<Expression>| {
        let inputs = expression.inputs().iter().map(|column| at(*column)).collect::<Result<Vec<_>, _>>()?;
        let inputs = chunk.project(&inputs).map_err(|error| Error::Internal(error.to_string()))?;
        expression.evaluate(&inputs).map_err(|error| Error::Row {
            expression: expression.field().name().clone(),
            place: place.to_owned(),
            reason: error.to_string(),
        })
    };
    let computed = columns.iter().filter(|source| matches!(source, Source::Computed(_))).count();
    metrics::counter!("forebay_compute_rows_total").increment((computed * chunk.num_rows()) as u64);
    let of = |source: &Source| match source {
        Source::Stored(column) => Ok(Arc::clone(chunk.column(at(*column)?))),
        Source::Computed(expression) => evaluate(expression),
    };
    columns.iter().map(of).collect()
}

impl View {
    /// Returns the stored columns to read of a block. If the filter keeps all its rows, the columns of the filter are
    /// not read.
    pub(crate) fn reads(&self, keeps_all: bool) -> Vec<usize> {
        reads(self.columns_of(keeps_all))
    }

    fn columns_of(&self, keeps_all: bool) -> &[Source] {
        match self.columns() {
            [columns @ .., _] if keeps_all && self.filter().is_some() => columns,
            columns => columns,
        }
    }

    /// Returns the rows of one chunk that pass the filter, in the layout of the view's columns. `chunk` holds the
    /// stored columns that the view [`reads`](Self::reads) of its block.
    pub(crate) fn rows_of(
        &self,
        chunk: RecordBatch,
        read: &[usize],
        keeps_all: bool,
        place: &str,
    ) -> Result<RecordBatch, Error> {
        let columns = self.columns_of(keeps_all);
        let stored =
            |(source, read): (&Source, &usize)| matches!(source, Source::Stored(column) if column == read);
        if columns.len() == read.len() && columns.iter().zip(read).all(stored) {
            return Ok(chunk);
        }
        let (arrays, rows) = (compute(columns, read, &chunk, place)?, chunk.num_rows());
        if columns.len() == self.columns().len() {
            return self.kept_rows(self.batch(arrays, rows)?);
        }
        let input_schema = self.input_schema().project(&(0..columns.len()).collect::<Vec<_>>());
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = input_schema.and_then(|input_schema| {
            RecordBatch::try_new_with_options(Arc::new(input_schema), arrays, &options)
        });
        batch.map_err(|error| Error::Internal(error.to_string()))
    }

    /// Combines the view's columns into a batch of `rows` rows.
    pub(crate) fn batch(&self, arrays: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, Error> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch =
            RecordBatch::try_new_with_options(SchemaRef::clone(self.input_schema()), arrays, &options);
        batch.map_err(|error| Error::Internal(error.to_string()))
    }

    /// Returns the rows that pass the view's filter, without the filter's column.
    pub(crate) fn kept_rows(&self, batch: RecordBatch) -> Result<RecordBatch, Error> {
        if self.filter().is_none() {
            return Ok(batch);
        }
        let internal = |error: arrow_schema::ArrowError| Error::Internal(error.to_string());
        let (last, others) = (batch.num_columns() - 1, (0..batch.num_columns() - 1).collect::<Vec<_>>());
        let kept = forebay_sql::not_null(batch.column(last).as_boolean());
        let rows = batch.project(&others).map_err(internal)?;
        if kept.true_count() == rows.num_rows() {
            return Ok(rows);
        }
        filter_record_batch(&rows, &kept).map_err(internal)
    }
}
