//! Facts that advice depends on, besides the verdict.

/// Properties of the server and its datasets that advice depends on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Number of threads that decode and gather.
    pub(crate) cpu_threads: usize,
    /// Number of cores of the machine.
    pub(crate) cores: usize,
    /// Decoded size of the columns that the judged sessions read, in bytes.
    pub(crate) decoded_bytes: u64,
    /// Capacity of the memory cache, in bytes.
    pub(crate) memory_bytes: u64,
    /// Capacity of the disk cache, in bytes; 0 without a disk cache.
    pub(crate) disk_bytes: u64,
    /// Largest number of concurrent requests to the store of a dataset.
    pub(crate) concurrent_requests: usize,
}
