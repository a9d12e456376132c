//! Property of lookup keys: any Arrow IPC messages are batches of valid keys, or an error.

use std::sync::LazyLock;

use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use forebay_inference::KeyType;

/// Maximum number of rows of a batch.
const MAX_ROWS: usize = 100;
/// Bytes before each message: the lengths of its header and of its body, as u16 in little-endian order.
const LENGTH_BYTES: usize = 4;

/// Types of key columns of a dataset.
static TYPES: LazyLock<Vec<DataType>> = LazyLock::new(|| {
    vec![
        DataType::Int8,
        DataType::UInt32,
        DataType::Int64,
        DataType::UInt64,
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::FixedSizeBinary(3),
        DataType::Boolean,
        DataType::Date32,
        DataType::Date64,
        DataType::Timestamp(TimeUnit::Second, None),
        DataType::Timestamp(TimeUnit::Microsecond, Some("+01:00".into())),
        DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
    ]
});

/// Decodes the messages in `data`, and encodes the batches as keys of every type.
pub(crate) fn check(data: &[u8]) {
    check_messages(messages(data), MAX_ROWS);
}

/// Decodes messages, each a header and a body, and encodes the batches as keys of every type. Returns the batches up to the
/// first error, and that error.
pub(crate) fn check_messages(
    messages: Vec<(Bytes, Bytes)>,
    max_rows: usize,
) -> (Vec<RecordBatch>, Option<String>) {
    let (batches, error) = forebay::fuzzing::keys(messages, max_rows);
    assert!(error.as_ref().is_none_or(|error| !error.is_empty()));
    for batch in &batches {
        assert!(batch.num_rows() <= max_rows);
        for column in batch.columns() {
            assert_eq!(column.len(), batch.num_rows());
            column.to_data().validate_full().expect("the decoded values are valid");
        }
        for field in batch.schema().fields() {
            let own = [field.data_type().clone()];
            for data_type in TYPES.iter().chain(&own) {
                encode(batch, vec![Field::new(field.name(), data_type.clone(), true)]);
            }
        }
        // A key of several columns.
        encode(batch, batch.schema().fields().iter().map(|field| field.as_ref().clone()).collect());
    }
    (batches, error)
}

/// Encodes the keys of a dataset with these columns.
fn encode(batch: &RecordBatch, columns: Vec<Field>) {
    let names: Vec<String> = columns.iter().map(|column| column.name().clone()).collect();
    let Ok(key) = KeyType::new(&names, &Schema::new(columns)) else { return };
    let Ok(keys) = key.encode(batch) else { return };
    assert_eq!(keys.len(), batch.num_rows());
    // A part of the batch, whose arrays begin behind their buffers' start.
    let part = batch.slice(keys.len() / 2, keys.len() - keys.len() / 2);
    assert_eq!(key.encode(&part).map(|keys| keys.len()).ok(), Some(part.num_rows()));
}

/// Splits an input of the target into messages, each a header and a body.
pub(crate) fn messages(mut data: &[u8]) -> Vec<(Bytes, Bytes)> {
    let mut messages = Vec::new();
    while let Some((lengths, rest)) = data.split_first_chunk::<LENGTH_BYTES>() {
        let [header, body] = [[lengths[0], lengths[1]], [lengths[2], lengths[3]]].map(u16::from_le_bytes);
        let (header, rest) = rest.split_at(usize::from(header).min(rest.len()));
        let (body, rest) = rest.split_at(usize::from(body).min(rest.len()));
        messages.push((Bytes::copy_from_slice(header), Bytes::copy_from_slice(body)));
        data = rest;
    }
    messages
}
