//! Files that other writers write are read with the values that other readers find, or refused by name.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{fs, path::Path, sync::Arc};

use arrow_array::{
    Array, ArrayRef, Int64Array, IntervalDayTimeArray, RecordBatch, StringArray,
    cast::AsArray,
    types::{Date32Type, Float32Type, Int64Type, IntervalMonthDayNanoType, TimestampMicrosecondType},
};
use arrow_buffer::{IntervalDayTime, IntervalMonthDayNano};
use arrow_schema::{DataType, IntervalUnit, TimeUnit};
use forebay_storage::Error;
use parquet::{
    data_type::{Int32Type as Int32Of, Int64Type as Int64Of},
    file::writer::SerializedFileWriter,
    schema::parser::parse_message_type,
};

use crate::common::{Fixture, batch, parquet_bytes, read_columns, strings};

/// A dataset of a file or folder of `tests/data`.
fn dataset(name: &str) -> Fixture {
    let fixture = Fixture::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    if source.is_file() {
        fixture.write_bytes("a.parquet", &fs::read(source).unwrap());
    } else {
        copy(&source, &fixture.data());
    }
    fixture
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

async fn read(name: &str) -> RecordBatch {
    dataset(name).read().await.unwrap()
}

#[tokio::test]
async fn a_hint_that_does_not_fit_is_ignored() {
    for name in ["hint_with_another_column", "hint_with_a_renamed_column", "hint_in_another_order"] {
        let rows = read(&format!("{name}.parquet")).await;
        assert_eq!(rows["a"].as_primitive::<Int64Type>().values(), &[1, 2, 3], "{name}");
        assert_eq!(*rows["b"], StringArray::from(vec!["x", "y", "z"]), "{name}");
    }
}

#[tokio::test]
async fn files_of_equal_parquet_types_are_one_dataset_whatever_their_hints() {
    let text = read("string_and_large_string").await;
    assert_eq!(*text["c"], StringArray::from(vec!["x", "y"]));

    let lists = read("fixed_and_variable_list").await;
    let items = lists["c"].as_list::<i32>().values().as_primitive::<Float32Type>().values().to_vec();
    assert_eq!(items, [1.0, 2.0, 3.0, 4.0]);

    let times = read("utc_and_etc_utc").await;
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    assert_eq!(times["c"].data_type(), &utc);
    assert_eq!(times["c"].as_primitive::<TimestampMicrosecondType>().values(), &[5, 6]);

    let days = read("date64_and_date32").await;
    assert_eq!(days["c"].as_primitive::<Date32Type>().values(), &[1, 1]);
}

#[tokio::test]
async fn a_file_with_another_hint_joins_a_dataset_that_is_refreshed() {
    let fixture = Fixture::new();
    let large: ArrayRef = Arc::new(arrow_array::LargeStringArray::from(vec!["x"]));
    fixture.write("a.parquet", &batch([("c", large)]));
    let before = fixture.take().await.unwrap();
    assert_eq!(before.schema().field(0).data_type(), &DataType::LargeUtf8);
    fixture.write("b.parquet", &batch([("c", strings(["y"]))]));
    let after = fixture.refresh(&before).await.unwrap();
    assert_eq!(after.schema().field(0).data_type(), &DataType::Utf8);
    let rows = read_columns(&fixture.reader(&after), &[0]).await.unwrap();
    assert_eq!(*rows["c"], StringArray::from(vec!["x", "y"]));
    // A reader of the snapshot before still has its type.
    let rows = read_columns(&fixture.reader(&before), &[0]).await.unwrap();
    assert_eq!(rows["c"].data_type(), &DataType::LargeUtf8);
}

#[tokio::test]
async fn bounds_of_an_undeclared_or_unknown_order_are_not_used() {
    for name in ["bounds_without_column_orders", "bounds_of_a_future_column_order"] {
        let fixture = dataset(&format!("{name}.parquet"));
        let snapshot = fixture.take().await.unwrap();
        let reader = fixture.reader(&snapshot);
        let of_groups = reader.statistics(0, &[0, 1]).await.unwrap();
        for known in [of_groups, reader.page_statistics(0, &[0, 1]).await.unwrap()] {
            assert!(known[1].min.is_null(0) && known[1].max.is_null(0), "{name}");
            assert_eq!(known[1].min.data_type(), &DataType::Utf8);
        }
        // Integers are compared as they are stored. What a later order means for them is not known.
        let is_known = reader.statistics(0, &[0]).await.unwrap()[0].min.is_valid(0);
        assert!(!is_known || name == "bounds_without_column_orders");
    }
}

#[tokio::test]
async fn a_page_that_is_not_compressed_is_not_checked_as_a_compressed_one() {
    for (name, first) in [
        ("brotli_uncompressed_page_11", -961_714_976_967_084_015),
        ("brotli_uncompressed_page_91", 1_350_317_904_855_120_017),
    ] {
        let rows = read(&format!("{name}.parquet")).await;
        assert_eq!((rows.num_rows(), rows["x"].as_primitive::<Int64Type>().value(0)), (50, first));
    }
}

#[tokio::test]
async fn a_page_of_nulls_needs_no_width_of_indices() {
    let rows = read("null_page_of_empty_dictionary.parquet").await;
    assert_eq!((rows.num_rows(), rows["x"].null_count()), (5, 5));
}

#[tokio::test]
async fn intervals_are_exact() {
    let rows = read("interval.parquet").await;
    let values = rows["x"].as_primitive::<IntervalMonthDayNanoType>().values();
    assert_eq!(
        values[..],
        [
            IntervalMonthDayNano::new(14, 2, 3_000_000_000),
            IntervalMonthDayNano::new(0, 0, 2_520_000_000_000_000)
        ]
    );
}

#[tokio::test]
async fn intervals_of_different_hints_are_one_column() {
    let fixture = dataset("interval.parquet");
    let negative = IntervalDayTimeArray::from(vec![IntervalDayTime::new(-1, -2)]);
    fixture.write("b.parquet", &batch([("x", Arc::new(negative) as ArrayRef)]));
    let rows = fixture.read().await.unwrap();
    assert_eq!(rows["x"].data_type(), &DataType::Interval(IntervalUnit::MonthDayNano));
    let last = rows["x"].as_primitive::<IntervalMonthDayNanoType>().value(2);
    assert_eq!(last, IntervalMonthDayNano::new(0, -1, -2_000_000));
}

#[tokio::test]
async fn statistics_that_contradict_their_column_are_corruption_of_a_named_column() {
    let error = dataset("statistics_disagree_with_pages.parquet").read().await.unwrap_err();
    let Error::Corrupt { file, column: Some(column), .. } = &error else { panic!("{error:?}") };
    assert!(file.ends_with("a.parquet") && column == "s", "{error}");
    assert!(error.to_string().contains("17046700026 nulls among 400 values"), "{error}");
}

#[tokio::test]
async fn deltas_that_only_their_writer_reads_are_not_supported_rather_than_corrupt() {
    for name in ["deltas_of_33_bits_date", "deltas_of_33_bits_unsigned"] {
        let error = dataset(&format!("{name}.parquet")).read().await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        for part in ["(row group 0, column x)", "more than 32 bits", "PARQUET_VERSION v2"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

#[tokio::test]
async fn no_rows_are_dropped_in_silence_below_a_partition_folder_with_an_underscore() {
    let error = dataset("partition_with_underscore").take().await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("day=1/_h=1"), "{error}");
}

#[tokio::test]
async fn folders_and_files_of_other_programs_are_still_skipped() {
    let fixture = Fixture::new();
    let rows = batch([("x", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
    for path in ["a.parquet", "_temporary/b.parquet", ".hidden/c.parquet", "_metadata.parquet"] {
        fixture.write_bytes(path, &parquet_bytes(&rows, None));
    }
    assert_eq!(fixture.read().await.unwrap().num_rows(), 1);
}

/// A file of a column `id` and a map `m` whose entries have three parts instead of two.
fn file_with_a_map_of_triples() -> Vec<u8> {
    let message = "message schema { required int64 id; required group m (MAP) { repeated group key_value {
        required int32 key; required int32 value; required int32 extra; } } }";
    let schema = Arc::new(parse_message_type(message).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Of>().write_batch(&[7, 8], None, None).unwrap();
    column.close().unwrap();
    while let Some(mut column) = group.next_column().unwrap() {
        column.typed::<Int32Of>().write_batch(&[1, 2], Some(&[1, 1]), Some(&[0, 0])).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.into_inner().unwrap()
}

#[tokio::test]
async fn a_column_without_an_arrow_type_fails_only_requests_that_need_it() {
    let fixture = Fixture::new();
    fixture.write_bytes("a.parquet", &file_with_a_map_of_triples());
    let snapshot = fixture.take().await.unwrap();
    let reader = fixture.reader(&snapshot);
    let rows = read_columns(&reader, &[0]).await.unwrap();
    assert_eq!(rows["id"].as_primitive::<Int64Type>().values(), &[7, 8]);
    let error = read_columns(&reader, &[0, 1]).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("is not supported: column m: ") && text.contains("two children"), "{text}");
    assert!(snapshot.check_supported(0, "").is_ok() && snapshot.check_supported(1, "").is_err());
    assert_eq!(reader.statistics(0, &[1]).await.unwrap()[0].null_counts, [None]);
}

/// A file of the integer columns `id`, `value` and `ok`. The footer then has the bytes of the second of each of `changes` in place of the
/// first, everywhere.
fn changed_file(changes: &[(&[u8], &[u8])]) -> Vec<u8> {
    let message = "message schema { required int64 id; required int64 value; required group s { required int64 part; } }";
    let schema = Arc::new(parse_message_type(message).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    while let Some(mut column) = group.next_column().unwrap() {
        column.typed::<Int64Of>().write_batch(&[7, 8], None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    let mut file = writer.into_inner().unwrap();
    let mut footer = u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap()) as usize;
    footer = file.len() - 8 - footer;
    for (from, to) in changes {
        let places: Vec<usize> =
            (footer..file.len() - from.len()).filter(|at| file[*at..].starts_with(from)).collect();
        assert!(!places.is_empty(), "the footer has {from:?}");
        places.iter().for_each(|at| file[*at..*at + to.len()].copy_from_slice(to));
    }
    file
}

/// Path and codec of the chunk of the column `value`, which is not compressed, and the same with the codec `number`.
fn with_codec(number: u8) -> (Vec<u8>, Vec<u8>) {
    let chunk = |number: u8| [&[0x19, 0x18, 5][..], b"value", &[0x15, number << 1]].concat();
    (chunk(0), chunk(number))
}

#[tokio::test]
async fn a_column_of_an_unknown_codec_or_name_fails_only_requests_that_need_it() {
    let (plain, lzo) = with_codec(3);
    let (_, future) = with_codec(42);
    let unnamed: &[(&[u8], &[u8])] = &[(b"value", b"val\xe9e")];
    let nested: &[(&[u8], &[u8])] = &[(b"part", b"p\xff\xfet")];
    for (changes, position, name, reason) in [
        (&[(&plain[..], &lzo[..])][..], 1, "value", "it is compressed with LZO"),
        (&[(&plain[..], &future[..])], 1, "value", "it is compressed with codec 42, which is not known"),
        (unnamed, 1, "val\\xe9e", "its name is not UTF-8"),
        (nested, 2, "s", "the name of a field in it is not UTF-8"),
    ] {
        let fixture = Fixture::new();
        fixture.write_bytes("a.parquet", &changed_file(&[]));
        fixture.write_bytes("b.parquet", &changed_file(changes));
        if name.contains('\\') {
            // A name that is not UTF-8 is not that of a column of another file.
            let error = fixture.take().await.unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            std::fs::remove_file(fixture.data().join("a.parquet")).unwrap();
        }
        let snapshot = fixture.take().await.unwrap();
        assert_eq!(snapshot.schema().field(position).name(), name);
        let reader = fixture.reader(&snapshot);
        let others: Vec<usize> = (0..3).filter(|column| *column != position).collect();
        let rows = read_columns(&reader, &others).await.unwrap();
        assert_eq!(&rows["id"].as_primitive::<Int64Type>().values()[..2], &[7, 8], "{reason}");
        let error = read_columns(&reader, &[0, position]).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        let expected = format!("is not supported: column {name}: {reason}; request other columns");
        assert!(error.to_string().contains(&expected), "{error}");
        for block in 0..snapshot.blocks().len() {
            let known = reader.statistics(block, &[position]).await.unwrap();
            assert_eq!(
                (known[0].min.logical_null_count(), known[0].max.logical_null_count()),
                (1, 1),
                "{reason}"
            );
            reader.page_statistics(block, &[position]).await.unwrap();
        }
    }
}

#[tokio::test]
async fn texts_about_the_writer_that_are_not_utf_8_are_ignored() {
    let fixture = Fixture::new();
    fixture.write_bytes("a.parquet", &changed_file(&[(b"parquet-rs", b"parquet-\xe9s")]));
    let rows = fixture.read().await.unwrap();
    assert_eq!(rows["value"].as_primitive::<Int64Type>().values(), &[7, 8]);
}
