//! Reads of the disk tier whose files are in the page cache of the operating system, and reads of which nothing stays there: the
//! price of dropping the pages after each read.

#![allow(missing_docs, reason = "criterion macros generate undocumented items")]

use std::{fs::File, hint::black_box, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forebay_cache::{Disk, DiskConfig, NoForecast, Outcome};

const ENTRIES: u128 = 64;
/// Size of a column of a large block.
const SECTION_BYTES: usize = 4 << 20;

fn files(directory: &std::path::Path) -> Vec<PathBuf> {
    let listed = |folder: PathBuf| {
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
    };
    let folders = listed(directory.join("columns")).filter(|path| path.is_dir());
    folders.flat_map(listed).collect()
}

/// Removes the pages of the files from the page cache. The files must be on disk.
#[cfg(target_os = "linux")]
fn drop_pages(files: &[PathBuf]) {
    use rustix::fs::{Advice, fadvise};
    for path in files {
        fadvise(File::open(path).expect("a file"), 0, None, Advice::DontNeed).expect("Linux supports it");
    }
}

fn read(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let directory = tempfile::tempdir().expect("a folder");
    let disk =
        Disk::open(directory.path(), DiskConfig::default(), Arc::new(NoForecast)).expect("an empty folder");
    for entry in 0..ENTRIES {
        let bytes: Vec<u8> =
            (0..SECTION_BYTES).map(|at| (at.wrapping_mul(31) + entry as usize) as u8).collect();
        let put = disk.put(entry, vec![(0, vec![Bytes::from(bytes)])], Duration::ZERO);
        assert_eq!(runtime.block_on(put), Outcome::Written);
    }
    let files = files(directory.path());
    assert_eq!(files.len(), ENTRIES as usize);
    files.iter().for_each(|path| File::open(path).expect("a file").sync_all().expect("a disk"));
    let read_all = || {
        for entry in 0..ENTRIES {
            let read = runtime.block_on(disk.get(entry, &[0])).pop().flatten();
            black_box(read.expect("it was written"));
        }
    };

    let mut group = criterion.benchmark_group("disk");
    group.throughput(Throughput::Bytes(ENTRIES as u64 * SECTION_BYTES as u64));
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    group.bench_function("read/page cache", |bencher| bencher.iter(read_all));
    #[cfg(target_os = "linux")]
    group.bench_function("read/pages dropped", |bencher| {
        bencher.iter(|| {
            drop_pages(&files);
            read_all();
        });
    });
    group.finish();
}

criterion_group!(benches, read);
criterion_main!(benches);
