//! Label values of a batch, sampled to measure label skew.

use std::sync::Arc;

use arrow_schema::DataType;
use forebay_stall::Moments;
use half::f16;

use crate::{
    Frame, RowRef, View,
    frame::Rows,
    view::{Output, TensorValues, source::Source},
};

/// Maximum number of rows sampled per batch, spread evenly over the batch.
const SAMPLED_ROWS: usize = 1024;

/// Location and type of the label in a row of a frame.
#[derive(Debug, Clone)]
pub(crate) struct Label {
    offset: usize,
    data_type: DataType,
    /// Index of the label's validity bit; `None` if the label cannot be null.
    null_bit: Option<usize>,
}

impl Label {
    /// Locates column `position` of the snapshot in `view`, as a plain column or as part of a tensor. Returns `None` if
    /// the view does not deliver the column as a number.
    pub(crate) fn of(view: &View, position: usize) -> Option<Self> {
        let inputs = view.columns().iter();
        let input =
            inputs.into_iter().position(|source| matches!(source, Source::Stored(at) if *at == position))?;
        let place = |output: &Output| match output {
            Output::Fixed { input: own, offset, nulls, .. } if *own == input => {
                let data_type = view.input_schema().field(input).data_type().clone();
                Some(Self { offset: *offset, data_type, null_bit: *nulls })
            }
            Output::Tensor { source, offset, values: TensorValues::Value, .. } => {
                let (_, first, _) = source.places().find(|(own, _, count)| *own == input && *count == 1)?;
                Some(Self {
                    offset: offset + first * source.width,
                    data_type: source.dtype.clone(),
                    null_bit: None,
                })
            }
            _ => None,
        };
        let label = view.outputs.iter().find_map(place)?;
        number(&label.data_type, &[0; 8]).map(|_| label)
    }

    /// Moments of the non-null, non-NaN labels of a sample of `rows`.
    pub(crate) fn moments(&self, view: &View, frames: &[Arc<Frame>], rows: &[RowRef]) -> Moments {
        let source = Rows::new(view, frames);
        let mut labels = Vec::with_capacity(rows.len().min(SAMPLED_ROWS));
        for row in rows.iter().step_by(rows.len().div_ceil(SAMPLED_ROWS).max(1)) {
            let row = source.row(*row);
            let is_valid = |bit: usize| row[view.validity + bit / 8] & (1 << (bit % 8)) != 0;
            if self.null_bit.is_none_or(is_valid)
                && let Some(label) = number(&self.data_type, &row[self.offset..])
                && !label.is_nan()
            {
                labels.push(label);
            }
        }
        Moments::of(labels.iter().copied())
    }
}

/// Decodes the little-endian number at the start of `bytes`. Returns `None` for non-numeric types.
fn number(data_type: &DataType, bytes: &[u8]) -> Option<f64> {
    macro_rules! read {
        ($type:ty) => {
            <$type>::from_le_bytes(bytes.first_chunk().copied()?)
        };
    }
    Some(match data_type {
        DataType::Boolean | DataType::UInt8 => f64::from(read!(u8)),
        DataType::Int8 => f64::from(read!(i8)),
        DataType::Int16 => f64::from(read!(i16)),
        DataType::Int32 => f64::from(read!(i32)),
        DataType::Int64 => read!(i64) as f64,
        DataType::UInt16 => f64::from(read!(u16)),
        DataType::UInt32 => f64::from(read!(u32)),
        DataType::UInt64 => read!(u64) as f64,
        DataType::Float16 => f64::from(read!(f16)),
        DataType::Float32 => f64::from(read!(f32)),
        DataType::Float64 => read!(f64),
        _ => return None,
    })
}
