//! A read of some columns does not read much of the columns between them.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeBinaryArray, RecordBatch};
use forebay_storage::{Location, Reader};
use parquet::file::properties::WriterProperties;

use crate::common::{Fixture, batch, parquet_bytes, read_columns, store::TestStore};

const ROWS: usize = 1024;

/// Column whose chunk has `kib` KiB and a few more bytes.
fn column(kib: usize) -> ArrayRef {
    let value: Vec<u8> = (0..kib).map(|byte| byte as u8).collect();
    Arc::new(FixedSizeBinaryArray::try_from_iter((0..ROWS).map(|_| &value)).unwrap())
}

/// Columns `a`, `between` and `b`, of which `a` and `b` have the same size.
fn columns(kib: usize, between_kib: usize) -> RecordBatch {
    batch([("a", column(kib)), ("between", column(between_kib)), ("b", column(kib))])
}

/// Reads the columns `a` and `b`. Returns the number of KiB fetched from a local file, and from a remote store.
async fn fetched_kib(written: &RecordBatch) -> [usize; 2] {
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let bytes = parquet_bytes(written, Some(properties));
    let fixture = Fixture::new();
    fixture.write_bytes("a.parquet", &bytes);
    let store = TestStore::with(&[("d/a.parquet", &bytes)]).await;
    let remote = Location::with_store("mem://d", store as _, "d");

    let mut fetched = Vec::new();
    for location in [fixture.location(), remote] {
        let snapshot = fixture.take_at(&location).await.unwrap();
        let reader = Reader::new(snapshot, location, &fixture.state, fixture.config.clone());
        fetched.push(reader.fetch(0, &[0, 2]).await.unwrap().bytes() >> 10);
        assert_eq!(read_columns(&reader, &[0, 2]).await.unwrap(), written.project(&[0, 2]).unwrap());
    }
    fetched.try_into().unwrap()
}

#[tokio::test]
async fn a_column_that_is_wider_than_both_its_neighbours_is_not_read_with_them() {
    assert_eq!(fetched_kib(&columns(1, 60)).await, [2, 2]);
    assert_eq!(fetched_kib(&columns(20, 60)).await, [40, 40]);
}

#[tokio::test]
async fn a_gap_that_saves_a_request_is_read() {
    assert_eq!(fetched_kib(&columns(40, 60)).await, [140, 140]);
}

#[tokio::test]
async fn a_local_file_is_read_with_smaller_gaps_than_a_remote_one() {
    assert_eq!(fetched_kib(&columns(100, 80)).await, [200, 280]);
}
