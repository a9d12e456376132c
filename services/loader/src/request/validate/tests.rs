use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};

use super::*;
use crate::test_data;

/// A valid request.
fn train() -> v1::Train {
    v1::Train { dataset: "d".into(), batch_size: 1, ..v1::Train::default() }
}

fn refused(train: &v1::Train) -> String {
    Dimensions::of(train).unwrap_err().to_string()
}

#[test]
fn numbers_of_a_request_outside_of_their_ranges_are_refused_with_the_range() {
    type Set = fn(&mut v1::Train, u64);
    let fields: [(&str, Set, u64, u64); 6] = [
        ("batch_size", |train, value| train.batch_size = value, 1, 1 << 20),
        ("world_size", |train, value| train.world_size = Some(value), 1, 65_536),
        ("lanes", |train, value| train.lanes = Some(value), 1, 256),
        ("epochs", |train, value| train.epochs = Some(value), 1, u64::MAX),
        ("rank", |train, value| (train.world_size, train.rank) = (Some(4), Some(value)), 0, 3),
        ("lane", |train, value| (train.lanes, train.lane) = (Some(4), Some(value)), 0, 3),
    ];
    for (field, set, min, max) in fields {
        let with = |value| {
            let mut train = train();
            set(&mut train, value);
            train
        };
        for value in [min, max] {
            Dimensions::of(&with(value)).unwrap_or_else(|error| panic!("{error}"));
        }
        for value in [min.checked_sub(1), max.checked_add(1)].into_iter().flatten() {
            let error = refused(&with(value));
            assert!(error.contains(&format!("{field}: is {value}, expected {min} to {max}")), "{error}");
        }
    }
}

#[test]
fn absent_numbers_are_one_and_the_current_plan_version() {
    let Dimensions { world_size, lanes, epochs, plan_version, semantics } = Dimensions::of(&train()).unwrap();
    assert_eq!((world_size, lanes, epochs, plan_version, semantics), (1, 1, 1, PLAN_VERSION.into(), None));
    let versioned = |plan_version| v1::Train { plan_version, ..train() };
    assert!(Dimensions::of(&versioned(PLAN_VERSION.into())).is_ok());
    let error = refused(&versioned(u64::from(PLAN_VERSION) + 1));
    assert!(error.contains(&format!("this server supports version {PLAN_VERSION}")), "{error}");
}

#[test]
fn the_last_epoch_of_a_request_must_fit_into_a_u64() {
    let epochs = |epoch, epochs| v1::Train { epoch, epochs: Some(epochs), ..train() };
    assert!(Dimensions::of(&epochs(u64::MAX - 2, 3)).is_ok());
    let error = refused(&epochs(u64::MAX - 2, 4));
    assert!(error.contains("and 4 epochs from there exceed the last epoch"), "{error}");
}

#[test]
fn a_job_name_has_at_most_256_bytes() {
    let named = |bytes| v1::Train { job_name: "x".repeat(bytes), ..train() };
    assert!(Dimensions::of(&named(256)).is_ok());
    let error = refused(&named(257));
    assert!(error.contains("has 257 bytes, expected at most 256"), "{error}");
}

fn partitions(partitions: u64, ranks: u64) -> v1::Train {
    let shuffle = v1::Shuffle { partitions: Some(partitions), ..v1::Shuffle::default() };
    v1::Train { shuffle: Some(shuffle), world_size: Some(ranks), ..train() }
}

#[test]
fn a_rank_reads_at_most_256_partitions() {
    let blocks = vec![1; 2048];
    assert_eq!(resolve_partitions(&partitions(512, 2), 512, &blocks).unwrap(), 512);
    let error = resolve_partitions(&partitions(514, 2), 514, &blocks).unwrap_err().to_string();
    assert!(error.contains("expected at most 512 for 2 ranks"), "{error}");
}

#[test]
fn a_partition_has_at_least_two_blocks_with_rows() {
    let blocks = |with_rows| [vec![1; with_rows], vec![0; 100]].concat();
    assert_eq!(resolve_partitions(&partitions(4, 1), 4, &blocks(8)).unwrap(), 4);
    for (with_rows, most) in [(7, 3), (1, 1), (0, 1)] {
        let error = resolve_partitions(&partitions(4, 1), 4, &blocks(with_rows)).unwrap_err().to_string();
        let expected = format!("has {with_rows} blocks with rows; expected at most {most}");
        assert!(error.contains(&expected), "{error}");
    }
    let grouped = v1::Train { group_by: vec!["k".into()], ..partitions(4, 1) };
    let error = resolve_partitions(&grouped, 4, &blocks(7)).unwrap_err().to_string();
    assert!(error.contains("has 7 blocks with groups"), "{error}");
}

#[test]
fn a_default_window_of_a_partition_has_eight_blocks_of_mean_size() {
    assert_eq!(min_default_window_rows(64, 10_000_000, 1000), 64 * 8 * 10_000);
    assert_eq!(min_default_window_rows(2, 201, 100), 2 * 8 * 3);
    assert_eq!(min_default_window_rows(4096, u64::MAX, 0), u64::MAX);
}

/// Snapshot with the columns `number`, `truth` and `text`, and its rows.
async fn snapshot() -> (Arc<Snapshot>, JobRows) {
    let number: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    let truth: ArrayRef = Arc::new(BooleanArray::from(vec![true; 100]));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x"; 100]));
    let batch = RecordBatch::try_from_iter([("number", number), ("truth", truth), ("text", text)]).unwrap();
    let snapshot = Arc::clone(test_data::reader("d", [batch]).await.snapshot());
    let rows = JobRows::new(&snapshot, None);
    (snapshot, rows)
}

