//! Prefetch limits: number of batches produced before the consumer takes them.

use std::{sync::Arc, time::Duration};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use forebay_loader::{Batches, Config, Loader, Pool, Purpose};
use forebay_proto::v1::{Shuffle, Train, shuffle};
use forebay_storage::Reader;

use object_store::throttle::{ThrottleConfig, ThrottledStore};

use crate::fixture::{counters::Counters, drain, job, loader, numbered, reader, store};

const GATHERED: &str = "forebay_gather_duration_seconds";
const DECODED: &str = "forebay_decode_duration_seconds";

/// Returns the number of batches produced beyond `taken`, once the number stops growing.
async fn made_by_itself(counters: &Counters, taken: u64) -> u64 {
    let (mut before, mut looks) = (0, 0);
    while looks < 10 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let made = counters.get(GATHERED) - taken;
        looks = if made > 0 && made == before { looks + 1 } else { 0 };
        before = made;
    }
    before
}

async fn take(batches: &mut Batches, count: u64) {
    for _ in 0..count {
        batches.next().await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_batch_does_not_exceed_the_prefetch_budget() {
    let counters = Counters::from_zero().await;
    let reader = reader(store(&[numbered(0..10_007)], 1 << 20).await).await;
    let train = Train { batch_size: 1000, columns: vec!["id".into()], epochs: Some(100), ..Train::default() };
    // Four batches of 1,000 rows of 8 bytes, plus message overhead.
    let config = Config { prefetch_bytes: 40_000, ..Config::default() };
    let loader = loader(1 << 30, 2, config);
    let mut batches = loader.batches(job(&train, &reader), 0, 0);
    // The last batch of the epoch has 7 rows.
    take(&mut batches, 11).await;
    let made = made_by_itself(&counters, 11).await;
    assert!((1..=4).contains(&made), "{made}");
    take(&mut batches, 11).await;
    let made = made_by_itself(&counters, 22).await;
    assert!((1..=5).contains(&made), "the short one is among them: {made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_batch_is_sent_before_a_second_one_is_made_and_few_small_ones_wait() {
    let counters = Counters::from_zero().await;
    let reader = reader(store(&[numbered(0..20_000)], 1 << 20).await).await;
    let train = Train { batch_size: 1, columns: vec!["id".into()], ..Train::default() };
    let loader = loader(1 << 30, 2, Config::default());
    let mut batches = loader.batches(job(&train, &reader), 0, 0);
    assert_eq!(made_by_itself(&counters, 0).await, 1);
    let mut taken = 0;
    for count in [1, 300] {
        take(&mut batches, count).await;
        taken += count;
        while counters.get(GATHERED) < taken + 128 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(made_by_itself(&counters, taken).await, 128, "after {taken}");
    }
}

/// Dataset of six blocks of 1,000 rows, and a request with windows of two blocks and batches of 100 rows.
async fn windows_of_two_blocks() -> (Reader, Train) {
    let files: Vec<_> = (0..6).map(|file| numbered(file * 1000..(file + 1) * 1000)).collect();
    let shuffle = Shuffle { window_rows: Some(2000), ..Shuffle::default() };
    let train = Train { batch_size: 100, shuffle: Some(shuffle), ..Train::default() };
    (reader(store(&files, 1000).await).await, train)
}

/// Settings with which one finished batch waits for the consumer, and one window is prefetched.
fn little_ahead() -> Config {
    let slow_consumer_timeout = Duration::from_secs(600);
    Config { prefetch_bytes: 1, window_prefetch_bytes: 1, slow_consumer_timeout, ..Config::default() }
}

/// Waits until `count` blocks were decoded.
async fn decoded(counters: &Counters, count: u64) {
    while counters.get(DECODED) < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(counters.get(DECODED), count);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_window_is_decoded_before_the_last_batch_of_this_one_is_taken() {
    let counters = Counters::from_zero().await;
    let (reader, train) = windows_of_two_blocks().await;
    let job = job(&train, &reader);
    let loader = loader(3 * job.summary().window_bytes, 2, little_ahead());
    let mut batches = loader.batches(job, 0, 0);
    take(&mut batches, 1).await;
    decoded(&counters, 4).await;
    // The first window has 20 batches.
    take(&mut batches, 21).await;
    decoded(&counters, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_for_which_there_was_no_memory_is_prefetched_when_there_is_some() {
    let counters = Counters::from_zero().await;
    let (reader, train) = windows_of_two_blocks().await;
    let [job, other] = [0, 1].map(|seed| job(&Train { seed, ..train.clone() }, &reader));
    // Another view of the rows, so that no frame is shared.
    let other = Train { columns: vec!["id".into(), "x".into()], ..other.train().clone() };
    let other = crate::fixture::job(&other, &reader);
    // Memory for two windows of the other job and one and a half of this one.
    let [window, other_window] = [&job, &other].map(|job| job.summary().window_bytes);
    let loader = loader(2 * other_window + window + window / 2, 2, little_ahead());
    let mut holding = loader.batches(other, 0, 0);
    take(&mut holding, 1).await;
    decoded(&counters, 4).await;
    let mut batches = loader.batches(job, 0, 0);
    take(&mut batches, 2).await;
    decoded(&counters, 6).await;
    drop(holding);
    while loader.reserved_bytes() > window + window / 2 && counters.get(DECODED) < 8 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Each batch tries again when it begins. The first window has 20 batches, of which some may have begun before.
    take(&mut batches, 8).await;
    decoded(&counters, 8).await;
}

#[tokio::test(start_paused = true)]
async fn several_windows_of_one_batch_are_loaded_concurrently() {
    let _counters = Counters::from_zero().await;
    let files: Vec<_> = (0..60).map(|file| numbered(file * 100..(file + 1) * 100)).collect();
    let delay = ThrottleConfig { wait_get_per_call: Duration::from_millis(50), ..ThrottleConfig::default() };
    let reader = reader(Arc::new(ThrottledStore::new(store(&files, 100).await, delay))).await;
    // In file order, each file is a window. A batch has ten.
    let shuffle = Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() };
    let job = job(&Train { batch_size: 1000, shuffle: Some(shuffle), ..Train::default() }, &reader);
    let pool = Pool::simulated(1, || Duration::from_millis(1));
    let loader = Loader::new(1 << 30, Config::default(), pool);
    let streaming = tokio::spawn(drain(loader.batches(job, 0, 0)));
    while loader.reads_in_flight(Purpose::Window) < 4 {
        assert!(!streaming.is_finished(), "windows were loaded one after the other");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(streaming.await.unwrap().unwrap().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_unknown_length_do_not_exceed_the_prefetch_budget_by_much() {
    let counters = Counters::from_zero().await;
    // The footer gives only the mean length. In file order the long rows come last.
    let rows = (0..10_000).map(|row| if row < 5_000 { String::new() } else { "x".repeat(1000) });
    let rows = Arc::new(StringArray::from_iter_values(rows)) as ArrayRef;
    let rows = RecordBatch::try_from_iter([("text", rows)]).unwrap();
    let reader = reader(store(&[rows], 1 << 20).await).await;
    let shuffle = Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() };
    let train = Train { batch_size: 100, shuffle: Some(shuffle), ..Train::default() };
    let config = Config { prefetch_bytes: 300_000, ..Config::default() };
    let loader = loader(1 << 30, 1, config);
    let mut batches = loader.batches(job(&train, &reader), 0, 0);
    take(&mut batches, 60).await;
    // Two or three batches of 100 kB, plus some that were started before the first long one was finished.
    let made = made_by_itself(&counters, 60).await;
    assert!((1..=4).contains(&made), "{made}");
}

fn limited(max_batch_bytes: u64) -> Config {
    Config { max_batch_bytes, ..Config::default() }
}

/// Checks that few of the 100 blocks are decoded for a batch that exceeds 25,000 bytes with the rows of the first three or four.
async fn check_refused_early(counters: &Counters, train: &Train, reader: &Reader) {
    let loader = loader(1 << 30, 2, limited(25_000));
    let error = drain(loader.batches(job(train, reader), 0, 0)).await.unwrap_err().to_string();
    assert!(error.contains("25000"), "{error}");
    let decoded = counters.get(DECODED);
    assert!(
        decoded <= 20,
        "{decoded} of 100 blocks were decoded; at most four are needed, and eight are prefetched"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_further_windows_are_loaded_once_the_first_ones_make_the_batch_too_large() {
    let counters = Counters::from_zero().await;
    // A hundred blocks of ten rows of 1,000 bytes, a window each.
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(1000); 10]));
    let file = RecordBatch::try_from_iter([("text", text)]).unwrap();
    let reader = reader(store(&vec![file; 100], 10).await).await;
    let shuffle = Shuffle { window_rows: Some(10), ..Shuffle::default() };
    let train = Train { batch_size: 1000, shuffle: Some(shuffle), ..Train::default() };
    check_refused_early(&counters, &train, &reader).await;
    // Without a loader, there are no threads for the turns of the batch.
    let loader = loader(1 << 30, 2, limited(1_250_000));
    let batches = drain(loader.batches(job(&train, &reader), 0, 0)).await.unwrap();
    assert_eq!(batches.len(), 1, "within its limit, the batch is made of all windows");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_in_file_order_that_is_too_large_loads_no_further_blocks() {
    let counters = Counters::from_zero().await;
    // A hundred blocks of 1,000 numbers of 8 bytes.
    let reader = reader(store(&[numbered(0..100_000)], 1000).await).await;
    let shuffle = Shuffle { none: Some(shuffle::None {}), ..Shuffle::default() };
    let columns = vec!["id".into()];
    let train = Train { batch_size: 100_000, columns, shuffle: Some(shuffle), ..Train::default() };
    check_refused_early(&counters, &train, &reader).await;
}
