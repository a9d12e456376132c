//! Evaluation of an expression in steps of a limited cost.

use std::{sync::Arc, vec};

use arrow_array::{
    Array, ArrayRef, RecordBatch, RecordBatchOptions,
    cast::AsArray,
    types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type},
};
use arrow_buffer::ArrowNativeType;
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType};
use arrow_select::concat::concat;

use crate::{
    Error, Expression,
    growth::{SLICE_COST, slices},
    nan::batch_with_one_nan,
};

/// Size of shared text that is not copied, in bytes.
const SHARED_TEXT_BYTES: usize = 64 << 10;

impl Expression {
    /// Computes the values for the rows of `batch`, whose columns are [`inputs`](Self::inputs).
    ///
    /// The value of a row depends on this row alone. Every NaN of an input has the bits of the canonical NaN, and so has
    /// every NaN of the result.
    ///
    /// # Errors
    /// [`Error::Failed`] if the expression has no result for one of the rows.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<ArrayRef, Error> {
        self.evaluation(batch)?.finish()
    }

    /// Prepares the computation that [`evaluate`](Self::evaluate) does at once, to be done in steps of a limited cost.
    ///
    /// # Errors
    /// [`Error::Failed`] if the NaNs of an input can't be replaced.
    pub fn evaluation(&self, batch: &RecordBatch) -> Result<Evaluation<'_>, Error> {
        Evaluation::new(self, batch)
    }
}

/// Computation of an expression for the rows of a batch, a slice of the rows at a time.
///
/// The slices depend only on the expression and on its inputs. The values do not depend on the slices.
pub struct Evaluation<'a> {
    expression: &'a Expression,
    waiting: vec::IntoIter<RecordBatch>,
    values: Vec<ArrayRef>,
}

impl<'a> Evaluation<'a> {
    fn new(expression: &'a Expression, batch: &RecordBatch) -> Result<Self, Error> {
        let batch = batch_with_one_nan(batch).map_err(|error| failed(&error))?;
        let waiting = slices(batch, &|slice| expression.cost(slice) <= SLICE_COST).into_iter();
        Ok(Self { expression, values: Vec::with_capacity(waiting.len()), waiting })
    }

    /// Estimated cost of the next step, in computed values; `None` after the last one.
    pub fn next_cost(&self) -> Option<u64> {
        self.waiting.as_slice().first().map(|slice| self.expression.cost(slice))
    }

    /// Computes the values of the next slice. Does nothing after the last one.
    ///
    /// # Errors
    /// [`Error::Failed`] if the expression has no result for one of its rows.
    pub fn step(&mut self) -> Result<(), Error> {
        let Some(batch) = self.waiting.next() else { return Ok(()) };
        let batch = with_own_text(batch).map_err(|error| failed(&error))?;
        let values = self.expression.physical.evaluate(&batch);
        let array = values.and_then(|values| values.into_array(batch.num_rows()));
        let array = array.map_err(|error| Error::from_evaluation(&error))?;
        let data_type = self.expression.field().data_type();
        let is_delivered = array.data_type() == data_type;
        self.values.push(if is_delivered {
            array
        } else {
            cast(&array, data_type).map_err(|error| failed(&error))?
        });
        Ok(())
    }

    /// Returns the values of all rows. The remaining slices are computed first.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn finish(mut self) -> Result<ArrayRef, Error> {
        while self.next_cost().is_some() {
            self.step()?;
        }
        match &self.values[..] {
            [only] => Ok(Arc::clone(only)),
            several => {
                concat(&several.iter().map(AsRef::as_ref).collect::<Vec<_>>()).map_err(|error| failed(&error))
            }
        }
    }
}

/// Copies the text columns of a slice that is a small part of its chunk. DataFusion's functions reserve memory for the text of the whole
/// chunk, for each of their arguments.
fn with_own_text(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.columns().iter().any(shares_text) {
        return Ok(batch);
    }
    let copied = |column: &ArrayRef| match shares_text(column) {
        true => concat(&[column, &column.slice(0, 0)]),
        false => Ok(Arc::clone(column)),
    };
    let columns = batch.columns().iter().map(copied).collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(batch.schema(), columns, &options)
}

/// True if a column refers to much more text than its rows have.
fn shares_text(column: &ArrayRef) -> bool {
    fn is_part<T: ByteArrayType>(column: &ArrayRef) -> bool {
        let array = column.as_bytes::<T>();
        let offsets = array.value_offsets();
        let own = (offsets[offsets.len() - 1] - offsets[0]).as_usize();
        array.values().len() > 2 * own + SHARED_TEXT_BYTES
    }
    match column.data_type() {
        DataType::Utf8 => is_part::<Utf8Type>(column),
        DataType::LargeUtf8 => is_part::<LargeUtf8Type>(column),
        DataType::Binary => is_part::<BinaryType>(column),
        DataType::LargeBinary => is_part::<LargeBinaryType>(column),
        DataType::Struct(_) => column.as_struct().columns().iter().any(shares_text),
        _ => false,
    }
}

fn failed(error: &ArrowError) -> Error {
    Error::Failed(error.to_string())
}
