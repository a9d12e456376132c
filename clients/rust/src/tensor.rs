//! Columns and tensors as plain arrays.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, FixedSizeListArray, cast::AsArray, make_array, types::Int32Type};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use forebay_proto::LAYOUT;

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

/// What a column of a batch holds: for a ragged or de-duplicated tensor what lies behind all of its lists together, else the
/// column itself.
pub fn values<'a>(field: &Field, column: &'a ArrayRef) -> &'a ArrayRef {
    match column.as_list_opt::<i32>() {
        Some(lists) if field.metadata().contains_key(LAYOUT) => lists.values(),
        _ => column,
    }
}

/// The rows of `distinct` by their numbers in `index`.
pub(crate) fn expand(distinct: &ArrayRef, index: &ArrayRef) -> Result<ArrayRef, String> {
    let (Some(rows), Some(index)) =
        (distinct.as_fixed_size_list_opt(), index.as_primitive_opt::<Int32Type>())
    else {
        return Err(format!("{} by {} are no tensor and its index", distinct.data_type(), index.data_type()));
    };
    let tensor = Tensor::of("", distinct)?;
    let width = tensor.len_bytes().checked_div(rows.len()).unwrap_or(0);
    let values = rows.values().to_data();
    let values =
        &values.buffers()[0].as_slice()[values.offset() * tensor.data_type.primitive_width().unwrap_or(0)..];
    let bytes = index.len().checked_mul(width).ok_or("its rows exceed the memory")?;
    let mut expanded = Vec::new();
    expanded.try_reserve_exact(bytes).map_err(|error| format!("no memory for {bytes} bytes: {error}"))?;
    for number in index.values() {
        let number = usize::try_from(*number).ok().filter(|number| *number < rows.len());
        let number = number.ok_or_else(|| format!("a row has number {number:?} of {}", rows.len()))?;
        expanded.extend_from_slice(&values[number * width..][..width]);
    }
    let malformed = |error: arrow_schema::ArrowError| error.to_string();
    let items = index.len() * rows.value_length() as usize;
    let items = ArrayData::builder(tensor.data_type).len(items).add_buffer(Buffer::from_vec(expanded));
    let items = make_array(items.align_buffers(true).build().map_err(malformed)?);
    let DataType::FixedSizeList(item, size) = distinct.data_type() else { return Err("no tensor".into()) };
    let all = FixedSizeListArray::try_new(Arc::clone(item), *size, items, None).map_err(malformed)?;
    Ok(Arc::new(all))
}

#[cfg(test)]
mod tests;
