//! Rows of a worker's reply, and their division among the requests of the batch.

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{DataType, Field};
use forebay_inference::queue::BatchShape;

/// Bytes of a column in the header of a message, with a node and two buffers.
const HEADER_BYTES: usize = 48;

/// Checks that the rows of a reply can be divided among the requests of its batch.
///
/// # Errors
/// The number of rows and the expected one, or the first column of a type that [`split`] cannot divide.
pub(super) fn check(rows: &RecordBatch, shape: &BatchShape) -> Result<(), String> {
    let total: u64 = shape.request_rows.iter().sum();
    let found = rows.num_rows() as u64;
    if found != total && found != shape.padded_rows {
        return Err(format!("the batch has {total} rows, the reply {found}"));
    }
    rows.schema().fields().iter().try_for_each(|field| check_column(field))
}

/// Divides the rows of a reply, which [`check`] has accepted. Each item has the rows of one request, and is encoded when the iterator
/// returns it. The caller can therefore charge it before the next one takes memory.
pub(super) fn split(
    rows: &RecordBatch,
    shape: &BatchShape,
) -> impl Iterator<Item = Result<FlightData, String>> {
    let mut start = 0;
    shape.request_rows.iter().map(move |size| {
        let size = usize::try_from(*size).unwrap_or(usize::MAX);
        // Rows are encoded here, because a slice would keep the whole reply in memory for a slow caller.
        let part = encoded(&rows.slice(start, size));
        start += size;
        part
    })
}

/// Bytes that [`split`] encodes: the rows, and a header for each request.
pub(super) fn split_bytes(rows: &RecordBatch, shape: &BatchShape) -> usize {
    let headers = shape.request_rows.len().saturating_mul(rows.num_columns()).saturating_mul(HEADER_BYTES);
    rows.get_array_memory_size().saturating_add(headers)
}

fn check_column(field: &Field) -> Result<(), String> {
    let (name, data_type) = (field.name(), field.data_type());
    let Some((found, expected)) = indivisible(data_type) else { return Ok(()) };
    let place = if found == data_type { String::new() } else { format!(" in place of {found}") };
    Err(format!("column '{name}' is of type {data_type}, expected {expected}{place}"))
}

/// Returns the first indivisible type in `data_type`, at any depth, and what a worker sends instead. The encoded slice of a view, list
/// view or union has the values of all rows. One value of a run-end encoded column can belong to many requests, each of which would
/// get a copy. A dictionary is no problem: [`BatchReader`](crate::flight::BatchReader) accepts only one without values.
fn indivisible(data_type: &DataType) -> Option<(&DataType, &'static str)> {
    match data_type {
        DataType::Utf8View => Some((data_type, "Utf8 or LargeUtf8")),
        DataType::BinaryView => Some((data_type, "Binary or LargeBinary")),
        DataType::ListView(_) | DataType::LargeListView(_) => Some((data_type, "List or LargeList")),
        DataType::Union(_, _) => Some((data_type, "one type for all rows")),
        DataType::RunEndEncoded(_, _) => Some((data_type, "one value per row")),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => indivisible(item.data_type()),
        DataType::Struct(fields) => fields.iter().find_map(|field| indivisible(field.data_type())),
        DataType::Dictionary(_, values) => indivisible(values),
        _ => None,
    }
}

