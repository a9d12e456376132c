//! A dataset that is looked up: the current snapshot's index and rows, and the next one's beside them.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema, SchemaRef};
use forebay_loader::{Aside, Error, Loader, Pool, Priority, Resident, WireBatch};
use forebay_proto::{Encoding, v1};
use forebay_storage::Reader;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::{
    index::{Indexed, KeyIndex, KeySpec, estimate},
    keys::EncodedKeys,
};

/// An answer of about so many bytes or fewer may be made by a thread that reads the network.
const INLINE_BYTES: u64 = 512 << 10;

/// Bounds of lookups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Keys of one lookup. Default: 65,536.
    pub max_keys: usize,
    /// Views of one dataset (lists of columns and tensors) that are held in memory; the one that was not asked for the longest
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
    /// Counts uses of views.
    clock: AtomicU64,
}

/// A snapshot that is ready to be looked up.
struct Generation {
    reader: Reader,
    index: Arc<KeyIndex>,
    /// Memory of the index.
    _aside: Aside,
    /// By what is wanted of a row.
    views: Mutex<HashMap<Vec<u8>, View>>,
}

/// Lookups that want the same of a row, one after the other; of several datasets at once if they were put
/// [beside](Lookup::beside) each other.
pub struct Lookup {
    parts: Vec<Part>,
    /// Of the last answer, and what it was made of.
    schema: Option<(Vec<SchemaRef>, SchemaRef)>,
}

/// A lookup in one dataset.
#[derive(Clone)]
struct Part {
    online: Online,
    wanted: v1::Train,
    /// What of the caller's columns is the key; those of the dataset's names if it is empty.
    columns: Vec<String>,
    view: Vec<u8>,
    /// What the last one was answered from, if it is still there.
    ready: Option<(Weak<Generation>, Weak<Resident>, Arc<AtomicU64>)>,
}

/// A part's snapshot, while it is looked at.
struct Ready {
    generation: Arc<Generation>,
    resident: Arc<Resident>,
}

/// Keys that were found to be of the right types, for each of a lookup's datasets. Others can be put behind them.
#[derive(Clone)]
pub struct Keys {
    parts: Vec<(Arc<KeyIndex>, EncodedKeys)>,
    row_bytes: u64,
}

#[derive(Clone)]
struct View {
    wanted: v1::Train,
    resident: Arc<OnceCell<Arc<Resident>>>,
    /// When it was asked last.
    used: Arc<AtomicU64>,
}

/// What a lookup is answered with; what is of one dataset is of one snapshot.
pub struct Answer {
    /// Of which the rows are: an entry for each dataset.
    pub residents: Vec<Arc<Resident>>,
    /// How many keys were found in each.
    pub found: Vec<u64>,
    /// The rows of the keys, in their order; the columns of the datasets stand beside each other.
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

    /// Whether there is a snapshot to look rows up in.
    pub fn is_ready(&self) -> bool {
        self.current().is_some()
    }

    /// Makes the snapshot of `reader` ready, with the views that lookups of the one before use, or at first with all columns,
    /// and puts it in its place. Until then, and if it fails, lookups are answered from the one before. A view that can't be made
    /// of it is left out; who asks for it is told why.
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
        let (index, aside) = self.index(&reader, progress).await?;
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

    /// Lookups that want this of a row (`select`, `columns`, `tensors`). `key` names the columns of the
    /// caller's that are the key, in the order of the dataset's; empty for those of the same names.
    pub fn lookup(&self, wanted: &v1::Train, key: Vec<String>) -> Lookup {
        let v1::Train { select, columns, tensors, .. } = wanted.clone();
        let kept = v1::Train {
            dataset: self.shared.dataset.clone(),
            select,
            columns,
            tensors,
            ..v1::Train::default()
        };
        let view = key_of(&kept);
        Lookup {
            schema: None,
            parts: vec![Part { online: self.clone(), wanted: kept, columns: key, view, ready: None }],
        }
    }

