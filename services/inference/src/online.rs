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

use arrow_array::RecordBatch;
use forebay_loader::{Error, Loader, Pool, Priority, Resident, WireBatch};
use forebay_proto::{Encoding, v1};
use forebay_storage::Reader;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::index::{Indexed, KeyIndex, KeySpec};

/// Bounds of lookups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Keys of one lookup. Default: 65,536.
    pub max_keys: usize,
    /// Views of one dataset (lists of columns and tensors) that are held in memory; the one that was not asked for the longest
    /// goes first. Default: 8.
    pub max_views: usize,
    /// A lookup of at most so many keys is answered where it arrives, which is faster than handing it to another thread.
    /// Default: 128.
    pub max_inline_keys: usize,
    /// Blocks whose keys are read at a time. Default: 8.
    pub concurrent_blocks: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_keys: 1 << 16, max_views: 8, max_inline_keys: 128, concurrent_blocks: 8 }
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
    /// Counts uses of views.
    clock: AtomicU64,
}

/// A snapshot that is ready to be looked up.
struct Generation {
    reader: Reader,
    index: Arc<KeyIndex>,
    /// By what is wanted of a row.
    views: Mutex<HashMap<Vec<u8>, View>>,
}

/// Lookups that want the same of a row, one after the other.
pub struct Lookup {
    online: Online,
    wanted: v1::Train,
    key: Vec<u8>,
    /// What the last one was answered from.
    ready: Option<(Arc<Generation>, Arc<Resident>)>,
}

#[derive(Clone)]
struct View {
    wanted: v1::Train,
    resident: Arc<OnceCell<Arc<Resident>>>,
    used: u64,
}

/// What a lookup is answered with, all of it of one snapshot.
pub struct Answer {
    /// Of which the rows are.
    pub resident: Arc<Resident>,
    /// The rows of the keys, in their order.
    pub batch: WireBatch,
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
        let (dataset, current, clock) = (dataset.to_owned(), RwLock::default(), AtomicU64::new(0));
        let shared = Shared { dataset, spec, config, loader, pool, lookups, folder, current, clock };
        Self { shared: Arc::new(shared) }
    }

    /// By which columns it is looked up.
    pub fn spec(&self) -> &KeySpec {
        &self.shared.spec
    }

    /// Whether there is a snapshot to look rows up in.
    pub fn is_ready(&self) -> bool {
        self.current().is_some()
    }

    /// Makes the snapshot of `reader` ready, with every view that the one before is asked for, or else the view of all columns,
    /// and puts it in its place. Until then, and if it fails, lookups are answered from the one before.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with the bytes that it needs; [`Error::Invalid`] for a key that is none; those of the first block that
    /// can't be read.
    pub async fn adopt(&self, reader: Reader, progress: impl Fn(Indexed)) -> Result<(), Error> {
        let before = self.current();
        if before.as_ref().is_some_and(|before| before.reader.snapshot().id() == reader.snapshot().id()) {
            return Ok(());
        }
        let started = Instant::now();
        let index = self.index(&reader, progress).await?;
        let shared = &self.shared;
        let all = v1::Train { dataset: shared.dataset.clone(), ..v1::Train::default() };
        let mut views = before.map_or_else(HashMap::new, |before| before.views().clone());
        views.entry(key_of(&all)).or_insert(View { wanted: all, resident: Arc::default(), used: 0 });
        let mut ready = HashMap::new();
        for (key, view) in views {
            match shared.loader.resident(&view.wanted, reader.clone()).await {
                Ok(resident) => {
                    let resident = Arc::new(OnceCell::from(Arc::new(resident)));
                    ready.insert(key, View { resident, ..view });
                }
                // Its columns may be gone; who asks for them is told.
                Err(error @ Error::Invalid { .. }) if view.used > 0 => {
                    tracing::warn!(dataset = shared.dataset, %error, "a view of the snapshot before is not made");
                }
                Err(error) => return Err(error),
            }
        }
        let bytes: u64 = ready.values().filter_map(|view| Some(view.resident.get()?.bytes())).sum();
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
        let next = Arc::new(Generation { reader, index, views: Mutex::new(ready) });
        let before = shared.current.write().unwrap_or_else(PoisonError::into_inner).replace(next);
        drop(before);
        Ok(())
    }

    /// Lookups that want this of a row (`select`, `columns`, `tensors`).
    pub fn lookup(&self, wanted: &v1::Train) -> Lookup {
        let v1::Train { select, columns, tensors, .. } = wanted.clone();
        let kept = v1::Train {
            dataset: self.shared.dataset.clone(),
            select,
            columns,
            tensors,
            ..v1::Train::default()
        };
        let key = key_of(&kept);
        Lookup { online: self.clone(), wanted: kept, key, ready: None }
    }

    fn current(&self) -> Option<Arc<Generation>> {
        self.shared.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The index of a snapshot: kept from before, or made and kept.
    async fn index(&self, reader: &Reader, progress: impl Fn(Indexed)) -> Result<Arc<KeyIndex>, Error> {
        let Shared { spec, folder, pool, config, .. } = &*self.shared;
        let found = {
            let (folder, reader, spec) = (folder.clone(), reader.clone(), spec.clone());
            pool.run(Priority::Second, move || Ok(KeyIndex::find(&folder, &reader, &spec))).await?
        };
        if let Some(found) = found {
            return Ok(Arc::new(found));
        }
        let index = KeyIndex::build(reader, spec, pool, config.concurrent_blocks, progress).await?;
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
        Ok(index)
    }

    /// The rows of a snapshot as they are wanted, made if they are not there.
    async fn view(
        &self,
        generation: &Generation,
        key: &[u8],
        wanted: &v1::Train,
    ) -> Result<Arc<Resident>, Error> {
        let used = self.shared.clock.fetch_add(1, Ordering::Relaxed) + 1;
        let cell = {
            let mut views = generation.views();
            if let Some(view) = views.get_mut(key) {
                view.used = used;
                Arc::clone(&view.resident)
            } else {
                let oldest = views.iter().min_by_key(|(_, view)| view.used).map(|(key, _)| key.clone());
                if let Some(oldest) = oldest.filter(|_| views.len() >= self.shared.config.max_views.max(1)) {
                    views.remove(&oldest);
                }
                let view = View { wanted: wanted.clone(), resident: Arc::default(), used };
                Arc::clone(&views.entry(key.to_vec()).or_insert(view).resident)
            }
        };
        let load = || async {
            let loaded = self.shared.loader.resident(wanted, generation.reader.clone()).await;
            loaded.map(Arc::new)
        };
        let loaded = cell.get_or_try_init(load).await.cloned();
        if loaded.is_err() {
            let mut views = generation.views();
            if views.get(key).is_some_and(|view| view.resident.get().is_none()) {
                views.remove(key);
            }
        }
        loaded
    }
}

