//! Footer cache: parsed footers in memory and their bytes on disk.
//!
//! Entries of either may be lost at any time. A missing footer is read from its file again.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    Config, Error, Location,
    blocking::blocking,
    store::{envelope::Envelope, target::Target},
    validate::footer::{Footer, parse_footer, read_footer},
};

const ENVELOPE: Envelope = Envelope { kind: "footer", version: 1 };

impl Target {
    fn key(&self) -> u128 {
        let mut hash = Xxh3::new();
        self.version.hash_into(&self.url, &mut hash);
        hash.digest128()
    }
}

/// Footers by file and version.
#[derive(Debug)]
pub(crate) struct FooterCache {
    memory: Mutex<Memory>,
    disk: Disk,
}

impl FooterCache {
    /// Creates a cache with `capacity_bytes` of memory, and files in `directory` if it is given.
    pub(crate) fn new(directory: Option<PathBuf>, capacity_bytes: usize) -> Self {
        Self {
            memory: Mutex::new(Memory { capacity_bytes, ..Memory::default() }),
            disk: Disk { directory, failing: AtomicBool::new(false) },
        }
    }

    /// Returns the footer from memory, from disk or from the file, in this order. Concurrent callers share one read. If
    /// the reading caller is cancelled or fails, the next caller reads.
    pub(crate) async fn get(
        self: &Arc<Self>,
        location: &Location,
        target: &Target,
        config: &Config,
    ) -> Result<Arc<Footer>, Error> {
        let key = target.key();
        let cell = self.memory.lock().touch(key);
        let footer = cell.get_or_try_init(|| self.load(key, location, target, config)).await?;
        let evicted = self.memory.lock().charge(key, &cell, footer.memory_bytes());
        drop(evicted);
        Ok(Arc::clone(footer))
    }

    async fn load(
        self: &Arc<Self>,
        key: u128,
        location: &Location,
        target: &Target,
        config: &Config,
    ) -> Result<Arc<Footer>, Error> {
        if let Some(footer) = self.load_cached(key, target).await {
            return Ok(footer);
        }
        metrics::counter!("forebay_storage_footers_total", "source" => "file").increment(1);
        let bytes = read_footer(location, target, config).await?;
        let (this, target) = (Arc::clone(self), target.clone());
        blocking(move || {
            let footer = parse_footer(&bytes, target.version.size, &target.url)?;
            this.disk.put(key, &bytes);
            Ok(Arc::new(footer))
        })
        .await
    }

    async fn load_cached(self: &Arc<Self>, key: u128, target: &Target) -> Option<Arc<Footer>> {
        self.disk.directory.as_ref()?;
        let (this, target) = (Arc::clone(self), target.clone());
        let cached = blocking(move || {
            let Some(bytes) = this.disk.get(key) else { return Ok(None) };
            parse_footer(&bytes, target.version.size, &target.url).map(Some)
        });
        let footer = cached.await.ok()??;
        metrics::counter!("forebay_storage_footers_total", "source" => "disk").increment(1);
        Some(Arc::new(footer))
    }
}

type Cell = Arc<OnceCell<Arc<Footer>>>;

/// The most recently used footers within a byte budget.
#[derive(Debug, Default)]
struct Memory {
    entries: HashMap<u128, Entry>,
    /// Keys by the clock of their last use.
    by_last_use: BTreeMap<u64, u128>,
    clock: u64,
    bytes: usize,
    capacity_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    cell: Cell,
    bytes: usize,
    last_use: u64,
}

impl Memory {
    /// Returns the cell of a key, which is created if it is missing, and marks it as most recently used.
    fn touch(&mut self, key: u128) -> Cell {
        self.clock += 1;
        let fresh = || Entry { cell: Cell::default(), bytes: 0, last_use: 0 };
        let entry = self.entries.entry(key).or_insert_with(fresh);
        self.by_last_use.remove(&entry.last_use);
        entry.last_use = self.clock;
        self.by_last_use.insert(self.clock, key);
        Arc::clone(&entry.cell)
    }

    /// Adds the size of a loaded cell and returns the evicted entries, which the caller drops outside of the lock.
    fn charge(&mut self, key: u128, cell: &Cell, bytes: usize) -> Vec<Entry> {
        if let Some(entry) = self.entries.get_mut(&key)
            && Arc::ptr_eq(&entry.cell, cell)
        {
            self.bytes += bytes - entry.bytes;
            entry.bytes = bytes;
        }
        let mut evicted = Vec::new();
        while self.bytes > self.capacity_bytes {
            let Some((_, oldest)) = self.by_last_use.pop_first() else { break };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes;
                evicted.push(entry);
            }
        }
        evicted
    }
}

/// Encoded footers on disk, one file each. Disk errors are logged and otherwise treated as misses.
#[derive(Debug)]
struct Disk {
    directory: Option<PathBuf>,
    failing: AtomicBool,
}

impl Disk {
    fn path(&self, key: u128) -> Option<PathBuf> {
        let name = format!("{key:032x}");
        self.directory.as_ref().map(|directory| directory.join(&name[..2]).join(&name))
    }

    fn get(&self, key: u128) -> Option<Bytes> {
        let path = self.path(key)?;
        let sealed = Bytes::from(std::fs::read(&path).ok()?);
        match ENVELOPE.open(&sealed) {
            Ok(bytes) => Some(bytes),
            Err(detail) => {
                metrics::counter!("forebay_storage_corrupt_footers_total").increment(1);
                tracing::warn!(path = %path.display(), detail, "deleted a corrupt cached footer");
                std::fs::remove_file(&path).ok();
                None
            }
        }
    }

    fn put(&self, key: u128, bytes: &Bytes) {
        let Some(path) = self.path(key) else { return };
        let failed = write_atomically(&path, &ENVELOPE.seal(bytes)).err();
        let before = self.failing.swap(failed.is_some(), Ordering::Relaxed);
        match failed {
            Some(error) if !before => {
                tracing::warn!(%error, path = %path.display(), "cannot cache footers on disk");
            }
            None if before => tracing::info!("caching footers on disk again"),
            _ => {}
        }
    }
}

/// Writes a file atomically, by way of a temporary file with a unique name.
fn write_atomically(path: &std::path::Path, bytes: &[u8]) -> io::Result<()> {
    use std::sync::atomic::AtomicU64;
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

#[cfg(test)]
mod tests {
    use object_store::path::Path;

    use super::*;
    use crate::Version;

    #[test]
    fn the_name_of_a_footer_on_disk_is_frozen() {
        let name = |path: &str, size, etag: Option<&str>| {
            let modified_ns = 1_750_000_000_123_456_789;
            let version = Version { size, etag: etag.map(str::to_owned), modified_ns };
            let (path, url) = (Path::from(path), format!("s3://bucket/{path}"));
            let disk = Disk { directory: Some(PathBuf::new()), failing: AtomicBool::new(false) };
            disk.path(Target { path, url, version }.key()).unwrap()
        };
        assert_eq!(
            name("flights/part-0.parquet", 4096, Some("\"33a64df5\"")),
            PathBuf::from("0d/0d87507692ce673340791e83f37800dc")
        );
        assert_eq!(
            name("flights/year=2024/part-1.parquet", 1024, None),
            PathBuf::from("2f/2ff7831f0e5a08683a889789837cc6eb")
        );
    }
}
