//! Types of replies, which are the same for all replies of an exchange.
//!
//! A worker that replies with Python values does not choose their types: those of `[0.5, 1]` and `[1, 1]` differ. The values of a later
//! reply are therefore sent in the types of the earlier ones, if these hold all of them exactly.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float64Array, Int64Array, RecordBatch, UInt64Array,
    cast::AsArray,
    new_null_array,
    types::{Float64Type, Int64Type, UInt64Type},
};
use arrow_schema::{DataType, Schema, SchemaRef};

/// Rows of a reply, in the types of the earlier ones where these hold their values.
pub(super) enum Fitted {
    /// The rows continue the exchange, unless they have other columns.
    Same(RecordBatch),
    /// The rows have types for columns that had no value so far. Their schema precedes them.
    Refined(RecordBatch),
}

/// Returns `rows` in the types of `earlier`. Columns that these types do not hold are unchanged.
pub(super) fn fitted(rows: &RecordBatch, earlier: &SchemaRef) -> Fitted {
    let schema = rows.schema();
    let names =
        |schema: &Schema| schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    if schema.fields() == earlier.fields() || names(&schema) != names(earlier) {
        return Fitted::Same(rows.clone());
    }
    let (mut fields, mut columns, mut is_refined) = (Vec::new(), Vec::new(), false);
    for ((field, column), expected) in schema.fields().iter().zip(rows.columns()).zip(earlier.fields()) {
        let converted = converted(column, expected.data_type());
        match converted {
            Some(converted) if expected.is_nullable() || converted.null_count() == 0 => {
                fields.push(Arc::clone(expected));
                columns.push(converted);
            }
            _ => {
                is_refined |= *expected.data_type() == DataType::Null;
                fields.push(Arc::clone(field));
                columns.push(Arc::clone(column));
            }
        }
    }
    let same = fields
        .iter()
        .zip(earlier.fields())
        .all(|(field, expected)| field == expected || *expected.data_type() == DataType::Null);
    match RecordBatch::try_new(Arc::new(Schema::new(fields)), columns) {
        Ok(rows) if same && is_refined => Fitted::Refined(rows),
        Ok(rows) => Fitted::Same(rows),
        Err(_) => Fitted::Same(rows.clone()),
    }
}

/// Returns a column in another type; `None` if that does not hold all of its values exactly.
fn converted(column: &ArrayRef, expected: &DataType) -> Option<ArrayRef> {
    if column.data_type() == expected {
        return Some(Arc::clone(column));
    }
    match (column.data_type(), expected) {
        (DataType::Null, _) => Some(new_null_array(expected, column.len())),
        (DataType::FixedSizeList(_, length), DataType::FixedSizeList(item, expected))
            if length == expected =>
        {
            let list = column.as_fixed_size_list();
            let values = converted(list.values(), item.data_type())?;
            if values.null_count() > 0 && !item.is_nullable() {
                return None;
            }
            let nulls = list.nulls().cloned();
            FixedSizeListArray::try_new(Arc::clone(item), *length, values, nulls)
                .ok()
                .map(|list| Arc::new(list) as _)
        }
        (_, DataType::Float64) => {
            let values: Option<Vec<_>> =
                integers(column)?.into_iter().map(|value| each(value, exact_float)).collect();
            Some(Arc::new(Float64Array::from(values?)))
        }
        (_, DataType::Int64) => {
            let exact = |value: i128| i64::try_from(value).ok();
            let values: Option<Vec<_>> =
                integers(column)?.into_iter().map(|value| each(value, exact)).collect();
            Some(Arc::new(Int64Array::from(values?)))
        }
        (_, DataType::UInt64) => {
            let exact = |value: i128| u64::try_from(value).ok();
            let values: Option<Vec<_>> =
                integers(column)?.into_iter().map(|value| each(value, exact)).collect();
            Some(Arc::new(UInt64Array::from(values?)))
        }
        _ => None,
    }
}

/// Converts a value that may be null; `None` if it has no exact counterpart.
fn each<T, U>(value: Option<T>, exact: impl Fn(T) -> Option<U>) -> Option<Option<U>> {
    match value {
        Some(value) => exact(value).map(Some),
        None => Some(None),
    }
}

