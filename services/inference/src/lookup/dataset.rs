//! A dataset for lookups: its current snapshot, and the loading of the next one.

mod saved;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use forebay_loader::{Error, LookupRows, Pool, Priority, Tenant};
use forebay_proto::v1;
use forebay_storage::Reader;
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::{Notify, OnceCell},
    time::Instant,
};

use super::{
    Canary, Config, LookupMemory,
    memory::Claim,
    snapshot::{LoadedSnapshot, View, ViewKey, surplus, view_key},
};
use crate::index::{IndexProgress, KeyIndex, KeySpec};

/// A dataset for lookups by key. Cheap to clone.
#[derive(Clone)]
pub struct OnlineDataset {
    shared: Arc<Shared>,
}

struct Shared {
    dataset: String,
    spec: KeySpec,
    config: Config,
    memory: LookupMemory,
    /// Threads that build indexes and load rows.
    pool: Pool,
    /// Threads that run large lookups.
    lookup_pool: Pool,
    /// Folder of saved indexes.
    folder: PathBuf,
    requirements: Requirements,
    current: RwLock<Option<Arc<LoadedSnapshot>>>,
    /// Held while a snapshot is loaded.
    loading: tokio::sync::Mutex<()>,
    /// Wakes those who wait until no snapshot is pinned.
    unpinned: Notify,
    /// State of the next snapshot's loading.
    next: Mutex<Next>,
}

/// Requirements for the snapshots of a dataset.
#[derive(Debug, Clone, Default)]
pub struct Requirements {
    /// Selections of the views that every snapshot has from the start and keeps.
    pub views: Vec<v1::Train>,
    /// Rules for a new snapshot, if there are any.
    pub canary: Option<Canary>,
}

/// State of an online dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Snapshot that lookups are answered from; `None` before the first one is loaded.
    pub ready: Option<ReadySnapshot>,
    /// Progress of the next snapshot's index while it is built. `None` also while a saved index is read.
    pub indexing: Option<IndexProgress>,
    /// Reason why the last attempt to load a snapshot failed, or why the snapshot was rejected; `None` if it succeeded.
    pub error: Option<String>,
    /// Id of the snapshot that answered lookups before the current one.
    pub previous: Option<String>,
    /// Id of the pinned snapshot: no other one replaces it.
    pub pinned: Option<String>,
}

/// Outcome of loading a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Takeover {
    /// The snapshot answers lookups.
    Done,
    /// Another snapshot is pinned.
    Pinned,
    /// The snapshot breaks a rule of the canary, and the previous one still answers lookups.
    Rejected {
        /// The broken rule.
        reason: String,
    },
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
    /// Number of loaded views.
    pub views: u64,
}

/// State of the next snapshot's loading.
#[derive(Default)]
struct Next {
    indexing: Option<IndexProgress>,
    error: Option<String>,
    /// Failure that `error` describes, if it is known.
    cause: Option<Error>,
    previous: Option<Reader>,
    pinned: Option<String>,
}

impl OnlineDataset {
    /// Creates a dataset without a snapshot.
    ///
    /// Indexes and rows are held in `memory`, which all datasets share. Indexes are built on `pool` and saved in `folder`, which must be private to this
    /// dataset. Large lookups run on `lookup_pool`, which should run nothing else.
    pub fn new(
        dataset: &str,
        spec: KeySpec,
        config: Config,
        memory: LookupMemory,
        (pool, lookup_pool): (Pool, Pool),
        folder: PathBuf,
        requirements: Requirements,
    ) -> Self {
        // A view may be declared several times, for example by queues with the same features.
        let mut keys = HashSet::new();
        let views = requirements.views.iter().map(|declared| selection(dataset, declared));
        let views = views.filter(|declared| keys.insert(view_key(declared))).collect();
        let requirements = Requirements { views, ..requirements };
        let shared = Shared {
            dataset: dataset.to_owned(),
            spec,
            config,
            memory,
            pool,
            lookup_pool,
            folder,
            requirements,
            current: RwLock::default(),
            loading: tokio::sync::Mutex::default(),
            unpinned: Notify::new(),
            next: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Names of the key columns.
    pub(super) fn key_names(&self) -> &[String] {
        &self.shared.spec.key
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
            views: current.loaded_views(),
        });
        let next = self.shared.next.lock();
        Progress {
            ready,
            indexing: next.indexing,
            error: next.error.clone(),
            previous: next.previous.as_ref().map(|previous| previous.snapshot().id().to_owned()),
            pinned: next.pinned.clone(),
        }
    }

