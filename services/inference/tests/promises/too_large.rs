//! A new snapshot that does not fit in the memory of lookups does not replace the one that answers.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, cast::AsArray, types::Int64Type};
use forebay_inference::{Config, OnlineDataset};
use forebay_loader::Error;
use forebay_proto::v1::Train;

use crate::fixture::{Fixture, ids, online_with_views, rows, spec, users};

/// Memory of lookups, in bytes.
const MEMORY_BYTES: u64 = 8 << 20;

/// Few users, whose names take more than the memory of lookups.
fn long_names(snapshot: i64) -> RecordBatch {
    let count = 2000;
    let same = || Arc::new(Int64Array::from_iter_values((0..count).map(|_| snapshot)));
    let name = "n".repeat(2 * MEMORY_BYTES as usize / count as usize);
    let columns: [(&str, ArrayRef); 4] = [
        ("user_id", Arc::new(Int64Array::from_iter_values(0..count))),
        ("version", same()),
        ("again", same()),
        ("name", Arc::new(StringArray::from_iter_values((0..count).map(|_| &name)))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

async fn version(online: &OnlineDataset, wanted: &Train) -> i64 {
    let answer = online.lookup(wanted, vec![]).look_up(&ids([1])).await.unwrap();
    rows(&answer)["version"].as_primitive::<Int64Type>().value(0)
}

/// Loads a snapshot that fits, one that does not, and another one that fits.
async fn check_that_the_old_snapshot_answers(declared: &[Train], used: &Train, large: RecordBatch) {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    let key = spec(&["user_id"], None);
    let online = online_with_views(key, MEMORY_BYTES, folder.path(), Config::default(), declared);
    fixture.write(0, &users(0..2000, 1)).await;
    online.load_snapshot(fixture.reader().await).await.unwrap();
    assert_eq!(version(&online, used).await, 1);

    fixture.write(0, &large).await;
    let error = online.load_snapshot(fixture.reader().await).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(online.progress().error, Some(error.to_string()));
    assert_eq!(version(&online, used).await, 1);

    fixture.write(0, &users(0..2000, 3)).await;
    online.load_snapshot(fixture.reader().await).await.unwrap();
    assert_eq!((version(&online, used).await, online.progress().error), (3, None));
}

#[tokio::test]
async fn a_snapshot_whose_index_is_too_large_keeps_the_one_before() {
    check_that_the_old_snapshot_answers(&[], &Train::default(), users(0..400_000, 2)).await;
}

#[tokio::test]
async fn a_snapshot_with_a_used_view_that_is_too_large_keeps_the_one_before() {
    check_that_the_old_snapshot_answers(&[], &Train::default(), long_names(2)).await;
}

#[tokio::test]
async fn a_snapshot_with_a_declared_view_that_is_too_large_keeps_the_one_before() {
    let declared = Train { columns: vec!["version".into(), "name".into()], ..Train::default() };
    check_that_the_old_snapshot_answers(std::slice::from_ref(&declared), &declared, long_names(2)).await;
}
