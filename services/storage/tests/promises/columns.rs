//! Every type, codec and encoding is read back as it was written.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray,
    FixedSizeListArray, Float32Array, Int8Array, Int32Array, Int64Array, IntervalDayTimeArray,
    LargeBinaryArray, LargeListArray, LargeStringArray, ListArray, MapArray, RecordBatch, StringArray,
    StringViewArray, StructArray,
    cast::AsArray,
    types::{Int8Type, Int32Type},
};
use arrow_buffer::{IntervalDayTime, NullBuffer, OffsetBuffer};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};
use parquet::{
    basic::{BrotliLevel, Compression, Encoding, GzipLevel, ZstdLevel},
    file::properties::{WriterProperties, WriterVersion},
};

use forebay_storage::Error;

use crate::common::{Fixture, batch, integers, parquet_bytes, read_all, read_columns, strings};

fn numbers() -> ArrayRef {
    Arc::new(Int64Array::from(vec![Some(0), Some(1), None, Some(100), Some(7)]))
}

fn as_type(data_type: &DataType) -> ArrayRef {
    if *data_type == DataType::Interval(IntervalUnit::DayTime) {
        let days = [Some(IntervalDayTime::new(1, -2)), None, Some(IntervalDayTime::MAX)];
        return Arc::new(days.into_iter().cycle().take(5).collect::<IntervalDayTimeArray>());
    }
    let through = match data_type {
        DataType::Time32(_) | DataType::Date32 | DataType::Interval(IntervalUnit::YearMonth) => {
            DataType::Int32
        }
        _ => DataType::Int64,
    };
    cast(&cast(&numbers(), &through).unwrap(), data_type).unwrap()
}

fn zone() -> Option<Arc<str>> {
    Some("Europe/Zurich".into())
}

fn flat_types() -> Vec<DataType> {
    use DataType::{
        Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256, Duration, Float16, Float32, Float64,
        Int8, Int16, Int32, Int64, Interval, Time32, Time64, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8,
    };
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    vec![
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
        Date32,
        Date64,
        DataType::Boolean,
        Utf8,
        DataType::LargeUtf8,
        Decimal32(9, 2),
        Decimal64(18, 3),
        Decimal128(30, 4),
        Decimal128(5, 1),
        Decimal256(60, 5),
        Time32(Second),
        Time32(Millisecond),
        Time64(Microsecond),
        Time64(Nanosecond),
        Timestamp(Second, None),
        Timestamp(Millisecond, None),
        Timestamp(Microsecond, zone()),
        Timestamp(Nanosecond, zone()),
        Duration(Second),
        Duration(Nanosecond),
        Interval(IntervalUnit::YearMonth),
        Interval(IntervalUnit::DayTime),
    ]
}

async fn roundtrip(columns: &RecordBatch, properties: Option<WriterProperties>) -> RecordBatch {
    let fixture = Fixture::new();
    fixture.write_bytes("a.parquet", &parquet_bytes(columns, properties));
    fixture.read().await.unwrap()
}

#[tokio::test]
async fn every_flat_type_comes_back() {
    let types = flat_types();
    let names: Vec<String> = types.iter().map(ToString::to_string).collect();
    let columns = names.iter().map(String::as_str).zip(types.iter().map(as_type));
    let written = batch(columns);
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        let properties = WriterProperties::builder().set_writer_version(version).build();
        let read = roundtrip(&written, Some(properties)).await;
        for (index, field) in written.schema().fields().iter().enumerate() {
            assert_eq!(read.column(index), written.column(index), "{field}");
        }
    }
}

#[tokio::test]
async fn bytes_and_booleans_and_nulls_come_back() {
    let bytes = [Some(&b"ab"[..]), None, Some(b""), Some(b"\xff\xfe")];
    let fixed = [Some(&b"abc"[..]), None, Some(b"\0\0\0"), Some(b"xyz")];
    let written = batch([
        ("binary", Arc::new(BinaryArray::from_iter(bytes)) as ArrayRef),
        ("large", Arc::new(LargeBinaryArray::from_iter(bytes))),
        (
            "fixed",
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed.into_iter(), 3).unwrap()),
        ),
        ("bool", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true)]))),
        ("null", arrow_array::new_null_array(&DataType::Null, 4)),
        ("nan", Arc::new(Float32Array::from(vec![f32::NAN, -0.0, f32::INFINITY, 1e-40]))),
    ]);
    let read = roundtrip(&written, None).await;
    // NaN is not equal to itself, so the bytes are compared.
    for (read, written) in read.columns().iter().zip(written.columns()) {
        assert_eq!(read.to_data().buffers(), written.to_data().buffers(), "{}", written.data_type());
        assert_eq!(read.logical_nulls(), written.logical_nulls());
    }
}

