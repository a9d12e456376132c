//! Files of a dataset, partition columns and consistency of schemas.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use arrow_array::{
    Array, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray,
    cast::AsArray,
    types::{Int32Type, Int64Type},
};
use arrow_schema::{DataType, Field, Schema};
use forebay_storage::{Error, Location, PartitionValue, Snapshot};
use parquet::file::{
    metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter},
    properties::WriterProperties,
};
use tokio::time::timeout;

use crate::common::{Fixture, batch, integers, parquet_bytes, read_columns, rows, store::TestStore, strings};

fn x(batch: &RecordBatch) -> Vec<i32> {
    batch.column_by_name("x").unwrap().as_primitive::<Int32Type>().values().to_vec()
}

#[tokio::test]
async fn a_folder_consists_of_its_parquet_files_in_bytewise_order_of_their_paths() {
    let fixture = Fixture::new();
    for (path, value) in
        [("b.parquet", 3), ("a/z.parquet", 1), ("a.parquet", 0), ("a/é.parquet", 2), ("B.parquet", -1)]
    {
        fixture.write(path, &rows([value]));
    }
    assert_eq!(x(&fixture.read().await.unwrap()), [-1, 0, 1, 2, 3]);
}

#[tokio::test]
async fn hidden_names_and_other_extensions_are_skipped() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    for path in
        ["_a.parquet", ".a.parquet", "_tmp/a.parquet", "x/.git/a.parquet", "x/_y/z/a.parquet", "a.csv"]
    {
        fixture.write_bytes(path, b"not Parquet");
    }
    assert_eq!(x(&fixture.read().await.unwrap()), [1]);
}

#[tokio::test]
async fn hidden_names_above_the_root_are_not_skipped() {
    let mut fixture = Fixture::new();
    fixture.write("_hidden/.too/a.parquet", &rows([1]));
    let root = fixture.data().join("_hidden/.too");
    let location = Location::parse(root.to_str().unwrap(), &fixture.config).unwrap();
    fixture.restart();
    assert_eq!(fixture.take_at(&location).await.unwrap().rows(), 1);
}

#[tokio::test]
async fn a_file_is_read_whatever_its_extension() {
    let fixture = Fixture::new();
    fixture.write("a.bin", &rows([1, 2]));
    let url = format!("file://{}", fixture.data().join("a.bin").display());
    let location = Location::parse(&url, &fixture.config).unwrap();
    let snapshot = fixture.take_at(&location).await.unwrap();
    assert_eq!(snapshot.files()[0].path, "a.bin");
    let reader = forebay_storage::Reader::new(snapshot, location, &fixture.state, fixture.config.clone());
    assert_eq!(x(&read_columns(&reader, &[0]).await.unwrap()), [1, 2]);
}

#[tokio::test]
async fn a_relative_path_is_accepted() {
    let config = forebay_storage::Config::default();
    let location = Location::parse("./no/../such/folder", &config).unwrap();
    assert_eq!(location.url(), "./no/../such/folder");
}

#[tokio::test]
async fn a_missing_dataset_is_not_found() {
    let fixture = Fixture::new();
    let error = fixture.take().await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert!(error.to_string().contains("*.parquet"), "{error}");

    let missing = Location::parse(fixture.data().join("missing").to_str().unwrap(), &fixture.config).unwrap();
    assert!(matches!(fixture.take_at(&missing).await, Err(Error::NotFound { .. })));
}

