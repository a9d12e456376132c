//! Prefetch limits: number of batches produced before the consumer takes them.

use std::{sync::Arc, time::Duration};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use forebay_loader::{Batches, Config};
use forebay_proto::v1::{Shuffle, Train, shuffle};

use crate::fixture::{counters::Counters, job, loader, numbered, reader, store};

const GATHERED: &str = "forebay_gather_duration_seconds";

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
    let mut batches = loader(1 << 30, 2, config).batches(job(&train, &reader), 0, 0);
    // The last batch of the epoch has 7 rows.
    take(&mut batches, 11).await;
    let made = made_by_itself(&counters, 11).await;
    assert!((1..=4).contains(&made), "{made}");
    take(&mut batches, 11).await;
    let made = made_by_itself(&counters, 22).await;
    assert!((1..=5).contains(&made), "the short one is among them: {made}");
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
    let mut batches = loader(1 << 30, 1, config).batches(job(&train, &reader), 0, 0);
    take(&mut batches, 60).await;
    // Two or three batches of 100 kB, plus some that were started before the first long one was finished.
    let made = made_by_itself(&counters, 60).await;
    assert!((1..=4).contains(&made), "{made}");
}
