//! Shared state of the disk tier: the index, the eviction policy and the files they describe.

use std::{
    fmt::Display,
    fs::File,
    io,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    backoff::Backoff,
    config::DiskConfig,
    files::Files,
    index::{Index, Stored},
    io_errors::{IoErrorKind, IoErrors},
    name::FileKey,
    usage::Usage,
};
use crate::Policy;

/// State that all clones of the tier share.
pub(crate) struct State {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) folder: PathBuf,
    pub(crate) config: DiskConfig,
    /// Capacity in bytes, if it is not configured. Known once the files of earlier processes are recovered.
    pub(crate) default_capacity_bytes: OnceLock<u64>,
    /// Cancelled when the files of earlier processes are recovered. Nothing is written before.
    pub(crate) recovered: CancellationToken,
    /// Eviction policy over the files of the index. Changed under the lock of the index. An eviction scan is started
    /// before the index is locked.
    pub(crate) policy: Policy<FileKey>,
    /// Never locked across I/O or calls of the forecast.
    pub(crate) index: Mutex<Index>,
    pub(crate) backoff: Mutex<Backoff>,
    /// Pauses after reads that took too long.
    pub(crate) late_reads: Mutex<Backoff>,
    pub(crate) io_errors: IoErrors,
    /// Free space of the write queue.
    pub(crate) queue: Arc<Semaphore>,
    /// Free space in the half of the write queue that callers of `write_space` may take.
    pub(crate) space: Arc<Semaphore>,
    pub(crate) writers: Arc<Semaphore>,
    pub(crate) readers: Arc<Semaphore>,
    /// Marker file, which is locked for the lifetime of the tier.
    pub(crate) _marker: File,
}

impl State {
    /// Capacity in bytes; `None` if it is not configured and not determined yet.
    fn known_capacity_bytes(&self) -> Option<u64> {
        self.config.capacity_bytes.or_else(|| self.default_capacity_bytes.get().copied())
    }

    /// Capacity in bytes. 0 if it is not configured and not all files of earlier processes are listed yet.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.known_capacity_bytes().unwrap_or(0)
    }

    /// Limits on the disk space of all files and on the memory of their index. While the capacity is unknown, disk space has no limit, so
    /// that no file is evicted for it.
    pub(crate) fn capacity(&self) -> Usage {
        let bytes = self.known_capacity_bytes().unwrap_or(u64::MAX);
        Usage { bytes, index_bytes: self.config.max_index_bytes }
    }

    /// Evicts files until the tier is within its capacity.
    pub(crate) fn shrink(&self) {
        let mut scan = self.policy.eviction_scan();
        let is_within = || self.index.lock().resident().fits(self.capacity());
        while !is_within() {
            let Some(victim) = scan.victim() else { break };
            if let Some(stored) = self.forget(victim.key) {
                metrics::counter!("forebay_cache_evictions_total", "tier" => "disk").increment(1);
                self.delete(&stored);
            }
        }
    }

    /// Removes a file from the index and the policy.
    pub(crate) fn forget(&self, key: FileKey) -> Option<Arc<Stored>> {
        self.remove_from(&mut self.index.lock(), key)
    }

    /// As [`forget`](Self::forget), with the index locked by the caller.
    pub(crate) fn remove_from(&self, index: &mut Index, key: FileKey) -> Option<Arc<Stored>> {
        self.policy.remove(&key);
        index.remove(key)
    }

    /// Deletes a file that is no longer in the index.
    pub(crate) fn delete(&self, stored: &Stored) {
        let path = self.folder.join(stored.key.path());
        match self.files.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.io_errors.report(IoErrorKind::Remove, &path, &error);
            }
            _ => {}
        }
    }

    /// Removes and deletes a damaged file.
    pub(crate) fn discard(&self, stored: &Stored, kind: IoErrorKind, error: &dyn Display) {
        if self.forget(stored.key).is_none() {
            return;
        }
        self.io_errors.report(kind, &self.folder.join(stored.key.path()), error);
        self.delete(stored);
        self.set_gauge();
    }

    /// Updates the metric of resident bytes.
    pub(crate) fn set_gauge(&self) {
        // The gauge is set under the lock, so it shows the later of two changes at the same time.
        let index = self.index.lock();
        metrics::gauge!("forebay_cache_resident_bytes", "tier" => "disk").set(index.resident_bytes() as f64);
    }
}
