//! Write path: eviction and atomic writes of files.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    format::{self, Parts, Table},
    index::{Stored, charged_bytes},
    io_errors::IoErrorKind,
    name::FileKey,
    outcome::Outcome,
    state::State,
};

/// Exclusive right to write some sections of an entry.
pub(super) struct Claim {
    pub(super) shared: Arc<State>,
    pub(super) entry: u128,
    pub(super) names: Vec<u128>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shared.index.lock().unclaim(self.entry, &self.names);
    }
}

/// Charge for a file that is not written yet.
struct Charge<'a> {
    shared: &'a State,
    bytes: u64,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.shared.index.lock().discharge(self.bytes);
    }
}

impl State {
    /// Evicts files if necessary and writes a file of these sections.
    pub(super) fn write(&self, entry: u128, sections: &[Parts], load_time: Duration) -> Outcome {
        let bytes = charged_bytes(format::file_bytes(sections));
        let mut charge = match self.make_room(entry, bytes) {
            Ok(charge) => charge,
            Err(outcome) => return outcome,
        };
        let key = FileKey { entry, id: self.index.lock().next_id() };
        let table = Table::new(entry, sections, load_time);
        if let Err(error) = self.write_file(key, &table, sections) {
            let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            let kind = if full { IoErrorKind::NoSpace } else { IoErrorKind::Write };
            self.io_errors.report(kind, &self.folder.join(key.path()), &error);
            self.backoff.lock().failed(Instant::now());
            return Outcome::Failing;
        }
        self.backoff.lock().succeeded();
        let mut index = self.index.lock();
        // The index now accounts for the size of the file.
        charge.bytes = 0;
        index.insert(Arc::new(Stored::new(key, table)));
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
            self.io_errors.report(IoErrorKind::Remove, &temporary, &error);
        }
        renamed
    }

    /// Charges `bytes` for a file of `entry`, after evicting files that are needed later.
    fn make_room(&self, entry: u128, bytes: u64) -> Result<Charge<'_>, Outcome> {
        let capacity_bytes = self.capacity_bytes();
        if bytes > capacity_bytes {
            return Err(Outcome::TooLarge);
        }
        if self.index.lock().charge(bytes, capacity_bytes) {
            return Ok(Charge { shared: self, bytes });
        }
        let mut scan = self.policy.eviction_scan();
        // A pinned entry is written regardless of its forecast.
        let is_pinned = self.index.lock().is_pinned(entry);
        let next_use = if is_pinned { 0 } else { self.policy.next_use(&FileKey { entry, id: 0 }) };
        let (mut victims, mut freed_bytes): (BTreeSet<FileKey>, u64) = (BTreeSet::new(), 0);
        let evicted = loop {
            match self.replace(&victims, freed_bytes, bytes) {
                Ok(evicted) => break evicted,
                Err(still_freed_bytes) => freed_bytes = still_freed_bytes,
            }
            let victim = scan.victim().ok_or(Outcome::NeededLater)?;
            if next_use > victim.next_use {
                return Err(Outcome::NeededLater);
            }
            let index = self.index.lock();
            // Sections of one entry are needed together, so none is evicted for another.
            if victim.key.entry == entry || index.is_pinned(victim.key.entry) {
                continue;
            }
            if let Some(stored) = index.stored(victim.key)
                && victims.insert(victim.key)
            {
                freed_bytes += stored.charged_bytes();
            }
        };
        drop(scan);
        metrics::counter!("forebay_cache_evictions_total", "tier" => "disk").increment(evicted.len() as u64);
        evicted.iter().for_each(|stored| self.delete(stored));
        Ok(Charge { shared: self, bytes })
    }

    /// Removes `victims`, of `freed_bytes` bytes, and charges `bytes` instead. If that is not sufficient, has no effect
    /// and returns the bytes that the victims still occupy.
    fn replace(
        &self,
        victims: &BTreeSet<FileKey>,
        freed_bytes: u64,
        bytes: u64,
    ) -> Result<Vec<Arc<Stored>>, u64> {
        let capacity_bytes = self.capacity_bytes();
        let mut index = self.index.lock();
        let fits = |resident_bytes: u64, freed_bytes: u64| {
            resident_bytes.saturating_sub(freed_bytes).saturating_add(bytes) <= capacity_bytes
        };
        if !fits(index.resident_bytes(), freed_bytes) {
            return Err(freed_bytes);
        }
        // Victims may have been removed in the meantime, which would count their bytes twice.
        let charged = |&key: &FileKey| index.stored(key).map_or(0, |stored| stored.charged_bytes());
        let still_freed_bytes = victims.iter().map(charged).sum();
        if !fits(index.resident_bytes(), still_freed_bytes) {
            return Err(still_freed_bytes);
        }
        let evicted = victims.iter().filter_map(|&key| self.remove_from(&mut index, key)).collect();
        let charged = index.charge(bytes, capacity_bytes);
        debug_assert!(charged, "the charge fits, because the index was locked throughout");
        Ok(evicted)
    }
}
