//! The files of `hostile/files`, which the acceptance tests give to a server. `FOREBAY_BLESS=1` rewrites them.

use std::path::{Path, PathBuf};

use crate::expansion;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/files")
}

#[test]
fn the_files_of_the_acceptance_tests_are_the_files_of_these_tests() {
    let bless = std::env::var_os("FOREBAY_BLESS").is_some_and(|value| value == "1");
    let mut names = Vec::new();
    for (name, bytes) in expansion::files() {
        let path = folder().join(format!("{name}.parquet"));
        assert!(bytes.len() < 256 << 10, "{name} has {} bytes", bytes.len());
        if bless {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let written = std::fs::read(&path).unwrap();
        assert!(written == bytes, "{} is not current: run this test with FOREBAY_BLESS=1", path.display());
        names.push(format!("{name}.parquet"));
    }
    let found = std::fs::read_dir(folder()).unwrap();
    let mut found: Vec<_> = found.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    found.sort();
    assert_eq!(found, names);
}
