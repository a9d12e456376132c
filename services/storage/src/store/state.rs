//! Durable state: snapshot manifests, row counts and other documents in a location that all servers share, and a footer
//! cache on the local disk.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use forebay_cache::Budget;
use object_store::PutMode;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Compute, Config, Error, Location, Snapshot,
    blocking::blocking,
    dataset::{manifest, memory::SnapshotMemory},
    read::footer_cache::FooterCache,
    store::{
        envelope::Envelope,
        old_counts::{self, EXTENSION, SNAPSHOTS},
        request,
    },
};

/// Durable state and the footer cache. Cheap to clone; clones share both.
#[derive(Clone, Debug)]
pub struct State {
    location: Location,
    footers: Arc<FooterCache>,
    /// Budget of snapshots and manifests; `None` if they are not charged.
    budget: Option<Budget>,
    compute: Compute,
    max_counts: usize,
    old_counts: old_counts::Due,
}

impl State {
    /// Opens the state at `location`, which does not need to exist yet. Manifests are stored as
    /// `snapshots/<dataset>/<id>.manifest`. Footers are cached in `footer_dir`, or in memory only if it is `None`.
    pub fn open(location: Location, footer_dir: Option<PathBuf>, config: &Config) -> Self {
        let footers = Arc::new(FooterCache::new(footer_dir, config));
        let (max_counts, old_counts) = (config.max_counts, old_counts::Due::default());
        Self { location, footers, budget: None, compute: Compute::default(), max_counts, old_counts }
    }

    /// Returns a handle of this state, whose snapshots are charged to `budget` until they are dropped, and their manifests while they are
    /// read or written. A snapshot that does not fit is refused.
    #[must_use]
    pub fn charged_to(&self, budget: Budget) -> Self {
        Self { budget: Some(budget), ..self.clone() }
    }

    /// Returns a handle of this state, with which footers are parsed by `compute`. Both share the footer cache.
    #[must_use]
    pub fn computed_by(&self, compute: Compute) -> Self {
        Self { compute, ..self.clone() }
    }

    /// Memory of a snapshot that is about to be taken or loaded.
    pub(crate) fn memory(&self) -> SnapshotMemory {
        SnapshotMemory::new(self.budget.as_ref())
    }

    /// Returns the stored snapshot; `None` if there is no manifest.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a manifest that is truncated, altered or of another kind; [`Error::Unavailable`] when the
    /// store fails; [`Error::Limit`] if the budget has no room for the snapshot and its manifest.
    pub(crate) async fn load_snapshot(&self, dataset: &str, id: &str) -> Result<Option<Snapshot>, Error> {
        let mut memory = self.memory();
        let Some((url, sealed)) = self.manifest(dataset, id, &mut memory).await? else { return Ok(None) };
        let manifest_bytes = sealed.len() as u64;
        // A snapshot is about as large as its manifest.
        memory.raise(manifest_bytes.saturating_mul(2), &url).await?;
        let (id, file) = (id.to_owned(), url.clone());
        let opened = blocking(move || {
            let snapshot = manifest::read(&sealed).map_err(|detail| Error::corrupt(&file, detail))?;
            if snapshot.id() != id {
                let detail = format!("it contains snapshot {}, expected {id}", snapshot.id());
                return Err(Error::corrupt(&file, detail));
            }
            Ok(snapshot)
        });
        let snapshot = opened.await?;
        let bytes = snapshot.memory_bytes();
        memory.raise(bytes, &url).await?;
        memory.lower(bytes);
        Ok(Some(snapshot.charged_to(memory)))
    }

    /// True if the manifest of a snapshot is stored and not damaged.
    ///
    /// # Errors
    /// As [`load_snapshot`](Self::load_snapshot), without [`Error::Corrupt`].
    pub(crate) async fn has_snapshot(&self, dataset: &str, id: &str) -> Result<bool, Error> {
        let mut memory = self.memory();
        let Some((_, sealed)) = self.manifest(dataset, id, &mut memory).await? else { return Ok(false) };
        blocking(move || Ok(manifest::is_intact(&sealed))).await
    }

