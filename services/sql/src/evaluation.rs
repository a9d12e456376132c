//! Evaluation of an expression in steps of a limited cost.

use std::{sync::Arc, vec};

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_schema::ArrowError;
use arrow_select::concat::concat;

use crate::{
    Error, Expression,
    growth::{SLICE_COST, slices},
    nan::batch_with_one_nan,
};

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

fn failed(error: &ArrowError) -> Error {
    Error::Failed(error.to_string())
}
