//! Cached copies of Parquet footers on disk, one file each.
//!
//! Errors of the disk are logged and otherwise treated as misses. A disk that does not answer in time is not used for one
//! minute; reads in that time are misses. At most 8 threads are blocked by operations that hang.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::footer_eviction::{Eviction, used};
use crate::{blocking::blocking, store::envelope::Envelope};

const ENVELOPE: Envelope = Envelope { kind: "footer", version: 1 };
/// Maximum number of concurrent operations, and of threads that a hanging disk occupies.
const MAX_OPERATIONS: usize = 8;
/// Time for which a disk that did not answer in time is not used.
const PAUSE: Duration = Duration::from_secs(60);

/// Files of encoded footers.
#[derive(Debug)]
pub(super) struct FooterFiles {
    directory: Option<PathBuf>,
    /// Time after which an operation counts as failed.
    timeout: Duration,
    operations: Arc<Semaphore>,
    paused_until: Mutex<Option<Instant>>,
    failing: Arc<AtomicBool>,
    eviction: Arc<Eviction>,
}

impl FooterFiles {
    /// Maximum size of a footer, in bytes. A longer one is not cached.
    pub(super) const MAX_BYTES: u64 = 8 << 20;

    /// Creates a cache that stores its files in `directory`, and evicts files above `max_bytes` bytes. Without a directory, it is always
    /// empty.
    pub(super) fn new(directory: Option<PathBuf>, max_bytes: u64, timeout: Duration) -> Self {
        Self {
            directory,
            timeout,
            operations: Arc::new(Semaphore::new(MAX_OPERATIONS)),
            paused_until: Mutex::default(),
            failing: Arc::default(),
            eviction: Arc::new(Eviction::new(max_bytes)),
        }
    }

    /// Reads a footer.
    pub(super) async fn get(&self, key: u128) -> Option<Bytes> {
        let path = self.path(key)?;
        self.in_time(move || read(&path)).await.flatten()
    }

    /// Writes a footer, unless it is too long.
    pub(super) async fn put(&self, key: u128, bytes: Bytes) {
        if bytes.len() as u64 > Self::MAX_BYTES {
            return;
        }
        let (Some(path), Some(directory)) = (self.path(key), self.directory.clone()) else { return };
        let (failing, eviction) = (Arc::clone(&self.failing), Arc::clone(&self.eviction));
        self.in_time(move || {
            let failed = write_atomically(&path, &ENVELOPE.seal(&bytes)).err();
            if failed.is_none() {
                eviction.written(&directory, bytes.len() as u64);
            }
            let before = failing.swap(failed.is_some(), Ordering::Relaxed);
            match failed {
                Some(error) if !before => {
                    tracing::warn!(%error, path = %path.display(), "cannot cache footers on disk");
                }
                None if before => tracing::info!("caching footers on disk again"),
                _ => {}
            }
        })
        .await;
    }

    /// Path of a footer.
    pub(super) fn path(&self, key: u128) -> Option<PathBuf> {
        let name = format!("{key:032x}");
        self.directory.as_ref().map(|directory| directory.join(&name[..2]).join(&name))
    }

    /// Runs `work` on a blocking thread. Returns `None` if it does not end in time, or while the disk is not used.
    async fn in_time<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        if self.paused_until.lock().is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let working = async {
            let permit = Arc::clone(&self.operations).acquire_owned().await.ok()?;
            let work = move || {
                let done = work();
                drop(permit);
                Ok(done)
            };
            blocking(work).await.ok()
        };
        if let Ok(done) = timeout(self.timeout, working).await {
            return done;
        }
        let mut paused_until = self.paused_until.lock();
        if paused_until.is_none_or(|until| until <= Instant::now()) {
            let directory = self.directory.as_deref().unwrap_or(Path::new(""));
            tracing::warn!(
                directory = %directory.display(),
                timeout_seconds = self.timeout.as_secs_f64(),
                pause_seconds = PAUSE.as_secs(),
                "the disk of the footer cache did not answer in time and is not used now; footers are read from the Parquet files"
            );
        }
        *paused_until = Some(Instant::now() + PAUSE);
        None
    }
}

fn read(path: &Path) -> Option<Bytes> {
    let mut file = std::fs::File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    // Other programs may have written the file.
    if metadata.len() > FooterFiles::MAX_BYTES + Envelope::MAX_LINE {
        return None;
    }
    let mut sealed = Vec::new();
    file.read_to_end(&mut sealed).ok()?;
    match ENVELOPE.open(&sealed.into()) {
        Ok(bytes) => {
            used(&file, metadata.modified().ok()?);
            Some(bytes)
        }
        Err(detail) => {
            metrics::counter!("forebay_storage_corrupt_footers_total").increment(1);
            tracing::warn!(path = %path.display(), detail, "deleted a corrupt cached footer");
            std::fs::remove_file(path).ok();
            None
        }
    }
}

/// Writes a file atomically, by way of a temporary file with a unique name.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static WRITES: AtomicU64 = AtomicU64::new(0);

    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let unique = WRITES.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{unique}.tmp", std::process::id()));
    let written = std::fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        std::fs::remove_file(&temporary).ok();
    }
    written
}
