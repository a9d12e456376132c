//! Cost of matching the streams of a job with the servers of a cluster, and of the candidates of one stream.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use forebay_placement::{Placement, Server, Streams};

fn servers(count: usize) -> Vec<Server> {
    (0..count)
        .map(|n| Server { name: format!("forebay-{n}.forebay:7050"), zone: None, is_draining: false })
        .collect()
}

fn placement(c: &mut Criterion) {
    let mut group = c.benchmark_group("placement");
    group.sample_size(10);
    for (ranks, count) in [(64, 16), (256, 64), (4_096, 1_000), (1_000, 1_000), (16_384, 1_000)] {
        let (tier, streams) = (servers(count), Streams { dataset: "clicks", partitions: ranks, ranks });
        group.bench_function(BenchmarkId::new("new", format!("{ranks}x{count}")), |b| {
            b.iter(|| Placement::new(black_box(&tier), black_box(&streams), None));
        });
        let placement = Placement::new(&tier, &streams, None);
        group.bench_function(BenchmarkId::new("candidates", format!("{ranks}x{count}")), |b| {
            b.iter(|| black_box(&placement).candidates(black_box(7)).len());
        });
    }
    group.finish();
}

criterion_group!(benches, placement);
criterion_main!(benches);
