//! Assembly of batches from rows gathered at random from the frames of a window, compared to memcpy.

use std::{collections::VecDeque, hint::black_box, sync::Arc};

use arrow_array::RecordBatch;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_cache::Slabs;
use forebay_loader::{AssembleOptions, Config, Frame, FrameBuilder, Job, RowRef, assemble};
use forebay_proto::v1::{Tensor, Train};

#[path = "../tests/fixture/mod.rs"]
mod fixture;

const COLUMNS: usize = 40;
const BLOCK_ROWS: usize = 65_536;
const BLOCKS: usize = 16;
const BATCH_ROWS: usize = 16_384;
const READY_BATCHES: usize = 25;

fn frame(job: &Job, input: &RecordBatch, slabs: &Slabs) -> Frame {
    let mut builder =
        FrameBuilder::new(job.view().clone(), BLOCK_ROWS, "bench".into(), slabs).expect("memory");
    let chunk = Config::default().decode_rows;
    for start in (0..BLOCK_ROWS).step_by(chunk) {
        builder.append(&input.slice(start, chunk)).expect("fits");
    }
    builder.finish().expect("complete")
}

fn bench(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    let (input, slabs) = (fixture::floats(COLUMNS, BLOCK_ROWS), Slabs::new(64 << 20));
    let reader =
        runtime.block_on(async { fixture::reader(fixture::store(&[input.slice(0, 10)], 10).await).await });
    let tensor = Tensor { name: "x".into(), columns: vec!["c*".into()], ..Tensor::default() };
    let plain = fixture::job(&Train { batch_size: 1, ..Train::default() }, &reader);
    let tensor = fixture::job(&Train { batch_size: 1, tensors: vec![tensor], ..Train::default() }, &reader);

    let mut group = criterion.benchmark_group("frame");
    group.throughput(Throughput::Bytes((BLOCK_ROWS * COLUMNS * 4) as u64));
    // Enough frames that their memory is not in the CPU cache, as after an epoch.
    let memory = Slabs::new(1 << 30);
    let mut frames: VecDeque<Frame> = (0..BLOCKS).map(|_| frame(&plain, &input, &memory)).collect();
    group.bench_function("from 40 float32 columns", |bench| {
        bench.iter(|| {
            drop(frames.pop_front());
            frames.push_back(frame(&plain, &input, &memory));
        });
    });
    group.finish();

    let mut group = criterion.benchmark_group("assemble");
    group.throughput(Throughput::Bytes((BATCH_ROWS * COLUMNS * 4) as u64));
    for (name, job) in [("40 float32 columns", &plain), ("one tensor of 40 float32", &tensor)] {
        let frames: Vec<Arc<Frame>> = (0..BLOCKS).map(|_| Arc::new(frame(job, &input, &slabs))).collect();
        // A linear congruential generator scatters rows like a permutation, at no cost.
        let mut next = 1u64;
        let mut rows = || -> Vec<RowRef> {
            let row = || {
                next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                RowRef { frame: (next >> 60) as u32, row: (next >> 40) as u32 % BLOCK_ROWS as u32 }
            };
            std::iter::repeat_with(row).take(BATCH_ROWS).collect()
        };
        let batches: Vec<Vec<RowRef>> = (0..64).map(|_| rows()).collect();
        for hash in [false, true] {
            let asked = AssembleOptions { hash, max_bytes: u64::MAX, max_held_bytes: 0, min_rows: 0 };
            let mut index = 0;
            // Keeps as many finished batches as a server, so that their memory is not in the CPU cache.
            let (slabs, mut ready) = (Slabs::new(256 << 20), VecDeque::new());
            group.bench_function(format!("{name}{}", if hash { ", hashed" } else { "" }), |bench| {
                bench.iter(|| {
                    index = (index + 1) % batches.len();
                    let batch = assemble(job.view(), &frames, &batches[index], asked, &slabs);
                    ready.push_back(batch.expect("fits"));
                    if ready.len() > READY_BATCHES {
                        ready.pop_front();
                    }
                });
            });
        }
    }
    let source = vec![1u8; BATCH_ROWS * COLUMNS * 4 * 64];
    let mut part = 0;
    group.bench_function("memcpy of as many bytes", |bench| {
        bench.iter(|| {
            part = (part + 1) % 64;
            let len = source.len() / 64;
            black_box(source[part * len..][..len].to_vec())
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(3));
    targets = bench
}
criterion_main!(benches);
