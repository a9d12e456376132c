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
    error::Error,
    files::Files,
    folder,
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
    /// Marker file, which is locked as long as this process owns the folder; `None` if another process owns it, or the folder cannot be
    /// created again.
    pub(crate) marker: Mutex<Option<Arc<File>>>,
    /// Held while the folder is taken again.
    pub(crate) taking: Mutex<()>,
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

    /// Makes sure that this process owns the folder before it writes into it. If another program has removed the folder or its marker,
    /// the files in it are forgotten, and the folder is created, marked and locked again. Returns true in this case. Blocks.
    ///
    /// # Errors
    /// If the folder cannot be used, or another process has taken it in the meantime.
    pub(crate) fn own_folder(&self) -> Result<bool, io::Error> {
        let is_owned = || {
            let marker = self.marker.lock().clone();
            marker.map_or(Ok(false), |marker| folder::has_marker(&self.folder, &marker))
        };
        if is_owned()? {
            return Ok(false);
        }
        let _taking = self.taking.lock();
        // Another write may have taken it in the meantime.
        if is_owned()? {
            return Ok(true);
        }
        let was_owned = self.marker.lock().take().is_some();
        if was_owned {
            let removed = "the folder was removed while the server uses it; it is created again";
            self.io_errors.report(IoErrorKind::Folder, &self.folder, &removed);
        }
        // What another process writes there is no file of this one.
        let entries = self.index.lock().entries();
        for entry in entries {
            let mut index = self.index.lock();
            for key in index.files(entry) {
                self.remove_from(&mut index, key);
            }
        }
        self.set_gauge();
        let marker = folder::take(&self.folder).map_err(|error| match error {
            Error::Folder { source, .. } => source,
            other => io::Error::other(other),
        })?;
        *self.marker.lock() = Some(Arc::new(marker));
        Ok(true)
    }

    /// True unless the folder was removed, or another process owns it.
    fn owns_folder(&self) -> bool {
        let marker = self.marker.lock().clone();
        marker.is_some_and(|marker| folder::has_marker(&self.folder, &marker).unwrap_or(true))
    }

    /// Deletes a file that is no longer in the index.
    pub(crate) fn delete(&self, stored: &Stored) {
        if !self.owns_folder() {
            return;
        }
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
