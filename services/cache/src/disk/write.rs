//! Write path: eviction and atomic writes of files.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    format::{self, Parts, Table},
    index::Stored,
    io_errors::IoErrorKind,
    name::FileKey,
    outcome::Outcome,
    state::State,
    usage::Usage,
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
    usage: Usage,
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.shared.index.lock().discharge(self.usage);
    }
}

impl State {
    /// Evicts files if necessary and writes a file of these sections.
    pub(super) fn write(&self, entry: u128, sections: &[Parts], load_time: Duration) -> Outcome {
        if let Err(error) = self.own_folder() {
            self.io_errors.report(IoErrorKind::Folder, &self.folder, &error);
            self.backoff.lock().failed(Instant::now());
            return Outcome::Failing;
        }
        let usage = Usage::of_file(format::file_bytes(sections), sections.len());
        let mut charge = match self.make_room(entry, usage) {
            Ok(charge) => charge,
            Err(outcome) => return outcome,
        };
        let key = FileKey { entry, id: self.index.lock().next_id() };
        let table = Table::new(entry, sections, load_time);
        let mut written = self.write_file(key, &table, sections);
        let is_missing = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        // The folder may have been removed in the meantime.
        if is_missing && self.own_folder().is_ok_and(|is_new| is_new) {
            written = self.write_file(key, &table, sections);
        }
        if let Err(error) = written {
            let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            let kind = if full { IoErrorKind::NoSpace } else { IoErrorKind::Write };
            self.io_errors.report(kind, &self.folder.join(key.path()), &error);
            self.backoff.lock().failed(Instant::now());
            return Outcome::Failing;
        }
        self.backoff.lock().succeeded();
        let mut index = self.index.lock();
        // The index now accounts for the size of the file.
        charge.usage = Usage::default();
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

    /// Charges `usage` for a file of `entry`, after evicting files that are needed later.
    fn make_room(&self, entry: u128, usage: Usage) -> Result<Charge<'_>, Outcome> {
        let capacity = self.capacity();
        if !usage.fits(capacity) {
            return Err(Outcome::TooLarge);
        }
        if self.index.lock().charge(usage, capacity) {
            return Ok(Charge { shared: self, usage });
        }
        let mut scan = self.policy.eviction_scan();
        // A pinned entry is written regardless of its forecast.
        let is_pinned = self.index.lock().is_pinned(entry);
        let next_use = if is_pinned { 0 } else { self.policy.next_use(&FileKey { entry, id: 0 }) };
        let (mut victims, mut freed): (BTreeSet<FileKey>, Usage) = Default::default();
        let evicted = loop {
            match self.replace(&victims, freed, usage) {
                Ok(evicted) => break evicted,
                Err(still_freed) => freed = still_freed,
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
                freed = freed.plus(stored.usage());
            }
        };
        drop(scan);
        metrics::counter!("forebay_cache_evictions_total", "tier" => "disk").increment(evicted.len() as u64);
        evicted.iter().for_each(|stored| self.delete(stored));
        Ok(Charge { shared: self, usage })
    }

    /// Removes `victims`, which take `freed`, and charges `usage` instead. If that is not sufficient, has no effect and returns what the
    /// victims still take.
    fn replace(
        &self,
        victims: &BTreeSet<FileKey>,
        freed: Usage,
        usage: Usage,
    ) -> Result<Vec<Arc<Stored>>, Usage> {
        let capacity = self.capacity();
        let mut index = self.index.lock();
        let fits = |resident: Usage, freed: Usage| resident.minus(freed).plus(usage).fits(capacity);
        if !fits(index.resident(), freed) {
            return Err(freed);
        }
        // Victims may have been removed in the meantime, which would count them twice.
        let stored = victims.iter().filter_map(|&key| index.stored(key));
        let still_freed = stored.fold(Usage::default(), |sum, stored| sum.plus(stored.usage()));
        if !fits(index.resident(), still_freed) {
            return Err(still_freed);
        }
        let evicted = victims.iter().filter_map(|&key| self.remove_from(&mut index, key)).collect();
        let charged = index.charge(usage, capacity);
        debug_assert!(charged, "the charge fits, because the index was locked throughout");
        Ok(evicted)
    }
}