    /// Reads a manifest within `memory`. Returns its URL and its bytes; `None` if it is not stored.
    async fn manifest(
        &self,
        dataset: &str,
        id: &str,
        memory: &mut SnapshotMemory,
    ) -> Result<Option<(String, Bytes)>, Error> {
        let (path, url) = self.location.child(&manifest_path(dataset, id))?;
        let sealed = request::get_within(&self.location, &path, &url, memory).await;
        let sealed = sealed.map_err(|error| error.of_state(self.location.url()))?;
        Ok(sealed.map(|sealed| (url, sealed)))
    }

    /// Stores the manifest of `snapshot` and returns the snapshot. With [`PutMode::Create`] an existing manifest stays.
    pub(crate) async fn save_snapshot(
        &self,
        dataset: &str,
        snapshot: Snapshot,
        mode: PutMode,
    ) -> Result<Snapshot, Error> {
        let (path, url) = self.location.child(&manifest_path(dataset, snapshot.id()))?;
        let written = blocking(move || {
            let bytes = manifest::write(&snapshot);
            Ok((snapshot, bytes))
        });
        let (snapshot, bytes) = written.await?;
        let stored = request::put(&self.location, &path, &url, bytes, mode).await;
        stored.map_err(|error| error.of_state(self.location.url()))?;
        Ok(snapshot)
    }

    /// Returns the stored row counts of a snapshot for one row selection, identified by its hash. `None` if they are
    /// missing or damaged.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn load_counts<T: DeserializeOwned + Send + 'static>(
        &self,
        dataset: &str,
        snapshot: &Snapshot,
        selection: u128,
    ) -> Result<Option<T>, Error> {
        let (path, url) = self.location.child(&counts_path(dataset, snapshot.id(), selection))?;
        let sealed = request::get(&self.location, &path, &url).await;
        let sealed = sealed.map_err(|error| error.of_state(self.location.url()))?;
        let Some(sealed) = sealed else { return Ok(None) };
        blocking(move || Ok(COUNTS.open(&sealed).ok().and_then(|json| serde_json::from_slice(&json).ok())))
            .await
    }

    /// Stores row counts next to the manifest of the snapshot, where every server can read them. From time to time, the oldest
    /// counts are then removed in the background.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the store fails.
    pub async fn save_counts(
        &self,
        dataset: &str,
        snapshot: &Snapshot,
        selection: u128,
        counts: Arc<impl Serialize + Send + Sync + 'static>,
    ) -> Result<(), Error> {
        let (path, url) = self.location.child(&counts_path(dataset, snapshot.id(), selection))?;
        let sealed = blocking(move || {
            let json = serde_json::to_vec(&*counts).expect("counts have a JSON form");
            Ok(COUNTS.seal(&json))
        });
        let stored = request::put(&self.location, &path, &url, sealed.await?, PutMode::Overwrite).await;
        stored.map_err(|error| error.of_state(self.location.url()))?;
        if self.old_counts.note(self.max_counts) {
            let (location, max_counts) = (self.location.clone(), self.max_counts);
            tokio::spawn(async move {
                if let Err(error) = old_counts::remove(&location, max_counts).await {
                    tracing::warn!(%error, "old row counts could not be removed from the state");
                }
            });
        }
        Ok(())
    }

    /// Location of the durable state.
    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    pub(crate) fn compute(&self) -> &Compute {
        &self.compute
    }

    pub(crate) fn footers(&self) -> &Arc<FooterCache> {
        &self.footers
    }
}

const COUNTS: Envelope = Envelope { kind: EXTENSION, version: 1 };

fn counts_path(dataset: &str, id: &str, selection: u128) -> String {
    format!("{SNAPSHOTS}/{dataset}/{id}.{selection:032x}.{EXTENSION}")
}

fn manifest_path(dataset: &str, id: &str) -> String {
    format!("{SNAPSHOTS}/{dataset}/{id}.manifest")
}
