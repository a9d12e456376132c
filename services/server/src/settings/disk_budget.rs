//! Default of `cache_disk`, which follows from the disk of the cache directory.

use std::path::Path;

use forebay_cache::Disk;

/// Returns half of the disk space that the disk cache in `cache_dir` could occupy, in bytes.
///
/// Blocks while it lists the files of the disk cache.
pub(super) fn default_bytes(cache_dir: &Path) -> u64 {
    half_of_usable(cache_dir, free_bytes(cache_dir))
}

/// Half of the sum of free space and existing cache files. The sum does not change as the cache fills; free space
/// alone would shrink the budget at every restart, and evict a warm cache.
fn half_of_usable(cache_dir: &Path, free_bytes: u64) -> u64 {
    free_bytes.saturating_add(Disk::stored_bytes(cache_dir)) / 2
}

/// Free bytes on the disk of `directory`; 0 if unknown.
fn free_bytes(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Creates a sparse file of `bytes` below the cache directory.
    fn create(cache_dir: &Path, path: &str, bytes: u64) {
        let path = cache_dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(path).unwrap().set_len(bytes).unwrap();
    }

    #[test]
    fn a_full_cache_keeps_its_default_budget_over_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let disk_bytes = 1000 * MIB;
        let budget = half_of_usable(directory.path(), disk_bytes);
        assert_eq!(budget, 500 * MIB);
        let mut held_bytes = 0;
        for id in 1..=5 {
            let name = format!("columns/ab/ab{}-{id:016x}.col", "0".repeat(30));
            create(directory.path(), &name, 100 * MIB);
            held_bytes += 100 * MIB;
            assert_eq!(half_of_usable(directory.path(), disk_bytes - held_bytes), budget);
        }
    }

    #[test]
    fn files_that_are_not_of_the_disk_cache_reduce_its_default_budget() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["state/jobs/a.job", "columns/data.parquet", "columns/ab/notes.txt", "lock"] {
            create(directory.path(), path, 100 * MIB);
        }
        assert_eq!(half_of_usable(directory.path(), 600 * MIB), 300 * MIB);
    }
}
