//! Footer cache: parsed footers in memory and their bytes on disk. Of wide files, the memory holds only the columns that are read.
//!
//! Entries of either may be lost at any time. A missing footer is read from its file again.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::footer_files::FooterFiles;
use crate::{
    Compute, Config, Error, Location,
    blocking::task,
    cache_key,
    store::target::Target,
    validate::{
        decoder_errors::catch_panics,
        footer::{Footer, parse_footer, read_footer},
    },
};

impl Target {
    /// Key of the file's footer for readers of `location`.
    fn key(&self, location: &Location) -> u128 {
        let mut bytes = Vec::new();
        self.version.append_to(&self.url, &mut bytes);
        if let Some(generation) = self.generation {
            generation.append_to(&mut bytes);
        }
        location.append_scope(&mut bytes);
        cache_key(&bytes)
    }
}

/// Footers by file and version.
#[derive(Debug)]
pub(crate) struct FooterCache {
    memory: Mutex<Memory>,
    files: FooterFiles,
}

impl FooterCache {
    /// Creates a cache in memory, and with files in `directory` if it is given.
    pub(crate) fn new(directory: Option<PathBuf>, config: &Config) -> Self {
        let capacity_bytes = config.footer_memory_bytes;
        Self {
            memory: Mutex::new(Memory { capacity_bytes, ..Memory::default() }),
            files: FooterFiles::new(directory, config.footer_disk_bytes, config.request_timeout),
        }
    }

    /// Returns the footer from memory, from disk or from the file, in this order. Concurrent callers share one read, which is
    /// parsed by `compute` of the reading caller. If that one is cancelled or fails, the next caller reads.
    pub(crate) async fn get(
        self: &Arc<Self>,
        location: &Location,
        target: &Target,
        config: &Config,
        compute: &Compute,
    ) -> Result<Arc<Footer>, Error> {
        let key = target.key(location);
        let cell = self.memory.lock().touch(key);
        let footer = cell.get_or_try_init(|| self.load(key, location, target, config, compute)).await?;
        let evicted = self.memory.lock().charge(key, &cell, footer.memory_bytes());
        drop(evicted);
        Ok(Arc::clone(footer))
    }

    /// Returns a part of the footer of a wide file, with the columns `names` or more. Only this part is kept in memory, so that the footers
    /// of many wide files do not displace each other. `names` are in the order of the snapshot.
    pub(crate) async fn get_columns(
        self: &Arc<Self>,
        location: &Location,
        target: &Target,
        config: &Config,
        compute: &Compute,
        names: &[&str],
    ) -> Result<Arc<Footer>, Error> {
        let whole = target.key(location);
        if let Some(footer) = self.memory.lock().loaded(whole) {
            return Ok(footer);
        }
        let mut bytes = whole.to_le_bytes().to_vec();
        for name in names {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend(name.as_bytes());
        }
        let key = cache_key(&bytes);
        let cell = self.memory.lock().touch(key);
        let load = || async {
            let footer = self.load(whole, location, target, config, compute).await?;
            let (names, url) =
                (names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), target.url.clone());
            let project = move || {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                catch_panics(&url, || footer.project(&names)).map(Arc::new)
            };
            compute.run(project).await
        };
        let footer = cell.get_or_try_init(load).await?;
        let evicted = self.memory.lock().charge(key, &cell, footer.memory_bytes());
        drop(evicted);
        Ok(Arc::clone(footer))
    }

    /// Loads a footer in a task of its own and returns only its size in memory, in bytes, so that the cache alone keeps the footer.
    pub(crate) async fn preload(
        self: &Arc<Self>,
        location: &Location,
        target: &Target,
        config: &Config,
        compute: &Compute,
    ) -> Result<usize, Error> {
        let (this, compute) = (Arc::clone(self), compute.clone());
        let (location, target, config) = (location.clone(), target.clone(), config.clone());
        task(async move { Ok(this.get(&location, &target, &config, &compute).await?.memory_bytes()) }).await
    }

    /// Loads a footer in a task, so that it finishes and frees its [room](Location::footer_room) even if the caller does not poll it.
    async fn load(
        self: &Arc<Self>,
        key: u128,
        location: &Location,
        target: &Target,
        config: &Config,
        compute: &Compute,
    ) -> Result<Arc<Footer>, Error> {
        let (this, compute) = (Arc::clone(self), compute.clone());
        let (location, target, config) = (location.clone(), target.clone(), config.clone());
        task(async move {
            if let Some(footer) = this.load_cached(key, &location, &target, &config, &compute).await {
                return Ok(footer);
            }
            metrics::counter!("forebay_storage_footers_total", "source" => "file").increment(1);
            let (bytes, room) = read_footer(&location, &target, &config).await?;
            // Held until the copy is written.
            let room = Arc::new(room);
            let footer = parse(bytes.clone(), &room, &target, &config, &compute).await?;
            this.files.put(key, bytes).await;
            Ok(footer)
        })
        .await
    }

    /// Returns the footer from disk. A copy that cannot be parsed is a miss.
    async fn load_cached(
        self: &Arc<Self>,
        key: u128,
        location: &Location,
        target: &Target,
        config: &Config,
        compute: &Compute,
    ) -> Option<Arc<Footer>> {
        // The size of the copy is not known before it is read.
        let room = Arc::new(location.footer_room(FooterFiles::MAX_BYTES).await);
        let bytes = self.files.get(key).await?;
        let footer = parse(bytes, &room, target, config, compute).await.ok()?;
        metrics::counter!("forebay_storage_footers_total", "source" => "disk").increment(1);
        Some(footer)
    }
}

/// Parses a footer, as an operation that also holds its room.
async fn parse(
    bytes: Bytes,
    room: &Arc<OwnedSemaphorePermit>,
    target: &Target,
    config: &Config,
    compute: &Compute,
) -> Result<Arc<Footer>, Error> {
    let (target, limit, room) = (target.clone(), config.max_block_bytes, Arc::clone(room));
    let parse = move || {
        let parsed = parse_footer(&bytes, target.version.size, &target.url, limit);
        drop((bytes, room));
        Ok(Arc::new(parsed?))
    };
    compute.run(parse).await
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
    /// Returns the loaded footer of a key, if there is one, and marks it as most recently used.
    fn loaded(&mut self, key: u128) -> Option<Arc<Footer>> {
        self.entries.get(&key)?.cell.get()?;
        self.touch(key).get().map(Arc::clone)
    }

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use object_store::{memory::InMemory, path::Path};

    use super::*;
    use crate::Version;

    #[test]
    fn the_name_of_a_footer_on_disk_is_frozen() {
        let name = |path: &str, size, etag: Option<&str>| {
            let modified_ns = 1_750_000_000_123_456_789;
            let version = Version { size, etag: etag.map(str::to_owned), modified_ns };
            let (path, url) = (Path::from(path), format!("s3://bucket/{path}"));
            let files = FooterFiles::new(Some(PathBuf::new()), u64::MAX, Duration::from_secs(1));
            let location = Location::with_store("s3://bucket", Arc::new(InMemory::new()), "");
            files.path(Target { path, url, version, generation: None }.key(&location)).unwrap()
        };
        assert_eq!(
            name("flights/part-0.parquet", 4096, Some("\"33a64df5\"")),
            PathBuf::from("61/61958289b4549867d789bb6306973756")
        );
        assert_eq!(
            name("flights/year=2024/part-1.parquet", 1024, None),
            PathBuf::from("6c/6c6a1ab3a07bb44dce61874b5ac1bc22")
        );
    }
}
