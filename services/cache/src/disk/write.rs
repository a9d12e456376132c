//! From memory to files, and who makes room for whom.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Outcome, Shared,
    format::{self, Parts, Table},
    index::{Stored, charged_bytes},
    name::FileKey,
    trouble::Trouble,
};

/// Sections that nobody else writes meanwhile.
pub(super) struct Claim {
    pub(super) shared: Arc<Shared>,
    pub(super) entry: u128,
    pub(super) names: Vec<u128>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shared.index().unclaim(self.entry, &self.names);
    }
}

/// Bytes that are counted for a file that isn't there yet.
struct Room<'a> {
    shared: &'a Shared,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.shared.index().discharge(self.bytes);
    }
}

impl Shared {
    /// Makes room for a file of these sections and writes it.
    pub(super) fn write(&self, entry: u128, sections: &[Parts], made_in: Duration) -> Outcome {
        let bytes = charged_bytes(format::file_bytes(sections));
        let mut room = match self.make_room(entry, bytes) {
            Ok(room) => room,
            Err(outcome) => return outcome,
        };
        let key = FileKey { entry, id: self.index().next_id() };
        let table = Table::new(entry, sections, made_in);
        if let Err(error) = self.write_file(key, &table, sections) {
            let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            let trouble = if full { Trouble::NoSpace } else { Trouble::Write };
            self.troubles.note(trouble, &self.folder.join(key.path()), &error);
            self.backoff().failed(Instant::now());
            return Outcome::Failing;
        }
        self.backoff().succeeded();
        let mut index = self.index();
        // From here on the file answers for its bytes.
        room.bytes = 0;
        index.insert(Arc::new(Stored { key, table }));
        self.policy.insert(key);
        drop(index);
        Outcome::Written
    }

    fn write_file(&self, key: FileKey, table: &Table, sections: &[Parts]) -> io::Result<()> {
        let (temporary, path) = (self.folder.join(key.temporary_path()), self.folder.join(key.path()));
        self.files.create_folder(&self.folder.join(key.folder()))?;
        let header = table.header();
        let written = self.files.write(&temporary, &table.file(&header, sections));
        let renamed = written.and_then(|()| self.files.rename(&temporary, &path));
        if renamed.is_err()
            && let Err(error) = self.files.remove(&temporary)
            && error.kind() != io::ErrorKind::NotFound
        {
            self.troubles.note(Trouble::Remove, &temporary, &error);
        }
        renamed
    }

    /// Counts `bytes` for a file of `entry`, evicting what is needed later.
    fn make_room(&self, entry: u128, bytes: u64) -> Result<Room<'_>, Outcome> {
        let capacity_bytes = self.config.capacity_bytes;
        if bytes > capacity_bytes {
            return Err(Outcome::TooLarge);
        }
        if self.index().charge(bytes, capacity_bytes) {
            return Ok(Room { shared: self, bytes });
        }
        let mut hunt = self.policy.hunt();
        // What is pinned is wanted whatever the forecast says.
        let is_pinned = self.index().is_pinned(entry);
        let next_use = if is_pinned { 0 } else { self.policy.next_use(&FileKey { entry, id: 0 }) };
        let (mut going, mut freed_bytes): (BTreeSet<FileKey>, u64) = (BTreeSet::new(), 0);
        let evicted = loop {
            if let Some(evicted) = self.replace(&going, freed_bytes, bytes) {
                break evicted;
            }
            let victim = hunt.victim().ok_or(Outcome::Bypassed)?;
            if next_use > victim.next_use {
                return Err(Outcome::Bypassed);
            }
            let index = self.index();
            // Sections of one entry are needed together: none makes room for another.
            if victim.key.entry == entry || index.is_pinned(victim.key.entry) {
                continue;
            }
            if let Some(stored) = index.stored(victim.key)
                && going.insert(victim.key)
            {
                freed_bytes += stored.charged_bytes();
            }
        };
        drop(hunt);
        metrics::counter!("forebay_cache_evictions_total", "tier" => "disk").increment(evicted.len() as u64);
        evicted.iter().for_each(|stored| self.delete(stored));
        Ok(Room { shared: self, bytes })
    }

    /// Lets `going` go and counts `bytes` instead, if that is enough.
    fn replace(&self, going: &BTreeSet<FileKey>, freed_bytes: u64, bytes: u64) -> Option<Vec<Arc<Stored>>> {
        let capacity_bytes = self.config.capacity_bytes;
        let mut index = self.index();
        let fits = |resident_bytes: u64, freed_bytes: u64| {
            resident_bytes.saturating_sub(freed_bytes).saturating_add(bytes) <= capacity_bytes
        };
        if !fits(index.resident_bytes(), freed_bytes) {
            return None;
        }
        // Some may be gone already, whose bytes would count twice.
        let charged = |&key: &FileKey| index.stored(key).map_or(0, |stored| stored.charged_bytes());
        if !fits(index.resident_bytes(), going.iter().map(charged).sum()) {
            return None;
        }
        let evicted = going.iter().filter_map(|&key| self.remove_from(&mut index, key)).collect();
        let charged = index.charge(bytes, capacity_bytes);
        debug_assert!(charged, "there is room: the index was locked throughout");
        Some(evicted)
    }
}