#[tokio::test]
async fn a_label_is_a_number_or_a_boolean() {
    let (snapshot, _) = snapshot().await;
    let tensor = v1::Tensor { name: "y".into(), columns: vec!["number".into()], ..v1::Tensor::default() };
    let label = |name: &str| {
        let train =
            v1::Train { label_column: name.into(), tensors: vec![tensor.clone()], ..v1::Train::default() };
        label_column(&snapshot, &train)
    };
    assert_eq!(label("").unwrap(), None);
    assert_eq!(label("number").unwrap(), Some(0));
    assert_eq!(label("truth").unwrap(), Some(1));
    let error = label("text").unwrap_err().to_string();
    assert!(error.contains("column 'text' is of type Utf8, expected a number"), "{error}");
    let error = label("y").unwrap_err().to_string();
    assert!(error.contains("'y' is a tensor, expected a column of the dataset, such as 'number'"), "{error}");
}

#[tokio::test]
async fn a_shuffle_is_a_window_global_or_none_and_keeps_the_block_order_only_with_a_window() {
    let (snapshot, rows) = snapshot().await;
    let resolve = |shuffle| resolve_shuffle(Some(&shuffle), 10, 1, &rows, &snapshot);
    let window = |rows| v1::Shuffle { window_rows: Some(rows), ..v1::Shuffle::default() };
    let global = v1::Shuffle { global: Some(v1::shuffle::Global {}), ..v1::Shuffle::default() };
    let none = v1::Shuffle { none: Some(v1::shuffle::None {}), ..v1::Shuffle::default() };
    let in_order = |shuffle| v1::Shuffle { keep_block_order: true, ..shuffle };
    let of = |rows, keep_block_order| Shuffle::Window { rows, keep_block_order };
    assert_eq!(resolve(window(7)).unwrap(), of(7, false));
    assert_eq!(resolve(in_order(window(7))).unwrap(), of(7, true));
    assert_eq!(resolve(global).unwrap(), Shuffle::Global);
    assert_eq!(resolve(none).unwrap(), Shuffle::None);
    let error = resolve(window(0)).unwrap_err().to_string();
    assert!(error.contains("shuffle.window_rows: is 0, expected at least 1"), "{error}");
    for shuffle in [
        in_order(global),
        in_order(none),
        v1::Shuffle { window_rows: Some(7), ..global },
        v1::Shuffle { window_rows: Some(7), ..none },
        v1::Shuffle { none: none.none, ..global },
    ] {
        let error = resolve(shuffle).unwrap_err().to_string();
        assert!(error.contains("expected one of window_rows, global and none"), "{error}");
    }
}

#[tokio::test]
async fn a_default_window_depends_on_the_size_of_kept_rows_and_the_number_of_partitions() {
    let (snapshot, mut rows) = snapshot().await;
    let window = |rows, keep_block_order| Shuffle::Window { rows, keep_block_order };
    for (kept, global_batch) in [(100, 10), (50, 10), (0, 10), (100, 1 << 30)] {
        rows.epoch_rows = kept;
        let bytes = u128::from(snapshot.uncompressed_bytes()) * u128::from(kept) / 100;
        let expected = default_window_rows(global_batch, kept, bytes as u64);
        for partitions in [1, 2] {
            let default = resolve_shuffle(None, global_batch, partitions, &rows, &snapshot).unwrap();
            assert_eq!(default, window(expected, false));
        }
        let in_order = v1::Shuffle { keep_block_order: true, ..v1::Shuffle::default() };
        let default = resolve_shuffle(Some(&in_order), global_batch, 1, &rows, &snapshot).unwrap();
        assert_eq!(default, window(expected, true));
    }
    // With several partitions, a window has eight blocks of 200,000 rows for each.
    (rows.items, rows.epoch_rows) = (vec![200_000; 40].into(), 8_000_000);
    let default = |partitions| resolve_shuffle(None, 10, partitions, &rows, &snapshot).unwrap();
    assert_eq!(default(1), window(1 << 20, false));
    assert_eq!(default(2), window(2 * 8 * 200_000, false));
    assert_eq!(default(4), window(4 * 8 * 200_000, false));
}

#[test]
fn the_message_of_a_shuffle_has_partitions_only_if_there_are_several() {
    let window = Shuffle::Window { rows: 7, keep_block_order: true };
    let message = shuffle_message(window, 1);
    assert_eq!((message.window_rows, message.keep_block_order, message.partitions), (Some(7), true, None));
    assert_eq!(shuffle_message(window, 2).partitions, Some(2));
    let global = shuffle_message(Shuffle::Global, 1);
    assert_eq!((global.global.is_some(), global.none.is_some(), global.window_rows), (true, false, None));
    let none = shuffle_message(Shuffle::None, 1);
    assert_eq!((none.global.is_some(), none.none.is_some(), none.window_rows), (false, true, None));
}

#[test]
fn by_default_a_remainder_is_short_for_one_rank_and_one_dataset_and_dropped_otherwise() {
    let resolved = |remainder: i32, world_size, is_mixture| {
        let train = v1::Train { remainder, ..train() };
        resolve_remainder(&train, world_size, is_mixture)
    };
    let auto = v1::Remainder::Auto.into();
    assert_eq!(resolved(auto, 1, false).unwrap(), Remainder::Short);
    for (world_size, is_mixture) in [(2, false), (1, true), (2, true)] {
        assert_eq!(resolved(auto, world_size, is_mixture).unwrap(), Remainder::Drop);
    }
    for remainder in [Remainder::Short, Remainder::Drop, Remainder::Pad] {
        assert_eq!(resolved(remainder_message(remainder), 2, true).unwrap(), remainder);
    }
    let error = resolved(99, 1, false).unwrap_err().to_string();
    assert!(error.contains("remainder: 99 is not known"), "{error}");
}