#[test]
fn urls_without_a_supported_store_are_invalid() {
    let config = forebay_storage::Config::default();
    for url in ["ftp://host/path", "https:/host/a.parquet", "file://host/path", "s3://"] {
        let error = Location::parse(url, &config).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{url}: {error}");
        assert!(error.to_string().contains(url), "{error}");
    }
    for url in
        ["https://host/a.parquet", "http://host:80/a%20b.parquet", "s3://bucket/a/b", "gs://bucket", "/"]
    {
        Location::parse(url, &config).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A file of the log of each table format, and the name of the format.
const LOGS: [(&str, &str); 4] = [
    ("_delta_log/0.json", "Delta Lake"),
    (".hoodie/hoodie.properties", "Hudi"),
    ("_spark_metadata/0", "Spark"),
    ("metadata/v1.metadata.json", "Iceberg"),
];

/// Asserts that a dataset is rejected because of a table. The error names its folder and format, and what to do.
fn assert_table(outcome: Result<Arc<Snapshot>, Error>, format: &str, folder: &str) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let text = error.to_string();
    for part in [format, &format!("{folder} is "), "export the current rows"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn table_formats_are_rejected_by_name_at_any_depth() {
    for (file, format) in LOGS {
        for folder in ["", "/t", "/year=2024/a.table"] {
            let fixture = Fixture::new();
            fixture.write("a.parquet", &rows([1]));
            fixture.write_bytes(&format!(".{folder}/{file}"), b"{}");
            assert_table(fixture.take().await, format, &format!("/data{folder}"));
        }
    }
}

#[tokio::test]
async fn a_folder_inside_of_a_table_is_rejected() {
    let file = parquet_bytes(&rows([1]), None);
    for (log, format) in LOGS {
        let local = Fixture::new();
        let store = TestStore::with(&[]).await;
        for path in ["t/day=1/hour=2/a.parquet", &format!("t/{log}")] {
            local.write_bytes(path, &file);
            store.write(path, &file).await;
        }
        for folder in ["t/day=1", "t/day=1/hour=2"] {
            let path = local.data().join(folder);
            let inside = Location::parse(path.to_str().unwrap(), &local.config).unwrap();
            let table = format!("the folder {} above it", local.data().join("t").display());
            assert_table(local.take_at(&inside).await, format, &table);

            let inside = Location::with_store(format!("mem://{folder}"), Arc::clone(&store) as _, folder);
            assert_table(local.take_at(&inside).await, format, "the folder /t above it");
        }
    }
}

#[tokio::test]
async fn a_folder_of_a_bucket_that_is_a_table_is_rejected() {
    let file = parquet_bytes(&rows([1]), None);
    let store = TestStore::with(&[("day=1/a.parquet", &file), ("_delta_log/0.json", b"{}")]).await;
    let inside = Location::with_store("mem://day=1", store, "day=1");
    assert_table(Fixture::new().take_at(&inside).await, "Delta Lake", "the folder / above it");
}

#[tokio::test]
async fn a_dataset_next_to_tables_is_read() {
    let fixture = Fixture::new();
    fixture.write("d/a.parquet", &rows([1]));
    for (log, _) in LOGS {
        fixture.write_bytes(&format!("t/{log}"), b"{}");
        fixture.write_bytes(&format!("metadata/t/{log}"), b"{}");
    }
    let location = Location::parse(fixture.data().join("d").to_str().unwrap(), &fixture.config).unwrap();
    assert_eq!(fixture.take_at(&location).await.unwrap().rows(), 1);
}

#[tokio::test]
async fn a_single_file_inside_of_a_table_is_read() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    fixture.write_bytes("_delta_log/0.json", b"{}");
    let path = fixture.data().join("a.parquet");
    let location = Location::parse(path.to_str().unwrap(), &fixture.config).unwrap();
    assert_eq!(fixture.take_at(&location).await.unwrap().rows(), 1);
}

#[tokio::test]
async fn folders_above_a_dataset_are_searched_for_tables_only_if_its_files_changed() {
    let fixture = Fixture::new();
    fixture.write("t/d/a.parquet", &rows([1]));
    let location = Location::parse(fixture.data().join("t/d").to_str().unwrap(), &fixture.config).unwrap();
    let taken = fixture.take_at(&location).await.unwrap();
    fixture.write_bytes("t/_delta_log/0.json", b"{}");
    assert_eq!(fixture.take_at(&location).await.unwrap().id(), taken.id());
    fixture.write("t/d/b.parquet", &rows([2]));
    assert_table(fixture.take_at(&location).await, "Delta Lake", "/data/t above it");
}

#[tokio::test]
async fn a_folder_named_metadata_is_not_a_table_format() {
    let fixture = Fixture::new();
    fixture.write("metadata/a.parquet", &rows([1]));
    assert_eq!(fixture.take().await.unwrap().rows(), 1);
}

#[tokio::test]
async fn an_empty_file_is_corrupt() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    fixture.write_bytes("b.parquet", b"");
    let error = fixture.take().await.unwrap_err();
    assert!(matches!(&error, Error::Corrupt { file, .. } if file.ends_with("data/b.parquet")), "{error}");
}

#[tokio::test]
async fn more_files_than_the_limit_are_rejected() {
    let mut fixture = Fixture::new();
    fixture.config.max_files = 2;
    for path in ["a.parquet", "b.parquet", "c.parquet"] {
        fixture.write(path, &rows([1]));
    }
    assert!(matches!(fixture.take().await, Err(Error::Limit { limit: 2, found: 3, .. })));
}

#[tokio::test]
async fn more_objects_than_the_limit_are_rejected_whatever_they_are() {
    let mut fixture = Fixture::new();
    fixture.config.max_listed_objects = 2;
    fixture.write("a.parquet", &rows([1]));
    fixture.write_bytes("b.txt", b"not Parquet");
    assert_eq!(fixture.take().await.unwrap().rows(), 1);
    fixture.write_bytes("c.txt", b"not Parquet");
    assert!(matches!(fixture.take().await, Err(Error::Limit { limit: 2, found: 3, .. })));
}

#[tokio::test]
async fn a_listing_without_end_is_rejected_with_the_limit_and_its_setting() {
    let mut fixture = Fixture::new();
    fixture.config.max_listed_objects = 5000;
    let store = TestStore::with(&[]).await;
    store.endless.store(true, Ordering::SeqCst);
    let location = Location::with_store("mem://d", store as _, "d");
    let taken = timeout(Duration::from_secs(60), fixture.take_at(&location)).await;
    let error = taken.expect("the listing ends").unwrap_err().to_string();
    assert_eq!(
        error,
        "mem://d: number of objects in the folder (max_listed_objects) is 5001, the limit is 5000"
    );
}

#[tokio::test]
async fn a_prefix_of_an_object_store_is_a_folder_and_an_object_a_file() {
    let fixture = Fixture::new();
    let file = parquet_bytes(&rows([7]), None);
    let store = TestStore::with(&[
        ("d/a.parquet", &file),
        ("d/b.parquet", &file),
        ("dx/c.parquet", &file),
        ("d", b""),
    ])
    .await;
    let at = |prefix: &str| Location::with_store(format!("mem://{prefix}"), Arc::clone(&store) as _, prefix);
    assert_eq!(fixture.take_at(&at("d")).await.unwrap().files().len(), 2);
    assert_eq!(fixture.take_at(&at("")).await.unwrap().files().len(), 3);
    assert_eq!(fixture.take_at(&at("d/b.parquet")).await.unwrap().files().len(), 1);
}

#[tokio::test]
async fn folder_names_become_the_last_columns() {
    let fixture = Fixture::new();
    let names = ["day=1/city=a%20b", "day=-2/city=caf%C3%A9", "day=10/city=__HIVE_DEFAULT_PARTITION__"];
    for (value, folders) in names.into_iter().enumerate() {
        fixture.write(&format!("{folders}/k=no.parquet"), &rows([value as i32, value as i32]));
    }
    let snapshot = fixture.take().await.unwrap();
    assert_eq!(snapshot.partition_columns(), 2);
    let day = Field::new("day", DataType::Int64, false);
    assert_eq!((snapshot.schema().field(1), snapshot.schema().field(2).data_type()), (&day, &DataType::Utf8));
    assert_eq!((snapshot.nulls(0), snapshot.nulls(1), snapshot.nulls(2)), (Some(0), Some(0), Some(2)));
    assert_eq!(snapshot.column_bytes(0, 1), 16);
    let blocks = 0..snapshot.blocks().len();
    for column in 0..3 {
        let of_blocks: u64 = blocks.clone().map(|block| snapshot.column_bytes(block, column)).sum();
        assert_eq!(snapshot.column_decoded_bytes(column), of_blocks, "column {column}");
    }

    let read = fixture.read().await.unwrap();
    assert_eq!(x(&read), [1, 1, 0, 0, 2, 2]);
    assert_eq!(read.column(1).as_primitive::<Int64Type>().values(), &[-2, -2, 1, 1, 10, 10]);
    let city: Vec<_> = read.column(2).as_string::<i32>().iter().collect();
    assert_eq!(city, [Some("café"), Some("café"), Some("a b"), Some("a b"), None, None]);
}

#[tokio::test]
async fn a_partition_column_with_a_value_that_is_not_an_integer_holds_strings() {
    let fixture = Fixture::new();
    for folder in ["k=1", "k=x"] {
        fixture.write(&format!("{folder}/a.parquet"), &rows([1]));
    }
    let snapshot = fixture.take().await.unwrap();
    assert_eq!(snapshot.schema().field(1).data_type(), &DataType::Utf8);
    assert_eq!(snapshot.files()[0].partitions, [PartitionValue::Utf8("1".into())]);
}

#[tokio::test]
async fn partition_columns_need_no_bytes_of_the_file() {
    let fixture = Fixture::new();
    fixture.write("k=5/a.parquet", &rows(0..2500));
    let snapshot = fixture.take().await.unwrap();
    let reader = fixture.reader(&snapshot);
    let encoded = reader.fetch(0, &[1]).await.unwrap();
    assert_eq!(encoded.bytes(), 0);
    let sizes: Vec<usize> = encoded.decode(1000).map(|batch| batch.unwrap().num_rows()).collect();
    assert_eq!(sizes, [1000, 1000, 500]);
    assert_eq!(read_columns(&reader, &[]).await.unwrap().num_rows(), 2500);
}

#[tokio::test]
async fn all_files_must_have_the_same_partition_keys() {
    for (first, second) in [("a=1/b=2", "b=2/a=1"), ("a=1", "b=1"), ("a=1", "plain")] {
        let fixture = Fixture::new();
        fixture.write(&format!("{first}/a.parquet"), &rows([1]));
        fixture.write(&format!("{second}/a.parquet"), &rows([1]));
        let error = fixture.take().await.unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{first} {second}: {error}");
    }
}

#[tokio::test]
async fn partition_keys_must_be_unique_and_not_in_the_file() {
    let fixture = Fixture::new();
    fixture.write("x=1/a.parquet", &rows([1]));
    assert!(matches!(fixture.take().await, Err(Error::Unsupported { .. })));
    let fixture = Fixture::new();
    fixture.write("k=1/k=2/a.parquet", &rows([1]));
    assert!(matches!(fixture.take().await, Err(Error::Unsupported { .. })));
}

#[tokio::test]
async fn files_may_differ_in_order_nullability_and_metadata() {
    let fixture = Fixture::new();
    let field = |name, data_type, nullable| Field::new(name, data_type, nullable);
    let first = Schema::new(vec![field("x", DataType::Int32, false), field("s", DataType::Utf8, false)]);
    let columns = vec![integers([1]), strings(["one"])];
    fixture.write("a.parquet", &RecordBatch::try_new(Arc::new(first), columns).unwrap());

    let keys = Int32Array::from(vec![Some(0), None]);
    let dictionary = DictionaryArray::new(keys, Arc::new(StringArray::from(vec!["two"])));
    let kind = dictionary.data_type().clone();
    let metadata = [("owner".to_owned(), "me".to_owned())].into();
    let second =
        Schema::new_with_metadata(vec![field("s", kind, true), field("x", DataType::Int32, true)], metadata);
    let columns = vec![Arc::new(dictionary) as _, integers([2, 3])];
    fixture.write("b.parquet", &RecordBatch::try_new(Arc::new(second), columns).unwrap());

    let read = fixture.read().await.unwrap();
    assert_eq!(x(&read), [1, 2, 3]);
    let names: Vec<_> = read.column(1).as_string::<i32>().iter().collect();
    assert_eq!(names, [Some("one"), Some("two"), None]);
    assert!(read.schema().field(0).is_nullable() && read.schema().field(1).is_nullable());
    assert!(read.schema().metadata().is_empty());
}

#[tokio::test]
async fn nested_fields_may_differ_in_nullability_and_item_names() {
    use arrow_array::{ListArray, StructArray};
    use arrow_buffer::OffsetBuffer;
    let fixture = Fixture::new();
    for (path, item, nullable) in [("a.parquet", "item", false), ("b.parquet", "element", true)] {
        let inner = Field::new("v", DataType::Int32, nullable);
        let structs = StructArray::new(vec![inner].into(), vec![integers([1, 2, 3])], None);
        let item = Arc::new(Field::new(item, structs.data_type().clone(), nullable));
        let list = ListArray::new(item, OffsetBuffer::from_lengths([2, 1]), Arc::new(structs), None);
        fixture.write(path, &batch([("l", Arc::new(list) as _)]));
    }
    let read = fixture.read().await.unwrap();
    assert_eq!(read.num_rows(), 4);
    let list = read.column(0).as_list::<i32>();
    let values = list.values().as_struct().column(0).as_primitive::<Int32Type>().values();
    assert_eq!(values, &[1, 2, 3, 1, 2, 3]);
}

#[tokio::test]
async fn files_must_agree_on_names_and_types() {
    let other: [(&str, RecordBatch); 3] = [
        ("Int64", batch([("x", Arc::new(Int64Array::from(vec![1])) as _)])),
        ("absent", batch([("y", integers([1]))])),
        ("absent", batch([("x", integers([1])), ("extra", integers([1]))])),
    ];
    for (expected, second) in other {
        let fixture = Fixture::new();
        fixture.write("a.parquet", &rows([1]));
        fixture.write("b.parquet", &second);
        let error = fixture.take().await.unwrap_err();
        let Error::Mismatch { first, second, expected: a, found: b, .. } = &error else { panic!("{error}") };
        assert!(first.ends_with("a.parquet") && second.ends_with("b.parquet"), "{error}");
        assert!(a == expected || b == expected, "{error}");
    }
}

#[tokio::test]
async fn small_row_groups_of_a_file_share_a_block_and_large_ones_do_not() {
    let fixture = Fixture::new();
    let groups = |rows| Some(WriterProperties::builder().set_max_row_group_row_count(Some(rows)).build());
    fixture.write_bytes("a.parquet", &parquet_bytes(&rows(0..20_000), groups(3000)));
    fixture.write_bytes("b.parquet", &parquet_bytes(&rows(20_000..60_000), groups(20_000)));
    fixture.write_bytes("c.parquet", &parquet_bytes(&rows([]), None));
    fixture.write_bytes("d.parquet", &parquet_bytes(&rows(60_000..60_010), None));

    let snapshot = fixture.take().await.unwrap();
    let blocks: Vec<_> = snapshot.blocks().iter().map(|b| (b.file, b.row_groups.clone(), b.rows)).collect();
    let expected = [(0, 0..5, 15_000), (0, 5..7, 5000), (1, 0..1, 20_000), (1, 1..2, 20_000), (3, 0..1, 10)];
    assert_eq!(blocks, expected);
    let firsts: Vec<_> = snapshot.blocks().iter().map(|block| block.first_row).collect();
    assert_eq!(firsts, [0, 15_000, 20_000, 40_000, 60_000]);
    assert_eq!(x(&fixture.read().await.unwrap()), (0..60_010).collect::<Vec<_>>());
}

#[tokio::test]
async fn columns_are_returned_in_request_order() {
    let fixture = Fixture::new();
    let columns = [("x", integers([1])), ("y", integers([2])), ("z", strings(["3"]))];
    fixture.write("k=4/a.parquet", &batch(columns));
    let snapshot = fixture.take().await.unwrap();
    let read = read_columns(&fixture.reader(&snapshot), &[3, 2, 0]).await.unwrap();
    let names: Vec<_> = read.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["k", "z", "x"]);
    assert_eq!(x(&read), [1]);
    assert_eq!(read.column(1).as_string::<i32>().value(0), "3");
}