#[tokio::test]
async fn nested_types_come_back() {
    let item = |data_type: DataType| Arc::new(Field::new("item", data_type, true));
    let values: ArrayRef =
        Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4), Some(5), Some(6)]));
    let offsets = || OffsetBuffer::from_lengths([2, 0, 3, 1]);
    let nulls = || Some(NullBuffer::from(vec![true, true, true, true]));
    let list = ListArray::new(item(DataType::Int32), offsets(), Arc::clone(&values), nulls());
    let large = LargeListArray::new(
        item(DataType::Int32),
        OffsetBuffer::from_lengths([2, 0, 3, 1]),
        Arc::clone(&values),
        Some(NullBuffer::from(vec![true, false, true, true])),
    );
    let fixed_values = integers(0..8);
    let fixed = FixedSizeListArray::new(item(DataType::Int32), 2, fixed_values, None);
    let structs = StructArray::new(
        vec![Field::new("a", DataType::Int32, true), Field::new("s", DataType::Utf8, true)].into(),
        vec![integers(0..4), strings(["a", "", "ccc", "d"])],
        Some(NullBuffer::from(vec![true, false, true, true])),
    );
    let nested = ListArray::new(
        item(structs.data_type().clone()),
        OffsetBuffer::from_lengths([1, 2, 0, 1]),
        Arc::new(structs.clone()),
        None,
    );
    let entries = StructArray::new(
        vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Int32, true)].into(),
        vec![strings(["a", "b", "c", "d", "e", "f"]), values],
        None,
    );
    let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let map = MapArray::new(entry, offsets(), entries, None, false);
    let written = batch([
        ("list", Arc::new(list) as ArrayRef),
        ("large", Arc::new(large)),
        ("fixed", Arc::new(fixed)),
        ("struct", Arc::new(structs)),
        ("nested", Arc::new(nested)),
        ("map", Arc::new(map)),
    ]);
    let read = roundtrip(&written, None).await;
    for (index, field) in written.schema().fields().iter().enumerate() {
        assert_eq!(read.column(index), written.column(index), "{field}");
    }
}

#[tokio::test]
async fn dictionaries_and_views_are_delivered_as_their_values() {
    let words = ["a", "bb", "a", "a long word that does not fit a view inline"];
    let keys = Int8Array::from(vec![0, 1, 0, 2]);
    let dictionary = DictionaryArray::<Int8Type>::new(
        keys.clone(),
        Arc::new(StringArray::from(vec!["a", "bb", words[3]])),
    );
    let numbers = DictionaryArray::<Int8Type>::new(keys, Arc::new(Int64Array::from(vec![10, 20, 30])));
    let item = Arc::new(Field::new("item", dictionary.data_type().clone(), true));
    let list =
        ListArray::new(item, OffsetBuffer::from_lengths([1, 1, 1, 1]), Arc::new(dictionary.clone()), None);
    let written = batch([
        ("dictionary", Arc::new(dictionary) as ArrayRef),
        ("numbers", Arc::new(numbers)),
        ("view", Arc::new(StringViewArray::from_iter_values(words))),
        ("bytes", Arc::new(BinaryViewArray::from_iter_values(words))),
        ("list", Arc::new(list)),
    ]);
    let read = roundtrip(&written, None).await;
    let plain = strings(words);
    assert_eq!(read.column(0), &plain);
    assert_eq!(read.column(1), &(Arc::new(Int64Array::from(vec![10, 20, 10, 30])) as ArrayRef));
    assert_eq!(read.column(2), &plain);
    assert_eq!(read.column(3), &(Arc::new(BinaryArray::from_iter_values(words)) as ArrayRef));
    let item = Arc::new(Field::new("item", DataType::Utf8, true));
    let expected = ListArray::new(item, OffsetBuffer::from_lengths([1, 1, 1, 1]), plain, None);
    assert_eq!(read.column(4), &(Arc::new(expected) as ArrayRef));
}

#[tokio::test]
async fn every_codec_is_read() {
    let words: Vec<String> = (0..5000).map(|row| format!("word {}", row % 700)).collect();
    let written = batch([
        ("x", integers(0..5000)),
        ("s", strings(words.iter().map(String::as_str))),
        ("l", Arc::new(LargeStringArray::from_iter_values(&words))),
    ]);
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let properties = WriterProperties::builder().set_compression(codec).set_writer_version(version);
            assert_eq!(roundtrip(&written, Some(properties.build())).await, written, "{codec}");
        }
    }
}

