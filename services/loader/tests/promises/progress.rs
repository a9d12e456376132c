//! Answers before the first batch: progress of loading and of counting, and the reason for an empty training.

use std::{slice, sync::Arc, time::Duration};

use forebay_loader::{Config, CountProgress, Job, Loader, Pool, WindowLoad, WindowWait};
use forebay_proto::v1::{Remainder, Shuffle, Train, shuffle::Global};
use forebay_storage::Reader;
use parking_lot::Mutex;

use crate::fixture::{job, numbered, reader, store};

const FILES: i64 = 24;
const FILE_ROWS: i64 = 1000;
const ROWS: u64 = (FILES * FILE_ROWS) as u64;

async fn dataset() -> Reader {
    let files: Vec<_> = (0..FILES).map(|file| numbered(file * FILE_ROWS..(file + 1) * FILE_ROWS)).collect();
    reader(store(&files, FILE_ROWS as usize).await).await
}

/// A loader on whose thread each operation takes a second.
fn slow_loader(memory_bytes: u64) -> Loader {
    Loader::new(memory_bytes, Config::default(), Pool::simulated(1, || Duration::from_secs(1)))
}

fn global(seed: u64) -> Train {
    let shuffle = Some(Shuffle { global: Some(Global {}), ..Shuffle::default() });
    Train { batch_size: 500, seed, shuffle, ..Train::default() }
}

#[tokio::test(start_paused = true)]
async fn a_stream_says_how_much_of_its_first_window_is_loaded() {
    let reader = dataset().await;
    let loader = slow_loader(1 << 30);
    let mut batches = loader.batches(job(&global(1), &reader), 0, 0);
    let waits = batches.waits().clone();
    let progress = || WindowWait::progress(slice::from_ref(&waits));
    let mut seen: Vec<WindowLoad> = Vec::new();
    loop {
        tokio::select! {
            biased;
            batch = batches.next() => break drop(batch.unwrap().unwrap()),
            () = tokio::time::sleep(Duration::from_millis(500)) => seen.extend(progress()),
        }
    }
    assert!(seen.iter().all(|load| load.blocks == FILES as u64 && !load.waits_for_memory), "{seen:?}");
    assert!(seen.is_sorted_by_key(|load| (load.blocks_done, load.bytes_done)), "{seen:?}");
    let mut done: Vec<u64> = seen.iter().map(|load| load.blocks_done).collect();
    done.dedup();
    assert_eq!(done[..20], (0..20).collect::<Vec<u64>>()[..], "one block after the other");
    let last = seen.last().unwrap();
    assert!(last.bytes_done > 0 && last.bytes > 0);
    batches.next().await.unwrap().unwrap();
    assert_eq!(progress(), None, "the window is loaded");
}

#[tokio::test(start_paused = true)]
async fn a_stream_says_that_it_waits_for_memory_that_another_one_uses() {
    let reader = dataset().await;
    let jobs: [Arc<Job>; 2] = [1, 2].map(|seed| job(&global(seed), &reader));
    // Frames are shared, but each stream reserves the memory of its own window.
    let loader = slow_loader(jobs[0].summary().window_bytes * 3 / 2);
    let mut first = loader.batches(Arc::clone(&jobs[0]), 0, 0);
    first.next().await.unwrap().unwrap();
    let mut second = loader.batches(Arc::clone(&jobs[1]), 0, 0);
    let waits = second.waits().clone();
    let progress = || WindowWait::progress(slice::from_ref(&waits));
    let load = loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        // The order of the stream is computed first.
        if let Some(load) = progress() {
            break load;
        }
    };
    assert!(load.waits_for_memory && load.blocks == FILES as u64 && load.blocks_done == 0, "{load:?}");
    drop(first);
    second.next().await.unwrap().unwrap();
    assert_eq!(progress(), None, "it has the memory");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_the_counts_of_another_one_sees_their_progress() {
    let (reader, loader) = (dataset().await, slow_loader(1 << 30));
    let train = Train { dataset: "d".into(), filter: "id % 2 = 1".into(), batch_size: 1, ..Train::default() };
    let seen: [Mutex<Vec<CountProgress>>; 2] = Default::default();
    let counts = seen.each_ref().map(|seen| loader.count(&train, &reader, |done| seen.lock().push(done)));
    let counts = futures::future::try_join_all(counts).await.unwrap();
    assert!(Arc::ptr_eq(counts[0].as_ref().unwrap(), counts[1].as_ref().unwrap()), "counted once");
    let [own, of_another] = seen.map(Mutex::into_inner);
    assert_eq!(own.len(), FILES as usize, "after each block");
    assert!(of_another.len() > 2, "{of_another:?}");
    assert!(
        of_another.iter().all(|done| own.contains(done))
            && of_another.is_sorted_by_key(|done| done.blocks_done)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_without_a_step_says_why() {
    let reader = dataset().await;
    let summary = |train: &Train| job(train, &reader).summary();
    let filtered = |filter: &str| summary(&Train { filter: filter.into(), ..global(1) });
    let some = filtered("id < 4000");
    assert_eq!((some.rows, some.unfiltered_rows, some.empty_reason.as_str()), (4000, Some(ROWS), ""));
    let none = filtered("id < 0");
    assert_eq!((none.rows, none.steps, none.unfiltered_rows), (0, 0, Some(ROWS)));
    assert_eq!(none.empty_reason, "the filter keeps none of 24000 rows");
    let all = summary(&global(1));
    assert_eq!((all.rows, all.unfiltered_rows, all.empty_reason.as_str()), (ROWS, None, ""));
    let large = Train { batch_size: 7000, world_size: Some(4), ..global(1) };
    let dropped = summary(&Train { remainder: Remainder::Drop.into(), ..large.clone() });
    assert_eq!((dropped.rows, dropped.steps), (ROWS, 0));
    assert_eq!(
        dropped.empty_reason,
        "24000 rows are fewer than the 28000 of one step, and remainder is DROP"
    );
    let short = summary(&Train { remainder: Remainder::Short.into(), ..large });
    assert_eq!((short.steps, short.empty_reason.as_str()), (1, ""));
    // The end of an epoch is no empty training.
    let ended = summary(&Train { start_step: all.steps, ..global(1) });
    assert_eq!(ended.empty_reason, "");
}
