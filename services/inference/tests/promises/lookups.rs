//! Promises of lookups: the right row for every key, all rows from one snapshot, equal to the rows of training.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow_array::{
    Array, ArrayRef, BinaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, UInt8Array,
    cast::AsArray,
    types::{Float32Type, Int64Type, UInt8Type},
};
use forebay_inference::{Config, KeyIndex, KeySpec, LookupMemory, OnlineDataset, Progress, Requirements};
use forebay_loader::{Error, Loader};
use forebay_proto::v1::{Remainder, Shuffle, Tensor, Train, shuffle};
use forebay_storage::Reader;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use proptest::prelude::*;

use crate::fixture::{Fixture, blocks, ids, online_with_views, pool, rows, spec, users};

fn online(spec: KeySpec, memory_bytes: u64, folder: &Path, config: Config) -> OnlineDataset {
    online_with_views(spec, memory_bytes, folder, config, &[])
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

type Row = (Option<i32>, Option<String>, Option<Vec<u8>>, Option<f64>);

fn table(rows: &[Row]) -> RecordBatch {
    let long = |value: i32| i64::from(value) * 0x1234_5678_9abc;
    let columns: [(&str, ArrayRef); 5] = [
        ("i", Arc::new(rows.iter().map(|row| row.0).collect::<Int32Array>())),
        ("l", Arc::new(rows.iter().map(|row| row.0.map(long)).collect::<Int64Array>())),
        ("s", Arc::new(rows.iter().map(|row| row.1.clone()).collect::<StringArray>())),
        ("b", Arc::new(rows.iter().map(|row| row.2.clone()).collect::<BinaryArray>())),
        ("t", Arc::new(rows.iter().map(|row| row.3).collect::<Float64Array>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, values)| (name, values, true))).unwrap()
}

fn some_rows() -> impl Strategy<Value = Vec<Row>> {
    let row = (
        prop::option::weighted(0.9, -20..20),
        prop::option::weighted(0.9, "[ab]{0,3}"),
        prop::option::weighted(0.9, prop::collection::vec(0..3_u8, 0..3)),
        prop::option::weighted(0.8, (-3..3).prop_map(f64::from)),
    );
    prop::collection::vec(row, 1..300)
}

/// Returns the key of a row as text; `None` if one of its columns is null.
fn key_of(row: &Row, key: &[&str]) -> Option<String> {
    let part = |name: &&str| match *name {
        "i" | "l" => row.0.map(|value| format!("{value}/")),
        "s" => row.1.as_ref().map(|value| format!("{value:?}/")),
        _ => row.2.as_ref().map(|value| format!("{value:?}/")),
    };
    key.iter().map(part).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn every_key_is_found_at_its_selected_row(
        written in some_rows(),
        asked in some_rows(),
        file_rows in 30..200_usize,
        key in prop::sample::select(vec![
            vec!["i"], vec!["l"], vec!["i", "l"], vec!["s"], vec!["b"], vec!["i", "s"], vec!["b", "i", "s"],
        ]),
        ordered in any::<bool>(),
    ) {
        let mut expected: HashMap<String, usize> = HashMap::new();
        for (number, row) in written.iter().enumerate() {
            let Some(key) = key_of(row, &key) else { continue };
            let earlier = expected.get(&key).map(|row| written[*row].3);
            // Null is the least value, and the last of equal rows is selected.
            if !ordered || earlier.is_none_or(|earlier| row.3 >= earlier) {
                expected.insert(key, number);
            }
        }
        block_on(async {
            let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
            for (file, rows) in written.chunks(file_rows).enumerate() {
                fixture.write(file, &table(rows)).await;
            }
            let reader = fixture.reader().await;
            let spec = spec(&key, ordered.then_some("t"));
            let built = KeyIndex::build(&reader, &spec, &blocks(), 3, |_| {}).await.unwrap();
            assert_eq!(built.len(), expected.len() as u64);
            built.save(folder.path(), &reader, &spec).unwrap();
            let found = KeyIndex::open(folder.path(), &reader, &spec).unwrap();
            for index in [built, found] {
                for rows in [&written, &asked] {
                    let keys = index.key().encode(&table(rows)).unwrap();
                    let wanted: Vec<_> = rows
                        .iter()
                        .map(|row| expected.get(&key_of(row, &key)?).map(|row| *row as u64))
                        .collect();
                    assert_eq!(index.rows(&keys), wanted);
                }
            }
        });
    }
}

#[tokio::test]
async fn a_corrupt_index_is_deleted() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    let rows: Vec<Row> = (0..100).map(|row| (Some(row), Some(format!("{row}")), None, None)).collect();
    fixture.write(0, &table(&rows)).await;
    let reader = fixture.reader().await;
    for key in [&["i"][..], &["l"], &["i", "l"], &["s"]] {
        check_corrupt_files_are_deleted(&reader, &spec(key, None), folder.path()).await;
    }
}

