//! Cost per value of wide batches, wide blocks and files with many row groups. Each measurement handles about as many values, so
//! that a cost that is linear in columns takes the same time for all numbers of columns. Also the wait of a narrow stream next to two wide
//! ones.

use std::{hint::black_box, sync::Arc};

use arrow_array::{ArrayRef, Int32Array, ListArray, RecordBatch};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_cache::Slabs;
use forebay_loader::{
    AssembleOptions, Config, Frame, FrameBuilder, Job, Loader, Pool, RowRef, Scheduling, assemble,
};
use forebay_proto::v1::Train;
use tokio_util::task::AbortOnDropHandle;

#[path = "../tests/fixture/mod.rs"]
mod fixture;

const COLUMNS: [usize; 4] = [100, 400, 1_000, 10_000];
/// Number of values of a batch or a block.
const VALUES: usize = 1 << 20;
const ROW_GROUPS: [usize; 3] = [10, 100, 1_000];

/// Lists of 0 to 7 items. With `nulls`, every other list has null items.
fn lists(columns: usize, rows: usize, nulls: bool) -> RecordBatch {
    let column = |number: usize| {
        let lengths: Vec<usize> = (0..rows).map(|row| (row + number) % 8).collect();
        let items: Int32Array = (0..lengths.iter().sum())
            .map(|item: usize| (!nulls || item % 7 != 3).then_some(item as i32))
            .collect();
        let field = Arc::new(Field::new("item", DataType::Int32, true));
        let lists = ListArray::new(field, OffsetBuffer::from_lengths(lengths), Arc::new(items), None);
        (format!("l{number}"), Arc::new(lists) as ArrayRef)
    };
    RecordBatch::try_from_iter((0..columns).map(column)).expect("columns of equal length")
}

/// All rows of `input` as one frame.
fn frame(job: &Job, input: &RecordBatch, slabs: &Slabs) -> Frame {
    let mut builder =
        FrameBuilder::new(job.view().clone(), input.num_rows(), "bench".into(), slabs).expect("memory");
    builder.append(input).expect("fits");
    builder.finish().expect("complete")
}

fn bench(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let job_of = |input: &RecordBatch| {
        let reader = runtime.block_on(async {
            fixture::reader(fixture::store(std::slice::from_ref(input), 1 << 20).await).await
        });
        fixture::job(&Train { batch_size: 1, ..Train::default() }, &reader)
    };
    let slabs = Slabs::new(1 << 30);
    let asked = AssembleOptions { hash: false, max_bytes: u64::MAX, max_held_bytes: 0, min_rows: 0 };
    for (name, input) in [
        ("float32 columns", fixture::floats as fn(usize, usize) -> RecordBatch),
        ("list columns", |columns, rows| lists(columns, rows, false)),
        ("list columns with null items", |columns, rows| lists(columns, rows, true)),
    ] {
        let mut group = criterion.benchmark_group(format!("gather {name}"));
        group.throughput(Throughput::Elements(VALUES as u64));
        for columns in COLUMNS {
            let rows = VALUES / columns;
            let input = input(columns, rows);
            let job = job_of(&input);
            let frames = [Arc::new(frame(&job, &input, &slabs))];
            // Another order, in which no row follows its predecessor.
            let picked: Vec<RowRef> =
                (0..rows).map(|row| RowRef { frame: 0, row: ((row * 7 + 3) % rows) as u32 }).collect();
            group.bench_function(format!("{columns}"), |bench| {
                bench.iter(|| assemble(job.view(), &frames, &picked, asked, &slabs).expect("fits"));
            });
        }
        group.finish();
        let mut group = criterion.benchmark_group(format!("frame of {name}"));
        group.throughput(Throughput::Elements(VALUES as u64));
        for columns in COLUMNS {
            let input = input(columns, VALUES / columns);
            let job = job_of(&input);
            group.bench_function(format!("{columns}"), |bench| bench.iter(|| frame(&job, &input, &slabs)));
        }
        group.finish();
    }

    let mut group = criterion.benchmark_group("decode a block of float32 columns");
    group.throughput(Throughput::Elements(VALUES as u64));
    for columns in COLUMNS {
        let input = fixture::floats(columns, VALUES / columns);
        let reader =
            runtime.block_on(async { fixture::reader(fixture::store(&[input], 1 << 20).await).await });
        let projection: Vec<usize> = (0..columns).collect();
        group.bench_function(format!("{columns}"), |bench| {
            bench.iter(|| {
                let block = runtime.block_on(reader.fetch(0, &projection)).expect("a block");
                block
                    .decode(Config::default().decode_rows)
                    .for_each(|chunk| drop(black_box(chunk.expect("rows"))));
            });
        });
    }
    group.finish();

    // One column of one block, of files whose footers have more and more row groups.
    let mut group = criterion.benchmark_group("decode one column of a file with row groups");
    for groups in ROW_GROUPS {
        let rows = 4_096;
        let input = fixture::floats(10, rows * groups);
        let reader = runtime.block_on(async { fixture::reader(fixture::store(&[input], rows).await).await });
        let blocks = reader.snapshot().blocks().len();
        let mut block = 0;
        group.bench_function(format!("{groups}"), |bench| {
            bench.iter(|| {
                block = (block + 7) % blocks;
                let block = runtime.block_on(reader.fetch(block, &[3])).expect("a block");
                block.decode(rows).for_each(|chunk| drop(black_box(chunk.expect("rows"))));
            });
        });
    }
    group.finish();
    one_of_many_columns(criterion, &runtime);
    wide_neighbours(criterion, &runtime);
}

