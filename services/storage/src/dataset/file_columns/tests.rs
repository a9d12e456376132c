use std::{
    panic,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use arrow_array::{ArrayRef, Date32Array, FixedSizeBinaryArray, RecordBatch};
use bytes::Bytes;
use parquet::{
    arrow::{ArrowWriter, arrow_writer::ArrowWriterOptions},
    file::{metadata::ParquetMetaDataReader, properties::WriterProperties},
};

use super::*;

/// Encoded schema of a column `wide` of 128-bit integers, as Polars writes it, and a column `date` of dates with 64 bits.
fn encoded_with_wide_integers() -> String {
    let fields = vec![Field::new("wide", DataType::Int64, true), Field::new("date", DataType::Date64, true)];
    let bytes = BASE64_STANDARD.decode(encode_arrow_schema(&Schema::new(fields))).unwrap();
    // The width is a number of 32 bits. Others can have the same value.
    let widths = (0..bytes.len() - 4).filter(|at| bytes[*at..at + 4] == 64_i32.to_le_bytes());
    let changed = widths.map(|at| {
        let mut changed = bytes.clone();
        changed[at..at + 4].copy_from_slice(&128_i32.to_le_bytes());
        changed
    });
    let is_wide = |bytes: &Vec<u8>| {
        let schema = root_as_message(&bytes[8..]).ok().and_then(|message| message.header_as_schema());
        let first = schema.and_then(|schema| schema.fields()).map(|fields| fields.get(0));
        first.and_then(|field| field.type_as_int()).is_some_and(|int| int.bitWidth() == 128)
    };
    BASE64_STANDARD.encode(changed.into_iter().find(is_wide).unwrap())
}

#[test]
fn integers_of_128_bits_in_a_hint_cause_no_panic_and_other_hints_are_used() {
    let wide = FixedSizeBinaryArray::try_from_iter([[0_u8; 16]].into_iter()).unwrap();
    let date = Date32Array::from(vec![1]);
    let rows = RecordBatch::try_from_iter([
        ("wide", Arc::new(wide) as ArrayRef),
        ("date", Arc::new(date) as ArrayRef),
    ])
    .unwrap();
    let hint = KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), encoded_with_wide_integers());
    let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![hint])).build();
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let mut writer = ArrowWriter::try_new_with_options(Vec::new(), rows.schema(), options).unwrap();
    writer.write(&rows).unwrap();
    let file = Bytes::from(writer.into_inner().unwrap());
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();

    static PANICKED: AtomicBool = AtomicBool::new(false);
    let (this, before) = (thread::current().id(), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        if thread::current().id() == this {
            PANICKED.store(true, Ordering::SeqCst);
        }
        before(panic);
    }));
    let (schema, _) = file_columns(metadata.file_metadata());
    assert!(!PANICKED.load(Ordering::SeqCst));
    assert_eq!(schema.field(0).data_type(), &DataType::FixedSizeBinary(16));
    assert_eq!(schema.field(1).data_type(), &DataType::Date64);
}