async fn check_corrupt_files_are_deleted(reader: &Reader, spec: &KeySpec, folder: &Path) {
    let index = KeyIndex::build(reader, spec, &blocks(), 1, |_| {}).await.unwrap();
    index.save(folder, reader, spec).unwrap();
    KeyIndex::delete_others(folder, &[reader], spec);
    let path = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let sound = std::fs::read(&path).unwrap();
    for at in (0..sound.len()).step_by(7) {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(KeyIndex::open(folder, reader, spec).is_none(), "byte {at}");
        assert!(!path.exists());
    }
    for length in (0..sound.len()).step_by(11) {
        std::fs::write(&path, &sound[..length]).unwrap();
        assert!(KeyIndex::open(folder, reader, spec).is_none(), "{length} bytes");
    }
    // A corrupt file with a valid hash is deleted, or its lookups return without a panic.
    let keys = index.key().encode(&table(&[(Some(7), Some("7".into()), None, None)])).unwrap();
    for at in 16..sound.len() - 8 {
        let mut bytes = sound.clone();
        bytes[at] = if at % 2 == 0 { 0 } else { bytes[at].wrapping_add(1) };
        let hashed = bytes.len() - 8;
        let hash = xxhash_rust::xxh3::xxh3_64(&bytes[..hashed]);
        bytes[hashed..].copy_from_slice(&hash.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        if let Some(index) = KeyIndex::open(folder, reader, spec) {
            assert_eq!(index.rows(&keys).len(), 1);
        }
    }
    std::fs::write(&path, &sound).unwrap();
    assert!(KeyIndex::open(folder, reader, spec).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_many_shards_are_found_before_and_after_a_restart() {
    const ROWS: i32 = 600_000;
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    let long = |row: i32| i64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    let columns: [(&str, ArrayRef); 3] = [
        ("short", Arc::new((0..ROWS).map(|row| row.wrapping_mul(-7)).collect::<Int32Array>())),
        ("long", Arc::new((0..ROWS).map(long).collect::<Int64Array>())),
        ("text", Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("{row:x}"))))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    fixture.write(0, &batch).await;
    let reader = fixture.reader().await;
    for key in ["short", "long", "text"] {
        let spec = spec(&[key], None);
        let built = KeyIndex::build(&reader, &spec, &blocks(), 8, |_| {}).await.unwrap();
        built.save(folder.path(), &reader, &spec).unwrap();
        let saved = KeyIndex::open(folder.path(), &reader, &spec).unwrap();
        let keys = built.key().encode(&batch).unwrap();
        for index in [&built, &saved] {
            assert_eq!((index.len(), index.memory_bytes()), (ROWS as u64, built.memory_bytes()));
            assert!(index.rows(&keys).into_iter().eq((0..ROWS as u64).map(Some)), "{key}");
        }
        let others: [(&str, ArrayRef); 3] = [
            ("short", Arc::new((1..ROWS).map(|row| row * 7).collect::<Int32Array>())),
            ("long", Arc::new((ROWS..2 * ROWS).map(long).collect::<Int64Array>())),
            ("text", Arc::new(StringArray::from_iter_values((0..ROWS).map(|row| format!("{row:x}?"))))),
        ];
        let others = others.into_iter().filter(|(name, _)| *name == key);
        let absent = saved.key().encode(&RecordBatch::try_from_iter(others).unwrap()).unwrap();
        assert!(saved.rows(&absent).into_iter().all(|row| row.is_none()), "{key}");
    }
}

#[tokio::test]
async fn rows_of_missing_keys_are_null_or_zero_and_marked_in_found() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..30_000, 1)).await;
    let online = online(spec(&["user_id"], None), 1 << 28, folder.path(), Config::default());
    let tensor = Tensor {
        name: "x".into(),
        columns: vec!["user_id".into(), "version".into()],
        dtype: "float32".into(),
        ..Tensor::default()
    };
    let wanted =
        Train { columns: vec!["user_id".into(), "name".into()], tensors: vec![tensor], ..Train::default() };
    let mut lookup = online.lookup(&wanted, vec![]);
    assert!(matches!(lookup.look_up(&ids([1])).await, Err(Error::Unavailable(_))));
    online.load_snapshot(fixture.reader().await).await.unwrap();
    // Small lookups run inline, large ones on the pool.
    for many in [0, 3000] {
        let asked: Vec<i64> = [29_999, -1, 0, 30_000, 7, 7].into_iter().chain(0..many).collect();
        let rows = rows(&lookup.look_up(&ids(asked.clone())).await.unwrap());
        for (row, id) in asked.into_iter().enumerate() {
            let exists = (0..30_000).contains(&id);
            assert_eq!(rows["found"].as_primitive::<UInt8Type>().value(row), u8::from(exists));
            let x = rows["x"].as_fixed_size_list().value(row);
            let x = x.as_primitive::<Float32Type>().values().to_vec();
            assert_eq!(rows["user_id"].is_valid(row), exists);
            assert_eq!(rows["name"].is_valid(row), exists);
            if exists {
                assert_eq!(rows["user_id"].as_primitive::<Int64Type>().value(row), id);
                assert_eq!(rows["name"].as_string::<i32>().value(row), format!("user {id}"));
                assert_eq!(x, [id as f32, 1.0]);
            } else {
                assert_eq!(x, [0.0, 0.0]);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_change_under_load_fails_no_lookup_and_mixes_no_snapshots() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..5000, 0)).await;
    let online = online(spec(&["user_id"], None), 1 << 28, folder.path(), Config::default());
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let (stop, lookups) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..3)
        .map(|caller| {
            let (online, stop, lookups) = (online.clone(), Arc::clone(&stop), Arc::clone(&lookups));
            tokio::spawn(async move {
                let mut lookup = online.lookup(&Train::default(), vec![]);
                while !stop.load(Ordering::Relaxed) {
                    let asked = (0..200).map(|key| (key * 37 + caller) % 6000);
                    let rows = rows(&lookup.look_up(&ids(asked)).await.unwrap());
                    let version = rows["version"].as_primitive::<Int64Type>();
                    assert_eq!(version, rows["again"].as_primitive::<Int64Type>());
                    let all: std::collections::HashSet<i64> = version.iter().flatten().collect();
                    assert_eq!(all.len(), 1, "rows of one snapshot");
                    lookups.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for snapshot in 1..=100 {
        // A different number of rows each time, so that positions differ, too.
        fixture.write(0, &users(0..5000 - snapshot % 7, snapshot)).await;
        online.load_snapshot(fixture.reader().await).await.unwrap();
        let rows = rows(&online.lookup(&Train::default(), vec![]).look_up(&ids([3])).await.unwrap());
        assert_eq!(rows["version"].as_primitive::<Int64Type>().value(0), snapshot);
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(lookups.load(Ordering::Relaxed) > 100);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "that of the previous snapshot is kept");
}

#[tokio::test]
async fn a_row_that_does_not_match_the_filter_counts_as_missing() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..40_000, 1)).await;
    let online = online(spec(&["user_id"], None), 1 << 28, folder.path(), Config::default());
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let asked: Vec<i64> = (-5..40_005).step_by(7).collect();
    type Matches = fn(i64) -> bool;
    // Statistics decide the filter for all blocks, for some blocks and for no block.
    let filters: [(&str, Matches); 5] = [
        ("user_id >= 0", |_| true),
        ("version IS NULL", |_| false),
        ("user_id < 20000", |id| id < 20_000),
        ("user_id % 3 = 0", |id| id % 3 == 0),
        ("name LIKE '%7' AND user_id > 100", |id| id % 10 == 7 && id > 100),
    ];
    for (filter, matches) in filters {
        let wanted = Train { filter: filter.into(), columns: vec!["user_id".into()], ..Train::default() };
        let answer = online.lookup(&wanted, vec![]).look_up(&ids(asked.clone())).await.unwrap();
        let rows = rows(&answer);
        let expected: Vec<Option<i64>> =
            asked.iter().map(|id| Some(*id).filter(|id| (0..40_000).contains(id) && matches(*id))).collect();
        assert_eq!(
            rows["user_id"].as_primitive::<Int64Type>().iter().collect::<Vec<_>>(),
            expected,
            "{filter}"
        );
        assert_eq!(answer.found, [expected.iter().flatten().count() as u64]);
        let found = rows["found"].as_primitive::<UInt8Type>();
        assert!(found.values().iter().map(|found| *found == 1).eq(expected.iter().map(Option::is_some)));
    }
    let wanted = Train { filter: "user_ids > 1".into(), ..Train::default() };
    let error = online.lookup(&wanted, vec![]).look_up(&ids([1])).await.err().unwrap().to_string();
    assert!(error.starts_with("filter") && error.contains("'user_id'"), "{error}");
}

#[tokio::test]
async fn the_progress_of_an_index_is_visible_while_it_is_built() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..80_000, 1)).await;
    let online = online(spec(&["user_id"], None), 1 << 28, folder.path(), Config::default());
    assert_eq!(online.progress(), Progress::default());
    let throttle =
        ThrottleConfig { wait_get_per_call: Duration::from_millis(5), ..ThrottleConfig::default() };
    let slow = Arc::new(ThrottledStore::new(Arc::clone(&fixture.store), throttle));
    let reader = fixture.reader_through(slow).await.unwrap();
    let mut seen = Vec::new();
    let watch = async {
        loop {
            seen.extend(online.progress().indexing);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        adopted = online.load_snapshot(reader) => drop(adopted.unwrap()),
        () = watch => {}
    }
    assert!(seen.iter().any(|indexed| indexed.rows_done < 80_000), "no progress was visible");
    assert!(
        seen.is_sorted_by_key(|indexed| indexed.rows_done)
            && seen.iter().all(|indexed| indexed.rows == 80_000)
    );
    let progress = online.progress();
    assert_eq!((progress.indexing, progress.error), (None, None));
    let ready = progress.ready.unwrap();
    assert_eq!((ready.keys, ready.snapshot), (80_000, fixture.reader().await.snapshot().id().to_owned()));
    assert!((80_000 * 12..80_000 * 24).contains(&ready.index_bytes), "{}", ready.index_bytes);
}