/// One column of one block, in an order in which no block follows its predecessor. The whole footers of the wide files are larger than
/// the memory for footers.
fn one_of_many_columns(criterion: &mut Criterion, runtime: &tokio::runtime::Runtime) {
    const FILES: usize = 48;
    const ROWS: usize = 512;
    let config = forebay_storage::Config { footer_memory_bytes: 16 << 20, ..Default::default() };
    let mut group = criterion.benchmark_group("one column of a shuffled block");
    for columns in [10, 5_000] {
        let files = vec![fixture::floats(columns, ROWS); FILES];
        let reader = runtime.block_on(async {
            fixture::reader_with(fixture::store(&files, ROWS).await, config.clone()).await
        });
        let mut block = 0;
        group.bench_function(format!("files of {columns} columns"), |bench| {
            bench.iter(|| {
                block = (block + 7) % FILES;
                let block = runtime.block_on(reader.fetch(block, &[3])).expect("a block");
                block.decode(ROWS).for_each(|chunk| drop(black_box(chunk.expect("rows"))));
            });
        });
    }
    group.finish();
}

/// Takes `batches` batches of a new stream.
async fn take(loader: &Loader, job: &Arc<Job>, batches: usize) {
    let mut stream = loader.batches(Arc::clone(job), 0, 0);
    for _ in 0..batches {
        drop(stream.next().await.expect("there are more").expect("a batch"));
    }
}

/// The next batch of a narrow stream from memory, next to streams of 400 list columns with null items.
fn wide_neighbours(criterion: &mut Criterion, runtime: &tokio::runtime::Runtime) {
    let _entered = runtime.enter();
    let pool = Pool::new(2, Scheduling::Normal).expect("threads");
    let loader = Loader::new(2 << 30, Config::default(), pool);
    let job_of = |input: RecordBatch| {
        runtime.block_on(async {
            let reader = fixture::reader(fixture::store(&[input], 1 << 20).await).await;
            let train = Train { batch_size: 4_096, epochs: Some(1 << 40), ..Train::default() };
            fixture::job(&train, &reader)
        })
    };
    let (wide, narrow) = (job_of(lists(400, 16_384, true)), job_of(fixture::floats(4, 16_384)));
    runtime.block_on(async { tokio::join!(take(&loader, &wide, 4), take(&loader, &narrow, 4)) });
    let mut group = criterion.benchmark_group("first batch of a narrow stream");
    for others in [0, 2] {
        let busy: Vec<_> = (0..others)
            .map(|_| {
                let (loader, wide) = (loader.clone(), Arc::clone(&wide));
                AbortOnDropHandle::new(tokio::spawn(async move { take(&loader, &wide, usize::MAX).await }))
            })
            .collect();
        group.bench_function(format!("next to {others} wide streams"), |bench| {
            bench.iter(|| runtime.block_on(take(&loader, &narrow, 1)));
        });
        drop(busy);
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(std::time::Duration::from_secs(2));
    targets = bench
}
criterion_main!(benches);
