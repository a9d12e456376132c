//! A dataset that is looked up: the current snapshot's index and rows, and the next one's beside them.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use forebay_loader::{Aside, Error, Loader, Pool, Priority, Resident};
use forebay_proto::{Encoding, v1};
use forebay_storage::Reader;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::{
    index::{Indexed, KeyIndex, KeySpec, estimate},
    lookup::Lookup,
};

/// Bounds of lookups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Keys of one lookup. Default: 65,536.
    pub max_keys: usize,
    /// Views of one dataset (columns, tensors and a filter) that are held in memory; the one that was not asked for the longest
    /// goes first. Default: 8.
    pub max_views: usize,
    /// A lookup of at most so many keys is answered by the thread that reads the network: it takes about 0.1 ms, and handing it
    /// to another thread and back takes as long. Default: 1,024.
    pub max_inline_keys: usize,
    /// Bytes of the answer to one lookup. Default: 16 MiB.
    pub max_answer_bytes: u64,
    /// Blocks whose keys are read at a time. Default: 8.
    pub concurrent_blocks: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_keys: 1 << 16,
            max_views: 8,
            max_inline_keys: 1024,
            max_answer_bytes: 16 << 20,
            concurrent_blocks: 8,
        }
    }
}

/// A dataset that is looked up. Cheap to clone.
#[derive(Clone)]
pub struct Online {
    shared: Arc<Shared>,
}

struct Shared {
    dataset: String,
    spec: KeySpec,
    config: Config,
    loader: Loader,
    /// For what takes long.
    pool: Pool,
    /// For lookups.
    lookups: Pool,
    /// Where indexes are kept.
    folder: PathBuf,
    current: RwLock<Option<Arc<Generation>>>,
    /// How far the next snapshot is, while it is made ready, and why it was not the last time.
    next: Mutex<Next>,
    /// Counts uses of views.
    clock: AtomicU64,
}

/// How far a dataset is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// What lookups are answered from.
    pub ready: Option<Ready>,
    /// Of the snapshot that comes next, while its index is built. One that was kept is not built again.
    pub indexed: Option<Indexed>,
    /// Why the last try to make one ready has failed, if it has.
    pub error: Option<String>,
}

/// A snapshot that is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// Its id.
    pub snapshot: String,
    /// Different keys.
    pub keys: u64,
    /// Bytes of memory that they take.
    pub index_bytes: u64,
}

/// What is known of the snapshot that comes next.
#[derive(Default)]
struct Next {
    indexed: Option<Indexed>,
    error: Option<String>,
}

/// A snapshot that is ready to be looked up.
pub(crate) struct Generation {
    reader: Reader,
    pub(crate) index: Arc<KeyIndex>,
    /// Memory of the index.
    _aside: Aside,
    /// By what is wanted of a row.
    views: Mutex<HashMap<Vec<u8>, View>>,
}

#[derive(Clone)]
struct View {
    wanted: v1::Train,
    resident: Arc<OnceCell<Arc<Resident>>>,
    /// When it was asked last.
    used: Arc<AtomicU64>,
}

impl Online {
    /// A dataset by this name, of which nothing is ready yet. Rows are held by `loader`. Indexes are made on `pool` and kept in
    /// `folder`, which is this dataset's own; rows are looked up on `lookups`, which nothing else should keep busy.
    pub fn new(
        dataset: &str,
        spec: KeySpec,
        config: Config,
        loader: Loader,
        (pool, lookups): (Pool, Pool),
        folder: PathBuf,
    ) -> Self {
        let (dataset, current, next) = (dataset.to_owned(), RwLock::default(), Mutex::default());
        let clock = AtomicU64::new(0);
        let shared = Shared { dataset, spec, config, loader, pool, lookups, folder, current, next, clock };
        Self { shared: Arc::new(shared) }
    }