#[tokio::test]
async fn rows_that_do_not_fit_are_refused_with_their_bytes_and_loaded_rows_remain_available() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..80_000, 1)).await;
    let reader = fixture.reader().await;
    let small = online(spec(&["user_id"], None), 1 << 20, folder.path(), Config::default());
    let error = small.load_snapshot(reader.clone()).await.unwrap_err().to_string();
    assert!(error.starts_with("the index of 'd' needs 1280000 bytes, the limit is 1048576"), "{error}");
    assert!(!small.is_ready());
    assert_eq!(small.progress(), Progress { error: Some(error), ..Progress::default() });
    // There is no room for another view.
    let online = online(spec(&["user_id"], None), 6 << 20, folder.path(), Config::default());
    online.load_snapshot(reader).await.unwrap();
    let select =
        ["a", "b", "c", "d"].map(|letter| format!("name || name || '{letter}' AS {letter}")).to_vec();
    let mut lookup = online.lookup(&Train { select, ..Train::default() }, vec![]);
    let error = lookup.look_up(&ids([1])).await.err().unwrap();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let found = online.lookup(&Train::default(), vec![]).look_up(&ids([1])).await.unwrap();
    assert_eq!(found.batch.rows, 1);
}

#[tokio::test]
async fn a_lookup_and_a_stream_of_the_same_rows_do_not_disturb_each_other() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    for file in 0..3 {
        fixture.write(file, &users(file as i64 * 20_000..(file as i64 + 1) * 20_000, 1)).await;
    }
    let reader = fixture.reader().await;
    let loader = Loader::new(1 << 28, forebay_loader::Config::default(), pool());
    loader.reserve_for_lookups(1 << 27).unwrap();
    let tensor = Tensor {
        name: "x".into(),
        columns: vec!["user_id".into()],
        dtype: "int64".into(),
        ..Tensor::default()
    };
    let none = Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() };
    let train = Train {
        dataset: "d".into(),
        tensors: vec![tensor.clone()],
        batch_size: 100,
        shuffle: Some(none),
        remainder: Remainder::Pad.into(),
        ..Train::default()
    };
    let job = loader.job(train, reader.clone(), Vec::new()).await.unwrap();
    let mut batches = loader.batches(job, 0, 0);
    batches.next().await.unwrap().unwrap();
    let online = OnlineDataset::new(
        "d",
        spec(&["user_id"], None),
        Config::default(),
        LookupMemory::new(loader.clone()),
        (pool(), pool()),
        folder.path().to_owned(),
        Requirements::default(),
    );
    online.load_snapshot(reader).await.unwrap();
    let mut lookup = online.lookup(&Train { tensors: vec![tensor], ..Train::default() }, vec![]);
    let found = rows(&lookup.look_up(&ids((0..60_000).step_by(999))).await.unwrap());
    assert_eq!(found["found"].as_primitive::<UInt8Type>().values().to_vec(), vec![1; found.num_rows()]);
}

