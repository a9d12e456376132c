//! In-memory index of the files and their sections.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{format::Table, name::FileKey};

/// Block size of the file system, to which the size of a file is rounded up.
const BLOCK_BYTES: u64 = 4096;

/// Files by entry, and their total size.
#[derive(Default)]
pub(crate) struct Index {
    /// Files of each entry, the oldest first.
    entries: HashMap<u128, Vec<Arc<Stored>>>,
    /// Size in bytes of all files, including those that are being written.
    resident_bytes: u64,
    /// Sections that a caller is about to write, as pairs of entry and name.
    claimed: HashSet<(u128, u128)>,
    /// Number of pins of each pinned entry.
    pins: HashMap<u128, usize>,
    last_id: u64,
}

/// A file and its header.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) key: FileKey,
    pub(crate) table: Table,
}

/// Location of a requested section.
pub(crate) struct Place {
    /// Position of the section in the request.
    pub(crate) requested: usize,
    /// Position of the section in the header.
    pub(crate) record: usize,
}

/// Size in bytes that a file of `file_bytes` is charged with.
pub(crate) fn charged_bytes(file_bytes: u64) -> u64 {
    file_bytes.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES)
}

impl Stored {
    pub(crate) fn charged_bytes(&self) -> u64 {
        charged_bytes(self.table.file_bytes)
    }

    /// Load time of the sections at `places`: their share of the file's load time, proportional to their bytes.
    pub(crate) fn load_time(&self, places: &[Place]) -> Duration {
        let records = &self.table.records;
        let all: u64 = records.iter().map(|record| record.length).sum();
        let found: u64 = places.iter().map(|place| records[place.record].length).sum();
        self.table.load_time.mul_f64(found as f64 / all.max(1) as f64)
    }
}

impl Index {
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Charges the size of a file that is to be written. Returns false, without effect, if it does not fit.
    pub(crate) fn charge(&mut self, bytes: u64, capacity_bytes: u64) -> bool {
        let fits = self.resident_bytes.saturating_add(bytes) <= capacity_bytes;
        self.resident_bytes += if fits { bytes } else { 0 };
        fits
    }

    pub(crate) fn discharge(&mut self, bytes: u64) {
        self.resident_bytes -= bytes;
    }

    /// Returns an id that is greater than all earlier ids.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds a file whose size is already charged.
    pub(crate) fn insert(&mut self, stored: Arc<Stored>) {
        self.last_id = self.last_id.max(stored.key.id);
        let files = self.entries.entry(stored.key.entry).or_default();
        let at = files.partition_point(|other| other.key.id < stored.key.id);
        files.insert(at, stored);
    }

    /// Adds and charges a file from an earlier process.
    pub(crate) fn recover(&mut self, stored: Arc<Stored>) {
        self.resident_bytes += stored.charged_bytes();
        self.insert(stored);
    }

    /// Removes a file and discharges its size.
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

    /// Returns, for each of the sections `names`, true if it is present.
    pub(crate) fn sections(&self, entry: u128, names: &[u128]) -> Vec<bool> {
        names.iter().map(|&name| self.has(entry, name)).collect()
    }

    /// Returns the files that contain requested sections, with the locations of these sections. If several files
    /// contain a section, the newest is used.
    pub(crate) fn find(&self, entry: u128, names: &[u128]) -> Vec<(Arc<Stored>, Vec<Place>)> {
        let mut missing: Vec<(usize, u128)> = names.iter().copied().enumerate().collect();
        let mut found = Vec::new();
        for stored in self.entries.get(&entry).into_iter().flatten().rev() {
            let mut places = Vec::new();
            missing.retain(|&(requested, name)| {
                let record = position(stored, name);
                places.extend(record.map(|record| Place { requested, record }));
                record.is_none()
            });
            if !places.is_empty() {
                found.push((Arc::clone(stored), places));
            }
        }
        found
    }

    /// Claims the sections that are neither present nor claimed, and returns their names.
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

    /// Size in bytes of all pinned files.
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
