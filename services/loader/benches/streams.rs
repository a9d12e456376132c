//! Latency of the first batch of a stream while other streams run at full speed.

use std::{sync::Arc, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use forebay_loader::{Config, Job, Loader, Pool, Scheduling};
use forebay_proto::v1::{Tensor, Train};
use tokio_util::task::AbortOnDropHandle;

#[path = "../tests/fixture/mod.rs"]
mod fixture;

const FILES: u64 = 8;
const FILE_ROWS: usize = 65_536;
const COLUMNS: usize = 40;
const BATCH_ROWS: u64 = 4096;

async fn take(loader: &Loader, job: &Arc<Job>, batches: usize) {
    let mut stream = loader.batches(Arc::clone(job), 0, 0);
    for _ in 0..batches {
        drop(stream.next().await.expect("there are more").expect("a batch"));
    }
}

fn bench(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Pool::new(threads, Scheduling::Normal).expect("threads");
    let loader = Loader::new(1 << 30, Config::default(), pool);
    let files = vec![fixture::floats(COLUMNS, FILE_ROWS); FILES as usize];
    let reader = runtime.block_on(async { fixture::reader(fixture::store(&files, FILE_ROWS).await).await });
    let tensor = Tensor { name: "x".into(), columns: vec!["c*".into()], ..Tensor::default() };
    let train = Train {
        batch_size: BATCH_ROWS,
        tensors: vec![tensor],
        epochs: Some(1 << 40),
        content_hash: Some(false),
        ..Train::default()
    };
    let job = runtime.block_on(async { fixture::job(&train, &reader) });
    runtime.block_on(take(&loader, &job, (FILES * FILE_ROWS as u64 / BATCH_ROWS) as usize));

    let mut group = criterion.benchmark_group("first batch");
    group.sample_size(30).measurement_time(Duration::from_secs(10));
    for others in [0, 8, 32] {
        let busy = (0..others).map(|_| {
            let (loader, job) = (loader.clone(), Arc::clone(&job));
            AbortOnDropHandle::new(tokio::spawn(async move { take(&loader, &job, usize::MAX).await }))
        });
        let busy: Vec<_> = busy.collect();
        group.bench_function(format!("next to {others} streams"), |bench| {
            bench.iter(|| runtime.block_on(take(&loader, &job, 1)));
        });
        drop(busy);
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