    /// Loads the snapshot of `reader` and makes it the current one.
    ///
    /// The declared views are loaded, and those that lookups of the previous snapshot used. If there are none, the view of all
    /// columns is loaded. Until the new snapshot is loaded, and if that fails, lookups are answered from the previous one.
    ///
    /// A view that is not declared is skipped if its expressions fail or the snapshot has other columns; lookups that use it
    /// return the error. With a canary and without declared views, the snapshot is rejected instead. If some views are declared, the others
    /// are also skipped if their files are damaged.
    ///
    /// The index and the declared views evict views of any dataset that are not declared. A view that is not declared and does not fit is
    /// skipped, unless no view is declared and none of the others fits.
    ///
    /// A snapshot that breaks a rule of the canary is rejected. Nothing is loaded while another snapshot is
    /// [pinned](Self::pin). Waits while another snapshot is loaded.
    ///
    /// # Errors
    /// [`Error::TooLarge`] with the bytes that the snapshot needs; [`Error::Invalid`] for an invalid key; the error of the first
    /// block or declared view that cannot be loaded.
    pub async fn load_snapshot(&self, reader: Reader) -> Result<Takeover, Error> {
        let _loading = self.shared.loading.lock().await;
        if self.shared.next.lock().pinned.is_some() {
            return Ok(Takeover::Pinned);
        }
        let id = reader.snapshot().id().to_owned();
        let canary = self.shared.requirements.canary.as_ref();
        let loaded = self.try_load_snapshot(reader, canary, false).await;
        let mut next = self.shared.next.lock();
        next.error = match &loaded {
            Ok(Takeover::Done | Takeover::Pinned) => None,
            Ok(Takeover::Rejected { reason }) => Some(format!("snapshot {id} was rejected: {reason}")),
            Err(error) => Some(error.to_string()),
        };
        next.cause = loaded.as_ref().err().cloned();
        drop(next);
        loaded
    }

    /// Loads the snapshot of `reader` without the rules of the canary, makes it the current one and keeps it until
    /// [`unpin`](Self::unpin). Waits while another snapshot is loaded.
    ///
    /// # Errors
    /// As [`load_snapshot`](Self::load_snapshot). Nothing has changed then.
    pub async fn pin(&self, reader: Reader) -> Result<(), Error> {
        let _loading = self.shared.loading.lock().await;
        self.try_load_snapshot(reader, None, true).await?;
        self.shared.next.lock().error = None;
        Ok(())
    }

