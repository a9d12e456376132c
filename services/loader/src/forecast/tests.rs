use std::sync::Barrier;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use forebay_proto::v1::{Shuffle, Train};
use forebay_storage::{Config, Location, Reader, State, take_snapshot};
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use parquet::arrow::ArrowWriter;

use super::*;

const BLOCKS: u32 = 24;
const BLOCK_ROWS: u64 = 100;
const ROWS: u64 = BLOCKS as u64 * BLOCK_ROWS;
const BATCH_ROWS: u64 = 50;
const PACE: Duration = Duration::from_millis(10);

/// Columns `a` and `b`, one file per block.
async fn reader() -> Reader {
    let store = Arc::new(InMemory::new());
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..BLOCK_ROWS as i64));
    let batch = RecordBatch::try_from_iter([("a", Arc::clone(&values)), ("b", values)]).unwrap();
    for file in 0..BLOCKS {
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        let bytes = bytes::Bytes::from(writer.into_inner().unwrap());
        store.put(&Path::from(format!("data/{file:02}.parquet")), bytes.into()).await.unwrap();
    }
    let config = Config::default();
    let location = Location::with_store("memory://data", store, "data");
    let state = State::open(
        Location::with_store("memory://state", Arc::new(InMemory::new()), "state"),
        None,
        &config,
    );
    let snapshot = take_snapshot("d", &location, &state, &config, |_, _| {}).await.unwrap();
    Reader::new(Arc::new(snapshot), location, &state, config)
}

/// A job whose windows have four blocks.
fn job(reader: &Reader, seed: u64, columns: &[&str]) -> Arc<Job> {
    let train = Train {
        dataset: "d".into(),
        batch_size: BATCH_ROWS,
        seed,
        columns: columns.iter().map(|&name| name.into()).collect(),
        shuffle: Some(Shuffle { window_rows: Some(4 * BLOCK_ROWS), ..Shuffle::default() }),
        ..Train::default()
    };
    Arc::new(Job::resolve(&train, reader.clone(), None).unwrap())
}

/// Advances the stream to the window after 100 batches, one every `pace`. The next `loaded` windows are also loaded.
async fn begin(progress: &Progress, epoch: u64, window: usize, loaded: usize, pace: Duration) {
    let order = progress.course.job.order(epoch);
    progress.loading(epoch, order.window(window + loaded).positions.end);
    let start = order.window(window).positions.start;
    for _ in 0..100 {
        tokio::time::advance(pace).await;
        progress.reached(epoch, start, start, &order);
    }
}

/// Nanoseconds until each block is needed by a stream of one batch every [`PACE`] at `position` of epoch 0, counting
/// windows from `first_window` on.
fn expected(job: &Job, position: u64, first_window: usize) -> Vec<u64> {
    let mut starts = vec![None; BLOCKS as usize];
    for (epoch, first) in [(0, first_window), (1, 0)] {
        let order = job.order(epoch);
        for window in (first..order.windows()).map(|window| order.window(window)) {
            let start = epoch * ROWS + window.positions.start;
            window.blocks.iter().for_each(|block| {
                starts[*block as usize].get_or_insert(start);
            });
        }
    }
    let until = |start: Option<u64>| start.unwrap().saturating_sub(position) / BATCH_ROWS * pace_nanos(PACE);
    starts.into_iter().map(until).collect()
}

fn pace_nanos(pace: Duration) -> u64 {
    pace.as_nanos() as u64
}

fn in_memory(outlook: &Outlook, job: &Job) -> Vec<u64> {
    let key = |block| FrameKey { block: job.reader().block_ids().id(block), view: job.view().key(), rows: 0 };
    (0..BLOCKS).map(|block| Forecast::<FrameKey>::next_use(outlook, &key(block))).collect()
}

fn on_disk(outlook: &Outlook, job: &Job) -> Vec<u64> {
    (0..BLOCKS)
        .map(|block| Forecast::<u128>::next_use(outlook, &job.reader().block_ids().id(block)))
        .collect()
}

