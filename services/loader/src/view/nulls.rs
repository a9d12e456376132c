//! Nulls of nested columns, propagated to all their descendants.
//!
//! Arrow does not define the value of a child whose parent is null. The Parquet decoder leaves earlier contents of
//! its buffers there, which depend on the rows and columns that are decoded together. Blocks leave the decoder in one
//! form instead:
//! under a null parent a nullable child is null, and a required child is zero or empty and has no validity buffer.
//! Null lists have no items, except lists at the top level whose items are not nested: they are left as they are.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait,
    RecordBatch, RecordBatchOptions, Scalar, StructArray, UInt64Array, cast::AsArray, make_array,
    new_null_array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields};
use arrow_select::{take::take, zip::zip};

use crate::Error;

/// Pushes the nulls of all nested columns of a batch down.
///
/// # Errors
/// [`Error::Internal`] if Arrow cannot rebuild a column. Nulls of a required nested column become zero or empty
/// values.
pub(crate) fn pushed_down(batch: RecordBatch) -> Result<RecordBatch, Error> {
    let schema = batch.schema();
    if !schema.fields().iter().any(|field| is_replaced(field.data_type())) {
        return Ok(batch);
    }
    let pairs = schema.fields().iter().zip(batch.columns());
    let columns = pairs.map(|(field, column)| pushed_down_column(column, field)).collect::<Result<_, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let pushed = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options);
    pushed.map_err(|error| Error::Internal(error.to_string()))
}

/// Pushes the nulls of one column down. Other columns are returned as they are.
///
/// # Errors
/// As [`pushed_down`].
pub(crate) fn pushed_down_column(column: &ArrayRef, field: &Field) -> Result<ArrayRef, Error> {
    if !is_replaced(field.data_type()) {
        return Ok(Arc::clone(column));
    }
    push(column, field.is_nullable(), None)
        .map_err(|error| Error::Internal(format!("column {}: {error}", field.name())))
}

/// Returns true if the values under nulls of this type must be replaced. Lists of items that are not nested need no
/// replacement, because every reader skips the items of a null list.
fn is_replaced(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => item.data_type().is_nested(),
        other => other.is_nested(),
    }
}

/// Propagates the nulls of `array` and of its ancestors, `above`, to its children.
fn push(array: &ArrayRef, nullable: bool, above: Option<&NullBuffer>) -> Result<ArrayRef, ArrowError> {
    let all = NullBuffer::union(array.nulls(), above).filter(|nulls| nulls.null_count() > 0);
    let own = all.clone().filter(|_| nullable);
    Ok(match array.data_type() {
        DataType::Null => Arc::clone(array),
        DataType::Struct(fields) => Arc::new(push_fields(array.as_struct(), fields, all.as_ref(), own)?),
        DataType::List(item) => {
            let (offsets, items) = visible(array.as_list::<i32>(), all.as_ref())?;
            let items = push(&items, item.is_nullable(), None)?;
            Arc::new(GenericListArray::<i32>::try_new(Arc::clone(item), offsets, items, own)?)
        }
        DataType::LargeList(item) => {
            let (offsets, items) = visible(array.as_list::<i64>(), all.as_ref())?;
            let items = push(&items, item.is_nullable(), None)?;
            Arc::new(GenericListArray::<i64>::try_new(Arc::clone(item), offsets, items, own)?)
        }
        DataType::Map(entry, sorted) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            let (offsets, entries) = visible_items(map.offsets(), &entries, all.as_ref())?;
            let entries = push(&entries, false, None)?;
            Arc::new(MapArray::try_new(
                Arc::clone(entry),
                offsets,
                entries.as_struct().clone(),
                own,
                *sorted,
            )?)
        }
        DataType::FixedSizeList(item, size) => {
            let list = array.as_fixed_size_list();
            let width = list.value_length() as usize;
            let items = list.values().slice(list.value_offset(0) as usize, list.len() * width);
            let above = all.as_ref().map(|nulls| nulls.expand(width));
            let items = push(&items, item.is_nullable(), above.as_ref())?;
            Arc::new(FixedSizeListArray::try_new_with_length(
                Arc::clone(item),
                *size,
                items,
                own,
                list.len(),
            )?)
        }
        _ if nullable => make_array(array.to_data().into_builder().nulls(own).build()?),
        _ => match all {
            None => Arc::clone(array),
            Some(nulls) => {
                let bare = make_array(array.to_data().into_builder().nulls(None).build()?);
                zip(&BooleanArray::new(nulls.into_inner(), None), &bare, &zero(array.data_type())?)?
            }
        },
    })
}

fn push_fields(
    array: &StructArray,
    fields: &Fields,
    all: Option<&NullBuffer>,
    own: Option<NullBuffer>,
) -> Result<StructArray, ArrowError> {
    let pairs = fields.iter().zip(array.columns());
    let columns = pairs.map(|(field, column)| push(column, field.is_nullable(), all));
    StructArray::try_new_with_length(fields.clone(), columns.collect::<Result<_, _>>()?, own, array.len())
}

fn visible<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    nulls: Option<&NullBuffer>,
) -> Result<(OffsetBuffer<O>, ArrayRef), ArrowError> {
    visible_items(list.offsets(), list.values(), nulls)
}