/// Returns the values of a column of integers, or of floats without a fraction; `None` for others.
fn integers(column: &ArrayRef) -> Option<Vec<Option<i128>>> {
    match column.data_type() {
        DataType::Int64 => {
            Some(column.as_primitive::<Int64Type>().iter().map(|value| value.map(i128::from)).collect())
        }
        DataType::UInt64 => {
            Some(column.as_primitive::<UInt64Type>().iter().map(|value| value.map(i128::from)).collect())
        }
        DataType::Float64 => {
            column.as_primitive::<Float64Type>().iter().map(|value| each(value, exact_integer)).collect()
        }
        _ => None,
    }
}

/// Returns the float that equals an integer, if there is one.
fn exact_float(value: i128) -> Option<f64> {
    let float = value as f64;
    (float as i128 == value).then_some(float)
}

/// Returns the integer that equals a float, if there is one. Minus zero has none.
fn exact_integer(value: f64) -> Option<i128> {
    let integer = value as i128;
    ((integer as f64).to_bits() == value.to_bits() && value.abs() < 1e19).then_some(integer)
}

#[cfg(test)]
mod tests {
    use arrow_array::{BooleanArray, NullArray, StringArray};

    use super::*;

    fn batch(column: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable([("x", column, true)]).unwrap()
    }

    fn ints(values: impl Into<Vec<Option<i64>>>) -> ArrayRef {
        Arc::new(Int64Array::from(values.into()))
    }

    fn floats(values: impl Into<Vec<Option<f64>>>) -> ArrayRef {
        Arc::new(Float64Array::from(values.into()))
    }

    fn nulls(rows: usize) -> ArrayRef {
        Arc::new(NullArray::new(rows))
    }

    /// Returns the column of a reply after one with the column `earlier`, if the reply continues the exchange.
    fn sent(earlier: ArrayRef, column: ArrayRef) -> Option<ArrayRef> {
        let earlier = batch(earlier).schema();
        match fitted(&batch(column), &earlier) {
            Fitted::Same(rows) => {
                (rows.schema().fields() == earlier.fields()).then(|| Arc::clone(rows.column(0)))
            }
            Fitted::Refined(_) => panic!("the type was known"),
        }
    }

    #[test]
    fn values_are_sent_in_the_type_of_earlier_replies_if_it_holds_them_exactly() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
        assert_eq!(sent(Arc::clone(&texts), nulls(2)).unwrap().null_count(), 2);
        assert_eq!(sent(flags, nulls(2)).unwrap().null_count(), 2);
        assert_eq!(&sent(floats([Some(0.5)]), ints([Some(1), None])).unwrap(), &floats([Some(1.0), None]));
        assert_eq!(&sent(ints([Some(1)]), floats([Some(3.0), None])).unwrap(), &ints([Some(3), None]));
        let unsigned: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
        assert_eq!(
            &sent(Arc::clone(&unsigned), ints([Some(1)])).unwrap(),
            &(Arc::new(UInt64Array::from(vec![1])) as ArrayRef)
        );
        assert!(sent(ints([Some(1)]), unsigned).is_none());
        assert!(sent(ints([Some(1)]), floats([Some(0.5)])).is_none());
        assert!(sent(ints([Some(1)]), floats([Some(-0.0)])).is_none());
        assert!(sent(ints([Some(1)]), floats([Some(f64::NAN)])).is_none());
        assert!(sent(floats([Some(0.5)]), ints([Some((1 << 53) + 1)])).is_none());
        assert!(sent(texts, ints([Some(1)])).is_none());
    }

    #[test]
    fn a_column_without_values_so_far_gets_its_type_from_the_first_value() {
        let earlier = batch(nulls(2)).schema();
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let Fitted::Refined(rows) = fitted(&batch(Arc::clone(&texts)), &earlier) else {
            panic!("it is refined")
        };
        assert_eq!(rows.column(0), &texts);
        assert!(matches!(fitted(&batch(nulls(1)), &earlier), Fitted::Same(_)));
    }
}
