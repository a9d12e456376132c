//! The disk tier: opening, reading, writing, pinning and removing entries.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    config::DiskConfig,
    error::Error,
    files::{FileSystem, Files},
    folder, format,
    index::{Place, Stored},
    io_errors::{IoErrorKind, IoErrors},
    name::FileKey,
    outcome::Outcome,
    read::Section,
    recover::Recovery,
    state::State,
    write::Claim,
};
use crate::{Forecast, Policy, spawn_blocking};

/// Name of the folder below the cache directory. Foreign files in it are deleted.
pub(crate) const FOLDER: &str = "columns";
/// Rate below which a read counts as late, in bytes per second.
const MIN_BYTES_PER_SECOND: u64 = 20 << 20;
/// Unit of the write queue's semaphore.
const QUEUE_UNIT_BYTES: u64 = 1024;

/// Disk tier: sections of entries, stored in files under a byte budget. Cheap to clone; clones share the tier.
///
/// Entries and sections are identified by hashes of their contents' definition, so that any process that opens the same
/// directory later finds them. An entry may consist of several files, which are written and evicted separately.
#[derive(Clone)]
pub struct Disk {
    pub(crate) shared: Arc<State>,
}

/// Space in the write queue, for [`Disk::put_within`].
pub struct WriteSpace {
    queued: OwnedSemaphorePermit,
    /// Part of the half of the queue for callers that wait.
    _share: OwnedSemaphorePermit,
}

/// Forecast of files, which is that of their entries.
struct ByEntry(Arc<dyn Forecast<u128>>);

impl Forecast<FileKey> for ByEntry {
    fn next_use(&self, key: &FileKey) -> u64 {
        self.0.next_use(&key.entry)
    }
}

impl Disk {
    /// Opens the tier in the folder `columns` of `directory`, including files from earlier processes.
    ///
    /// Files that are damaged, incomplete, foreign or of another version are deleted and counted as errors. Files over
    /// the capacity are evicted. The most recently written files count as the most recently used.
    ///
    /// Blocks, and reads the header of every file.
    ///
    /// # Errors
    /// If the folder cannot be used, is in use by another process, or has contents but is not a cache.
    pub fn open(
        directory: &Path,
        config: DiskConfig,
        forecast: Arc<dyn Forecast<u128>>,
    ) -> Result<Self, Error> {
        let (disk, recovery) = Self::open_unrecovered(directory, config, forecast)?;
        recovery.run();
        Ok(disk)
    }

