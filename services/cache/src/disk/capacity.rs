//! Default of the capacity, which follows from the disk of the cache folder.

use std::path::Path;

/// Half of the disk space that the files of the tier, of `resident_bytes` bytes, could occupy.
///
/// The sum of free and occupied space does not change as the cache fills. Free space alone would shrink the capacity at every
/// restart, and evict a warm cache.
pub(super) fn default_bytes(folder: &Path, resident_bytes: u64) -> u64 {
    half_of_usable(free_bytes(folder), resident_bytes)
}

fn half_of_usable(free_bytes: u64, resident_bytes: u64) -> u64 {
    free_bytes.saturating_add(resident_bytes) / 2
}

/// Free bytes on the disk of `folder`; 0 if unknown.
fn free_bytes(folder: &Path) -> u64 {
    rustix::fs::statvfs(folder).map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_fills_keeps_its_default_capacity() {
        let disk_bytes = 1000;
        for resident_bytes in [0, 100, 500, 1000] {
            assert_eq!(half_of_usable(disk_bytes - resident_bytes, resident_bytes), 500);
        }
    }

    #[test]
    fn the_free_space_of_a_folder_is_known() {
        let directory = tempfile::tempdir().unwrap();
        assert!(free_bytes(directory.path()) > 0);
        assert_eq!(free_bytes(&directory.path().join("missing")), 0);
    }
}