impl Generation {
    fn views(&self) -> MutexGuard<'_, HashMap<Vec<u8>, View>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lookup {
    /// What there is of the rows now: their snapshot and their schema. What is wanted for the first time is brought into memory
    /// first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a request that makes no sense; [`Error::TooLarge`] for more than fits; [`Error::Unavailable`] while
    /// there is no snapshot.
    pub async fn resident(&mut self) -> Result<Arc<Resident>, Error> {
        Ok(Arc::clone(&self.ready().await?.1))
    }

    /// The rows of `keys`, a column for each of the key's by its name, all of one snapshot.
    ///
    /// # Errors
    /// As for [`resident`](Self::resident), and [`Error::Invalid`] for keys of another type, or too many of them.
    pub async fn look_up(&mut self, keys: RecordBatch) -> Result<Answer, Error> {
        let Config { max_keys, max_inline_keys, .. } = self.online.shared.config;
        let (started, count) = (Instant::now(), keys.num_rows());
        if count > max_keys {
            let reason = format!("{count} at once, expected at most {max_keys}");
            return Err(Error::invalid("keys", reason));
        }
        let (generation, resident) = self.ready().await?.clone();
        let answer = move || {
            let index = &generation.index;
            let keys = index.key().encode(&keys)?;
            let batch = resident.gather(index.rows(&keys))?;
            Ok(Answer { resident, batch })
        };
        let answer = if count <= max_inline_keys {
            answer()
        } else {
            self.online.shared.lookups.run(Priority::First, answer).await
        }?;
        metrics::counter!("forebay_online_keys_total").increment(count as u64);
        metrics::counter!("forebay_online_keys_found_total").increment(answer.batch.rows);
        metrics::histogram!("forebay_online_lookup_duration_seconds").record(started.elapsed());
        Ok(answer)
    }

    async fn ready(&mut self) -> Result<&(Arc<Generation>, Arc<Resident>), Error> {
        let dataset = &self.online.shared.dataset;
        let current = self.online.current();
        let current = current.ok_or_else(|| {
            Error::Unavailable(format!("'{dataset}' is still being made ready to be looked up"))
        })?;
        let ready = match self.ready.take() {
            Some(ready) if Arc::ptr_eq(&ready.0, &current) => ready,
            _ => {
                let resident = self.online.view(&current, &self.key, &self.wanted).await?;
                (current, resident)
            }
        };
        Ok(self.ready.insert(ready))
    }
}

/// Names what is wanted.
fn key_of(wanted: &v1::Train) -> Vec<u8> {
    Encoding::Protobuf.encode(wanted)
}