/// Returns the items of lists that are not null, with offsets that begin at 0.
fn visible_items<O: OffsetSizeTrait>(
    offsets: &OffsetBuffer<O>,
    items: &ArrayRef,
    nulls: Option<&NullBuffer>,
) -> Result<(OffsetBuffer<O>, ArrayRef), ArrowError> {
    let is_null = |row: usize| nulls.is_some_and(|nulls| nulls.is_null(row));
    let ranges = || {
        let ends = offsets.windows(2).enumerate();
        ends.map(|(row, ends)| (is_null(row), ends[0].as_usize()..ends[1].as_usize()))
    };
    let lengths = ranges().map(|(hidden, range)| if hidden { 0 } else { range.len() });
    let rebased = OffsetBuffer::<O>::from_lengths(lengths);
    if ranges().all(|(hidden, range)| !hidden || range.is_empty()) {
        let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
        return Ok((rebased, items.slice(first, last - first)));
    }
    let seen = ranges().filter(|(hidden, _)| !hidden).flat_map(|(_, range)| range).map(|item| item as u64);
    Ok((rebased, take(items, &seen.collect::<UInt64Array>(), None)?))
}

/// A value whose bytes are all zero, or an empty string.
fn zero(data_type: &DataType) -> Result<Scalar<ArrayRef>, ArrowError> {
    let null = new_null_array(data_type, 1).to_data();
    Ok(Scalar::new(make_array(null.into_builder().nulls(None).build()?)))
}

#[cfg(test)]
mod tests {
    use arrow_array::{Int64Array, ListArray, StringArray, types::Int64Type};

    use super::*;

    fn nulls(valid: &[bool]) -> Option<NullBuffer> {
        Some(NullBuffer::from(valid))
    }

    fn field(name: &str, data_type: DataType, nullable: bool) -> Arc<Field> {
        Arc::new(Field::new(name, data_type, nullable))
    }

    #[test]
    fn children_under_a_null_struct_are_null_or_zero() {
        let item = field("item", DataType::Int64, false);
        let fields: Fields = vec![
            field("required", DataType::Int64, false),
            field("nullable", DataType::Int64, true),
            field("text", DataType::Utf8, false),
            field("pair", DataType::FixedSizeList(Arc::clone(&item), 2), false),
            field("list", DataType::List(Arc::clone(&item)), false),
        ]
        .into();
        let pair =
            FixedSizeListArray::new(Arc::clone(&item), 2, Arc::new(Int64Array::from_iter_values(1..7)), None);
        let list = ListArray::new(
            item,
            OffsetBuffer::from_lengths([1, 2, 1]),
            Arc::new(Int64Array::from_iter_values(1..5)),
            None,
        );
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(1..4)),
            Arc::new(Int64Array::from(vec![Some(1), Some(2), None])),
            Arc::new(StringArray::from_iter_values(["a", "stale", "c"])),
            Arc::new(pair),
            Arc::new(list),
        ];
        let array: ArrayRef =
            Arc::new(StructArray::new(fields.clone(), columns, nulls(&[true, false, true])));
        let pushed = pushed_down_column(&array, &Field::new("s", DataType::Struct(fields), true)).unwrap();
        let pushed = pushed.as_struct();
        assert_eq!(pushed.nulls().map(NullBuffer::null_count), Some(1));
        let required = pushed.column(0).as_primitive::<Int64Type>();
        assert_eq!((&required.values()[..], required.nulls()), (&[1, 0, 3][..], None));
        assert_eq!(pushed.column(1).as_primitive(), &Int64Array::from(vec![Some(1), None, None]));
        assert_eq!(pushed.column(2).as_string(), &StringArray::from_iter_values(["a", "", "c"]));
        assert!(pushed.column(2).nulls().is_none());
        let pair = pushed.column(3).as_fixed_size_list().values().as_primitive::<Int64Type>();
        assert_eq!(&pair.values()[..], [1, 2, 0, 0, 5, 6]);
        let list = pushed.column(4).as_list::<i32>();
        assert_eq!((list.value_offsets(), list.nulls()), (&[0, 1, 1, 2][..], None));
        assert_eq!(&list.values().as_primitive::<Int64Type>().values()[..], [1, 4]);
    }

    #[test]
    fn slices_are_pushed_down_like_whole_arrays() {
        let fields: Fields = vec![field("x", DataType::Int64, false)].into();
        let of = |values: Vec<i64>, valid: &[bool]| -> ArrayRef {
            Arc::new(StructArray::new(
                fields.clone(),
                vec![Arc::new(Int64Array::from(values)) as ArrayRef],
                nulls(valid),
            ))
        };
        let item = field("item", DataType::Struct(fields.clone()), true);
        let lists = |items: ArrayRef, lengths: [usize; 3], valid: &[bool]| -> ArrayRef {
            Arc::new(ListArray::new(
                Arc::clone(&item),
                OffsetBuffer::from_lengths(lengths),
                items,
                nulls(valid),
            ))
        };
        let whole = lists(
            of(vec![9, 7, 8, 1, 2], &[true, false, true, false, true]),
            [1, 2, 2],
            &[true, false, true],
        );
        let list = Field::new("l", DataType::List(Arc::clone(&item)), true);
        let pushed = pushed_down_column(&whole.slice(1, 2), &list).unwrap();
        let expected = pushed_down_column(&whole, &list).unwrap().slice(1, 2);
        assert_eq!(&pushed, &expected);
        let items =
            pushed.as_list::<i32>().values().as_struct().column(0).as_primitive::<Int64Type>().clone();
        assert_eq!(&items.values()[..], [0, 2]);
    }
}
