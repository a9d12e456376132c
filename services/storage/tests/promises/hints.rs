//! Files of one dataset whose writers embedded different Arrow types.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{collections::HashMap, sync::Arc};

use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, Int8Array, Int64Array, ListArray, RecordBatch,
    TimestampMicrosecondArray, cast::AsArray, types::Int64Type,
};
use arrow_buffer::OffsetBuffer;
use arrow_cast::cast;
use arrow_schema::{
    DataType, Field, Schema, TimeUnit,
    extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY},
};
use forebay_storage::{Error, Snapshot};
use parquet::{
    data_type::Int64Type as Int64Of, file::writer::SerializedFileWriter, schema::parser::parse_message_type,
};

use crate::common::{Fixture, batch, read_all, read_columns};

fn numbers(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn duration(unit: TimeUnit) -> ArrayRef {
    cast(&numbers(&[5]), &DataType::Duration(unit)).unwrap()
}

fn instant(zone: &str) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from(vec![5]).with_timezone(zone))
}

fn list(items: ArrayRef) -> ArrayRef {
    let item = Arc::new(Field::new("item", items.data_type().clone(), true));
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([items.len()]), items, None))
}

fn rows(column: ArrayRef) -> RecordBatch {
    batch([("id", numbers(&[1])), ("c", column)])
}

/// Innermost type of a list.
fn innermost(data_type: &DataType) -> &DataType {
    if let DataType::List(item) = data_type { innermost(item.data_type()) } else { data_type }
}

/// Checks that requests for the column `c` fail with its name, both files and both types, and that others do not.
async fn assert_contradiction(fixture: &Fixture, snapshot: &Arc<Snapshot>, types: [&DataType; 2]) {
    let reader = fixture.reader(snapshot);
    let ids = read_columns(&reader, &[0]).await.unwrap();
    assert_eq!(ids.num_rows(), snapshot.files().len());
    let error = read_columns(&reader, &[0, 1]).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let text = error.to_string();
    for part in [
        "column c: ",
        &format!("{} in ", innermost(types[0])),
        &format!("{} in ", innermost(types[1])),
        "a.parquet",
        "b.parquet",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let known = reader.statistics(0, &[1]).await.unwrap();
    assert!(known[0].min.logical_null_count() == 1 && known[0].null_counts == [None]);
    assert_eq!(reader.page_statistics(0, &[1]).await.unwrap()[0].null_counts, [None]);
}

#[tokio::test]
async fn a_column_whose_hints_give_other_values_fails_only_requests_that_need_it() {
    let (ns, us) = (duration(TimeUnit::Nanosecond), duration(TimeUnit::Microsecond));
    for (first, second) in [
        (Arc::clone(&ns), Arc::clone(&us)),
        (duration(TimeUnit::Second), duration(TimeUnit::Millisecond)),
        (Arc::clone(&us), numbers(&[5])),
        (numbers(&[5]), Arc::clone(&ns)),
        (list(ns), list(us)),
        (instant("Europe/Paris"), instant("UTC")),
        (instant("UTC"), instant("Europe/Paris")),
        (list(instant("+02:00")), list(instant("Asia/Tokyo"))),
    ] {
        let types = [first.data_type().clone(), second.data_type().clone()];
        let fixture = Fixture::new();
        fixture.write("a.parquet", &rows(first));
        let before = fixture.take().await.unwrap();
        fixture.write("b.parquet", &rows(Arc::clone(&second)));
        let types = [&types[0], &types[1]];
        assert_contradiction(&fixture, &fixture.take().await.unwrap(), types).await;
        // A reader of the snapshot before the file was added still has its values.
        assert_eq!(read_all(&fixture.reader(&before)).await.unwrap()["c"].data_type(), types[0]);

        let mut fixture = fixture;
        std::fs::remove_dir_all(fixture.manifests()).unwrap();
        fixture.restart();
        let refreshed = fixture.refresh(&before).await.unwrap();
        assert_contradiction(&fixture, &refreshed, types).await;
        fixture.write("c.parquet", &rows(second));
        let again = fixture.refresh(&refreshed).await.unwrap();
        assert_contradiction(&fixture, &again, types).await;
    }
}

#[tokio::test]
async fn names_of_utc_are_one_zone() {
    let fixture = Fixture::new();
    for (file, zone) in [("a", "Etc/UTC"), ("b", "+00:00"), ("c", "UTC"), ("d", "GMT")] {
        fixture.write(&format!("{file}.parquet"), &rows(instant(zone)));
    }
    let read = fixture.read().await.unwrap();
    assert_eq!(read["c"].data_type(), &DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())));
}

