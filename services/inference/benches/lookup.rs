//! Lookups of random keys compared with gathering the same rows by position, and the cost of an index.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // A failure ends the benchmark.

use std::{hint::black_box, sync::Arc, time::Instant};

use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_inference::{KeyIndex, KeySpec};
use forebay_loader::{BlockReader, Config, Loader, Pool, Scheduling};
use forebay_proto::v1::{Tensor, Train};
use forebay_storage::{Location, Reader, State, take_snapshot};
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FILE_ROWS: i64 = 1 << 20;
const FEATURES: usize = 39;
const KEYS: usize = 500;

/// Pseudo-random key, distinct for each row.
fn key(row: i64) -> i64 {
    row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)
}

async fn dataset(rows: i64) -> Reader {
    let store = Arc::new(InMemory::new());
    for (file, start) in (0..rows).step_by(FILE_ROWS as usize).enumerate() {
        let rows = start..(start + FILE_ROWS).min(rows);
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone().map(key)));
        let feature = |number: usize| {
            let values = rows.clone().map(move |row| (row * 31 + number as i64) as f32);
            (format!("f{number}"), Arc::new(Float32Array::from_iter_values(values)) as ArrayRef)
        };
        let columns = std::iter::once(("user_id".to_owned(), ids)).chain((0..FEATURES).map(feature));
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let properties = WriterProperties::builder().set_dictionary_enabled(false);
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        let path = Path::from(format!("data/{file:03}.parquet"));
        store.put(&path, writer.into_inner().unwrap().into()).await.unwrap();
    }
    let config = forebay_storage::Config::default();
    let state = Location::with_store("memory://state", Arc::new(InMemory::new()), "state");
    let state = State::open(state, None, &config);
    let location = Location::with_store("memory://data", store, "data");
    let snapshot = take_snapshot("d", &location, &state, &config, |_, _| {}).await.unwrap();
    Reader::new(Arc::new(snapshot), location, &state, config)
}

fn bench(criterion: &mut Criterion) {
    let rows: i64 = std::env::var("ROWS").map_or(1_000_000, |rows| rows.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Pool::new(threads, Scheduling::Normal).unwrap();
    let reader = runtime.block_on(dataset(rows));
    let spec = KeySpec { key: vec!["user_id".into()], order_by: None };

    let started = Instant::now();
    let index = runtime
        .block_on(KeyIndex::build(
            &reader,
            &spec,
            &BlockReader::new(1 << 30, &Config::default(), pool.clone()),
            8,
            |_| {},
        ))
        .unwrap();
    let seconds = started.elapsed().as_secs_f64();
    let bytes = index.memory_bytes() as f64 / index.len() as f64;
    println!(
        "{rows} keys: {seconds:.2} s, {:.2} M keys/s, {bytes:.1} bytes per key",
        rows as f64 / seconds / 1e6
    );
    let folder = tempfile::tempdir().unwrap();
    let started = Instant::now();
    index.save(folder.path(), &reader, &spec).unwrap();
    let written = started.elapsed();
    let started = Instant::now();
    assert!(KeyIndex::open(folder.path(), &reader, &spec).is_some());
    println!("written in {written:.2?}, read in {:.2?}", started.elapsed());

    let loader = Loader::new(8 << 30, Config::default(), pool);
    let tensor =
        Tensor { name: "x".into(), columns: vec!["f*".into()], dtype: "float32".into(), ..Tensor::default() };
    let wanted = Train { dataset: "d".into(), tensors: vec![tensor], ..Train::default() };
    loader.reserve_for_lookups(6 << 30).unwrap();
    let lookup_rows = runtime.block_on(loader.lookup_rows(&wanted, reader, 16 << 20)).unwrap();

    // Other rows each time, in random order, so that CPU caches do not help.
    let mut next = 0_u64;
    let mut some = || {
        let rows = (0..KEYS as u64).map(|_| {
            next = next.wrapping_add(1);
            next.wrapping_mul(0x9e37_79b9_7f4a_7c15) % rows as u64
        });
        rows.collect::<Vec<u64>>()
    };
    let keys_of = |rows: &[u64]| {
        let keys = Int64Array::from_iter_values(rows.iter().map(|row| key(*row as i64)));
        RecordBatch::try_from_iter([("user_id", Arc::new(keys) as ArrayRef)]).unwrap()
    };
    let mut group = criterion.benchmark_group(format!("{KEYS} of {rows} rows"));
    group.throughput(Throughput::Elements(KEYS as u64));
    group.bench_function("keys to rows", |bench| {
        let make = || keys_of(&some());
        bench.iter_batched(
            make,
            |keys| drop(black_box(index.rows(&index.key().encode(&keys).unwrap()))),
            criterion::BatchSize::SmallInput,
        );
    });
    group.bench_function("gathered by position", |bench| {
        // Dropped at once, so that its memory is reused, as in a server.
        let gather =
            |rows: Vec<u64>| drop(black_box(lookup_rows.gather(rows.into_iter().map(Some)).unwrap()));
        bench.iter_batched(&mut some, gather, criterion::BatchSize::SmallInput);
    });
    group.bench_function("looked up", |bench| {
        let look_up = |keys| {
            let keys = index.key().encode(&keys).unwrap();
            drop(black_box(lookup_rows.gather(index.rows(&keys)).unwrap()));
        };
        bench.iter_batched(|| keys_of(&some()), look_up, criterion::BatchSize::SmallInput);
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
