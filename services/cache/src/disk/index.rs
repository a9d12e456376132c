//! In-memory index of the files and their sections.
//!
//! I/O threads hold its lock while they look up, add and remove sections. Work on one section takes logarithmic time in
//! the number of files and sections of its entry, however the sections are distributed over files.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use super::{format::Table, key::Key, name::FileKey, usage::Usage};

/// Files by entry, and their total size.
#[derive(Default)]
pub(crate) struct Index {
    /// Entries that have files.
    entries: HashMap<u128, Entry>,
    /// Usage of all files, including those that are being written.
    resident: Usage,
    /// Size in bytes of the files of all pinned entries.
    pinned_bytes: u64,
    /// Sections that a caller is about to write, as pairs of entry and name.
    claimed: HashSet<(u128, u128)>,
    /// Number of pins of each pinned entry.
    pins: HashMap<u128, usize>,
    last_id: u64,
}

/// Files of an entry, and where its sections are.
#[derive(Default)]
struct Entry {
    /// Files by id, the oldest first.
    files: BTreeMap<Key<u64>, Arc<Stored>>,
    /// Position of each section in the header of a file, by name of the section and id of the file.
    sections: BTreeMap<Key<(u128, u64)>, u32>,
    /// Size in bytes of the files.
    charged_bytes: u64,
}

/// A file and its header.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) key: FileKey,
    pub(crate) table: Table,
    /// Size of all sections in bytes.
    section_bytes: u64,
}

/// Location of a requested section.
pub(crate) struct Place {
    /// Position of the section in the request.
    pub(crate) requested: usize,
    /// Position of the section in the header.
    pub(crate) record: usize,
}

impl Stored {
    pub(crate) fn new(key: FileKey, table: Table) -> Self {
        let section_bytes = table.records.iter().map(|record| record.length).sum();
        Self { key, table, section_bytes }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage::of_file(self.table.file_bytes, self.table.records.len())
    }

    /// Size on disk in bytes.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.usage().bytes
    }

    /// Load time of the sections at `places`: their share of the file's load time, proportional to their bytes.
    pub(crate) fn load_time(&self, places: &[Place]) -> Duration {
        let records = &self.table.records;
        let found: u64 = places.iter().map(|place| records[place.record].length).sum();
        self.table.load_time.mul_f64(found as f64 / self.section_bytes.max(1) as f64)
    }
}

impl Entry {
    fn insert(&mut self, stored: Arc<Stored>) {
        let id = stored.key.id;
        for (at, record) in (0..).zip(&stored.table.records) {
            // A file that repeats a name is damaged or of another program. The first section of that name counts.
            self.sections.entry(Key((record.name, id))).or_insert(at);
        }
        self.charged_bytes += stored.charged_bytes();
        self.files.insert(Key(id), stored);
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Stored>> {
        let stored = self.files.remove(&Key(id))?;
        for record in &stored.table.records {
            self.sections.remove(&Key((record.name, id)));
        }
        self.charged_bytes -= stored.charged_bytes();
        Some(stored)
    }

    /// Returns the newest file that contains the section `name`, and its position in the header.
    fn newest(&self, name: u128) -> Option<(u64, usize)> {
        let (Key((_, id)), at) = self.sections.range(Key((name, 0))..=Key((name, u64::MAX))).next_back()?;
        Some((*id, *at as usize))
    }
}

impl Index {
    /// Usage of all files, including those that are being written.
    pub(crate) fn resident(&self) -> Usage {
        self.resident
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident.bytes
    }

    /// Charges the usage of a file that is to be written. Returns false, without effect, if it does not fit.
    pub(crate) fn charge(&mut self, usage: Usage, capacity: Usage) -> bool {
        let resident = self.resident.plus(usage);
        let fits = resident.fits(capacity);
        if fits {
            self.resident = resident;
        }
        fits
    }

    pub(crate) fn discharge(&mut self, usage: Usage) {
        self.resident = self.resident.minus(usage);
    }

    /// Returns an id that is greater than all earlier ids.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds a file whose size is already charged.
    pub(crate) fn insert(&mut self, stored: Arc<Stored>) {
        let FileKey { entry, id } = stored.key;
        self.last_id = self.last_id.max(id);
        if self.is_pinned(entry) {
            self.pinned_bytes += stored.charged_bytes();
        }
        self.entries.entry(entry).or_default().insert(stored);
    }

    /// Adds and charges a file from an earlier process.
    pub(crate) fn recover(&mut self, stored: Arc<Stored>) {
        self.resident = self.resident.plus(stored.usage());
        self.insert(stored);
    }

    /// Removes a file and discharges its size.
    pub(crate) fn remove(&mut self, key: FileKey) -> Option<Arc<Stored>> {
        let entry = self.entries.get_mut(&key.entry)?;
        let stored = entry.remove(key.id)?;
        if entry.files.is_empty() {
            self.entries.remove(&key.entry);
        }
        self.discharge(stored.usage());
        if self.is_pinned(key.entry) {
            self.pinned_bytes -= stored.charged_bytes();
        }
        Some(stored)
    }

    pub(crate) fn stored(&self, key: FileKey) -> Option<&Arc<Stored>> {
        self.entries.get(&key.entry)?.files.get(&Key(key.id))
    }

    /// Returns, for each of the sections `names`, true if it is present.
    pub(crate) fn sections(&self, entry: u128, names: &[u128]) -> Vec<bool> {
        names.iter().map(|&name| self.has(entry, name)).collect()
    }

    /// Returns the files that contain requested sections, with the locations of these sections. If several files
    /// contain a section, the newest is used.
    pub(crate) fn find(&self, entry: u128, names: &[u128]) -> Vec<(Arc<Stored>, Vec<Place>)> {
        let Some(entry) = self.entries.get(&entry) else { return Vec::new() };
        let mut places: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
        for (requested, &name) in names.iter().enumerate() {
            if let Some((id, record)) = entry.newest(name) {
                places.entry(id).or_default().push(Place { requested, record });
            }
        }
        let found = places.into_iter().rev();
        found.filter_map(|(id, places)| Some((Arc::clone(entry.files.get(&Key(id))?), places))).collect()
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
        let pins = self.pins.entry(entry).or_default();
        *pins += 1;
        if *pins == 1 {
            self.pinned_bytes += self.charged_bytes(entry);
        }
    }

    pub(crate) fn unpin(&mut self, entry: u128) {
        let Some(pins) = self.pins.get_mut(&entry) else { return };
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&entry);
            self.pinned_bytes -= self.charged_bytes(entry);
        }
    }

    pub(crate) fn is_pinned(&self, entry: u128) -> bool {
        self.pins.contains_key(&entry)
    }

    /// Size in bytes of all pinned files.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    pub(crate) fn entries(&self) -> Vec<u128> {
        self.entries.keys().copied().collect()
    }

    pub(crate) fn files(&self, entry: u128) -> Vec<FileKey> {
        let files = self.entries.get(&entry).into_iter().flat_map(|entry| entry.files.values());
        files.map(|stored| stored.key).collect()
    }

    /// Size in bytes of the files of an entry.
    fn charged_bytes(&self, entry: u128) -> u64 {
        self.entries.get(&entry).map_or(0, |entry| entry.charged_bytes)
    }

    fn has(&self, entry: u128, name: u128) -> bool {
        self.entries.get(&entry).is_some_and(|entry| entry.newest(name).is_some())
    }
}

#[cfg(test)]
mod tests;
