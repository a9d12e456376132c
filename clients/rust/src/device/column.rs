//! One column of a batch whose body is in device memory.

use std::ops::Range;

use arrow_array::{Array, ArrayRef, OffsetSizeTrait, cast::AsArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, FieldRef};

use crate::{Tensor, values};

/// A column, by the memory that contains it.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: String,
    /// Type of the values; of lists, with their items.
    pub(super) data_type: DataType,
    /// True if this column of any batch may have nulls.
    pub(super) is_nullable: bool,
    /// The column in device memory, or the reason why it is not an array or lists of plain values.
    pub(super) on_device: Result<OnDevice, String>,
    /// The column in host memory, if the device does not have it as numbers or lists of numbers. Keeps the received body.
    pub(super) on_host: Option<ArrayRef>,
}

/// The memory of a column on the device.
#[derive(Debug, Clone)]
pub(super) enum OnDevice {
    Values(Tensor),
    Lists {
        /// The concatenated items of all rows.
        items: Tensor,
        /// Start of each row in the items, followed by the end of the last one.
        offsets: Tensor,
    },
}

/// A body that was copied from the addresses `host` to the device address `device`.
pub(super) struct Copied {
    pub(super) host: Range<u64>,
    pub(super) device: u64,
}

impl Column {
    pub(super) fn new(field: &FieldRef, column: &ArrayRef, copied: &Copied) -> Self {
        let values = values(field, column);
        let on_device = match column_lists(field.name(), values) {
            Some(lists) => lists.and_then(|(items, offsets)| {
                Ok(OnDevice::Lists { items: copied.moved(items)?, offsets: copied.moved(offsets)? })
            }),
            None => {
                Tensor::of(field.name(), values).and_then(|tensor| copied.moved(tensor)).map(OnDevice::Values)
            }
        };
        let is_numeric = on_device.as_ref().is_ok_and(|on_device| match on_device {
            OnDevice::Values(values) | OnDevice::Lists { items: values, .. } => is_number(&values.data_type),
        });
        let on_host = (!is_numeric).then(|| ArrayRef::clone(values));
        Self {
            name: field.name().clone(),
            data_type: values.data_type().clone(),
            is_nullable: field.is_nullable(),
            on_device,
            on_host,
        }
    }
}

impl Copied {
    /// Returns `tensor`, which refers to the body on the host, with the address of its copy.
    ///
    /// # Errors
    /// A reason if it is not a part of the body.
    fn moved(&self, tensor: Tensor) -> Result<Tensor, String> {
        let end = tensor.address.saturating_add(tensor.len_bytes() as u64);
        // Arrow copies buffers whose addresses are not multiples of the size of their type, so that their addresses are outside the body.
        if tensor.len_bytes() > 0 && (tensor.address < self.host.start || end > self.host.end) {
            return Err(
                "was received at an address that is not a multiple of the size of its type".to_owned()
            );
        }
        let offset = tensor.address.wrapping_sub(self.host.start);
        Ok(Tensor { address: self.device.wrapping_add(offset), ..tensor })
    }
}

/// Returns items and offsets of a column of lists, in host memory; `None` for a column of another type.
fn column_lists(name: &str, column: &ArrayRef) -> Option<Result<(Tensor, Tensor), String>> {
    let (items, offsets) = if let Some(lists) = column.as_list_opt::<i32>() {
        (lists.values(), offsets(name, lists.offsets(), DataType::Int32))
    } else {
        let lists = column.as_list_opt::<i64>()?;
        (lists.values(), offsets(name, lists.offsets(), DataType::Int64))
    };
    if column.null_count() > 0 {
        return Some(Err("contains null lists, which offsets cannot represent".to_owned()));
    }
    Some(Tensor::of(name, items).map(|items| (items, offsets)))
}

fn offsets<O: OffsetSizeTrait>(name: &str, offsets: &OffsetBuffer<O>, data_type: DataType) -> Tensor {
    let address = offsets.inner().inner().as_ptr() as u64;
    Tensor { name: name.to_owned(), data_type, shape: vec![offsets.len()], address }
}

fn is_number(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_floating()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, ListArray, StringArray, TimestampSecondArray, types::Int64Type};
    use arrow_schema::Field;

    use super::*;

    fn column(array: &ArrayRef) -> Column {
        let field = Arc::new(Field::new("x", array.data_type().clone(), true));
        Column::new(&field, array, &Copied { host: 0..u64::MAX, device: 0 })
    }

    #[test]
    fn numbers_and_lists_of_numbers_are_on_the_device_only() {
        let numbers = column(&(Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef));
        assert!(matches!(numbers.on_device, Ok(OnDevice::Values(_))) && numbers.on_host.is_none());
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)]), Some(vec![])]);
        let lists = column(&(Arc::new(lists) as ArrayRef));
        let Ok(OnDevice::Lists { items, offsets }) = &lists.on_device else { panic!("{lists:?}") };
        assert_eq!(
            (&items.shape, &offsets.shape, &offsets.data_type),
            (&vec![1], &vec![3], &DataType::Int32)
        );
        assert!(lists.on_host.is_none());
    }

    #[test]
    fn other_columns_are_kept_on_the_host() {
        let lists = |rows: [Option<Vec<Option<i64>>>; 2]| -> ArrayRef {
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
        };
        let cases: [(ArrayRef, Option<&str>); 5] = [
            (Arc::new(StringArray::from(vec!["a"])), Some("is of type Utf8")),
            (Arc::new(Int64Array::from(vec![Some(1), None])), Some("contains nulls")),
            (lists([None, Some(vec![])]), Some("contains null lists")),
            (lists([Some(vec![None]), Some(vec![])]), Some("contains nulls")),
            // Times are on the device for Rust, and on the host for frameworks that have no such type.
            (Arc::new(TimestampSecondArray::from(vec![1])), None),
        ];
        for (array, reason) in cases {
            let column = column(&array);
            assert!(column.on_host.is_some(), "{column:?}");
            match (reason, &column.on_device) {
                (Some(reason), Err(found)) => assert!(found.contains(reason), "{found}"),
                (None, Ok(_)) => {}
                (_, found) => panic!("{found:?}"),
            }
        }
    }

    #[test]
    fn a_buffer_outside_of_the_body_is_not_on_the_device() {
        let array: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let at = array.to_data().buffers()[0].as_ptr() as u64;
        let field = Arc::new(Field::new("x", DataType::Int64, false));
        let of = |host: Range<u64>| Column::new(&field, &array, &Copied { host, device: 4096 });
        let Ok(OnDevice::Values(tensor)) = of(at - 8..at + 16).on_device else { panic!("is inside") };
        assert_eq!(tensor.address, 4096 + 8);
        for host in [at..at + 15, at + 1..at + 17, 0..8] {
            let column = of(host);
            assert_eq!(
                column.on_device.unwrap_err(),
                "was received at an address that is not a multiple of the size of its type"
            );
            assert!(column.on_host.is_some());
        }
    }
}