    /// As [`pin`](Self::pin), unless a snapshot is pinned, which then stays.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub async fn pin_first(&self, reader: Reader) -> Result<(), Error> {
        let _loading = self.shared.loading.lock().await;
        if self.shared.next.lock().pinned.is_none() {
            self.try_load_snapshot(reader, None, true).await?;
        }
        Ok(())
    }

    /// Notes that no snapshot could be loaded, with the reason, for [`progress`](Self::progress) and for lookups before the first
    /// snapshot is loaded. Has no effect while one is pinned.
    pub fn failed(&self, error: &Error) {
        let mut next = self.shared.next.lock();
        if next.pinned.is_none() {
            (next.error, next.cause) = (Some(error.to_string()), Some(error.clone()));
        }
    }

    /// The error of a lookup before the first snapshot is loaded. It is temporary unless a snapshot with other files or another server
    /// configuration is needed.
    pub(super) fn not_loaded(&self) -> Error {
        let (name, next) = (self.dataset(), self.shared.next.lock());
        let cannot = format!("dataset '{name}' cannot be loaded for lookups");
        match (&next.cause, &next.error) {
            (Some(Error::Invalid { field, reason }), _) => {
                Error::invalid(format!("{cannot}: {field}"), reason)
            }
            (Some(Error::TooLarge { what, needed, limit, advice }), _) => Error::TooLarge {
                what: format!("{cannot}: {what}"),
                needed: *needed,
                limit: *limit,
                advice: advice.clone(),
            },
            (Some(error @ (Error::Value { .. } | Error::Row { .. } | Error::MissingValues { .. })), _) => {
                error.clone()
            }
            (Some(Error::Internal(reason)), _) => Error::Internal(format!("{cannot}: {reason}")),
            (Some(Error::Storage(error)), _) if !is_temporary(error) => error.clone().into(),
            // Its text ends with the advice that is added here.
            (Some(Error::Unavailable(reason)), _) => Error::Unavailable(format!("{cannot}: {reason}")),
            (Some(Error::Storage(_)) | None, Some(error)) => Error::Unavailable(format!("{cannot}: {error}")),
            (_, None) => Error::Unavailable(format!("dataset '{name}' is still being loaded for lookups")),
        }
    }

    /// Permits other snapshots again.
    pub async fn unpin(&self) {
        let _loading = self.shared.loading.lock().await;
        self.shared.next.lock().pinned = None;
        self.shared.unpinned.notify_one();
    }

    /// Waits until [`unpin`](Self::unpin) was called.
    pub async fn unpinned(&self) {
        self.shared.unpinned.notified().await;
    }

    async fn try_load_snapshot(
        &self,
        reader: Reader,
        canary: Option<&Canary>,
        is_pin: bool,
    ) -> Result<Takeover, Error> {
        let loaded = self.take_over(reader.clone(), canary, is_pin).await;
        // A load that is tried again needs its index.
        self.tidy(loaded.is_err().then_some(reader)).await;
        loaded
    }

    async fn take_over(
        &self,
        reader: Reader,
        canary: Option<&Canary>,
        is_pin: bool,
    ) -> Result<Takeover, Error> {
        let previous = self.current();
        // A reader of files that were replaced by others of equal size and time has the same snapshot. The one before reads them no more.
        let is_same = |previous: &Arc<LoadedSnapshot>| {
            previous.id() == reader.snapshot().id() && previous.reader.shares_pins_with(&reader)
        };
        if previous.as_ref().is_some_and(is_same) {
            if is_pin {
                self.shared.next.lock().pinned = Some(reader.snapshot().id().to_owned());
            }
            return Ok(Takeover::Done);
        }
        let started = Instant::now();
        let shared = &self.shared;
        let (index, reservation) = self.index(&reader).await?;
        let (mut loaded, mut bytes, mut too_large) = (HashMap::new(), 0, None);
        let none_declared = shared.requirements.views.is_empty();
        for (key, view) in self.next_views(previous.as_deref()) {
            // The most recently used view is all that is known of what lookups need if none is declared.
            let is_required = view.is_declared || (none_declared && loaded.is_empty());
            let claim = Claim { key: &key, tenant: view.loaded_by, is_required };
            match self.load_view(claim, &view.selection, &reader).await {
                Ok(rows) => {
                    bytes += rows.bytes();
                    loaded.insert(key, View { rows: Arc::new(OnceCell::from(rows)), ..view });
                }
                Err(error) if self.prevents_takeover(&view, &error, previous.is_some()) => return Err(error),
                Err(error) if canary.is_some() && previous.is_some() && self.breaks_canary(&error) => {
                    let reason = format!("a view of the current snapshot cannot be loaded: {error}");
                    return Ok(Takeover::Rejected { reason });
                }
                Err(error) => {
                    tracing::warn!(dataset = shared.dataset, %error, "cannot load a view; lookups that use it fail");
                    too_large =
                        too_large.or(Some(error).filter(|error| matches!(error, Error::TooLarge { .. })));
                }
            }
        }
        if let Some(error) = too_large.filter(|_| none_declared && loaded.is_empty()) {
            return Err(error);
        }
        if let (Some(canary), Some(previous)) = (canary, &previous)
            && let Some(reason) = self.compare(canary, previous, &index, &loaded).await?
        {
            return Ok(Takeover::Rejected { reason });
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
        let id = reader.snapshot().id().to_owned();
        let (views, since) = (Mutex::new(loaded), shared.memory.now());
        let next = Arc::new(LoadedSnapshot { reader, index, _reservation: reservation, views, since });
        shared.memory.add(&next);
        let mut state = shared.next.lock();
        shared.current.write().replace(next);
        state.previous = previous.as_ref().map(|previous| previous.reader.clone());
        if is_pin {
            state.pinned = Some(id);
        }
        Ok(Takeover::Done)
    }

    /// True if a view that fails with this error breaks the canary, such as one with a column that the snapshot lacks. Without declared
    /// views, the used ones are all that is known of what lookups need.
    fn breaks_canary(&self, error: &Error) -> bool {
        let is_of_data = matches!(error, Error::Invalid { .. } | Error::Value { .. } | Error::Row { .. });
        is_of_data && self.shared.requirements.views.is_empty()
    }

    /// Compares the next snapshot with the current one. Returns the first rule that it breaks.
    async fn compare(
        &self,
        canary: &Canary,
        current: &LoadedSnapshot,
        index: &Arc<KeyIndex>,
        next: &HashMap<ViewKey, View>,
    ) -> Result<Option<String>, Error> {
        let views = current.views.lock().clone();
        let both = views.iter().filter_map(|(key, view)| {
            Some((key, (Arc::clone(view.rows.get()?), Arc::clone(next.get(key)?.rows.get()?))))
        });
        // The same order on every server, so that all name the same rule.
        let views: BTreeMap<_, _> = both.collect();
        let views: Vec<_> = views.into_values().collect();
        let (canary, current, index) = (canary.clone(), Arc::clone(&current.index), Arc::clone(index));
        let compare = move || canary.compare(&current, &index, &views);
        self.shared.pool.run(Priority::Background, compare).await
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
        self.shared.current.read().clone()
    }

    /// Views that the snapshot after `previous` is loaded with: the declared ones, then the others from the most to the least
    /// recently used one.
    fn next_views(&self, previous: Option<&LoadedSnapshot>) -> Vec<(ViewKey, View)> {
        // Without the rows of the previous snapshot, so that evicting them frees their memory.
        let unloaded = |(key, view): (ViewKey, View)| (key, View { rows: Arc::default(), ..view });
        let used = previous.map(LoadedSnapshot::used_views).unwrap_or_default();
        let mut used: HashMap<_, _> = used.into_iter().map(unloaded).collect();
        let declared = self.shared.requirements.views.iter().map(|selection| {
            let key = view_key(selection);
            let view = used.remove(&key).unwrap_or_else(|| View::new(selection.clone(), Tenant::SERVER));
            (key, View { is_declared: true, ..view })
        });
        let mut views: Vec<_> = declared.collect();
        let mut others: Vec<_> = used.into_iter().collect();
        others.sort_by_key(|(_, view)| std::cmp::Reverse(view.last_use.load(Ordering::Relaxed)));
        views.extend(others);
        if views.is_empty() {
            let all = selection(&self.shared.dataset, &v1::Train::default());
            views.push((view_key(&all), View::new(all, Tenant::SERVER)));
        }
        views
    }

    /// True if the next snapshot must not become the current one because this view of it failed.
    fn prevents_takeover(&self, view: &View, error: &Error, has_previous: bool) -> bool {
        match error {
            _ if view.is_declared => true,
            Error::Unavailable(_) => true,
            Error::Storage(error) if is_temporary(error) => true,
            // The used views are all that is known of what lookups need.
            Error::Storage(_) => self.shared.requirements.views.is_empty() && has_previous,
            // Undeclared views give way to the next snapshot.
            Error::TooLarge { .. } => false,
            Error::Invalid { .. }
            | Error::MissingValues { .. }
            | Error::Value { .. }
            | Error::Row { .. }
            | Error::Internal(_) => false,
        }
    }

    /// Loads the rows of a view. If they do not fit in memory, views of any dataset are evicted for `claim`.
    async fn load_view(
        &self,
        claim: Claim<'_>,
        selection: &v1::Train,
        reader: &Reader,
    ) -> Result<Arc<LookupRows>, Error> {
        let Shared { memory, config, .. } = &*self.shared;
        let loader = memory.loader().of_tenant(claim.tenant);
        loop {
            let rows = loader.lookup_rows(selection, reader.clone(), config.max_answer_bytes).await;
            if !memory.makes_room(claim, &rows).await {
                return rows.map(Arc::new);
            }
        }
    }

    /// Returns the rows of a view and the time of its last use. Loads the rows for `tenant` if necessary, and evicts the least
    /// recently used view if there are too many.
    pub(super) async fn view(
        &self,
        snapshot: &LoadedSnapshot,
        key: &[u8],
        tenant: Tenant,
    ) -> Result<(Arc<LookupRows>, Arc<AtomicU64>), Error> {
        let View { selection, rows, last_use, .. } = snapshot.view(key, tenant)?;
        // Removes the view if loading fails, or if this call is cancelled.
        let loading = snapshot.loading(key, rows);
        let claim = Claim { key, tenant, is_required: false };
        let load = || self.load_view(claim, &selection, &snapshot.reader);
        let loaded = Arc::clone(loading.rows.get_or_try_init(load).await?);
        drop(loading);
        let mut views = snapshot.views.lock();
        self.record_use(&last_use);
        let surplus = surplus(&views, key, tenant, self.shared.config.max_views.max(1));
        let evicted = surplus.and_then(|surplus| views.remove(&surplus));
        // Rows are dropped outside of the lock.
        drop(views);
        drop(evicted);
        Ok((loaded, last_use))
    }

    /// Sets the time of the last use of a view.
    pub(super) fn record_use(&self, last_use: &AtomicU64) {
        self.shared.memory.record_use(last_use);
    }
}

/// True if an attempt to read the same snapshot again, or the next one, can succeed without a change of its files.
fn is_temporary(error: &forebay_storage::Error) -> bool {
    use forebay_storage::Error as Storage;
    matches!(error, Storage::Unavailable { .. } | Storage::Changed { .. })
}

/// The part of a request that selects the columns and rows of a view of `dataset`.
pub(super) fn selection(dataset: &str, request: &v1::Train) -> v1::Train {
    let v1::Train { filter, select, columns, tensors, .. } = request.clone();
    v1::Train { dataset: dataset.to_owned(), filter, select, columns, tensors, ..v1::Train::default() }
}