/// A file of one column `c` with the extension type `name`, or with none if it is empty.
fn extended(values: ArrayRef, name: &str) -> RecordBatch {
    let metadata = [(EXTENSION_TYPE_NAME_KEY, name), (EXTENSION_TYPE_METADATA_KEY, "")];
    let metadata: HashMap<String, String> = metadata
        .into_iter()
        .filter(|_| !name.is_empty())
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    let field = Field::new("c", values.data_type().clone(), true).with_metadata(metadata);
    RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![values]).unwrap()
}

async fn extension(files: impl IntoIterator<Item = RecordBatch>) -> Option<String> {
    let fixture = Fixture::new();
    for (number, file) in files.into_iter().enumerate() {
        fixture.write(&format!("{number}.parquet"), &file);
    }
    let snapshot = fixture.take().await.unwrap();
    let rows = read_all(&fixture.reader(&snapshot)).await.unwrap();
    assert_eq!(rows.schema().field(0), snapshot.schema().field(0));
    snapshot.schema().field(0).metadata().get(EXTENSION_TYPE_NAME_KEY).cloned()
}

#[tokio::test]
async fn an_extension_type_is_delivered_only_if_all_files_have_it() {
    let bytes = |value: i8| Arc::new(Int8Array::from(vec![value])) as ArrayRef;
    let bool8 = |value| extended(bytes(value), "arrow.bool8");
    assert_eq!(extension([bool8(1), bool8(0)]).await.as_deref(), Some("arrow.bool8"));
    assert_eq!(extension([bool8(1), extended(bytes(2), "")]).await, None);
    assert_eq!(extension([extended(bytes(2), ""), bool8(1)]).await, None);
    assert_eq!(extension([bool8(1), extended(bytes(2), "other.bool8")]).await, None);
}

#[tokio::test]
async fn an_extension_type_that_does_not_fit_its_values_is_ignored() {
    let uuid = |values: ArrayRef| extended(values, "arrow.uuid");
    let of_width = |width: usize| {
        Arc::new(FixedSizeBinaryArray::try_from_iter([vec![7_u8; width]].into_iter()).unwrap()) as ArrayRef
    };
    assert_eq!(extension([uuid(of_width(16))]).await.as_deref(), Some("arrow.uuid"));
    assert_eq!(extension([uuid(of_width(15))]).await, None);
    assert_eq!(extension([uuid(numbers(&[1]))]).await, None);
    assert_eq!(extension([extended(Arc::new(BooleanArray::from(vec![true])), "arrow.bool8")]).await, None);
    let own = extended(numbers(&[1]), "my.type");
    assert_eq!(extension([own]).await.as_deref(), Some("my.type"), "other types are not checked");
}

/// A file with the integer columns `names`, whose values are their positions.
fn with_columns(names: &[&str]) -> Vec<u8> {
    let columns: String = names.iter().map(|name| format!("required int64 {name}; ")).collect();
    let schema = Arc::new(parse_message_type(&format!("message schema {{ {columns} }}")).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut position = 0;
    while let Some(mut column) = group.next_column().unwrap() {
        column.typed::<Int64Of>().write_batch(&[position], None, None).unwrap();
        column.close().unwrap();
        position += 1;
    }
    group.close().unwrap();
    writer.into_inner().unwrap()
}

#[tokio::test]
async fn columns_of_one_name_fail_only_requests_that_need_them() {
    let fixture = Fixture::new();
    let file = with_columns(&["x", "id", "x", "y", "x"]);
    fixture.write_bytes("a.parquet", &file);
    fixture.write_bytes("b.parquet", &file);
    let snapshot = fixture.take().await.unwrap();
    let names: Vec<&str> = snapshot.schema().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["x", "id", "x (2)", "y", "x (3)"]);
    let reader = fixture.reader(&snapshot);
    let rows = read_columns(&reader, &[3, 1]).await.unwrap();
    assert_eq!(rows["y"].as_primitive::<Int64Type>().values(), &[3, 3]);
    assert_eq!(rows["id"].as_primitive::<Int64Type>().values(), &[1, 1]);
    for position in [0, 2, 4] {
        let error = read_columns(&reader, &[1, position]).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("the file has 3 columns of the name x"), "{error}");
    }
}