/// Encodes a batch as a message.
fn encoded(rows: &RecordBatch) -> Result<FlightData, String> {
    let (mut tracker, options) = (DictionaryTracker::new(false), IpcWriteOptions::default());
    let (_, batch) = IpcDataGenerator::default()
        .encode(rows, &mut tracker, &options, &mut IpcWriteContext::default())
        .map_err(|error| error.to_string())?;
    Ok(batch.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{
        ArrayRef, BinaryArray, FixedSizeListArray, Int64Array, LargeStringArray, ListArray, StringArray,
        StringViewArray, StructArray,
    };
    use arrow_buffer::OffsetBuffer;
    use arrow_schema::{Fields, UnionFields, UnionMode};

    use super::*;

    /// Longer than the values that a view holds itself.
    const OTHER: &str = "a value of another request";

    fn shape(request_rows: &[u64], padded_rows: u64) -> BatchShape {
        BatchShape { request_rows: request_rows.to_vec(), padded_rows }
    }

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn has_other_value(message: &FlightData) -> bool {
        message.data_body.windows(OTHER.len()).any(|bytes| bytes == OTHER.as_bytes())
    }

    fn item(data_type: DataType) -> Arc<Field> {
        Arc::new(Field::new("item", data_type, true))
    }

    #[test]
    fn a_reply_has_as_many_rows_as_its_batch_with_or_without_padding() {
        let rows = batch(vec![("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef)]);
        check(&rows, &shape(&[1, 2], 3)).unwrap();
        check(&rows, &shape(&[1, 1], 3)).unwrap();
        let error = check(&rows, &shape(&[1, 1], 8)).unwrap_err();
        assert_eq!(error, "the batch has 2 rows, the reply 3");
    }

    #[test]
    fn a_column_that_cannot_be_divided_is_rejected_with_its_name_its_type_and_what_is_expected() {
        let structs = |data_type| {
            let fields = vec![Field::new("a", DataType::Utf8, false), Field::new("b", data_type, true)];
            DataType::Struct(Fields::from(fields))
        };
        let run_ends = Arc::new(Field::new("run_ends", DataType::Int32, false));
        for (data_type, expected) in [
            (DataType::Utf8View, "is of type Utf8View, expected Utf8 or LargeUtf8"),
            (DataType::BinaryView, "is of type BinaryView, expected Binary or LargeBinary"),
            (DataType::ListView(item(DataType::Int8)), "type ListView(Int8), expected List or LargeList"),
            (DataType::LargeListView(item(DataType::Int8)), "expected List or LargeList"),
            (DataType::Union(UnionFields::empty(), UnionMode::Dense), "expected one type for all rows"),
            (DataType::RunEndEncoded(run_ends, item(DataType::Int8)), "expected one value per row"),
            (
                DataType::List(item(DataType::Utf8View)),
                "is of type List(Utf8View), expected Utf8 or LargeUtf8 in place of Utf8View",
            ),
            (DataType::LargeList(item(DataType::Utf8View)), "in place of Utf8View"),
            (DataType::FixedSizeList(item(DataType::BinaryView), 2), "in place of BinaryView"),
            (DataType::Map(item(structs(DataType::Utf8View)), false), "in place of Utf8View"),
            (structs(DataType::List(item(DataType::Utf8View))), "in place of Utf8View"),
            (
                DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8View)),
                "in place of Utf8View",
            ),
        ] {
            let error = check_column(&Field::new("tags", data_type, true)).unwrap_err();
            assert!(error.starts_with("column 'tags' is of type ") && error.ends_with(expected), "{error}");
        }
    }

    #[test]
    fn a_request_gets_the_values_of_its_own_rows_only() {
        let texts = || Arc::new(StringArray::from(vec!["own", OTHER])) as ArrayRef;
        let structs = || {
            let field = Arc::new(Field::new("text", DataType::Utf8, true));
            Arc::new(StructArray::from(vec![(field, texts())])) as ArrayRef
        };
        let lists = |values: ArrayRef| {
            let (field, offsets) = (item(values.data_type().clone()), OffsetBuffer::from_lengths([1, 1]));
            Arc::new(ListArray::try_new(field, offsets, values, None).unwrap()) as ArrayRef
        };
        let vectors = FixedSizeListArray::try_new(item(DataType::Utf8), 1, texts(), None).unwrap();
        let columns: [ArrayRef; 8] = [
            texts(),
            Arc::new(LargeStringArray::from(vec!["own", OTHER])),
            Arc::new(BinaryArray::from(vec!["own".as_bytes(), OTHER.as_bytes()])),
            structs(),
            Arc::new(vectors),
            lists(texts()),
            lists(structs()),
            lists(lists(texts())),
        ];
        for column in columns {
            let data_type = column.data_type().clone();
            let (rows, shape) = (batch(vec![("x", column)]), shape(&[1, 1], 2));
            check(&rows, &shape).unwrap();
            let parts = split(&rows, &shape).collect::<Result<Vec<_>, _>>().unwrap();
            let found: Vec<bool> = parts.iter().map(has_other_value).collect();
            assert_eq!(found, [false, true], "{data_type}");
        }
        let views = batch(vec![("x", Arc::new(StringViewArray::from(vec!["own", OTHER])) as ArrayRef)]);
        check(&views, &shape(&[1, 1], 2)).unwrap_err();
        // If this fails, views can be divided and need not be rejected.
        assert!(has_other_value(&encoded(&views.slice(0, 1)).unwrap()));
    }
}