    /// Whether there is a snapshot to look rows up in.
    pub fn is_ready(&self) -> bool {
        self.current().is_some()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let ready = self.current().map(|current| Ready {
            snapshot: current.reader.snapshot().id().to_owned(),
            keys: current.index.len(),
            index_bytes: current.index.bytes(),
        });
        let next = self.next();
        Progress { ready, indexed: next.indexed, error: next.error.clone() }
    }

    fn next(&self) -> MutexGuard<'_, Next> {
        self.shared.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the snapshot of `reader` ready, with the views that lookups of the one before use, or at first with all columns,
    /// and puts it in its place. Until then, and if it fails, lookups are answered from the one before. A view that can't be made
    /// of it is left out; who asks for it is told why.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with the bytes that it needs; [`Error::Invalid`] for a key that is none; those of the first block that
    /// can't be read.
    pub async fn adopt(&self, reader: Reader) -> Result<(), Error> {
        let adopted = self.make_ready(reader).await;
        let error = adopted.as_ref().err().map(ToString::to_string);
        self.next().error = error;
        adopted
    }

    async fn make_ready(&self, reader: Reader) -> Result<(), Error> {
        let before = self.current();
        if before.as_ref().is_some_and(|before| before.reader.snapshot().id() == reader.snapshot().id()) {
            return Ok(());
        }
        let started = Instant::now();
        let shared = &self.shared;
        let views = match &before {
            Some(before) => before.used_views(),
            None => {
                let all = v1::Train { dataset: shared.dataset.clone(), ..v1::Train::default() };
                HashMap::from([(
                    key_of(&all),
                    View { wanted: all, resident: Arc::default(), used: Arc::default() },
                )])
            }
        };
        let (index, aside) = self.index(&reader).await?;
        let (mut ready, mut bytes) = (HashMap::new(), 0);
        for (key, view) in views {
            match self.load(&view.wanted, &reader).await {
                Ok(resident) => {
                    bytes += resident.bytes();
                    ready.insert(key, View { resident: Arc::new(OnceCell::from(resident)), ..view });
                }
                // What does not fit keeps a dataset from being ready at all, but no new snapshot from taking an old one's place.
                Err(error @ Error::TooLarge { .. }) if before.is_none() => return Err(error),
                Err(error) => {
                    tracing::warn!(dataset = shared.dataset, %error, "a view is not made ahead of lookups");
                }
            }
        }
        tracing::info!(
            dataset = shared.dataset,
            snapshot = reader.snapshot().id(),
            rows = reader.snapshot().rows(),
            keys = index.len(),
            index_bytes = index.bytes(),
            bytes,
            seconds = started.elapsed().as_secs_f64(),
            "ready to be looked up"
        );
        let next = Arc::new(Generation { reader, index, _aside: aside, views: Mutex::new(ready) });
        let replaced = shared.current.write().unwrap_or_else(PoisonError::into_inner).replace(next);
        drop(replaced);
        Ok(())
    }

    /// Lookups that want this of a row (`select`, `columns`, `tensors`), and only of rows that `filter` keeps. `key` names the
    /// columns of the caller's that are the key, in the order of the dataset's; empty for those of the same names.
    pub fn lookup(&self, wanted: &v1::Train, key: Vec<String>) -> Lookup {
        let v1::Train { filter, select, columns, tensors, .. } = wanted.clone();
        let kept = v1::Train {
            dataset: self.shared.dataset.clone(),
            filter,
            select,
            columns,
            tensors,
            ..v1::Train::default()
        };
        let view = key_of(&kept);
        Lookup::new(self.clone(), kept, key, view)
    }

    pub(crate) fn dataset(&self) -> &str {
        &self.shared.dataset
    }

    pub(crate) fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Where rows are looked up that take long.
    pub(crate) fn lookups(&self) -> &Pool {
        &self.shared.lookups
    }