#[tokio::test]
async fn sizes_and_null_counts_come_from_the_footers() {
    let fixture = Fixture::new();
    let sparse = Int32Array::from(vec![Some(1), None, None, Some(4)]);
    let words = strings(["a", "bb", "ccc", "dddd"]);
    fixture.write("a.parquet", &batch([("i", Arc::new(sparse) as _), ("s", words)]));
    let snapshot = fixture.take().await.unwrap();
    assert_eq!((snapshot.nulls(0), snapshot.nulls(1)), (Some(2), Some(0)));
    // Values and one byte of validity.
    assert_eq!(snapshot.column_bytes(0, 0), 4 * 4 + 1);
    // Offsets, characters and one byte of validity.
    assert_eq!(snapshot.column_bytes(0, 1), 5 * 4 + 10 + 1);
    assert_eq!((snapshot.column_decoded_bytes(0), snapshot.column_decoded_bytes(1)), (17, 31));
    assert_eq!(snapshot.decoded_bytes(), 17 + 31);
    assert!(snapshot.uncompressed_bytes() > 0);
    assert_eq!(snapshot.uncompressed_bytes(), snapshot.block_bytes(0));

    let silent = parquet::file::properties::EnabledStatistics::None;
    let silent = WriterProperties::builder().set_statistics_enabled(silent).build();
    fixture.write_bytes("a.parquet", &parquet_bytes(&rows([1]), Some(silent)));
    assert_eq!(fixture.take().await.unwrap().nulls(0), None);
}

