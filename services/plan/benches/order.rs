//! Cost of locating positions: one at a time, in batches, and far into a large plan.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_plan::{EpochOrder, Key, Level, PLAN_VERSION, Permutation, Shuffle};

const WINDOW_ROWS: u64 = 1_048_576;
const BLOCK_ROWS: u32 = 16_384;
const WINDOWED: Shuffle = Shuffle::Window { rows: WINDOW_ROWS, keep_block_order: false };

fn key() -> Key {
    Key::derive(PLAN_VERSION, 7, 0, Level::Rows, 0)
}

fn permutation(c: &mut Criterion) {
    let mut group = c.benchmark_group("permutation");
    let window = Permutation::new(WINDOW_ROWS, key());

    group.throughput(Throughput::Elements(WINDOW_ROWS));
    let mut values = Vec::with_capacity(WINDOW_ROWS as usize);
    group.bench_function("fill", |b| {
        b.iter(|| {
            values.clear();
            window.fill(0..WINDOW_ROWS, &mut values);
            black_box(&values);
        });
    });

    group.throughput(Throughput::Elements(1));
    let mut position = 0;
    group.bench_function("get", |b| {
        b.iter(|| {
            position = (position + 1) % WINDOW_ROWS;
            window.get(black_box(position))
        });
    });
    group.bench_function("new", |b| b.iter(|| Permutation::new(black_box(WINDOW_ROWS), key())));
    group.finish();
}

fn order(c: &mut Criterion) {
    let mut group = c.benchmark_group("order");
    let blocks = vec![BLOCK_ROWS; 4 * (WINDOW_ROWS / u64::from(BLOCK_ROWS)) as usize];
    let order = EpochOrder::new(&blocks, WINDOWED, 7, 0);

    group.throughput(Throughput::Elements(order.items()));
    let mut locations = Vec::with_capacity(order.items() as usize);
    group.bench_function("locate_range", |b| {
        b.iter(|| {
            locations.clear();
            order.locate_range(0..order.items(), &mut locations);
            black_box(&locations);
        });
    });

    group.throughput(Throughput::Elements(1));
    let mut position = 0;
    group.bench_function("locate", |b| {
        b.iter(|| {
            position = (position + 1) % order.items();
            order.locate(black_box(position))
        });
    });
    group.finish();
}

fn seek(c: &mut Criterion) {
    let mut group = c.benchmark_group("seek_to_10^9_of_10^10");
    let mut blocks = vec![BLOCK_ROWS; 610_351];
    blocks.push(9_216);
    let order = EpochOrder::new(&blocks, WINDOWED, 7, 0);
    assert_eq!(order.items(), 10_000_000_000);

    group.bench_function("locate", |b| b.iter(|| order.locate(black_box(1_000_000_000))));
    let mut locations = Vec::with_capacity(4096);
    group.bench_function("locate_range of 4096", |b| {
        b.iter(|| {
            locations.clear();
            order.locate_range(black_box(1_000_000_000)..1_000_004_096, &mut locations);
            black_box(&locations);
        });
    });
    group.bench_function("build and locate", |b| {
        b.iter(|| EpochOrder::new(&blocks, WINDOWED, 7, 0).locate(black_box(1_000_000_000)));
    });
    group.finish();
}

fn config() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
}

criterion_group!(name = benches; config = config(); targets = permutation, order, seek);
criterion_main!(benches);