    pub(crate) fn current(&self) -> Option<Arc<Generation>> {
        self.shared.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The index of a snapshot, kept from before, or made and kept; and its memory.
    async fn index(&self, reader: &Reader) -> Result<(Arc<KeyIndex>, Aside), Error> {
        let Shared { spec, folder, pool, config, loader, dataset, .. } = &*self.shared;
        let (bytes, building_bytes) = estimate(reader, spec)?;
        let what = || format!("the index of '{dataset}'");
        let aside = loader.take_aside(what(), bytes)?;
        let _building = loader.take_aside(format!("building {}", what()), building_bytes)?;
        let found = {
            let (folder, reader, spec) = (folder.clone(), reader.clone(), spec.clone());
            pool.run(Priority::Second, move || Ok(KeyIndex::find(&folder, &reader, &spec))).await?
        };
        if let Some(found) = found {
            return Ok((Arc::new(found), aside));
        }
        let progress = |indexed| self.next().indexed = Some(indexed);
        progress(Indexed { rows: reader.snapshot().rows(), rows_done: 0 });
        let index = KeyIndex::build(reader, spec, pool, config.concurrent_blocks, progress).await;
        self.next().indexed = None;
        let index = index?;
        let index = Arc::new(index);
        let (folder, reader, spec, kept) = (folder.clone(), reader.clone(), spec.clone(), Arc::clone(&index));
        let keep = move || {
            match kept.keep(&folder, &reader, &spec) {
                Ok(()) => KeyIndex::forget_others(&folder, &reader, &spec),
                Err(error) => tracing::warn!(%error, "an index is made again after a restart"),
            }
            Ok(())
        };
        pool.run(Priority::Second, keep).await?;
        Ok((index, aside))
    }

    async fn load(&self, wanted: &v1::Train, reader: &Reader) -> Result<Arc<Resident>, Error> {
        let Shared { loader, config, .. } = &*self.shared;
        loader.resident(wanted, reader.clone(), config.max_answer_bytes).await.map(Arc::new)
    }

    /// The rows of a snapshot as they are wanted, made if they are not there.
    pub(crate) async fn view(
        &self,
        generation: &Generation,
        key: &[u8],
        wanted: &v1::Train,
    ) -> Result<(Arc<Resident>, Arc<AtomicU64>), Error> {
        let View { resident, used, .. } = {
            let fresh = || View { wanted: wanted.clone(), resident: Arc::default(), used: Arc::default() };
            generation.views().entry(key.to_vec()).or_insert_with(fresh).clone()
        };
        let loaded = resident.get_or_try_init(|| self.load(wanted, &generation.reader)).await.cloned();
        let mut views = generation.views();
        match loaded {
            Ok(loaded) => {
                self.note_use(&used);
                if views.len() > self.shared.config.max_views.max(1) {
                    let least = |(_, view): &(&Vec<u8>, &View)| view.used.load(Ordering::Relaxed);
                    let others =
                        views.iter().filter(|(other, view)| *other != key && view.resident.initialized());
                    let oldest = others.min_by_key(least).map(|(key, _)| key.clone());
                    oldest.and_then(|oldest| views.remove(&oldest));
                }
                Ok((loaded, used))
            }
            Err(error) => {
                if views.get(key).is_some_and(|view| !view.resident.initialized()) {
                    views.remove(key);
                }
                Err(error)
            }
        }
    }

    pub(crate) fn note_use(&self, used: &AtomicU64) {
        used.store(self.shared.clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Generation {
    /// The views that are there and were asked for; if there is none, those that are there.
    fn used_views(&self) -> HashMap<Vec<u8>, View> {
        let mut views = self.views().clone();
        views.retain(|_, view| view.resident.initialized());
        if views.values().any(|view| view.used.load(Ordering::Relaxed) > 0) {
            views.retain(|_, view| view.used.load(Ordering::Relaxed) > 0);
        }
        views
    }

    fn views(&self) -> MutexGuard<'_, HashMap<Vec<u8>, View>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names what is wanted.
fn key_of(wanted: &v1::Train) -> Vec<u8> {
    Encoding::Protobuf.encode(wanted)
}
