//! Columns and tensors as plain arrays.

use arrow_array::{Array, ArrayRef, FixedSizeListArray};
use arrow_schema::DataType;

/// Where the values of a column or tensor lie: all of one width, no nulls, row after row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type of one value.
    pub data_type: DataType,
    /// Rows, and for a tensor the values of a row.
    pub shape: Vec<usize>,
    /// Where the first value lies, in the memory of the device that holds the batch.
    pub address: u64,
}

impl Tensor {
    /// The values of `column` in the memory of the host.
    ///
    /// # Errors
    /// Why it is no array of plain values.
    pub fn of(name: &str, column: &ArrayRef) -> Result<Self, String> {
        let (values, shape) = match column.as_any().downcast_ref::<FixedSizeListArray>() {
            Some(rows) => (rows.values(), vec![rows.len(), rows.value_length() as usize]),
            None => (column, vec![column.len()]),
        };
        if column.null_count() > 0 || values.null_count() > 0 {
            return Err("holds nulls, which no array of plain values shows".into());
        }
        let data = values.to_data();
        // Booleans are bits, and a decimal's values mean nothing without its scale.
        let plain = !matches!(data.data_type(), DataType::Decimal128(..) | DataType::Decimal256(..));
        let Some(width) = data.data_type().primitive_width().filter(|_| plain) else {
            return Err(format!("is of type {}, which is no array of plain values", column.data_type()));
        };
        let address = data.buffers()[0].as_ptr() as u64 + (data.offset() * width) as u64;
        Ok(Self { name: name.to_owned(), data_type: data.data_type().clone(), shape, address })
    }

    /// Bytes of its values.
    pub fn len_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.data_type.primitive_width().unwrap_or(0)
    }
}