fn nearest(one: &[u64], other: &[u64]) -> Vec<u64> {
    one.iter().zip(other).map(|(one, other)| *one.min(other)).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_ahead_in_this_epoch_comes_before_what_is_in_the_next() {
    let job = job(&reader().await, 7, &["a"]);
    let outlook = Outlook::new();
    let progress = outlook.enter(&job, 0, 0);
    assert_eq!(in_memory(&outlook, &job), [u64::MAX; BLOCKS as usize], "nothing is known of it yet");
    for window in 0..5 {
        begin(&progress, 0, window, 0, PACE).await;
        let position = job.order(0).window(window).positions.start;
        assert_eq!(in_memory(&outlook, &job), expected(&job, position, window));
        // The window was read from disk when it was loaded, so the next use of its blocks on disk is in the next epoch.
        assert_eq!(on_disk(&outlook, &job), expected(&job, position, window + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_at_hand_is_needed_now_in_memory_and_in_the_next_epoch_on_disk() {
    let job = job(&reader().await, 7, &["a"]);
    let outlook = Outlook::new();
    let progress = outlook.enter(&job, 0, 0);
    begin(&progress, 0, 2, 1, PACE).await;
    let order = job.order(0);
    let (memory, disk) = (in_memory(&outlook, &job), on_disk(&outlook, &job));
    let left_of_epoch = (ROWS - order.window(2).positions.start) / BATCH_ROWS * pace_nanos(PACE);
    for block in order.window(2).blocks {
        assert_eq!(memory[*block as usize], 0);
        assert!(disk[*block as usize] >= left_of_epoch);
    }
    // The prefetched window is needed in memory soon, but no longer on disk.
    for block in order.window(3).blocks {
        assert!((1..left_of_epoch).contains(&memory[*block as usize]));
        assert!(disk[*block as usize] >= left_of_epoch);
    }
    assert_eq!(disk, expected(&job, order.window(2).positions.start, 4));
}

#[tokio::test(start_paused = true)]
async fn the_last_window_looks_into_the_next_epoch_and_one_loaded_ahead_beyond_it() {
    let job = job(&reader().await, 7, &["a"]);
    let outlook = Outlook::new();
    let progress = outlook.enter(&job, 0, 0);
    let last = job.order(0).windows() - 1;
    begin(&progress, 0, last, 0, PACE).await;
    assert_eq!(on_disk(&outlook, &job), expected(&job, job.order(0).window(last).positions.start, last + 1));
    // The next epoch's first window is prefetched, so its blocks' next use on disk is an epoch later.
    let next = job.order(1);
    progress.loading(1, next.window(0).positions.end);
    let disk = on_disk(&outlook, &job);
    let first = next.window(0).blocks.iter().map(|block| disk[*block as usize]).min();
    let others = (1..next.windows()).flat_map(|window| next.window(window).blocks);
    assert!(first > others.map(|block| disk[*block as usize]).max());
}

#[tokio::test(start_paused = true)]
async fn the_sooner_of_two_jobs_decides() {
    let reader = reader().await;
    let (slow, fast) = (job(&reader, 1, &["a"]), job(&reader, 2, &["a"]));
    let outlook = Outlook::new();
    let (of_slow, of_fast) = (outlook.enter(&slow, 0, 0), outlook.enter(&fast, 0, 0));
    let (order_of_slow, order_of_fast) = (slow.order(0), fast.order(0));
    of_slow.loading(0, order_of_slow.window(0).positions.end);
    of_fast.loading(0, order_of_fast.window(0).positions.end);
    for _ in 0..100 {
        tokio::time::advance(PACE).await;
        of_fast.reached(0, 0, 0, &order_of_fast);
        tokio::time::advance(PACE).await;
        of_fast.reached(0, 0, 0, &order_of_fast);
        of_slow.reached(0, 0, 0, &order_of_slow);
    }
    let doubled =
        |next_uses: Vec<u64>| next_uses.into_iter().map(|next_use| next_use * 2).collect::<Vec<_>>();
    let (of_slow, of_fast) = (doubled(expected(&slow, 0, 1)), expected(&fast, 0, 1));
    let sooner = nearest(&of_slow, &of_fast);
    assert!(sooner != of_fast && sooner != of_slow, "each is the sooner one for some blocks");
    let rounding = |(found, sooner): (&u64, &u64)| found.abs_diff(*sooner) < 10_000;
    assert!(on_disk(&outlook, &slow).iter().zip(&sooner).all(rounding));
}

#[tokio::test(start_paused = true)]
async fn what_a_stalled_job_needs_is_far_away() {
    let reader = reader().await;
    let (stalled, running) = (job(&reader, 1, &["a"]), job(&reader, 2, &["a"]));
    let outlook = Outlook::new();
    let of_stalled = outlook.enter(&stalled, 0, 0);
    begin(&of_stalled, 0, 0, 0, PACE).await;
    let before = on_disk(&outlook, &stalled);
    assert_eq!(before, expected(&stalled, 0, 1));
    tokio::time::advance(Duration::from_secs(60)).await;
    let of_running = outlook.enter(&running, 0, 0);
    begin(&of_running, 0, 0, 0, PACE).await;
    assert_eq!(on_disk(&outlook, &stalled), expected(&running, 0, 1), "the one that goes on decides");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_ended_is_expected_to_go_on_until_the_same_rank_does() {
    let job = job(&reader().await, 7, &["a"]);
    let outlook = Outlook::new();
    let first = outlook.enter(&job, 0, 0);
    let last = job.order(0).windows() - 1;
    begin(&first, 0, last, 0, PACE).await;
    let expected_then = on_disk(&outlook, &job);
    drop(first);
    assert_eq!(on_disk(&outlook, &job), expected_then);
    assert!(expected_then.iter().all(|next_use| *next_use < u64::MAX));

    let _other_rank = outlook.enter(&job, 1, 0);
    assert_eq!(outlook.courses()[0].streams().len(), 2);
    let next = outlook.enter(&job, 0, 0);
    assert_eq!(outlook.courses()[0].streams().len(), 2, "the rank's old stream is replaced");
    begin(&next, 1, 0, 0, PACE).await;
    let order = job.order(1);
    let second = order.window(1);
    let found = on_disk(&outlook, &job);
    for block in second.blocks {
        assert_eq!(found[*block as usize], second.positions.start / BATCH_ROWS * pace_nanos(PACE));
    }
}

#[tokio::test(start_paused = true)]
async fn other_views_count_for_columns_and_not_for_frames() {
    let reader = reader().await;
    let (a, b) = (job(&reader, 1, &["a"]), job(&reader, 2, &["b"]));
    let outlook = Outlook::new();
    let of_a = outlook.enter(&a, 0, 0);
    begin(&of_a, 0, 0, 0, PACE).await;
    assert_eq!(in_memory(&outlook, &b), [u64::MAX; BLOCKS as usize]);
    assert_eq!(on_disk(&outlook, &b), expected(&a, 0, 1));
    let id = a.reader().block_ids().id(0);
    assert!(!outlook.is_shared(id));

    let of_b = outlook.enter(&b, 0, 0);
    begin(&of_b, 0, 0, 0, PACE).await;
    of_a.reached(0, 0, 0, &a.order(0));
    // The last batch of the first stream took 1 s, with a weight of one fifth.
    begin(&of_a, 0, 0, 0, PACE).await;
    of_b.reached(0, 0, 0, &b.order(0));
    assert_eq!(in_memory(&outlook, &a), expected(&a, 0, 0));
    assert!(outlook.is_shared(id));
    let both = nearest(&expected(&a, 0, 1), &on_disk(&outlook, &b));
    assert_eq!(on_disk(&outlook, &a), both);
    assert_eq!(outlook.frame_bytes(), a.snapshot_bytes() + b.snapshot_bytes());
}

#[tokio::test(start_paused = true)]
async fn a_block_of_another_snapshot_is_never_needed() {
    let job = job(&reader().await, 7, &["a"]);
    let outlook = Outlook::new();
    let progress = outlook.enter(&job, 0, 0);
    begin(&progress, 0, 0, 0, PACE).await;
    assert_eq!(Forecast::<u128>::next_use(&outlook, &1), u64::MAX);
}

#[tokio::test(start_paused = true)]
async fn what_lingers_is_bounded_in_number_and_time() {
    let reader = reader().await;
    let outlook = Outlook::new();
    let running = outlook.enter(&job(&reader, 1 << 32, &["a"]), 0, 0);
    for seed in 0..3 * MAX_LINGERING as u64 {
        let job = job(&reader, seed, &["a"]);
        begin(&outlook.enter(&job, 0, 0), 0, 0, 0, Duration::from_micros(1)).await;
    }
    assert!(outlook.courses().len() <= MAX_LINGERING + 2);
    let newest = job(&reader, 3 * MAX_LINGERING as u64 - 1, &["a"]);
    assert!(outlook.courses().iter().any(|course| course.order == newest.windows_key()), "the newest stays");

    tokio::time::advance(LINGER + Duration::from_secs(1)).await;
    let _next = outlook.enter(&job(&reader, 1 << 33, &["a"]), 0, 0);
    assert_eq!(outlook.courses().len(), 2, "the one that runs, and the new one");
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn ranks_that_are_gone_for_long_are_forgotten_though_others_run() {
    let job = job(&reader().await, 7, &["a"]);
    let outlook = Outlook::new();
    let _running = outlook.enter(&job, 0, 0);
    for rank in 1..9 {
        drop(outlook.enter(&job, rank, 0));
    }
    assert_eq!(outlook.courses()[0].streams().len(), 9);
    tokio::time::advance(LINGER + Duration::from_secs(1)).await;
    let _next = outlook.enter(&job, 0, 1);
    assert_eq!(outlook.courses()[0].streams().len(), 2);
}

#[tokio::test]
async fn streams_that_enter_at_the_same_time_are_all_in_the_forecast() {
    let job = job(&reader().await, 7, &["a"]);
    for _ in 0..5000 {
        let (outlook, start) = (Outlook::new(), Barrier::new(4));
        let enter = |rank| {
            start.wait();
            outlook.enter(&job, rank, 0)
        };
        let entered = std::thread::scope(|scope| {
            let enter = &enter;
            let threads: Vec<_> = (0..4).map(|rank| scope.spawn(move || enter(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let known: usize = outlook.courses().iter().map(|course| course.streams().len()).sum();
        assert_eq!(known, entered.len());
    }
}