    fn current(&self) -> Option<Arc<Generation>> {
        self.shared.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The index of a snapshot, kept from before, or made and kept; and its memory.
    async fn index(
        &self,
        reader: &Reader,
        progress: impl Fn(Indexed),
    ) -> Result<(Arc<KeyIndex>, Aside), Error> {
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
        Ok((index, aside))
    }

    async fn load(&self, wanted: &v1::Train, reader: &Reader) -> Result<Arc<Resident>, Error> {
        let Shared { loader, config, .. } = &*self.shared;
        loader.resident(wanted, reader.clone(), config.max_answer_bytes).await.map(Arc::new)
    }

    /// The rows of a snapshot as they are wanted, made if they are not there.
    async fn view(
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

    fn note_use(&self, used: &AtomicU64) {
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

impl Lookup {
    /// Looks up in the datasets of both at once.
    #[must_use]
    pub fn beside(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// What there is of the rows now, of each dataset: their snapshot and their schema. What is wanted for the first time is
    /// brought into memory first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a request that makes no sense; [`Error::TooLarge`] for more than fits; [`Error::Unavailable`] while
    /// there is no snapshot.
    pub async fn residents(&mut self) -> Result<Vec<Arc<Resident>>, Error> {
        Ok(self.ready().await?.into_iter().map(|ready| ready.resident).collect())
    }

    /// The schema of answers from these: the columns of the first dataset, then those of the others, whose `found` is called
    /// `DATASET_found`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that stands twice.
    pub fn schema(&mut self, residents: &[Arc<Resident>]) -> Result<SchemaRef, Error> {
        if let [only] = residents {
            return Ok(Arc::clone(only.view().schema()));
        }
        let parts = || residents.iter().map(|resident| resident.view().schema());
        if let Some((of, schema)) = &self.schema
            && of.len() == residents.len()
            && of.iter().zip(parts()).all(|(one, other)| Arc::ptr_eq(one, other))
        {
            return Ok(Arc::clone(schema));
        }
        let schema = self.joined_schema(residents)?;
        self.schema = Some((parts().cloned().collect(), Arc::clone(&schema)));
        Ok(schema)
    }

    fn joined_schema(&self, residents: &[Arc<Resident>]) -> Result<SchemaRef, Error> {
        let (mut fields, mut names): (Vec<Field>, HashSet<String>) = Default::default();
        for (at, (part, resident)) in self.parts.iter().zip(residents).enumerate() {
            let of_dataset = resident.view().schema().fields();
            for (place, field) in of_dataset.iter().enumerate() {
                let mut field = field.as_ref().clone();
                if at > 0 && place + 1 == of_dataset.len() {
                    field.set_name(format!("{}_{}", part.dataset(), field.name()));
                }
                if !names.insert(field.name().clone()) {
                    let reason = format!(
                        "'{}' of dataset '{}' stands twice in the answer; give it another name with `select` and `AS`, or \
                         name the columns",
                        field.name(),
                        part.dataset()
                    );
                    return Err(Error::invalid("with", reason));
                }
                fields.push(field);
            }
        }
        Ok(Arc::new(Schema::new(fields)))
    }

    /// The rows of `keys`, a column for each of the key's by its name.
    ///
    /// # Errors
    /// As for [`residents`](Self::residents), and [`Error::Invalid`] for keys of another type, or too many of them.
    pub async fn look_up(&mut self, keys: &RecordBatch) -> Result<Answer, Error> {
        let keys = self.encode(keys).await?;
        self.gather(keys, 0).await
    }

    /// The keys in a batch of the caller's.
    ///
    /// # Errors
    /// As [`look_up`](Self::look_up).
    pub async fn encode(&mut self, keys: &RecordBatch) -> Result<Keys, Error> {
        if let Some(part) = self.parts.first() {
            part.check_count(keys.num_rows())?;
        }
        let ready = self.ready().await?;
        let row_bytes = ready.iter().map(|ready| ready.resident.row_bytes()).sum();
        let encode = |(part, ready): (&Part, Ready)| {
            let index = &ready.generation.index;
            let encoded = index.key().encode(&part.columns_of(keys, index)?)?;
            Ok::<_, Error>((Arc::clone(index), encoded))
        };
        Ok(Keys { parts: self.parts.iter().zip(ready).map(encode).collect::<Result<_, _>>()?, row_bytes })
    }

    /// The rows of keys, and behind them rows of nulls and zeros up to `least`.
    ///
    /// # Errors
    /// As [`residents`](Self::residents), and [`Error::TooLarge`] for more than an answer may have; [`Error::Unavailable`] when the
    /// type of the key has changed with the snapshot since they were encoded.
    pub async fn gather(&mut self, keys: Keys, least: usize) -> Result<Answer, Error> {
        let Some(first) = self.parts.first() else {
            return Err(Error::Internal("a lookup in no dataset".into()));
        };
        let (shared, count) = (Arc::clone(&first.online.shared), keys.len().max(least));
        let started = Instant::now();
        let ready = self.ready().await?;
        for (part, (ready, (index, _))) in self.parts.iter().zip(ready.iter().zip(&keys.parts)) {
            let now = &ready.generation.index;
            if !Arc::ptr_eq(now, index) && now.key() != index.key() {
                let reason =
                    format!("the key of '{}' is of another type in the new snapshot", part.dataset());
                return Err(Error::Unavailable(reason));
            }
        }
        let row_bytes: u64 = ready.iter().map(|ready| ready.resident.row_bytes()).sum();
        let Config { max_inline_keys, .. } = shared.config;
        let is_short = count <= max_inline_keys && (count as u64).saturating_mul(row_bytes) <= INLINE_BYTES;
        let answer = move || {
            let (mut residents, mut batches) = (Vec::new(), Vec::new());
            for (Ready { generation, resident }, (_, keys)) in ready.into_iter().zip(&keys.parts) {
                let mut rows = generation.index.rows(keys);
                rows.resize(rows.len().max(least), None);
                batches.push(resident.gather(rows)?);
                residents.push(resident);
            }
            let found = batches.iter().map(|batch| batch.rows).collect();
            Ok(Answer { residents, found, batch: WireBatch::beside(batches)? })
        };
        let answer: Answer =
            if is_short { answer() } else { shared.lookups.run(Priority::First, answer).await }?;
        metrics::counter!("forebay_online_keys_total").increment(count as u64);
        metrics::counter!("forebay_online_keys_found_total").increment(answer.found.iter().sum());
        metrics::histogram!("forebay_online_lookup_duration_seconds").record(started.elapsed());
        Ok(answer)
    }

    async fn ready(&mut self) -> Result<Vec<Ready>, Error> {
        let mut ready = Vec::with_capacity(self.parts.len());
        for part in &mut self.parts {
            ready.push(part.ready().await?);
        }
        Ok(ready)
    }
}

impl Clone for Lookup {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), schema: self.schema.clone() }
    }
}

impl Keys {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.parts.first().map_or(0, |(_, keys)| keys.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that they take.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, keys)| keys.memory_bytes()).sum()
    }