#[tokio::test]
async fn progress_counts_every_file() {
    let fixture = Fixture::new();
    for file in 0..10 {
        fixture.write(&format!("{file}.parquet"), &rows([file]));
    }
    let seen = parking_lot::Mutex::new(Vec::new());
    let note = |done, total| seen.lock().push((done, total));
    let location = fixture.location();
    forebay_storage::take_snapshot("test", &location, &fixture.state, &fixture.config, note).await.unwrap();
    assert_eq!(*seen.lock(), (1..=10).map(|done| (done, 10)).collect::<Vec<_>>());
}

/// Replaces the footer of a file by `edit` of it.
pub(crate) fn with_footer(file: &[u8], edit: impl FnOnce(ParquetMetaData) -> ParquetMetaData) -> Vec<u8> {
    let (before, trailer) = file.split_at(file.len() - 8);
    let length = u32::from_le_bytes(trailer[..4].try_into().unwrap()) as usize;
    let (data, footer) = before.split_at(before.len() - length);
    let footer = edit(ParquetMetaDataReader::decode_metadata(footer).unwrap());
    let mut edited = data.to_vec();
    ParquetMetaDataWriter::new(&mut edited, &footer).finish().unwrap();
    edited
}

/// Stores the dictionary page offset 0, and the offset of the first page as that of the data pages.
fn zero_dictionary_offset(column: &ColumnChunkMetaData) -> ColumnChunkMetaData {
    let (start, _) = column.byte_range();
    let column = column.clone().into_builder().set_data_page_offset(start as i64);
    column.set_dictionary_page_offset(Some(0)).build().unwrap()
}

