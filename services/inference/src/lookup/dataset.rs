//! A dataset for lookups: its current snapshot, and the loading of the next one.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use forebay_loader::{Error, Loader, LookupReservation, LookupRows, Pool, Priority};
use forebay_proto::v1;
use forebay_storage::Reader;
use tokio::sync::OnceCell;

use super::{
    Config,
    snapshot::{LoadedSnapshot, View, view_key},
};
use crate::index::{IndexProgress, KeyIndex, KeySpec, estimate};

/// A dataset for lookups by key. Cheap to clone.
#[derive(Clone)]
pub struct OnlineDataset {
    shared: Arc<Shared>,
}

struct Shared {
    dataset: String,
    spec: KeySpec,
    config: Config,
    loader: Loader,
    /// Threads that build indexes and load rows.
    pool: Pool,
    /// Threads that run large lookups.
    lookup_pool: Pool,
    /// Folder of saved indexes.
    folder: PathBuf,
    current: RwLock<Option<Arc<LoadedSnapshot>>>,
    /// State of the next snapshot's loading.
    next: Mutex<Next>,
    /// Number of uses of views, a logical clock for eviction.
    uses: AtomicU64,
}

/// State of an online dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Snapshot that lookups are answered from; `None` before the first one is loaded.
    pub ready: Option<ReadySnapshot>,
    /// Progress of the next snapshot's index while it is built. `None` also while a saved index is read.
    pub indexing: Option<IndexProgress>,
    /// Reason why the last attempt to load a snapshot failed; `None` if it succeeded.
    pub error: Option<String>,
}

/// A snapshot that lookups are answered from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadySnapshot {
    /// Id of the snapshot.
    pub snapshot: String,
    /// Number of distinct keys.
    pub keys: u64,
    /// Memory of the index, in bytes.
    pub index_bytes: u64,
}

/// State of the next snapshot's loading.
#[derive(Default)]
struct Next {
    indexing: Option<IndexProgress>,
    error: Option<String>,
}

impl OnlineDataset {
    /// Creates a dataset without a snapshot.
    ///
    /// Rows are loaded through `loader`. Indexes are built on `pool` and saved in `folder`, which must be private to this
    /// dataset. Large lookups run on `lookup_pool`, which should run nothing else.
    pub fn new(
        dataset: &str,
        spec: KeySpec,
        config: Config,
        loader: Loader,
        (pool, lookup_pool): (Pool, Pool),
        folder: PathBuf,
    ) -> Self {
        let (dataset, current, next) = (dataset.to_owned(), RwLock::default(), Mutex::default());
        let uses = AtomicU64::new(0);
        let shared = Shared { dataset, spec, config, loader, pool, lookup_pool, folder, current, next, uses };
        Self { shared: Arc::new(shared) }
    }

    /// True once a snapshot is loaded.
    pub fn is_ready(&self) -> bool {
        self.current().is_some()
    }

    /// Returns the state of the current and the next snapshot.
    pub fn progress(&self) -> Progress {
        let ready = self.current().map(|current| ReadySnapshot {
            snapshot: current.id().to_owned(),
            keys: current.index.len(),
            index_bytes: current.index.memory_bytes(),
        });
        let next = self.next();
        Progress { ready, indexing: next.indexing, error: next.error.clone() }
    }

    fn next(&self) -> MutexGuard<'_, Next> {
        self.shared.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the snapshot of `reader` and makes it the current one.
    ///
    /// The views that lookups of the previous snapshot use are loaded, too; for the first snapshot, the view of all columns. A
    /// view that cannot be loaded is skipped, and lookups that use it return the error. Until the new snapshot is loaded, and
    /// if that fails, lookups are answered from the previous one.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with the bytes that the snapshot needs; [`Error::Invalid`] for an invalid key; the error of the first
    /// block that cannot be read.
    pub async fn load_snapshot(&self, reader: Reader) -> Result<(), Error> {
        let loaded = self.try_load_snapshot(reader).await;
        let error = loaded.as_ref().err().map(ToString::to_string);
        self.next().error = error;
        loaded
    }