    /// Bytes that a row of their answer takes in the mean.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Adds others of the same lookup behind these. `false`, and nothing is added, if the key was of another type when they were
    /// encoded.
    #[must_use]
    pub fn append(&mut self, others: &Self) -> bool {
        let are_alike = |((index, _), (other, _)): (&(Arc<KeyIndex>, _), &(Arc<KeyIndex>, _))| {
            Arc::ptr_eq(index, other) || index.key() == other.key()
        };
        if self.parts.len() != others.parts.len() || !self.parts.iter().zip(&others.parts).all(are_alike) {
            return false;
        }
        for ((_, keys), (_, others)) in self.parts.iter_mut().zip(&others.parts) {
            keys.append(others);
        }
        true
    }
}

impl Part {
    fn dataset(&self) -> &str {
        &self.online.shared.dataset
    }

    fn check_count(&self, count: usize) -> Result<(), Error> {
        let Config { max_keys, .. } = self.online.shared.config;
        if count > max_keys {
            return Err(Error::invalid("keys", format!("{count} at once, expected at most {max_keys}")));
        }
        Ok(())
    }

    /// The caller's columns under the names that the key's have.
    fn columns_of(&self, keys: &RecordBatch, index: &KeyIndex) -> Result<RecordBatch, Error> {
        let wanted = index.key().columns();
        if self.columns.is_empty() {
            return Ok(keys.clone());
        }
        if self.columns.len() != wanted.len() {
            let (found, expected) = (self.columns.len(), wanted.len());
            let reason =
                format!("names {found} columns, that of dataset '{}' has {expected}", self.dataset());
            return Err(Error::invalid("key", reason));
        }
        let column = |(name, (called, _)): (&String, &(String, _))| {
            let Some(column) = keys.column_by_name(name) else {
                let schema = keys.schema();
                let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
                return Err(Error::invalid("keys", format!("there is no column '{name}' among {names:?}")));
            };
            Ok((called.clone(), Arc::clone(column), true))
        };
        let columns = self.columns.iter().zip(wanted).map(column).collect::<Result<Vec<_>, _>>()?;
        RecordBatch::try_from_iter_with_nullable(columns)
            .map_err(|error| Error::invalid("keys", error.to_string()))
    }

    async fn ready(&mut self) -> Result<Ready, Error> {
        let dataset = &self.online.shared.dataset;
        let current = self.online.current();
        let current = current.ok_or_else(|| {
            Error::Unavailable(format!("'{dataset}' is still being made ready to be looked up"))
        })?;
        if let Some((generation, resident, used)) = &self.ready
            && std::ptr::eq(generation.as_ptr(), &raw const *current)
            && let Some(resident) = resident.upgrade()
        {
            self.online.note_use(used);
            return Ok(Ready { generation: current, resident });
        }
        let (resident, used) = self.online.view(&current, &self.view, &self.wanted).await?;
        // Weak: who asks for nothing keeps no old snapshot.
        self.ready = Some((Arc::downgrade(&current), Arc::downgrade(&resident), used));
        Ok(Ready { generation: current, resident })
    }
}

/// Names what is wanted.
fn key_of(wanted: &v1::Train) -> Vec<u8> {
    Encoding::Protobuf.encode(wanted)
}