    /// As [`open`](Self::open), but leaves the files of earlier processes to the returned recovery, which takes long if there
    /// are many. Until it ends, reads of these files are misses, and writes are rejected with [`Outcome::Recovering`], so that
    /// no section is written twice and the capacity holds.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_unrecovered(
        directory: &Path,
        config: DiskConfig,
        forecast: Arc<dyn Forecast<u128>>,
    ) -> Result<(Self, Recovery), Error> {
        Self::open_with(Arc::new(FileSystem), directory, config, forecast)
    }

    /// As [`open_unrecovered`](Self::open_unrecovered), with replaceable file operations. For tests and simulations.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    #[doc(hidden)]
    pub fn open_with(
        files: Arc<dyn Files>,
        directory: &Path,
        config: DiskConfig,
        forecast: Arc<dyn Forecast<u128>>,
    ) -> Result<(Self, Recovery), Error> {
        let folder = directory.join(FOLDER);
        let marker = folder::take(&folder)?;
        let policy = Policy::new(Arc::new(ByEntry(forecast)) as Arc<dyn Forecast<FileKey>>);
        let permits = |count: usize| Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        let shared = State {
            files,
            folder,
            policy,
            index: Mutex::default(),
            backoff: Mutex::default(),
            late_reads: Mutex::default(),
            io_errors: IoErrors::default(),
            default_capacity_bytes: OnceLock::new(),
            recovered: CancellationToken::new(),
            queue: permits(queue_units(config.max_write_queue_bytes) as usize),
            space: permits(queue_units(max_space_bytes(&config)) as usize),
            writers: permits(config.concurrent_writes),
            readers: permits(config.concurrent_reads),
            config,
            marker: Mutex::new(Some(Arc::new(marker))),
            taking: Mutex::default(),
        };
        let shared = Arc::new(shared);
        Ok((Self { shared: Arc::clone(&shared) }, Recovery { shared }))
    }

    /// True once the files of earlier processes are recovered.
    pub fn is_recovered(&self) -> bool {
        self.shared.recovered.is_cancelled()
    }

    /// Waits until the files of earlier processes are recovered. Never returns if the recovery was dropped or cancelled.
    pub async fn recovered(&self) {
        self.shared.recovered.cancelled().await;
    }

    /// Capacity in bytes. 0 if it is not configured and the files of earlier processes are not recovered yet.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.capacity_bytes()
    }

    /// Size in bytes of all files, including those that are being written.
    pub fn resident_bytes(&self) -> u64 {
        self.shared.index.lock().resident_bytes()
    }

    /// Returns, for each of the sections `names`, true if it is present. No I/O; does not count as a use.
    pub fn sections(&self, entry: u128, names: &[u128]) -> Vec<bool> {
        self.shared.index.lock().sections(entry, names)
    }

    /// Reads the sections `names`. A missing or damaged section is `None`, and so is one that is not read within
    /// `read_timeout`.
    ///
    /// Reads on blocking threads, and waits if `concurrent_reads` reads are running. Cancel-safe.
    pub async fn get(&self, entry: u128, names: &[u128]) -> Vec<Option<Section>> {
        let mut sections = vec![None; names.len()];
        let found = self.shared.index.lock().find(entry, names);
        let is_paused = self.shared.late_reads.lock().pausing(Instant::now());
        if !found.is_empty() && !is_paused {
            for (requested, section) in self.read_in_time(found).await {
                sections[requested] = Some(section);
            }
        }
        count_uses(&sections);
        sections
    }

    /// Reads the sections of `found`. Returns none of them if that takes longer than `read_timeout`: the disk may hang,
    /// while the data can be read from its source.
    async fn read_in_time(&self, found: Vec<(Arc<Stored>, Vec<Place>)>) -> Vec<(usize, Section)> {
        let shared = Arc::clone(&self.shared);
        let bytes = found.iter().flat_map(|(stored, places)| {
            places.iter().map(|place| stored.table.records[place.record].length)
        });
        let limit =
            shared.config.read_timeout + Duration::from_secs(bytes.sum::<u64>() / MIN_BYTES_PER_SECOND);
        let read = async move {
            let reader = Arc::clone(&shared.readers).acquire_owned().await;
            let read = AbortOnDropHandle::new(spawn_blocking(move || {
                let _reader = reader;
                let started = Instant::now();
                let mut load_time = Duration::ZERO;
                let read = |(stored, places): &(Arc<Stored>, Vec<_>)| {
                    shared.policy.touch(&stored.key);
                    let sections = shared.read(stored, places);
                    if !sections.is_empty() {
                        load_time += stored.load_time(places);
                    }
                    sections
                };
                let read = found.iter().flat_map(read).collect::<Vec<_>>();
                let saved = load_time.saturating_sub(started.elapsed());
                metrics::gauge!("forebay_cache_saved_seconds_total", "tier" => "disk")
                    .increment(saved.as_secs_f64());
                read
            }));
            // The read fails only when the runtime shuts down.
            read.await.unwrap_or_default()
        };
        if let Ok(read) = timeout(limit, read).await {
            self.shared.late_reads.lock().succeeded();
            return read;
        }
        self.shared.late_reads.lock().failed(Instant::now());
        let late = format!("no answer within {limit:?}");
        self.shared.io_errors.report(IoErrorKind::Read, &self.shared.folder, &late);
        Vec::new()
    }

    /// Writes sections of an entry, unless the eviction policy or the state of the disk prevents it. Sections that are
    /// present or being written are skipped.
    ///
    /// Returns [`Outcome::Busy`] if the write queue is full, and [`Outcome::Recovering`] before the files of earlier processes
    /// are recovered. If the caller is cancelled during the write, the write
    /// continues. `load_time` is the time that loading all sections took; it is stored and reported as saved by hits.
    pub async fn put(&self, entry: u128, sections: Vec<(u128, Vec<Bytes>)>, load_time: Duration) -> Outcome {
        self.offer(entry, sections, load_time, None).await
    }

    /// Waits until the files of earlier processes are recovered and the write queue has space for a file of `bytes`. A caller that
    /// waits before it loads the sections holds none in memory while the disk hangs. All waiting callers together take at most half of
    /// the queue, so that [`put`](Self::put), which does not wait, finds space, too. A file that is larger than this half takes all of
    /// it. Cancel-safe.
    pub async fn write_space(&self, bytes: u64) -> WriteSpace {
        self.recovered().await;
        let units = queue_units(bytes.min(max_space_bytes(&self.shared.config)));
        let acquire = async |from: &Arc<Semaphore>| {
            Arc::clone(from).acquire_many_owned(units).await.expect("the semaphore is never closed")
        };
        let share = acquire(&self.shared.space).await;
        WriteSpace { queued: acquire(&self.shared.queue).await, _share: share }
    }

    /// As [`put`](Self::put), in space from [`write_space`](Self::write_space). Returns [`Outcome::Busy`] if the sections need more than
    /// that, and the write queue has too little free space for the rest.
    pub async fn put_within(
        &self,
        space: WriteSpace,
        entry: u128,
        sections: Vec<(u128, Vec<Bytes>)>,
        load_time: Duration,
    ) -> Outcome {
        self.offer(entry, sections, load_time, Some(space)).await
    }

    /// Size in bytes of a file of these sections.
    pub fn file_bytes(sections: &[(u128, Vec<Bytes>)]) -> u64 {
        format::file_bytes(sections)
    }

    async fn offer(
        &self,
        entry: u128,
        sections: Vec<(u128, Vec<Bytes>)>,
        load_time: Duration,
        space: Option<WriteSpace>,
    ) -> Outcome {
        let offered = sections.iter().flat_map(|(_, parts)| parts).map(|part| part.len() as u64).sum();
        metrics::counter!("forebay_cache_miss_bytes_total", "tier" => "disk").increment(offered);
        let outcome = self.try_put(entry, sections, load_time, space).await;
        if let Some(reason) = outcome.rejection_reason() {
            metrics::counter!("forebay_cache_insert_rejections_total", "tier" => "disk", "reason" => reason)
                .increment(1);
        }
        outcome
    }

    async fn try_put(
        &self,
        entry: u128,
        mut sections: Vec<(u128, Vec<Bytes>)>,
        load_time: Duration,
        space: Option<WriteSpace>,
    ) -> Outcome {
        let shared = Arc::clone(&self.shared);
        if sections.len() > format::MAX_SECTIONS {
            return Outcome::TooLarge;
        }
        if !self.is_recovered() {
            return Outcome::Recovering;
        }
        let names = shared.index.lock().claim(entry, sections.iter().map(|(name, _)| *name));
        let claim = Claim { shared: Arc::clone(&shared), entry, names };
        let mut left = claim.names.iter().copied().peekable();
        sections.retain(|(name, _)| left.next_if_eq(name).is_some());
        if sections.is_empty() {
            return Outcome::Present;
        }
        if shared.backoff.lock().pausing(Instant::now()) {
            return Outcome::Failing;
        }
        let max_bytes = match &space {
            Some(_) => max_space_bytes(&shared.config),
            None => shared.config.max_write_queue_bytes,
        };
        let units = queue_units(format::file_bytes(&sections).min(max_bytes));
        let held = space.as_ref().map_or(0, |space| space.queued.num_permits() as u32);
        let missing = units.saturating_sub(held);
        let Ok(more) = Arc::clone(&shared.queue).try_acquire_many_owned(missing) else {
            return Outcome::Busy;
        };
        let writer = Arc::clone(&shared.writers).acquire_owned().await;
        let written = spawn_blocking(move || {
            // The claim is dropped first, after the file is in the index: a caller without a claim finds the file.
            let (_writer, _space, _more, _claim) = (writer, space, more, claim);
            let outcome = shared.write(entry, &sections, load_time);
            shared.set_gauge();
            outcome
        });
        // The write fails only when the runtime shuts down.
        written.await.unwrap_or(Outcome::Failing)
    }

    /// Size in bytes of all pinned files.
    pub fn pinned_bytes(&self) -> u64 {
        self.shared.index.lock().pinned_bytes()
    }

    /// Protects the current and future files of `entry` from eviction, until [`unpin`](Self::unpin) is called as often.
    /// New files of a pinned entry evict any files that are not pinned. Pins are not persistent.
    pub fn pin(&self, entry: u128) {
        self.shared.index.lock().pin(entry);
    }

    /// Reverts one [`pin`](Self::pin). No effect on an entry that is not pinned.
    pub fn unpin(&self, entry: u128) {
        self.shared.index.lock().unpin(entry);
    }

    /// Removes the entries that `predicate` selects, including pinned ones. Returns the size of their files in bytes.
    /// Files that are being written at the same time are added afterwards. Waits for the files of earlier processes.
    pub async fn remove_where(&self, predicate: impl Fn(u128) -> bool) -> u64 {
        self.recovered().await;
        let entries = self.shared.index.lock().entries();
        let mut removed = Vec::new();
        for entry in entries.into_iter().filter(|&entry| predicate(entry)) {
            let mut index = self.shared.index.lock();
            let files = index.files(entry).into_iter();
            removed.extend(files.filter_map(|key| self.shared.remove_from(&mut index, key)));
        }
        self.shared.set_gauge();
        let bytes = removed.iter().map(|stored| stored.charged_bytes()).sum();
        let shared = Arc::clone(&self.shared);
        let deleted = spawn_blocking(move || removed.iter().for_each(|stored| shared.delete(stored)));
        // The deletion fails only when the runtime shuts down.
        drop(deleted.await);
        bytes
    }
}

/// Maximum size of the part of the write queue that callers wait for.
fn max_space_bytes(config: &DiskConfig) -> u64 {
    config.max_write_queue_bytes / 2
}

/// Number of semaphore permits for `bytes` in the write queue.
fn queue_units(bytes: u64) -> u32 {
    u32::try_from(bytes / QUEUE_UNIT_BYTES).unwrap_or(u32::MAX).max(1)
}

fn count_uses(sections: &[Option<Section>]) {
    let found = sections.iter().flatten();
    let (hits, bytes) = found.fold((0, 0), |(hits, bytes), section| (hits + 1, bytes + section.len() as u64));
    metrics::counter!("forebay_cache_hits_total", "tier" => "disk").increment(hits);
    metrics::counter!("forebay_cache_hit_bytes_total", "tier" => "disk").increment(bytes);
    metrics::counter!("forebay_cache_misses_total", "tier" => "disk").increment(sections.len() as u64 - hits);
}
