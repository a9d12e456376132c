//! Decoding with validation, compared to the `parquet` crate alone: 2^20 rows of 8 columns.

#![allow(missing_docs, reason = "criterion macros generate undocumented items")]

use std::{hint::black_box, sync::Arc, time::Duration};

use arrow_array::{ArrayRef, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use forebay_storage::{Config, EncodedBlock, Location, Reader, State, take_snapshot};
use object_store::{ObjectStoreExt, memory::InMemory};
use parquet::{
    arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};

const ROWS: u64 = 1 << 20;
const BATCH_ROWS: usize = 8192;

fn columns() -> RecordBatch {
    let mix = |row: u64, column: u64| (row ^ column << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
    let rows = || 0..ROWS;
    let words = rows().map(|row| format!("user-{}", mix(row, 7) % 50_000));
    let columns: [(&str, ArrayRef); 8] = [
        ("id", Arc::new(rows().map(|row| row as i64).collect::<Int64Array>())),
        ("small", Arc::new(rows().map(|row| (mix(row, 1) % 100) as i32).collect::<Int32Array>())),
        ("large", Arc::new(rows().map(|row| mix(row, 2) as i64).collect::<Int64Array>())),
        ("float", Arc::new(rows().map(|row| mix(row, 3) as f32).collect::<Float32Array>())),
        ("double", Arc::new(rows().map(|row| mix(row, 4) as f64).collect::<Float64Array>())),
        ("sparse", Arc::new(rows().map(|row| (row % 5 > 0).then_some(row as i32)).collect::<Int32Array>())),
        ("word", Arc::new(StringArray::from_iter_values(words))),
        ("flag", Arc::new(rows().map(|row| (mix(row, 6) % 2) as i32).collect::<Int32Array>())),
    ];
    RecordBatch::try_from_iter(columns).expect("columns of one length")
}

fn encode(batch: &RecordBatch, codec: Compression) -> Bytes {
    let properties =
        WriterProperties::builder().set_compression(codec).set_max_row_group_row_count(Some(1 << 17));
    let mut bytes = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties.build())).expect("a schema");
    writer.write(batch).expect("a batch");
    writer.close().expect("a file");
    bytes.into()
}

fn reader(runtime: &tokio::runtime::Runtime, file: Bytes) -> Reader {
    let (config, store) = (Config::default(), Arc::new(InMemory::new()));
    runtime.block_on(store.put(&"a.parquet".into(), file.into())).expect("memory");
    let location = Location::with_store("mem://", store, "");
    let state =
        State::open(Location::with_store("mem://state", Arc::new(InMemory::new()), ""), None, &config);
    let snapshot = runtime.block_on(take_snapshot("bench", &location, &state, &config, |_, _| {}));
    Reader::new(Arc::new(snapshot.expect("a dataset")), location, &state, config)
}

fn fetch(runtime: &tokio::runtime::Runtime, reader: &Reader) -> Vec<EncodedBlock> {
    let columns: Vec<usize> = (0..8).collect();
    let blocks = 0..reader.snapshot().blocks().len();
    blocks.map(|block| runtime.block_on(reader.fetch(block, &columns)).expect("memory")).collect()
}

fn decode(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let batch = columns();
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Bytes(batch.get_array_memory_size() as u64));
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    for (name, codec) in [("zstd", Compression::ZSTD(ZstdLevel::default())), ("snappy", Compression::SNAPPY)]
    {
        let file = encode(&batch, codec);
        group.bench_function(format!("{name}/parquet"), |bencher| {
            bencher.iter(|| {
                let builder = ParquetRecordBatchReaderBuilder::try_new(file.clone()).expect("a file");
                for batch in builder.with_batch_size(BATCH_ROWS).build().expect("a reader") {
                    black_box(batch.expect("a batch"));
                }
            });
        });
        let reader = reader(&runtime, file.clone());
        group.bench_function(format!("{name}/forebay"), |bencher| {
            let decode = |blocks: Vec<EncodedBlock>| {
                for batch in blocks.into_iter().flat_map(|block| block.decode(BATCH_ROWS)) {
                    black_box(batch.expect("a batch"));
                }
            };
            bencher.iter_batched(|| fetch(&runtime, &reader), decode, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, decode);
criterion_main!(benches);
