//! Computation of a view's columns from stored columns.

use std::{borrow::Cow, sync::Arc};

use arrow_array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, cast::AsArray};
use arrow_schema::{ArrowError, SchemaRef};
use arrow_select::filter::filter_record_batch;
use forebay_sql::Expression;

use super::{
    kept_range::KeptRange,
    nulls::pushed_down_column,
    source::{Reads, Source},
};
use crate::{
    Error, View,
    cpu::{
        off_io::{LongWork, assert_off_io_threads},
        turns::TurnClock,
    },
};

/// Computes `columns` for the rows of `chunk`, which holds the stored columns `reads`. `place` identifies the rows in
/// errors. A turn of the CPU thread ends between columns, and between slices of the rows of an expression, whenever `turn` is full.
pub(crate) async fn compute(
    columns: &[Source],
    reads: &Reads,
    chunk: &RecordBatch,
    place: &str,
    turn: &mut TurnClock,
) -> Result<Vec<ArrayRef>, Error> {
    assert_off_io_threads(LongWork::Expressions);
    let at = |column: usize| {
        let found = reads.position(column);
        found.ok_or_else(|| Error::Internal(format!("{place}: column {column} was not read")))
    };
    turn.step().await;
    let computed = columns.iter().filter(|source| matches!(source, Source::Computed(_))).count();
    metrics::counter!("forebay_compute_rows_total").increment((computed * chunk.num_rows()) as u64);
    let mut arrays = Vec::with_capacity(columns.len());
    for source in columns {
        arrays.push(match source {
            Source::Stored(column) => Arc::clone(chunk.column(at(*column)?)),
            Source::Computed(expression) => {
                let inputs = expression.inputs().iter().map(|column| at(*column));
                let inputs = chunk.project(&inputs.collect::<Result<Vec<_>, _>>()?);
                let inputs = inputs.map_err(|error| Error::Internal(error.to_string()))?;
                let values = evaluate(expression, &inputs, turn).await.map_err(|error| Error::Row {
                    expression: expression.field().name().clone(),
                    place: place.to_owned(),
                    reason: error.to_string(),
                })?;
                pushed_down_column(&values, expression.field())?
            }
        });
    }
    Ok(arrays)
}

/// Evaluates `expression`, one slice of the rows after the other.
async fn evaluate(
    expression: &Expression,
    inputs: &RecordBatch,
    turn: &mut TurnClock,
) -> Result<ArrayRef, forebay_sql::Error> {
    let mut evaluation = expression.evaluation(inputs)?;
    while let Some(cost) = evaluation.next_cost() {
        turn.spend(cost).await;
        evaluation.step()?;
    }
    evaluation.finish()
}

/// Splits `chunk`, which holds the stored columns `reads`, into halves until computing `columns` for one takes little
/// memory. Lists that are padded can be thousands of times as large as their inputs.
pub(crate) fn slices(columns: &[Source], reads: &Reads, chunk: RecordBatch) -> Vec<RecordBatch> {
    let expressions = || {
        columns.iter().filter_map(|source| match source {
            Source::Computed(expression) => Some(expression),
            Source::Stored(_) => None,
        })
    };
    let is_small = |chunk: &RecordBatch| {
        expressions().all(|expression| {
            let inputs: Option<Vec<usize>> =
                expression.inputs().iter().map(|column| reads.position(*column)).collect();
            let inputs = inputs.and_then(|inputs| chunk.project(&inputs).ok());
            inputs.is_none_or(|inputs| expression.is_small(&inputs))
        })
    };
    forebay_sql::slices(chunk, &is_small)
}

impl View {
    /// Splits a chunk of stored columns as [`slices`] does for the columns of the view.
    pub(crate) fn slices(&self, chunk: RecordBatch, read: &Reads, keeps_all: bool) -> Vec<RecordBatch> {
        slices(self.columns_of(keeps_all), read, chunk)
    }

    /// Returns the stored columns to read of a block. If the filter keeps all its rows, the columns of the filter are
    /// not read.
    pub(crate) fn reads(&self, keeps_all: bool) -> Reads {
        Reads::of(self.columns_of(keeps_all))
    }

    fn columns_of(&self, keeps_all: bool) -> &[Source] {
        match self.columns() {
            [columns @ .., _] if keeps_all && self.filter().is_some() => columns,
            columns => columns,
        }
    }

    /// Returns the rows of one chunk that pass the filter and are in `range`, in the layout of the view's columns. `chunk` holds the
    /// stored columns that the view [`reads`](Self::reads) of its block. Columns are computed for these rows only, so that the
    /// filter guards them.
    pub(crate) async fn rows_of(
        &self,
        chunk: RecordBatch,
        read: &Reads,
        keeps_all: bool,
        place: &str,
        range: &mut KeptRange,
        turn: &mut TurnClock,
    ) -> Result<RecordBatch, Error> {
        let columns = self.columns_of(true);
        turn.step().await;
        let (chunk, read) = match self.filter() {
            Some(filter) if !keeps_all => {
                let kept = kept(filter, read, &chunk, place, turn).await?;
                let needed = Reads::of(columns);
                let is_needed = |column: &usize| needed.position(read[*column]).is_some();
                let positions: Vec<usize> = (0..read.len()).filter(is_needed).collect();
                let chunk = chunk.project(&positions).and_then(|chunk| only(&chunk, &kept));
                let chunk = chunk.map_err(|error| Error::Internal(error.to_string()))?;
                (chunk, Cow::Owned(positions.iter().map(|column| read[*column]).collect()))
            }
            _ => (chunk, Cow::Borrowed(read)),
        };
        let rows = range.next(chunk.num_rows());
        let chunk = chunk.slice(rows.start, rows.len());
        let stored =
            |(source, read): (&Source, &usize)| matches!(source, Source::Stored(column) if column == read);
        if columns.len() == read.len() && columns.iter().zip(read.iter()).all(stored) {
            return Ok(chunk);
        }
        let (arrays, rows) = (compute(columns, &read, &chunk, place, turn).await?, chunk.num_rows());
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
        batch.project(&others).and_then(|rows| only(&rows, &kept)).map_err(internal)
    }
}

/// Evaluates `filter` for the rows of `chunk`, which holds the stored columns `reads`. A null counts as false.
///
/// # Errors
/// [`Error::Row`] if the filter has no value for a row.
pub(crate) async fn kept(
    filter: &Arc<Expression>,
    reads: &Reads,
    chunk: &RecordBatch,
    place: &str,
    turn: &mut TurnClock,
) -> Result<BooleanArray, Error> {
    let computed = compute(&[Source::Computed(Arc::clone(filter))], reads, chunk, place, turn).await?;
    Ok(forebay_sql::not_null(computed[0].as_boolean()))
}

/// Returns the rows for which `kept` is true.
///
/// # Errors
/// [`ArrowError`] if both differ in their number of rows.
pub(crate) fn only(rows: &RecordBatch, kept: &BooleanArray) -> Result<RecordBatch, ArrowError> {
    if kept.true_count() == rows.num_rows() {
        return Ok(rows.clone());
    }
    filter_record_batch(rows, kept)
}
