//! Property of the fuzz target, checked for the inputs of its corpus.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{fs, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_cache::{Disk, DiskConfig, NoForecast, Outcome};

#[path = "../../../fuzz/properties/cache_file.rs"]
mod cache_file;
#[path = "../../../fuzz/properties/replay.rs"]
mod replay;

#[test]
fn cache_files_of_the_fuzzer_are_read_exactly_or_are_misses() {
    replay::replay("cache_file", 60, cache_file::check);
}

/// Returns the bytes of the file of an entry with these sections.
async fn written(entry: u128, sections: &[(u128, &str)]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::open(directory.path(), DiskConfig::default(), Arc::new(NoForecast)).unwrap();
    let sections =
        sections.iter().map(|(name, text)| (*name, vec![Bytes::from((*text).to_owned())])).collect();
    assert_eq!(disk.put(entry, sections, Duration::from_millis(3)).await, Outcome::Written);
    let folder = directory.path().join(format!("columns/{:02x}", entry >> 120));
    fs::read(fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()).unwrap()
}

/// Writes the inputs that fuzzing begins with.
#[tokio::test]
#[ignore = "writes fuzz/corpus"]
async fn write_the_seeds_of_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/cache_file");
    fs::create_dir_all(&folder).unwrap();
    let own = cache_file::ENTRY;
    let long = "0123456789".repeat(50);
    let twice = {
        // Two sections, and the name of the first one in both records.
        let mut file = written(own, &[(1, "one"), (2, "two")]).await;
        file.copy_within(64..80, 104);
        file
    };
    let files = [
        ("one", written(own, &[(1, "one")]).await),
        ("three", written(own, &[(1, "one"), (2, ""), (u128::MAX, &long)]).await),
        ("many", written(own, &std::array::from_fn::<_, 20, _>(|name| (name as u128, "x"))).await),
        ("empty", written(own, &[(1, "")]).await),
        ("other", written(own + 1, &[(1, "one")]).await),
        ("twice", twice),
    ];
    for (name, file) in files {
        for mode in
            [0, cache_file::CORRECTED, cache_file::REFILLED, cache_file::CORRECTED | cache_file::REFILLED]
        {
            let input = [&[mode][..], &file].concat();
            fs::write(folder.join(format!("seed-{name}-{mode}")), input).unwrap();
        }
    }
}
