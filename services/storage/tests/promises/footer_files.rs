//! The footers on disk stay within their limit.

use std::{path::Path, time::Duration};

use tokio::time::{sleep, timeout};

use crate::common::{Fixture, rows};

const FILES: i32 = 8;
const ROUNDS: i32 = 20;
/// Disk space of 16 footers.
const MAX_BYTES: u64 = 16 * 4096;

/// Number of files below a folder.
fn files(folder: &Path) -> u64 {
    let folders = std::fs::read_dir(folder).into_iter().flatten();
    folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count() as u64).sum()
}

#[tokio::test]
async fn footers_of_files_that_are_rewritten_again_and_again_stay_within_their_limit_on_disk() {
    let mut fixture = Fixture::new();
    fixture.config.footer_disk_bytes = MAX_BYTES;
    fixture.restart();
    let folder = fixture.directory.path().join("footers");
    let mut most = 0;
    for round in 0..ROUNDS {
        for file in 0..FILES {
            fixture.write(&format!("{file}.parquet"), &rows(0..=round));
        }
        assert_eq!(fixture.read().await.unwrap().num_rows(), (FILES * (round + 1)) as usize);
        most = most.max(files(&folder));
    }
    assert!(most > 2, "no footer is written");
    // Files are deleted in the background, after each eighth of the limit that is written.
    let within_limit = async {
        while files(&folder) * 4096 > MAX_BYTES + MAX_BYTES / 8 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), within_limit).await.expect("old footers are deleted");
    // The newest are kept, and are found after a restart.
    assert!(files(&folder) >= FILES as u64);
}