#[tokio::test]
async fn every_encoding_is_read() {
    let words: Vec<String> = (0..3000).map(|row| format!("a common prefix {row}")).collect();
    let text = || strings(words.iter().map(String::as_str));
    let floats: ArrayRef = Arc::new((0..3000_u16).map(f32::from).collect::<Float32Array>());
    for (column, encoding) in [
        (text(), Encoding::PLAIN),
        (text(), Encoding::DELTA_LENGTH_BYTE_ARRAY),
        (text(), Encoding::DELTA_BYTE_ARRAY),
        (integers(0..3000), Encoding::PLAIN),
        (integers(0..3000), Encoding::DELTA_BINARY_PACKED),
        (floats, Encoding::BYTE_STREAM_SPLIT),
        (Arc::new((0..3000).map(|row| Some(row % 3 == 0)).collect::<BooleanArray>()), Encoding::RLE),
    ] {
        let properties = WriterProperties::builder().set_dictionary_enabled(false).set_encoding(encoding);
        let written = batch([("x", column)]);
        let read =
            roundtrip(&written, Some(properties.set_writer_version(WriterVersion::PARQUET_2_0).build()));
        assert_eq!(read.await, written, "{encoding}");
    }
}

#[tokio::test]
async fn batches_have_at_most_the_requested_rows_and_cover_the_block() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &batch([("x", integers(0..10_000))]));
    let snapshot = fixture.take().await.unwrap();
    let reader = fixture.reader(&snapshot);
    for batch_rows in [1, 999, 10_000, 1 << 40] {
        let encoded = reader.fetch(0, &[0]).await.unwrap();
        assert_eq!(encoded.rows(), 10_000);
        assert!(encoded.bytes() > 0);
        let sizes: Vec<usize> = encoded.decode(batch_rows).map(|batch| batch.unwrap().num_rows()).collect();
        assert!(sizes.iter().all(|rows| *rows <= batch_rows));
        assert_eq!(sizes.iter().sum::<usize>(), 10_000);
    }
}

#[tokio::test]
async fn strings_that_are_not_utf8_are_corrupt_whatever_parquet_type_they_have() {
    use parquet::{
        data_type::{ByteArray, ByteArrayType},
        file::{properties::WriterProperties, writer::SerializedFileWriter},
        schema::parser::parse_message_type,
    };
    let written = |kind: &str, value: &'static [u8]| {
        let schema =
            Arc::new(parse_message_type(&format!("message m {{ required binary s {kind}; }}")).unwrap());
        let mut file =
            SerializedFileWriter::new(Vec::new(), schema, Arc::new(WriterProperties::default())).unwrap();
        let mut group = file.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let values = [ByteArray::from(&b"{}"[..]), ByteArray::from(value)];
        column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        file.into_inner().unwrap()
    };
    for (kind, value, is_valid) in [
        ("(JSON)", &b"[\xff]"[..], false),
        ("(JSON)", "[\"\u{e9}\"]".as_bytes(), true),
        ("(UTF8)", b"[\xff]", false),
        ("", b"[\xff]", true),
    ] {
        let fixture = Fixture::new();
        fixture.write_bytes("a.parquet", &written(kind, value));
        let snapshot = fixture.take().await.unwrap();
        match read_all(&fixture.reader(&snapshot)).await {
            Ok(rows) => assert!(is_valid && rows.num_rows() == 2, "{kind}"),
            Err(error) => {
                assert!(!is_valid && matches!(&error, Error::Corrupt { .. }), "{kind}: {error}");
                assert!(error.to_string().to_lowercase().contains("utf"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_column_of_a_wide_file_is_read_with_the_part_of_the_footer_that_describes_it() {
    let names: Vec<String> = (0..300).map(|index| format!("c{index}")).collect();
    let columns = names.iter().enumerate().map(|(index, name)| {
        let first = index as i32;
        (name.as_str(), integers((0..20).map(move |row| first + row)))
    });
    let written = batch(columns);
    let groups = WriterProperties::builder().set_max_row_group_row_count(Some(2)).build();
    let fixture = Fixture::new();
    // 3,000 column chunks.
    fixture.write_bytes("a.parquet", &parquet_bytes(&written, Some(groups)));
    let snapshot = fixture.take().await.unwrap();
    let mut fixture = fixture;
    fixture.restart();
    let reader = fixture.reader(&snapshot);
    for columns in [vec![299, 7], vec![0], vec![7, 299, 150]] {
        let read = read_columns(&reader, &columns).await.unwrap();
        assert_eq!(read, written.project(&columns).unwrap());
        let known = reader.statistics(0, &columns).await.unwrap();
        assert_eq!(known[0].ends.len(), 10);
        assert_eq!(known[0].min.as_primitive::<Int32Type>().value(0), columns[0] as i32);
    }
}