#[tokio::test]
async fn times_that_the_key_type_cannot_represent_are_not_found() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    let days: ArrayRef = Arc::new(arrow_array::Date32Array::from(vec![0, 1, 19_000]));
    fixture.write(0, &RecordBatch::try_from_iter([("day", days)]).unwrap()).await;
    let online = online(spec(&["day"], None), 1 << 28, folder.path(), Config::default());
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let day = 86_400_000_000;
    let asked = vec![day, day + 1, -1, 0, 19_000 * day, 19_000 * day - 1];
    let asked: ArrayRef = Arc::new(arrow_array::TimestampMicrosecondArray::from(asked));
    let asked = RecordBatch::try_from_iter([("day", asked)]).unwrap();
    let found = rows(&online.lookup(&Train::default(), vec![]).look_up(&asked).await.unwrap());
    assert_eq!(found["found"].as_primitive::<UInt8Type>().values().to_vec(), [1, 0, 0, 1, 1, 0]);
}

#[tokio::test]
async fn idle_lookups_release_old_snapshots_and_a_failing_view_does_not_block_the_next_one() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..60_000, 7)).await;
    // There is room for two snapshots, not for three.
    let online = online(spec(&["user_id"], None), 16 << 20, folder.path(), Config::default());
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let mut idle = Vec::new();
    let select = vec!["100 / (version - 8) AS y".to_owned()];
    online
        .lookup(&Train { select: select.clone(), ..Train::default() }, vec![])
        .look_up(&ids([1]))
        .await
        .unwrap();
    for snapshot in [8, 9, 10, 11] {
        let mut lookup = online.lookup(&Train::default(), vec![]);
        lookup.look_up(&ids([1])).await.unwrap();
        idle.push(lookup);
        fixture.write(0, &users(0..60_000, snapshot)).await;
        online.load_snapshot(fixture.reader().await).await.unwrap();
    }
    fixture.write(0, &users(0..60_000, 8)).await;
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let error =
        online.lookup(&Train { select, ..Train::default() }, vec![]).look_up(&ids([1])).await.err().unwrap();
    assert!(error.to_string().contains("Divide by zero"), "{error}");
    for lookup in &mut idle {
        let found = rows(&lookup.look_up(&ids([1])).await.unwrap());
        assert_eq!(found["version"].as_primitive::<Int64Type>().value(0), 8);
    }
}

