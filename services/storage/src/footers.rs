//! Footers that were read before: parsed ones in memory, their bytes on disk.
//!
//! Both may lose anything at any time; what is lost is read from its file again.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use object_store::path::Path;
use tokio::sync::OnceCell;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    Config, Error, Location,
    blocking::blocking,
    envelope::Envelope,
    footer::{Footer, parse_footer, read_footer},
    version::Version,
};

const ENVELOPE: Envelope = Envelope { kind: "footer", version: 1 };

/// A file whose footer is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) path: Path,
    pub(crate) url: String,
    pub(crate) version: Version,
}

impl Target {
    fn key(&self) -> u128 {
        let mut hash = Xxh3::new();
        self.version.hash_into(&self.url, &mut hash);
        hash.digest128()
    }
}

/// The footers of every file, by file and version.
#[derive(Debug)]
pub(crate) struct Footers {
    memory: Mutex<Memory>,
    disk: Disk,
}

impl Footers {
    pub(crate) fn new(directory: Option<PathBuf>, capacity_bytes: usize) -> Self {
        Self {
            memory: Mutex::new(Memory { capacity_bytes, ..Memory::default() }),
            disk: Disk { directory, failing: AtomicBool::new(false) },
        }
    }

    /// The footer from memory, else disk, else the file. Concurrent callers share one read; if the one
    /// that reads is dropped or fails, the next reads.
    pub(crate) async fn get(
        self: &Arc<Self>,
        location: &Location,
        target: &Target,
        config: &Config,
    ) -> Result<Arc<Footer>, Error> {
        let key = target.key();
        let cell = self.lock().touch(key);
        let footer = cell.get_or_try_init(|| self.load(key, location, target, config)).await?;
        let dropped = self.lock().charge(key, &cell, footer.memory_bytes());
        drop(dropped);
        Ok(Arc::clone(footer))
    }

    async fn load(
        self: &Arc<Self>,
        key: u128,
        location: &Location,
        target: &Target,
        config: &Config,
    ) -> Result<Arc<Footer>, Error> {
        if let Some(footer) = self.load_kept(key, target).await {
            return Ok(footer);
        }
        metrics::counter!("forebay_storage_footers_total", "from" => "file").increment(1);
        let bytes = read_footer(location, &target.path, &target.url, &target.version, config).await?;
        let (this, target) = (Arc::clone(self), target.clone());
        blocking(move || {
            let footer = parse_footer(&bytes, target.version.size, &target.url)?;
            this.disk.keep(key, &bytes);
            Ok(Arc::new(footer))
        })
        .await
    }

    async fn load_kept(self: &Arc<Self>, key: u128, target: &Target) -> Option<Arc<Footer>> {
        self.disk.directory.as_ref()?;
        let (this, target) = (Arc::clone(self), target.clone());
        let kept = blocking(move || {
            let Some(bytes) = this.disk.find(key) else { return Ok(None) };
            parse_footer(&bytes, target.version.size, &target.url).map(Some)
        });
        let footer = kept.await.ok()??;
        metrics::counter!("forebay_storage_footers_total", "from" => "disk").increment(1);
        Some(Arc::new(footer))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Cell = Arc<OnceCell<Arc<Footer>>>;

/// The most recently used footers within a budget.
#[derive(Debug, Default)]
struct Memory {
    entries: HashMap<u128, Entry>,
    /// Keys by the tick of their last use.
    ages: BTreeMap<u64, u128>,
    tick: u64,
    bytes: usize,
    capacity_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    cell: Cell,
    bytes: usize,
    used: u64,
}

impl Memory {
    /// The cell of a key, made if there is none; it becomes the last to be dropped.
    fn touch(&mut self, key: u128) -> Cell {
        self.tick += 1;
        let fresh = || Entry { cell: Cell::default(), bytes: 0, used: 0 };
        let entry = self.entries.entry(key).or_insert_with(fresh);
        self.ages.remove(&entry.used);
        entry.used = self.tick;
        self.ages.insert(self.tick, key);
        Arc::clone(&entry.cell)
    }

    /// Counts a filled cell's bytes, and returns what no longer fits, to be dropped without the lock.
    fn charge(&mut self, key: u128, cell: &Cell, bytes: usize) -> Vec<Entry> {
        if let Some(entry) = self.entries.get_mut(&key)
            && Arc::ptr_eq(&entry.cell, cell)
        {
            self.bytes += bytes - entry.bytes;
            entry.bytes = bytes;
        }
        let mut dropped = Vec::new();
        while self.bytes > self.capacity_bytes {
            let Some((_, oldest)) = self.ages.pop_first() else { break };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes;
                dropped.push(entry);
            }
        }
        dropped
    }
}

/// Footers' bytes, a file each. Nothing here is an error to anyone: a disk that fails is a disk unused.
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

    fn find(&self, key: u128) -> Option<Bytes> {
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

    fn keep(&self, key: u128, bytes: &Bytes) {
        let Some(path) = self.path(key) else { return };
        let failed = write_renamed(&path, &ENVELOPE.seal(bytes)).err();
        let before = self.failing.swap(failed.is_some(), Ordering::Relaxed);
        match failed {
            Some(error) if !before => {
                tracing::warn!(%error, path = %path.display(), "cannot keep footers on disk; going on without");
            }
            None if before => tracing::info!("keeping footers on disk again"),
            _ => {}
        }
    }
}

/// Writes a whole file or none, by a temporary name that no other writer uses.
fn write_renamed(path: &std::path::Path, bytes: &[u8]) -> io::Result<()> {
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