#[tokio::test]
async fn a_dictionary_page_offset_of_zero_stands_for_none() {
    for dictionary in [false, true] {
        let properties = WriterProperties::builder().set_dictionary_enabled(dictionary);
        let properties = properties.set_max_row_group_row_count(Some(3)).build();
        let words = ["a", "b", "a", "c", "b"];
        let file = parquet_bytes(
            &batch([("x", integers([1, 2, 1, 3, 2])), ("s", strings(words))]),
            Some(properties),
        );
        let file = with_footer(&file, |footer| {
            let mut builder = footer.into_builder();
            for group in builder.take_row_groups() {
                let columns = group.columns().iter().map(zero_dictionary_offset).collect();
                builder =
                    builder.add_row_group(group.into_builder().set_column_metadata(columns).build().unwrap());
            }
            builder.build()
        });
        let fixture = Fixture::new();
        fixture.write_bytes("a.parquet", &file);
        let read = fixture.read().await.unwrap();
        assert_eq!(x(&read), [1, 2, 1, 3, 2]);
        assert_eq!(read.column(1).as_string::<i32>(), &StringArray::from(words.to_vec()));
    }
}

/// A file of two rows whose footer claims `rows` rows in total, and two in its row group.
fn claiming(rows: i8) -> Vec<u8> {
    let mut file = parquet_bytes(&crate::common::rows([1, 2]), None);
    // In the encoding of Thrift: the number of rows (field 3, an integer) before a list of one row group (field 4).
    let total = file.windows(4).position(|window| window == [0x16, 2 << 1, 0x19, 0x1c]).unwrap() + 1;
    file[total] = ((rows << 1) ^ (rows >> 7)) as u8;
    file
}

#[tokio::test]
async fn the_rows_of_row_groups_count_if_a_footer_claims_none_in_total() {
    let fixture = Fixture::new();
    fixture.write_bytes("a.parquet", &claiming(0));
    assert_eq!(fixture.take().await.unwrap().rows(), 2);
    assert_eq!(x(&fixture.read().await.unwrap()), [1, 2]);
    for wrong in [1, 3, -2] {
        // Each case has its own fixture: a file of the same size that is written again within one tick of the clock is the same version.
        let fixture = Fixture::new();
        fixture.write_bytes("a.parquet", &claiming(wrong));
        assert!(matches!(fixture.take().await, Err(Error::Corrupt { .. })), "{wrong}");
    }
}
