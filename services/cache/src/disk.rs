//! The disk tier: named sections of bytes in files, checked on every read.
//!
//! ```text
//! get --> index --> read: joined ranges --> checksums --> aligned sections
//! put --> claim --> queue --> make room (policy) --> temporary file --> rename --> index
//! open -> folder is ours? --> scan headers --> index
//! ```
//!
//! Everything in it can be made again. So nothing is synced, nothing but [`Disk::open`] returns an error,
//! and whatever is wrong with a file makes it a miss and the file go; whatever is wrong with the disk makes
//! the tier let everything through for a while.

mod backoff;
mod config;
mod error;
mod files;
mod folder;
mod format;
mod index;
mod name;
mod read;
mod recover;
mod trouble;
mod write;

use std::{
    fmt::Display,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Semaphore, task::spawn_blocking, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use self::{
    backoff::Backoff,
    files::{FileSystem, Files},
    index::{Index, Stored},
    name::FileKey,
    recover::Scan,
    trouble::{Trouble, Troubles},
    write::Claim,
};
pub use self::{config::DiskConfig, error::Error};
use crate::{Forecast, Policy};

/// The bytes of a section, aligned to 64 bytes. Sections that were read together share their memory.
pub type Section = arrow_buffer::Buffer;

/// The folder below the cache directory. In it, everything that isn't the tier's is deleted.
const FOLDER: &str = "columns";
/// The write queue is counted in units of so many bytes.
const QUEUE_UNIT_BYTES: u64 = 1024;

/// Sections by entry in files under a byte budget. Cheap to clone; clones share the tier.
///
/// An entry is named by a complete hash of what it is, and so is each of its sections, so that any process
/// that opens the same directory later finds the same. An entry may have several files over time, which
/// come and go one by one.
#[derive(Clone)]
pub struct Disk {
    shared: Arc<Shared>,
}

/// What became of a [`Disk::put`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is there.
    Written,
    /// All of it was there already, or is being written by somebody else.
    Present,
    /// The tier is full of what is needed sooner, or pinned.
    Bypassed,
    /// It exceeds the whole budget, or what one file can hold.
    TooLarge,
    /// Too much waits to be written already.
    Busy,
    /// The disk fails, or did so lately.
    Failing,
}

struct Shared {
    files: Arc<dyn Files>,
    folder: PathBuf,
    config: DiskConfig,
    /// Its entries are the files of the index, and change under the index's lock. Whoever hunts takes the
    /// index's lock second.
    policy: Policy<FileKey>,
    /// Never locked across I/O or while the forecast is asked.
    index: Mutex<Index>,
    backoff: Mutex<Backoff>,
    troubles: Troubles,
    queue: Arc<Semaphore>,
    writers: Arc<Semaphore>,
    readers: Arc<Semaphore>,
    /// Locked as long as the tier lives.
    _marker: File,
}

/// The forecast of a file is that of its entry.
struct ByEntry(Arc<dyn Forecast<u128>>);

impl Forecast<FileKey> for ByEntry {
    fn next_use(&self, key: &FileKey) -> u64 {
        self.0.next_use(&key.entry)
    }
}

impl Disk {
    /// Opens the tier in folder `columns` of `directory`, with what is there from before: files that are
    /// damaged, unfinished, of another version or not the tier's are deleted and counted, and so is what
    /// exceeds the budget. Until it is used, the most recently written counts as the most recently used.
    ///
    /// Blocks: it reads the header of every file.
    ///
    /// # Errors
    /// When the folder can't be used, is used by another process, or has content but isn't a cache.
    pub fn open(
        directory: &Path,
        config: DiskConfig,
        forecast: Arc<dyn Forecast<u128>>,
    ) -> Result<Self, Error> {
        Self::open_with(Arc::new(FileSystem), directory, config, forecast)
    }

    fn open_with(
        files: Arc<dyn Files>,
        directory: &Path,
        config: DiskConfig,
        forecast: Arc<dyn Forecast<u128>>,
    ) -> Result<Self, Error> {
        let folder = directory.join(FOLDER);
        let marker = folder::take(&folder)?;
        let troubles = Troubles::default();
        let found = Scan { files: &*files, folder: &folder, troubles: &troubles }.run();
        let policy = Policy::new(Arc::new(ByEntry(forecast)) as Arc<dyn Forecast<FileKey>>);
        let mut index = Index::default();
        for stored in found {
            policy.insert(stored.key);
            index.recover(stored);
        }
        let permits = |count: usize| Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        let shared = Shared {
            files,
            folder,
            policy,
            index: Mutex::new(index),
            backoff: Mutex::default(),
            troubles,
            queue: permits(queue_units(config.max_write_queue_bytes) as usize),
            writers: permits(config.concurrent_writes),
            readers: permits(config.concurrent_reads),
            config,
            _marker: marker,
        };
        metrics::gauge!("forebay_cache_capacity_bytes", "tier" => "disk")
            .set(shared.config.capacity_bytes as f64);
        shared.shrink();
        shared.set_gauge();
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Bytes that the files may take.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.config.capacity_bytes
    }

