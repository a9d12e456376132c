//! Files whose data contradicts their footers or statistics are corrupt, and the error names the file and the column.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use forebay_loader::{Config, Error};
use forebay_proto::v1::Train;
use forebay_storage::Reader;
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use parquet::{
    arrow::ArrowWriter,
    file::{
        metadata::ColumnChunkMetaData,
        properties::{EnabledStatistics, WriterProperties},
    },
};

use crate::fixture::{drain, job, loader, reader};

/// A file of the columns `id` and `x`, with a page of each for every 100 rows. `change` changes its bytes behind the pages.
async fn changed(x: Int64Array, statistics: EnabledStatistics, change: impl FnOnce(&mut [u8])) -> Reader {
    let id = Int64Array::from_iter_values(0..x.len() as i64);
    let rows = RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(id) as ArrayRef, false),
        ("x", Arc::new(x) as ArrayRef, true),
    ])
    .unwrap();
    let properties = WriterProperties::builder()
        .set_statistics_enabled(statistics)
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(100);
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, rows.schema(), Some(properties.build())).unwrap();
    writer.write(&rows).unwrap();
    let metadata = writer.close().unwrap();
    let pages = metadata.row_group(0).columns().iter().map(ColumnChunkMetaData::byte_range);
    let end = pages.map(|(start, length)| start + length).max().unwrap() as usize;
    change(&mut bytes[end..]);
    let store = Arc::new(InMemory::new());
    store.put(&Path::from("data/a.parquet"), bytes.into()).await.unwrap();
    reader(store).await
}

/// Replaces `from`, which must be there, by `to` of the same length.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let at: Vec<usize> = (0..=bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
    assert!(!at.is_empty(), "{from:?} is in the file");
    at.iter().for_each(|at| bytes[*at..*at + to.len()].copy_from_slice(to));
}

async fn error_of(train: Train, reader: &Reader) -> Error {
    let loader = loader(1 << 24, 2, Config::default());
    drain(loader.batches(job(&train, reader), 0, 0)).await.err().unwrap()
}

fn check(error: &Error, column: &str, detail: &str) {
    let Error::Storage(forebay_storage::Error::Corrupt { file, column: found, detail: text, .. }) = error
    else {
        panic!("{error:?}")
    };
    assert!(file.starts_with("a.parquet"), "{error}");
    assert_eq!(found.as_deref(), Some(column), "{error}");
    assert!(text.contains(detail), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_contradict_the_statistics_of_pages_are_corruption_of_a_named_column() {
    // The page of 300 to 399 claims to have 0 to 99, which the filter keeps without reading them.
    let reader = changed(Int64Array::from_iter_values(0..1000), EnabledStatistics::Page, |bytes| {
        replace(bytes, &300_i64.to_le_bytes(), &0_i64.to_le_bytes());
        replace(bytes, &399_i64.to_le_bytes(), &99_i64.to_le_bytes());
    })
    .await;
    for columns in [vec!["id".to_owned()], Vec::new()] {
        let train = Train { batch_size: 10, filter: "x < 200".into(), columns, ..Train::default() };
        let error = error_of(train.clone(), &reader).await;
        check(&error, "x", "fewer rows than the 300 that follow from its statistics");
        // Explaining a batch reads the rows again.
        let loader = loader(1 << 24, 2, Config::default());
        let error = loader.locate(&job(&train, &reader), 0, 29, 0).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Storage(forebay_storage::Error::Corrupt { .. })), "{text}");
        assert!(text.contains("a.parquet, row group 0 is corrupt: no row or group"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_null_in_a_column_without_nulls_by_its_footer_is_corruption_of_a_named_column() {
    let x: Int64Array = (0..100).map(|row| (row >= 77).then_some(row)).collect();
    // 77 nulls as a Thrift integer, and 0 in as many bytes.
    let reader = changed(x, EnabledStatistics::Chunk, |bytes| replace(bytes, &[0x9a, 1], &[0x80, 0])).await;
    let error = error_of(Train { batch_size: 10, ..Train::default() }, &reader).await;
    check(&error, "x", "a null, although the footer has a null count of 0");
}
