//! What is on the disk, without the disk.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{format::Table, name::FileKey};

/// What a file takes is rounded up to whole blocks.
const BLOCK_BYTES: u64 = 4096;

/// Files by entry, and the bytes that they take.
#[derive(Default)]
pub(crate) struct Index {
    /// The files of an entry, the oldest first.
    entries: HashMap<u128, Vec<Arc<Stored>>>,
    /// Bytes of the files, and of those being written.
    resident_bytes: u64,
    /// Sections that somebody is about to write.
    claimed: HashSet<(u128, u128)>,
    pins: HashMap<u128, usize>,
    last_id: u64,
}

/// A file.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) key: FileKey,
    pub(crate) table: Table,
}

/// A section that was asked for and where it is.
pub(crate) struct Place {
    /// Its position in what was asked for.
    pub(crate) wanted: usize,
    /// Its position in the file.
    pub(crate) record: usize,
}

/// What a file of `file_bytes` takes.
pub(crate) fn charged_bytes(file_bytes: u64) -> u64 {
    file_bytes.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES)
}

impl Stored {
    pub(crate) fn charged_bytes(&self) -> u64 {
        charged_bytes(self.table.file_bytes)
    }

    /// How long it took to make the sections at `places`: their share of all, by bytes.
    pub(crate) fn made_in(&self, places: &[Place]) -> Duration {
        let records = &self.table.records;
        let all: u64 = records.iter().map(|record| record.length).sum();
        let found: u64 = places.iter().map(|place| records[place.record].length).sum();
        self.table.made_in.mul_f64(found as f64 / all.max(1) as f64)
    }
}

impl Index {
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Counts bytes of a file that is to be written, if they fit.
    pub(crate) fn charge(&mut self, bytes: u64, capacity_bytes: u64) -> bool {
        let fits = self.resident_bytes.saturating_add(bytes) <= capacity_bytes;
        self.resident_bytes += if fits { bytes } else { 0 };
        fits
    }

    pub(crate) fn discharge(&mut self, bytes: u64) {
        self.resident_bytes -= bytes;
    }

    /// An id greater than all before.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds a file whose bytes are counted already.
    pub(crate) fn insert(&mut self, stored: Arc<Stored>) {
        self.last_id = self.last_id.max(stored.key.id);
        let files = self.entries.entry(stored.key.entry).or_default();
        let at = files.partition_point(|other| other.key.id < stored.key.id);
        files.insert(at, stored);
    }

    /// Adds a file that was found.
    pub(crate) fn recover(&mut self, stored: Arc<Stored>) {
        self.resident_bytes += stored.charged_bytes();
        self.insert(stored);
    }

    /// Removes a file and its bytes.
    pub(crate) fn remove(&mut self, key: FileKey) -> Option<Arc<Stored>> {
        let files = self.entries.get_mut(&key.entry)?;
        let at = files.iter().position(|stored| stored.key == key)?;
        let stored = files.remove(at);
        if files.is_empty() {
            self.entries.remove(&key.entry);
        }
        self.discharge(stored.charged_bytes());
        Some(stored)
    }

    pub(crate) fn stored(&self, key: FileKey) -> Option<&Arc<Stored>> {
        self.entries.get(&key.entry)?.iter().find(|stored| stored.key == key)
    }

    /// Which of the sections are there.
    pub(crate) fn sections(&self, entry: u128, wanted: &[u128]) -> Vec<bool> {
        wanted.iter().map(|&name| self.has(entry, name)).collect()
    }

    /// The files that hold sections that are wanted, with those sections. Of a section that is in several
    /// the newest counts.
    pub(crate) fn find(&self, entry: u128, wanted: &[u128]) -> Vec<(Arc<Stored>, Vec<Place>)> {
        let mut missing: Vec<(usize, u128)> = wanted.iter().copied().enumerate().collect();
        let mut found = Vec::new();
        for stored in self.entries.get(&entry).into_iter().flatten().rev() {
            let mut places = Vec::new();
            missing.retain(|&(wanted, name)| {
                let record = position(stored, name);
                places.extend(record.map(|record| Place { wanted, record }));
                record.is_none()
            });
            if !places.is_empty() {
                found.push((Arc::clone(stored), places));
            }
        }
        found
    }

    /// Claims those of the sections that are neither there nor claimed.
    pub(crate) fn claim(&mut self, entry: u128, names: impl Iterator<Item = u128>) -> Vec<u128> {
        names.filter(|&name| !self.has(entry, name) && self.claimed.insert((entry, name))).collect()
    }

    pub(crate) fn unclaim(&mut self, entry: u128, names: &[u128]) {
        for &name in names {
            self.claimed.remove(&(entry, name));
        }
    }

    pub(crate) fn pin(&mut self, entry: u128) {
        *self.pins.entry(entry).or_default() += 1;
    }

    pub(crate) fn unpin(&mut self, entry: u128) {
        let Some(pins) = self.pins.get_mut(&entry) else { return };
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&entry);
        }
    }

    pub(crate) fn is_pinned(&self, entry: u128) -> bool {
        self.pins.contains_key(&entry)
    }

    /// Bytes of the files that are pinned.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let files = self.pins.keys().flat_map(|entry| self.entries.get(entry).into_iter().flatten());
        files.map(|stored| stored.charged_bytes()).sum()
    }

    pub(crate) fn entries(&self) -> Vec<u128> {
        self.entries.keys().copied().collect()
    }

    pub(crate) fn files(&self, entry: u128) -> Vec<FileKey> {
        self.entries.get(&entry).into_iter().flatten().map(|stored| stored.key).collect()
    }

    fn has(&self, entry: u128, name: u128) -> bool {
        self.entries.get(&entry).is_some_and(|files| files.iter().any(|file| position(file, name).is_some()))
    }
}

fn position(stored: &Stored, name: u128) -> Option<usize> {
    stored.table.records.iter().position(|record| record.name == name)
}