    /// Bytes that the files take, and those that are being written.
    pub fn resident_bytes(&self) -> u64 {
        self.shared.index().resident_bytes()
    }

    /// Which of the sections `wanted` are there. No I/O, and no use.
    pub fn sections(&self, entry: u128, wanted: &[u128]) -> Vec<bool> {
        self.shared.index().sections(entry, wanted)
    }

    /// The sections `wanted`, those that are there and as they were written. Reads on blocking threads;
    /// waits while too many other reads run. Cancel-safe.
    pub async fn get(&self, entry: u128, wanted: &[u128]) -> Vec<Option<Section>> {
        let mut sections = vec![None; wanted.len()];
        let found = self.shared.index().find(entry, wanted);
        if !found.is_empty() {
            let shared = Arc::clone(&self.shared);
            let reader = Arc::clone(&shared.readers).acquire_owned().await;
            let read = AbortOnDropHandle::new(spawn_blocking(move || {
                let _reader = reader;
                let started = Instant::now();
                let mut made_in = Duration::ZERO;
                let read = |(stored, places): &(Arc<Stored>, Vec<_>)| {
                    shared.policy.touch(&stored.key);
                    let sections = shared.read(stored, places);
                    if !sections.is_empty() {
                        made_in += stored.made_in(places);
                    }
                    sections
                };
                let read = found.iter().flat_map(read).collect::<Vec<_>>();
                count_saved(made_in.saturating_sub(started.elapsed()));
                read
            }));
            // It fails only when the runtime shuts down.
            for (wanted, section) in read.await.unwrap_or_default() {
                sections[wanted] = Some(section);
            }
        }
        count_uses(&sections);
        sections
    }

    /// Keeps sections of an entry, unless the policy or the disk is against it. Sections that are there, or
    /// are being written, are dropped. Never waits for room in the queue. When it is cancelled while it
    /// writes, the write goes on. `made_in` is how long it took to make all of them, which is remembered with them.
    pub async fn put(&self, entry: u128, sections: Vec<(u128, Vec<Bytes>)>, made_in: Duration) -> Outcome {
        self.offer(entry, sections, made_in, false).await
    }

    /// As [`Self::put`], but waits for room in the queue: never [`Outcome::Busy`].
    pub async fn put_in_turn(
        &self,
        entry: u128,
        sections: Vec<(u128, Vec<Bytes>)>,
        made_in: Duration,
    ) -> Outcome {
        self.offer(entry, sections, made_in, true).await
    }

    async fn offer(
        &self,
        entry: u128,
        sections: Vec<(u128, Vec<Bytes>)>,
        made_in: Duration,
        in_turn: bool,
    ) -> Outcome {
        let offered = sections.iter().flat_map(|(_, parts)| parts).map(|part| part.len() as u64).sum();
        metrics::counter!("forebay_cache_miss_bytes_total", "tier" => "disk").increment(offered);
        let outcome = self.try_put(entry, sections, made_in, in_turn).await;
        if let Some(reason) = outcome.bypass_reason() {
            metrics::counter!("forebay_cache_bypasses_total", "tier" => "disk", "reason" => reason)
                .increment(1);
        }
        outcome
    }

    async fn try_put(
        &self,
        entry: u128,
        mut sections: Vec<(u128, Vec<Bytes>)>,
        made_in: Duration,
        in_turn: bool,
    ) -> Outcome {
        let shared = Arc::clone(&self.shared);
        if sections.len() > format::MAX_SECTIONS {
            return Outcome::TooLarge;
        }
        let names = shared.index().claim(entry, sections.iter().map(|(name, _)| *name));
        let claim = Claim { shared: Arc::clone(&shared), entry, names };
        let mut left = claim.names.iter().copied().peekable();
        sections.retain(|(name, _)| left.next_if_eq(name).is_some());
        if sections.is_empty() {
            return Outcome::Present;
        }
        if shared.backoff().pausing(Instant::now()) {
            return Outcome::Failing;
        }
        let units = queue_units(format::file_bytes(&sections).min(shared.config.max_write_queue_bytes));
        let queue = Arc::clone(&shared.queue);
        let queued = match in_turn {
            true => queue.acquire_many_owned(units).await.ok(),
            false => queue.try_acquire_many_owned(units).ok(),
        };
        let Some(queued) = queued else { return Outcome::Busy };
        let writer = Arc::clone(&shared.writers).acquire_owned().await;
        let written = spawn_blocking(move || {
            // The claim goes first: whoever finds no claim finds the file.
            let (_writer, _queued, _claim) = (writer, queued, claim);
            let outcome = shared.write(entry, &sections, made_in);
            shared.set_gauge();
            outcome
        });
        // It fails only when the runtime shuts down.
        written.await.unwrap_or(Outcome::Failing)
    }

