use std::sync::Barrier;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use forebay_plan::Window;
use forebay_proto::v1::{Shuffle, Train};
use forebay_storage::Reader;

use super::*;
use crate::test_data;

const BLOCKS: u32 = 24;
const BLOCK_ROWS: u64 = 100;
const ROWS: u64 = BLOCKS as u64 * BLOCK_ROWS;
const BATCH_ROWS: u64 = 50;
const PACE: Duration = Duration::from_millis(10);

/// Columns `a` and `b`, one file per block.
async fn reader() -> Reader {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..BLOCK_ROWS as i64));
    let batch = RecordBatch::try_from_iter([("a", Arc::clone(&values)), ("b", values)]).unwrap();
    test_data::reader("d", vec![batch; BLOCKS as usize]).await
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
async fn begin(progress: &StreamProgress, epoch: u64, window: usize, loaded: usize, pace: Duration) {
    let order = progress.schedule.job.order.epoch(0, epoch);
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
        let order = job.order.epoch(0, epoch);
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

fn in_memory(forecast: &NextUse, job: &Job) -> Vec<u64> {
    let key = |block| FrameKey { block: job.reader().block_ids().id(block), view: job.view().key(), rows: 0 };
    (0..BLOCKS).map(|block| Forecast::<FrameKey>::next_use(forecast, &key(block))).collect()
}

fn on_disk(forecast: &NextUse, job: &Job) -> Vec<u64> {
    (0..BLOCKS)
        .map(|block| Forecast::<u128>::next_use(forecast, &job.reader().block_ids().id(block)))
        .collect()
}

fn nearest(one: &[u64], other: &[u64]) -> Vec<u64> {
    one.iter().zip(other).map(|(one, other)| *one.min(other)).collect()
}

#[tokio::test(start_paused = true)]
async fn later_blocks_of_this_epoch_precede_those_of_the_next() {
    let job = job(&reader().await, 7, &["a"]);
    let forecast = NextUse::new();
    let progress = forecast.enter(&job, 0, 0, 0);
    assert_eq!(in_memory(&forecast, &job), [u64::MAX; BLOCKS as usize], "nothing is known of it yet");
    for window in 0..5 {
        begin(&progress, 0, window, 0, PACE).await;
        let position = job.order.epoch(0, 0).window(window).positions.start;
        assert_eq!(in_memory(&forecast, &job), expected(&job, position, window));
        // The window was read from disk when it was loaded, so the next use of its blocks on disk is in the next epoch.
        assert_eq!(on_disk(&forecast, &job), expected(&job, position, window + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_loaded_window_is_needed_now_in_memory_and_in_the_next_epoch_on_disk() {
    let job = job(&reader().await, 7, &["a"]);
    let forecast = NextUse::new();
    let progress = forecast.enter(&job, 0, 0, 0);
    begin(&progress, 0, 2, 1, PACE).await;
    let order = job.order.epoch(0, 0);
    let (memory, disk) = (in_memory(&forecast, &job), on_disk(&forecast, &job));
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
async fn the_last_window_uses_the_next_epoch_and_a_prefetched_window_the_one_after() {
    let job = job(&reader().await, 7, &["a"]);
    let forecast = NextUse::new();
    let progress = forecast.enter(&job, 0, 0, 0);
    let last = job.order.epoch(0, 0).windows() - 1;
    begin(&progress, 0, last, 0, PACE).await;
    assert_eq!(
        on_disk(&forecast, &job),
        expected(&job, job.order.epoch(0, 0).window(last).positions.start, last + 1)
    );
    // The next epoch's first window is prefetched, so its blocks' next use on disk is an epoch later.
    let next = job.order.epoch(0, 1);
    progress.loading(1, next.window(0).positions.end);
    let disk = on_disk(&forecast, &job);
    let first = next.window(0).blocks.iter().map(|block| disk[*block as usize]).min();
    let others = (1..next.windows()).flat_map(|window| next.window(window).blocks);
    assert!(first > others.map(|block| disk[*block as usize]).max());
}

#[tokio::test(start_paused = true)]
async fn a_block_is_needed_when_a_stream_of_its_partition_reaches_it() {
    let reader = reader().await;
    let halves = Train {
        dataset: "d".into(),
        batch_size: BATCH_ROWS / 2,
        world_size: Some(2),
        columns: vec!["a".into()],
        shuffle: Some(Shuffle {
            window_rows: Some(6 * BLOCK_ROWS),
            partitions: Some(2),
            ..Shuffle::default()
        }),
        ..Train::default()
    };
    let job = Arc::new(Job::resolve(&halves, reader, None).unwrap());
    let forecast = NextUse::new();
    let of_partition = |partition: u32, window: usize| {
        let (orders, items) = ([0, 1].map(|epoch| job.order.epoch(partition, epoch)), ROWS / 2);
        let position = orders[0].window(window).positions.start;
        let mut starts = vec![None; BLOCKS as usize];
        for (epoch, order) in (0..).zip(&orders) {
            for at in (if epoch == 0 { window } else { 0 })..order.windows() {
                let of_window = order.window(at);
                for block in of_window.blocks {
                    starts[*block as usize].get_or_insert(epoch * items + of_window.positions.start);
                }
            }
        }
        let until = |start: u64| (start - position) / (BATCH_ROWS / 2) * pace_nanos(PACE);
        starts.into_iter().map(|start| start.map_or(u64::MAX, until)).collect::<Vec<_>>()
    };
    // Window `window` of each partition.
    let streams = [0, 1].map(|partition| forecast.enter(&job, partition, partition, 0));
    let windows = [1, 2];
    let mut sooner = vec![u64::MAX; BLOCKS as usize];
    for (partition, (progress, window)) in (0..).zip(streams.iter().zip(windows)) {
        let order = job.order.epoch(partition, 0);
        assert_eq!(order.items(), ROWS / 2);
        assert_eq!(order.windows(), 4);
        let Window { positions, .. } = order.window(window);
        progress.loading(0, positions.end);
        for _ in 0..100 {
            tokio::time::advance(PACE).await;
            // Streams that wait are not what this test is about.
            for (other, stream) in (0..).zip(&streams).filter(|(other, _)| *other < partition) {
                let order = job.order.epoch(other, 0);
                let start = order.window(windows[other as usize]).positions.start;
                stream.reached(0, start, start, &order);
            }
            progress.reached(0, positions.start, positions.start, &order);
        }
        let own = of_partition(partition, window);
        assert_eq!(own.iter().filter(|until| **until == u64::MAX).count(), BLOCKS as usize / 2);
        sooner = nearest(&sooner, &own);
        assert_eq!(in_memory(&forecast, &job), sooner, "streams up to that of partition {partition}");
    }
    assert!(sooner.iter().all(|until| *until < u64::MAX));
}

#[tokio::test(start_paused = true)]
async fn the_earlier_use_of_two_jobs_decides() {
    let reader = reader().await;
    let (slow, fast) = (job(&reader, 1, &["a"]), job(&reader, 2, &["a"]));
    let forecast = NextUse::new();
    let (of_slow, of_fast) = (forecast.enter(&slow, 0, 0, 0), forecast.enter(&fast, 0, 0, 0));
    let (order_of_slow, order_of_fast) = (slow.order.epoch(0, 0), fast.order.epoch(0, 0));
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
    assert!(on_disk(&forecast, &slow).iter().zip(&sooner).all(rounding));
}

#[tokio::test(start_paused = true)]
async fn the_next_use_of_a_stalled_job_is_distant() {
    let reader = reader().await;
    let (stalled, running) = (job(&reader, 1, &["a"]), job(&reader, 2, &["a"]));
    let forecast = NextUse::new();
    let of_stalled = forecast.enter(&stalled, 0, 0, 0);
    begin(&of_stalled, 0, 0, 0, PACE).await;
    let before = on_disk(&forecast, &stalled);
    assert_eq!(before, expected(&stalled, 0, 1));
    tokio::time::advance(Duration::from_secs(60)).await;
    let of_running = forecast.enter(&running, 0, 0, 0);
    begin(&of_running, 0, 0, 0, PACE).await;
    assert_eq!(on_disk(&forecast, &stalled), expected(&running, 0, 1), "the running stream decides");
}

#[tokio::test(start_paused = true)]
async fn an_ended_stream_is_expected_to_continue_until_the_same_rank_returns() {
    let job = job(&reader().await, 7, &["a"]);
    let forecast = NextUse::new();
    let first = forecast.enter(&job, 0, 0, 0);
    let last = job.order.epoch(0, 0).windows() - 1;
    begin(&first, 0, last, 0, PACE).await;
    let expected_then = on_disk(&forecast, &job);
    drop(first);
    assert_eq!(on_disk(&forecast, &job), expected_then);
    assert!(expected_then.iter().all(|next_use| *next_use < u64::MAX));

    let _other_rank = forecast.enter(&job, 0, 1, 0);
    assert_eq!(forecast.schedules()[0].streams().len(), 2);
    let next = forecast.enter(&job, 0, 0, 0);
    assert_eq!(forecast.schedules()[0].streams().len(), 2, "the rank's old stream is replaced");
    begin(&next, 1, 0, 0, PACE).await;
    let order = job.order.epoch(0, 1);
    let second = order.window(1);
    let found = on_disk(&forecast, &job);
    for block in second.blocks {
        assert_eq!(found[*block as usize], second.positions.start / BATCH_ROWS * pace_nanos(PACE));
    }
}

#[tokio::test(start_paused = true)]
async fn uses_by_other_views_count_for_columns_and_not_for_frames() {
    let reader = reader().await;
    let (a, b) = (job(&reader, 1, &["a"]), job(&reader, 2, &["b"]));
    let forecast = NextUse::new();
    let of_a = forecast.enter(&a, 0, 0, 0);
    begin(&of_a, 0, 0, 0, PACE).await;
    assert_eq!(in_memory(&forecast, &b), [u64::MAX; BLOCKS as usize]);
    assert_eq!(on_disk(&forecast, &b), expected(&a, 0, 1));
    let id = a.reader().block_ids().id(0);
    assert!(!forecast.is_shared(id));

    let of_b = forecast.enter(&b, 0, 0, 0);
    begin(&of_b, 0, 0, 0, PACE).await;
    of_a.reached(0, 0, 0, &a.order.epoch(0, 0));
    // The last batch of the first stream took 1 s, with a weight of one fifth.
    begin(&of_a, 0, 0, 0, PACE).await;
    of_b.reached(0, 0, 0, &b.order.epoch(0, 0));
    assert_eq!(in_memory(&forecast, &a), expected(&a, 0, 0));
    assert!(forecast.is_shared(id));
    let both = nearest(&expected(&a, 0, 1), &on_disk(&forecast, &b));
    assert_eq!(on_disk(&forecast, &a), both);
    assert_eq!(forecast.frame_bytes(), a.footprint.snapshot_bytes + b.footprint.snapshot_bytes);
}

#[tokio::test(start_paused = true)]
async fn a_block_of_another_snapshot_is_never_needed() {
    let job = job(&reader().await, 7, &["a"]);
    let forecast = NextUse::new();
    let progress = forecast.enter(&job, 0, 0, 0);
    begin(&progress, 0, 0, 0, PACE).await;
    assert_eq!(Forecast::<u128>::next_use(&forecast, &1), u64::MAX);
}

#[tokio::test(start_paused = true)]
async fn ended_streams_are_limited_in_number_and_time() {
    let reader = reader().await;
    let forecast = NextUse::new();
    let running = forecast.enter(&job(&reader, 1 << 32, &["a"]), 0, 0, 0);
    for seed in 0..3 * MAX_LINGERING as u64 {
        let job = job(&reader, seed, &["a"]);
        begin(&forecast.enter(&job, 0, 0, 0), 0, 0, 0, Duration::from_micros(1)).await;
    }
    assert_eq!(
        forecast.schedules().len(),
        MAX_LINGERING + 2,
        "64 ended ones, the newest, and the running one"
    );
    let newest = job(&reader, 3 * MAX_LINGERING as u64 - 1, &["a"]);
    assert!(
        forecast.schedules().iter().any(|schedule| schedule.order == newest.order_key()),
        "the newest stays"
    );

    tokio::time::advance(LINGER + Duration::from_secs(1)).await;
    let _next = forecast.enter(&job(&reader, 1 << 33, &["a"]), 0, 0, 0);
    assert_eq!(forecast.schedules().len(), 2, "the one that runs, and the new one");
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn ranks_that_ended_long_ago_are_removed_while_others_run() {
    let job = job(&reader().await, 7, &["a"]);
    let forecast = NextUse::new();
    let _running = forecast.enter(&job, 0, 0, 0);
    for rank in 1..9 {
        drop(forecast.enter(&job, 0, rank, 0));
    }
    assert_eq!(forecast.schedules()[0].streams().len(), 9);
    let nanosecond = Duration::from_nanos(1);
    tokio::time::advance(LINGER - nanosecond).await;
    let _second = forecast.enter(&job, 0, 0, 1);
    assert_eq!(forecast.schedules()[0].streams().len(), 10);
    tokio::time::advance(nanosecond).await;
    let _third = forecast.enter(&job, 0, 0, 2);
    assert_eq!(forecast.schedules()[0].streams().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_pace_of_a_stream_is_a_moving_average_of_the_times_of_its_batches() {
    let job = job(&reader().await, 7, &["a"]);
    let progress = NextUse::new().enter(&job, 0, 0, 0);
    let order = job.order.epoch(0, 0);
    // A fifth of the newest time and four fifths of the mean, which is 10 ms at first.
    for (took_ms, mean_ms) in [(20, 12), (12, 12), (2, 10), (40, 16)] {
        tokio::time::advance(Duration::from_millis(took_ms)).await;
        progress.reached(0, 0, 0, &order);
        let interval = Duration::from_nanos(progress.stream.interval.load(Ordering::Relaxed));
        assert_eq!(interval, Duration::from_millis(mean_ms));
    }
}

#[tokio::test]
async fn with_two_lanes_each_batch_of_a_stream_advances_by_the_rows_of_both_lanes() {
    let lanes = Train { dataset: "d".into(), batch_size: BATCH_ROWS, lanes: Some(2), ..Train::default() };
    let job = Arc::new(Job::resolve(&lanes, reader().await, None).unwrap());
    assert_eq!(NextUse::new().enter(&job, 0, 0, 0).stream.rows_per_batch, 2 * BATCH_ROWS);
}

#[tokio::test(start_paused = true)]
async fn streams_share_the_window_starts_of_an_epoch_and_drop_those_of_earlier_ones() {
    let job = job(&reader().await, 7, &["a"]);
    let forecast = NextUse::new();
    let streams = [0, 1].map(|rank| forecast.enter(&job, 0, rank, 0));
    for epoch in 0..10 {
        for progress in &streams {
            begin(progress, epoch, 0, 0, PACE).await;
        }
        let starts = |of: usize| streams[of].stream.window_starts.read().clone();
        for (one, other) in starts(0).iter().zip(&starts(1)) {
            assert!(Arc::ptr_eq(one.as_ref().unwrap(), other.as_ref().unwrap()), "epoch {epoch}");
        }
        // The starts of this epoch and the next are in use. Those of the epoch before stay until others are made.
        let known = streams[0].schedule.starts.lock().len();
        assert_eq!(known, if epoch == 0 { 2 } else { 3 }, "epoch {epoch}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_use_too_far_away_to_count_in_nanoseconds_still_comes_before_no_use() {
    let job = job(&reader().await, 7, &["a"]);
    let forecast = NextUse::new();
    let progress = forecast.enter(&job, 0, 0, 0);
    begin(&progress, 0, 0, 0, PACE).await;
    // 300 years without a batch.
    tokio::time::advance(Duration::from_secs(300 * 365 * 86_400)).await;
    assert_eq!(on_disk(&forecast, &job).into_iter().max(), Some(u64::MAX - 1));
}

#[tokio::test]
async fn streams_that_start_concurrently_are_all_in_the_forecast() {
    let job = job(&reader().await, 7, &["a"]);
    for _ in 0..5000 {
        let (forecast, start) = (NextUse::new(), Barrier::new(4));
        let enter = |rank| {
            start.wait();
            forecast.enter(&job, 0, rank, 0)
        };
        let entered = std::thread::scope(|scope| {
            let enter = &enter;
            let threads: Vec<_> = (0..4).map(|rank| scope.spawn(move || enter(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let known: usize = forecast.schedules().iter().map(|schedule| schedule.streams().len()).sum();
        assert_eq!(known, entered.len());
    }
}