    async fn try_load_snapshot(&self, reader: Reader) -> Result<(), Error> {
        let previous = self.current();
        if previous.as_ref().is_some_and(|previous| previous.id() == reader.snapshot().id()) {
            return Ok(());
        }
        let started = Instant::now();
        let shared = &self.shared;
        let views = match &previous {
            Some(previous) => previous.used_views(),
            None => {
                let all = v1::Train { dataset: shared.dataset.clone(), ..v1::Train::default() };
                HashMap::from([(view_key(&all), View::new(all))])
            }
        };
        let (index, reservation) = self.index(&reader).await?;
        let (mut loaded, mut bytes) = (HashMap::new(), 0);
        for (key, view) in views {
            match self.load_rows(&view.selection, &reader).await {
                Ok(rows) => {
                    bytes += rows.bytes();
                    loaded.insert(key, View { rows: Arc::new(OnceCell::from(rows)), ..view });
                }
                // A view that does not fit fails the first snapshot, but must not block the replacement of an outdated one.
                Err(error @ Error::TooLarge { .. }) if previous.is_none() => return Err(error),
                Err(error) => {
                    tracing::warn!(dataset = shared.dataset, %error, "cannot load a view; lookups that use it fail");
                }
            }
        }
        tracing::info!(
            dataset = shared.dataset,
            snapshot = reader.snapshot().id(),
            rows = reader.snapshot().rows(),
            keys = index.len(),
            index_bytes = index.memory_bytes(),
            bytes,
            seconds = started.elapsed().as_secs_f64(),
            "loaded a snapshot for lookups"
        );
        let next = Arc::new(LoadedSnapshot::new(reader, index, reservation, loaded));
        let replaced = shared.current.write().unwrap_or_else(PoisonError::into_inner).replace(next);
        drop(replaced);
        Ok(())
    }

    pub(super) fn dataset(&self) -> &str {
        &self.shared.dataset
    }

    pub(super) fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Threads that run large lookups.
    pub(super) fn lookup_pool(&self) -> &Pool {
        &self.shared.lookup_pool
    }

    pub(super) fn current(&self) -> Option<Arc<LoadedSnapshot>> {
        self.shared.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the index of a snapshot, read from disk or built and saved, and the reservation of its memory.
    async fn index(&self, reader: &Reader) -> Result<(Arc<KeyIndex>, LookupReservation), Error> {
        let Shared { spec, folder, pool, config, loader, dataset, .. } = &*self.shared;
        let (bytes, building_bytes) = estimate(reader, spec)?;
        let what = || format!("the index of '{dataset}'");
        let reservation = loader.take_lookup_memory(what(), bytes)?;
        let _building = loader.take_lookup_memory(format!("building {}", what()), building_bytes)?;
        let saved = {
            let (folder, reader, spec) = (folder.clone(), reader.clone(), spec.clone());
            pool.run(Priority::Background, move || Ok(KeyIndex::open(&folder, &reader, &spec))).await?
        };
        if let Some(saved) = saved {
            return Ok((Arc::new(saved), reservation));
        }
        let progress = |progress| self.next().indexing = Some(progress);
        progress(IndexProgress { rows: reader.snapshot().rows(), rows_done: 0 });
        let index = KeyIndex::build(reader, spec, loader.blocks(), config.concurrent_blocks, progress).await;
        self.next().indexing = None;
        let index = index?;
        let index = Arc::new(index);
        let (folder, reader, spec, built) =
            (folder.clone(), reader.clone(), spec.clone(), Arc::clone(&index));
        let save = move || {
            match built.save(&folder, &reader, &spec) {
                Ok(()) => KeyIndex::delete_others(&folder, &reader, &spec),
                Err(error) => tracing::warn!(%error, "cannot save an index; it is rebuilt after a restart"),
            }
            Ok(())
        };
        pool.run(Priority::Background, save).await?;
        Ok((index, reservation))
    }

    async fn load_rows(&self, selection: &v1::Train, reader: &Reader) -> Result<Arc<LookupRows>, Error> {
        let Shared { loader, config, .. } = &*self.shared;
        loader.lookup_rows(selection, reader.clone(), config.max_answer_bytes).await.map(Arc::new)
    }

    /// Returns the rows of a view and its last-use clock. Loads the rows if necessary, and evicts the least recently used view
    /// if there are too many.
    pub(super) async fn view(
        &self,
        snapshot: &LoadedSnapshot,
        key: &[u8],
        selection: &v1::Train,
    ) -> Result<(Arc<LookupRows>, Arc<AtomicU64>), Error> {
        let View { rows, last_use, .. } = {
            let fresh = || View::new(selection.clone());
            snapshot.views().entry(key.to_vec()).or_insert_with(fresh).clone()
        };
        let loaded = rows.get_or_try_init(|| self.load_rows(selection, &snapshot.reader)).await.cloned();
        let mut views = snapshot.views();
        match loaded {
            Ok(loaded) => {
                self.record_use(&last_use);
                if views.len() > self.shared.config.max_views.max(1) {
                    let last_use = |(_, view): &(&Vec<u8>, &View)| view.last_use.load(Ordering::Relaxed);
                    let others =
                        views.iter().filter(|(other, view)| *other != key && view.rows.initialized());
                    let oldest = others.min_by_key(last_use).map(|(key, _)| key.clone());
                    oldest.and_then(|oldest| views.remove(&oldest));
                }
                Ok((loaded, last_use))
            }
            Err(error) => {
                if views.get(key).is_some_and(|view| !view.rows.initialized()) {
                    views.remove(key);
                }
                Err(error)
            }
        }
    }

    pub(super) fn record_use(&self, last_use: &AtomicU64) {
        last_use.store(self.shared.uses.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}