#[tokio::test]
async fn keys_of_other_widths_are_converted_and_incompatible_keys_refused_by_name() {
    let (fixture, folder) = (Fixture::new(), tempfile::tempdir().unwrap());
    fixture.write(0, &users(0..300, 1)).await;
    let config = Config { max_keys: 100, max_views: 2, ..Config::default() };
    let online = online(spec(&["user_id"], None), 1 << 28, folder.path(), config);
    online.load_snapshot(fixture.reader().await).await.unwrap();
    let mut lookup = online.lookup(&Train::default(), vec![]);
    let of = |name: &str, keys: ArrayRef| RecordBatch::try_from_iter([(name, keys)]).unwrap();
    let bytes = lookup.look_up(&of("user_id", Arc::new(UInt8Array::from(vec![7, 200])))).await.unwrap();
    assert_eq!(bytes.batch.rows, 2);
    for (keys, expected) in [
        (of("id", Arc::new(Int64Array::from(vec![1]))), "keys: there is no column 'user_id' among [\"id\"]"),
        (of("user_id", Arc::new(StringArray::from(vec!["1"]))), "keys: column 'user_id' is of type Utf8"),
        (ids(0..101), "keys: 101 at once, expected at most 100"),
    ] {
        let error = lookup.look_up(&keys).await.err().unwrap().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    // More views than are held in memory: each lookup is answered.
    for round in 0..3 {
        for column in ["version", "again", "name"] {
            let wanted = Train { columns: vec![column.into()], ..Train::default() };
            let found = rows(&online.lookup(&wanted, vec![]).look_up(&ids([5])).await.unwrap());
            assert_eq!(found.num_columns(), 2, "{round} {column}");
        }
    }
}
