//! Disk space of the files of the cache, and memory for their index.

/// Block size of the file system, to which the size of a file is rounded up.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Memory for a file with a section in the index and in the eviction policy, in bytes, rounded up.
const FILE_INDEX_BYTES: u64 = 1024;
/// Memory for a further section in the header of its file and in the map of its entry, in bytes, rounded up.
const SECTION_INDEX_BYTES: u64 = 128;

/// Disk space and memory that files take, or may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Size of the files on disk, in bytes.
    pub(crate) bytes: u64,
    /// Estimated size of their headers and sections in memory, in bytes.
    pub(crate) index_bytes: u64,
}

impl Usage {
    /// Usage of a file of `file_bytes` bytes with `sections` sections.
    pub(crate) fn of_file(file_bytes: u64, sections: usize) -> Self {
        Self {
            bytes: file_bytes.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES),
            index_bytes: FILE_INDEX_BYTES + SECTION_INDEX_BYTES * sections as u64,
        }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            index_bytes: self.index_bytes.saturating_add(other.index_bytes),
        }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            index_bytes: self.index_bytes.saturating_sub(other.index_bytes),
        }
    }

    /// True if neither exceeds that of `limit`.
    pub(crate) fn fits(self, limit: Self) -> bool {
        self.bytes <= limit.bytes && self.index_bytes <= limit.index_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_fits_if_both_of_its_parts_do() {
        let limit = Usage { bytes: 10, index_bytes: 20 };
        for (bytes, index_bytes, fits) in [(10, 20, true), (11, 20, false), (10, 21, false), (0, 0, true)] {
            assert_eq!(Usage { bytes, index_bytes }.fits(limit), fits, "{bytes} {index_bytes}");
        }
        let file = Usage::of_file(4097, 3);
        assert_eq!(file, Usage { bytes: 8192, index_bytes: 1024 + 3 * 128 });
        assert_eq!(limit.plus(file).minus(file), limit);
        assert_eq!(limit.minus(file), Usage::default());
    }
}