    /// Bytes of the files that are pinned.
    pub fn pinned_bytes(&self) -> u64 {
        self.shared.index().pinned_bytes()
    }

    /// Keeps the files of `entry` from being evicted, those that are to come too, until it is
    /// [unpinned](Self::unpin) as often. They take the place of whatever isn't pinned. Pins are kept in memory
    /// only.
    pub fn pin(&self, entry: u128) {
        self.shared.index().pin(entry);
    }

    /// Takes back one [pin](Self::pin); without one it changes nothing.
    pub fn unpin(&self, entry: u128) {
        self.shared.index().unpin(entry);
    }

    /// Removes the entries that `predicate` picks, pinned ones too. Returns the bytes that their files took.
    /// What is being written meanwhile comes in afterwards.
    pub async fn remove_where(&self, predicate: impl Fn(u128) -> bool) -> u64 {
        let entries = self.shared.index().entries();
        let mut removed = Vec::new();
        for entry in entries.into_iter().filter(|&entry| predicate(entry)) {
            let mut index = self.shared.index();
            let files = index.files(entry).into_iter();
            removed.extend(files.filter_map(|key| self.shared.remove_from(&mut index, key)));
        }
        self.shared.set_gauge();
        let bytes = removed.iter().map(|stored| stored.charged_bytes()).sum();
        let shared = Arc::clone(&self.shared);
        let deleted = spawn_blocking(move || removed.iter().for_each(|stored| shared.delete(stored)));
        // It fails only when the runtime shuts down.
        drop(deleted.await);
        bytes
    }
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn backoff(&self) -> MutexGuard<'_, Backoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts down to the budget.
    fn shrink(&self) {
        let mut hunt = self.policy.hunt();
        while self.index().resident_bytes() > self.config.capacity_bytes {
            let Some(victim) = hunt.victim() else { break };
            if let Some(stored) = self.forget(victim.key) {
                metrics::counter!("forebay_cache_evictions_total", "tier" => "disk").increment(1);
                self.delete(&stored);
            }
        }
    }

    fn forget(&self, key: FileKey) -> Option<Arc<Stored>> {
        self.remove_from(&mut self.index(), key)
    }

    fn remove_from(&self, index: &mut Index, key: FileKey) -> Option<Arc<Stored>> {
        self.policy.remove(&key);
        index.remove(key)
    }

    /// Deletes a file that is in the index no longer.
    fn delete(&self, stored: &Stored) {
        let path = self.folder.join(stored.key.path());
        match self.files.remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                self.troubles.note(Trouble::Remove, &path, &error);
            }
            _ => {}
        }
    }

    /// Forgets and deletes a file that isn't what was written.
    fn discard(&self, stored: &Stored, trouble: Trouble, error: &dyn Display) {
        if self.forget(stored.key).is_none() {
            return;
        }
        self.troubles.note(trouble, &self.folder.join(stored.key.path()), error);
        self.delete(stored);
        self.set_gauge();
    }

    fn set_gauge(&self) {
        let resident_bytes = self.index().resident_bytes();
        metrics::gauge!("forebay_cache_resident_bytes", "tier" => "disk").set(resident_bytes as f64);
    }
}

impl Outcome {
    fn bypass_reason(self) -> Option<&'static str> {
        match self {
            Self::Written | Self::Present => None,
            Self::Bypassed => Some("needed_later"),
            Self::TooLarge => Some("too_large"),
            Self::Busy => Some("busy"),
            Self::Failing => Some("failing"),
        }
    }
}

fn queue_units(bytes: u64) -> u32 {
    u32::try_from(bytes / QUEUE_UNIT_BYTES).unwrap_or(u32::MAX).max(1)
}

fn count_saved(time: Duration) {
    metrics::gauge!("forebay_cache_saved_seconds_total", "tier" => "disk").increment(time.as_secs_f64());
}

fn count_uses(sections: &[Option<Section>]) {
    let found = sections.iter().flatten();
    let (hits, bytes) = found.fold((0, 0), |(hits, bytes), section| (hits + 1, bytes + section.len() as u64));
    metrics::counter!("forebay_cache_hits_total", "tier" => "disk").increment(hits);
    metrics::counter!("forebay_cache_hit_bytes_total", "tier" => "disk").increment(bytes);
    metrics::counter!("forebay_cache_misses_total", "tier" => "disk").increment(sections.len() as u64 - hits);
}

#[cfg(test)]
mod faulty;
#[cfg(test)]
mod tests;
