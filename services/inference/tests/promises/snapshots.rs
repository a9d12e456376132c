//! Promises of new snapshots: the canary rejects broken ones, and a pinned one stays.

use std::{path::Path, sync::Arc};

use arrow_array::{
    ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray, cast::AsArray, types::Float32Type,
};
use forebay_inference::{Canary, Config, OnlineDataset, Requirements, Takeover};
use forebay_proto::v1::{Tensor, Train};

use crate::fixture::{Fixture, ids, online_with, rows, spec};

const KEYS: i64 = 20_000;

/// Users with normally looking values. `change` replaces the values of a row: `x`, `y` and whether `name` is null.
fn users(
    keys: impl Iterator<Item = i64>,
    change: impl Fn(i64, f32) -> (f32, Option<f32>, bool),
) -> RecordBatch {
    let keys: Vec<i64> = keys.collect();
    let values: Vec<_> = keys.iter().map(|key| change(*key, ((key * 7919) % 1000) as f32 / 100.0)).collect();
    let names = keys.iter().zip(&values).map(|(key, value)| (!value.2).then(|| format!("user {key}")));
    RecordBatch::try_from_iter_with_nullable([
        ("user_id", Arc::new(Int64Array::from(keys.clone())) as ArrayRef, true),
        ("x", Arc::new(Float32Array::from_iter_values(values.iter().map(|value| value.0))), true),
        ("y", Arc::new(Float32Array::from_iter(values.iter().map(|value| value.1))), true),
        ("name", Arc::new(StringArray::from_iter(names)), true),
    ])
    .unwrap()
}

fn good(_: i64, value: f32) -> (f32, Option<f32>, bool) {
    (value, Some(value), false)
}

fn views() -> Vec<Train> {
    let tensor = Tensor {
        name: "t".into(),
        columns: vec!["x".into(), "y".into()],
        null_value: Some(0.0),
        ..Tensor::default()
    };
    vec![
        Train { columns: vec!["x".into(), "y".into(), "name".into()], ..Train::default() },
        Train { tensors: vec![tensor], ..Train::default() },
        Train { columns: vec!["x".into()], filter: "x >= 1".into(), ..Train::default() },
    ]
}

fn online(folder: &Path, canary: Option<Canary>) -> OnlineDataset {
    let requirements = Requirements { views: views(), canary };
    online_with(spec(&["user_id"], None), 1 << 28, folder, Config::default(), requirements)
}

async fn x_of(online: &OnlineDataset, key: i64) -> f32 {
    let mut lookup = online.lookup(&views()[0], vec![]);
    rows(&lookup.look_up(&ids([key])).await.unwrap())["x"].as_primitive::<Float32Type>().value(0)
}

#[tokio::test]
async fn a_snapshot_with_broken_values_is_rejected_and_the_one_before_answers() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..KEYS, good)).await;
    let online = online(folder.path(), Some(Canary::default()));
    assert_eq!(online.load_snapshot(fixture.reader().await).await.unwrap(), Takeover::Done);
    let first = online.progress().ready.unwrap().snapshot;
    let before = x_of(&online, 3).await;
    let cases = [
        (users((0..KEYS).filter(|key| key % 20 > 0), good), "of 10000 keys of the current snapshot, "),
        (
            users(0..KEYS, |_, value| (value, (value > 2.0).then_some(value), false)),
            "of the values are null, before 0.00%",
        ),
        (users(0..KEYS, |_, value| (f32::NAN, Some(value), false)), "100.00% of the values are null"),
        (users(0..KEYS, |_, value| (value * 100.0, Some(value), false)), "the mean is "),
        (users(0..KEYS, |key, value| (value, Some(value), key % 2 == 0)), "column 'name': "),
        (
            users(0..KEYS, |key, value| (if key % 9 == 0 { 0.5 } else { value }, Some(value), false)),
            "are missing",
        ),
    ];
    for (broken, expected) in cases {
        fixture.write(0, &broken).await;
        let next = fixture.reader().await;
        let Takeover::Rejected { reason } = online.load_snapshot(next.clone()).await.unwrap() else {
            panic!("it must not answer: {expected}");
        };
        assert!(reason.contains(expected), "{reason}, expected {expected}");
        let progress = online.progress();
        assert_eq!(progress.ready.unwrap().snapshot, first);
        assert_eq!(progress.error, Some(format!("snapshot {} was rejected: {reason}", next.snapshot().id())));
        assert_eq!(x_of(&online, 3).await, before);
    }
    // Other rows with similar values.
    fixture
        .write(0, &users(0..KEYS + 1000, |key, _| good(key, ((key * 104_729) % 1000) as f32 / 100.0)))
        .await;
    assert_eq!(online.load_snapshot(fixture.reader().await).await.unwrap(), Takeover::Done);
    assert_eq!(online.progress().error, None);
    assert_ne!(x_of(&online, 3).await, before);
}

