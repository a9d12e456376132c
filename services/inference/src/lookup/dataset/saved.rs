//! Files of a dataset in its folder: indexes, and the id of the snapshot that answers lookups.

use std::{path::Path, sync::Arc};

use forebay_loader::{Error, LookupReservation, Priority};
use forebay_storage::Reader;

use super::{OnlineDataset, Shared};
use crate::index::{IndexProgress, KeyIndex, estimate};

/// File with the id of the snapshot that answers lookups.
const ACCEPTED: &str = "accepted";

impl OnlineDataset {
    /// Id of the snapshot that answered lookups last, also before a restart; `None` without a canary.
    ///
    /// After a restart, load this snapshot first, so that the canary compares the current one with it.
    pub fn last_accepted(&self) -> Option<String> {
        self.shared.requirements.canary.as_ref()?;
        let id = std::fs::read_to_string(self.shared.folder.join(ACCEPTED)).ok()?;
        Some(id.trim().to_owned()).filter(|id| !id.is_empty())
    }

    /// Returns the index of a snapshot, read from disk or built and saved, and the reservation of its memory.
    pub(super) async fn index(&self, reader: &Reader) -> Result<(Arc<KeyIndex>, LookupReservation), Error> {
        let Shared { spec, folder, pool, config, memory, dataset, .. } = &*self.shared;
        let (bytes, building_bytes) = estimate(reader, spec)?;
        let what = format!("the index of '{dataset}'");
        let reservation = memory.take(&what, bytes).await?;
        let _building = memory.take(&format!("building {what}"), building_bytes).await?;
        let saved = {
            let (folder, reader, spec) = (folder.clone(), reader.clone(), spec.clone());
            pool.run(Priority::Background, move || Ok(KeyIndex::open(&folder, &reader, &spec))).await?
        };
        if let Some(saved) = saved {
            return Ok((Arc::new(saved), reservation));
        }
        let progress = |progress| self.shared.next.lock().indexing = Some(progress);
        progress(IndexProgress { rows: reader.snapshot().rows(), rows_done: 0 });
        let index =
            KeyIndex::build(reader, spec, memory.loader().blocks(), config.concurrent_blocks, progress).await;
        self.shared.next.lock().indexing = None;
        let index = index?;
        let index = Arc::new(index);
        let (folder, reader, spec, built) =
            (folder.clone(), reader.clone(), spec.clone(), Arc::clone(&index));
        let save = move || {
            if let Err(error) = built.save(&folder, &reader, &spec) {
                tracing::warn!(%error, "cannot save an index; it is rebuilt after a restart");
            }
            Ok(())
        };
        pool.run(Priority::Background, save).await?;
        Ok((index, reservation))
    }

    /// Stores the id of the snapshot that answers lookups, if there is a canary, and deletes the saved indexes of other snapshots than
    /// this one, the one before, and `failed`.
    pub(super) async fn tidy(&self, failed: Option<Reader>) {
        let Shared { folder, spec, dataset, requirements, .. } = &*self.shared;
        let (folder, spec, dataset) = (folder.clone(), spec.clone(), dataset.clone());
        let current = self.current().map(|current| current.reader.clone());
        let previous = self.shared.next.lock().previous.clone();
        let has_canary = requirements.canary.is_some();
        let tidy = move || {
            let kept: Vec<&Reader> = current.iter().chain(&previous).chain(&failed).collect();
            KeyIndex::delete_others(&folder, &kept, &spec);
            if let (true, Some(current)) = (has_canary, &current)
                && let Err(error) = store_accepted(&folder, current.snapshot().id())
            {
                tracing::warn!(dataset, %error, "cannot store the id of the accepted snapshot");
            }
            Ok(())
        };
        // Fails only while the server stops.
        drop(self.shared.pool.run(Priority::Background, tidy).await);
    }
}

/// Stores the id of the snapshot that answers lookups, atomically.
fn store_accepted(folder: &Path, id: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let temporary = folder.join(format!("{ACCEPTED}.{}.tmp", std::process::id()));
    std::fs::write(&temporary, id)?;
    std::fs::rename(temporary, folder.join(ACCEPTED))
}
