//! Columns and tensors as arrays of plain values.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, FixedSizeListArray, cast::AsArray, make_array, types::Int32Type};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use forebay_proto::LAYOUT;

/// The memory of a column or tensor: values of one width, without nulls, in row-major order.
///
/// # Examples
/// ```
/// use std::sync::Arc;
///
/// use arrow_array::{ArrayRef, Float32Array};
/// use forebay_client::Tensor;
///
/// let column: ArrayRef = Arc::new(Float32Array::from(vec![0.5, 1.5, 2.5]));
/// let tensor = Tensor::of("x", &column)?;
/// assert_eq!((tensor.shape.as_slice(), tensor.len_bytes()), (&[3][..], 12));
///
/// // The memory of a tensor has no nulls.
/// let nulls: ArrayRef = Arc::new(Float32Array::from(vec![Some(0.5), None]));
/// assert!(Tensor::of("x", &nulls).unwrap_err().starts_with("contains nulls"));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Name of the column or tensor.
    pub name: String,
    /// Type of one value.
    pub data_type: DataType,
    /// Number of rows; for a tensor, also the number of values per row.
    pub shape: Vec<usize>,
    /// Address of the first value, in the memory of the device that holds the batch.
    pub address: u64,
}

impl Tensor {
    /// Describes the values of `column` in host memory.
    ///
    /// # Errors
    /// A reason if `column` is not an array of plain values. The text follows the name of the column in a message.
    pub fn of(name: &str, column: &ArrayRef) -> Result<Self, String> {
        let (values, shape) = match column.as_any().downcast_ref::<FixedSizeListArray>() {
            Some(rows) => (rows.values(), vec![rows.len(), rows.value_length() as usize]),
            None => (column, vec![column.len()]),
        };
        if column.null_count() > 0 || values.null_count() > 0 {
            return Err("contains nulls, which an array of plain values cannot represent".into());
        }
        let data = values.to_data();
        // Booleans are bits, and decimals need their scale.
        let plain = !matches!(data.data_type(), DataType::Decimal128(..) | DataType::Decimal256(..));
        let Some(width) = data.data_type().primitive_width().filter(|_| plain) else {
            return Err(format!("is of type {}, which is not an array of plain values", column.data_type()));
        };
        let address = data.buffers()[0].as_ptr() as u64 + (data.offset() * width) as u64;
        Ok(Self { name: name.to_owned(), data_type: data.data_type().clone(), shape, address })
    }

    /// Returns the length of the values in bytes.
    pub fn len_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.data_type.primitive_width().unwrap_or(0)
    }
}

/// Returns the values of a column: for a ragged or deduplicated tensor, the concatenated values of its lists; otherwise
/// `column`.
pub fn values<'a>(field: &Field, column: &'a ArrayRef) -> &'a ArrayRef {
    match column.as_list_opt::<i32>() {
        Some(lists) if field.metadata().contains_key(LAYOUT) => lists.values(),
        _ => column,
    }
}

/// Returns the rows of `distinct` that `index` refers to, in its order.
pub(crate) fn expand(distinct: &ArrayRef, index: &ArrayRef) -> Result<ArrayRef, String> {
    let (Some(rows), Some(index)) =
        (distinct.as_fixed_size_list_opt(), index.as_primitive_opt::<Int32Type>())
    else {
        return Err(format!(
            "expected a tensor and its index, found {} and {}",
            distinct.data_type(),
            index.data_type()
        ));
    };
    let tensor = Tensor::of("", distinct)?;
    let width = tensor.len_bytes().checked_div(rows.len()).unwrap_or(0);
    let values = rows.values().to_data();
    let values =
        &values.buffers()[0].as_slice()[values.offset() * tensor.data_type.primitive_width().unwrap_or(0)..];
    let bytes = index.len().checked_mul(width).ok_or("its rows exceed the address space")?;
    let mut expanded = Vec::new();
    expanded.try_reserve_exact(bytes).map_err(|error| format!("can't allocate {bytes} bytes: {error}"))?;
    for number in index.values() {
        let row = usize::try_from(*number).ok().filter(|row| *row < rows.len());
        let row = row
            .ok_or_else(|| format!("the index contains {number}, expected a number below {}", rows.len()))?;
        expanded.extend_from_slice(&values[row * width..][..width]);
    }
    let malformed = |error: arrow_schema::ArrowError| error.to_string();
    let items = index.len() * rows.value_length() as usize;
    let items = ArrayData::builder(tensor.data_type).len(items).add_buffer(Buffer::from_vec(expanded));
    let items = make_array(items.align_buffers(true).build().map_err(malformed)?);
    let DataType::FixedSizeList(item, size) = distinct.data_type() else {
        return Err("expected a tensor".into());
    };
    let all = FixedSizeListArray::try_new(Arc::clone(item), *size, items, None).map_err(malformed)?;
    Ok(Arc::new(all))
}

#[cfg(test)]
mod tests;