#[tokio::test]
async fn keys_of_any_type_are_compared() {
    for key in ["name", "user_id"] {
        let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
        fixture.write(0, &users(0..KEYS, good)).await;
        let canary = Some(Canary { keys: 100, ..Canary::default() });
        let requirements = Requirements { views: views(), canary };
        let online = online_with(spec(&[key], None), 1 << 28, folder.path(), Config::default(), requirements);
        assert_eq!(online.load_snapshot(fixture.reader().await).await.unwrap(), Takeover::Done);
        fixture.write(0, &users(KEYS..2 * KEYS, good)).await;
        let Takeover::Rejected { reason } = online.load_snapshot(fixture.reader().await).await.unwrap()
        else {
            panic!("all keys are missing");
        };
        assert!(reason.contains("keys of the current snapshot, ") && reason.contains("(100.00%"), "{reason}");
    }
}

#[tokio::test]
async fn a_pinned_snapshot_answers_until_it_is_unpinned() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    let online = online(folder.path(), Some(Canary::default()));
    // Each snapshot has a file of its own, so that the first one can be read again.
    fixture.write(0, &users(0..KEYS, good)).await;
    let first = fixture.reader().await;
    online.load_snapshot(first.clone()).await.unwrap();
    let before = x_of(&online, 3).await;
    fixture.write(1, &users((3..4).chain(KEYS..KEYS + 10), |_, _| (77.0, Some(1.0), false))).await;
    let second = fixture.reader().await;
    online.load_snapshot(second.clone()).await.unwrap();
    assert_eq!(x_of(&online, 3).await, 77.0);
    assert_eq!(online.progress().previous.as_deref(), Some(first.snapshot().id()));

    online.pin(first.clone()).await.unwrap();
    assert_eq!(x_of(&online, 3).await, before);
    assert_eq!(online.progress().pinned.as_deref(), Some(first.snapshot().id()));
    assert_eq!(online.load_snapshot(second.clone()).await.unwrap(), Takeover::Pinned);
    assert_eq!(x_of(&online, 3).await, before);

    online.unpin().await;
    online.unpinned().await;
    assert_eq!(online.load_snapshot(second.clone()).await.unwrap(), Takeover::Done);
    assert_eq!(x_of(&online, 3).await, 77.0);

    // A pin is not subject to the canary, and one that fails changes nothing.
    fixture.write(0, &users(0..KEYS, |_, _| (0.0, None, true))).await;
    fixture.delete(1).await;
    let broken = fixture.reader().await;
    assert!(matches!(online.load_snapshot(broken.clone()).await.unwrap(), Takeover::Rejected { .. }));
    online.pin(broken.clone()).await.unwrap();
    assert_eq!(x_of(&online, 3).await, 0.0);
    online.pin(second).await.unwrap_err();
    assert_eq!(online.progress().pinned.as_deref(), Some(broken.snapshot().id()));
}
