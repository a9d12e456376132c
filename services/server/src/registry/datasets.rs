//! Datasets by name: opened in the background, retried with backoff, refreshed on demand, and added at run time.

mod loads;
mod opened;

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use dashmap::DashMap;
use forebay_loader::{Flow, Pool, Priority, Tenant, similar_names};
use forebay_storage::{Credentials, Location, Reader, Snapshot, State, load_snapshot, refresh_snapshot};
use futures::future::BoxFuture;
use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};

use super::{panics::caught, retry_delays::retry_delays};
use crate::{
    Error, Settings,
    auth::{Access, HolderKey, credentials_are_missing, needs_credentials},
    callers::Caller,
    events::{Event, Events, Kind, Severity},
    settings::Limits,
};
use loads::{Key, Loads};
use opened::{MAX_DATASETS, Record};

pub(crate) use opened::Opened;

/// Number of snapshots per dataset whose times of last verification are kept.
const REMEMBERED_SNAPSHOTS: usize = 4;

/// All datasets of a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Datasets {
    shared: Arc<Shared>,
}

struct Shared {
    entries: RwLock<BTreeMap<String, Arc<Dataset>>>,
    /// Datasets that callers added; `None` if they can't.
    opened: Option<Record>,
    /// Key of the names of datasets that callers open with credentials; `None` if they can't open any.
    holder_key: Option<HolderKey>,
    state: State,
    pool: Pool,
    config: forebay_storage::Config,
    limits: Limits,
    refresh_interval: Option<Duration>,
    events: Events,
    /// Readers of snapshots other than the current ones, by dataset and id.
    pinned: DashMap<Key, Reader>,
    loads: Loads<Result<Reader, forebay_storage::Error>>,
}

struct Dataset {
    location: Location,
    phase: watch::Sender<Phase>,
    /// Most recent snapshots and the time at which each was last verified to be current; newest first.
    seen: parking_lot::Mutex<VecDeque<(String, Instant)>>,
    /// Reason why the files could not be listed again, unless the last attempt succeeded or no snapshot is current.
    refresh_error: parking_lot::Mutex<Option<String>>,
    /// Held while a snapshot is taken. Time at which the last one that succeeded began.
    taking: Mutex<Option<Instant>>,
}

/// State of a dataset.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "there is one of each dataset, and most are open")]
pub(crate) enum Phase {
    /// The first snapshot is being taken.
    Opening { files_done: u64, files: u64 },
    /// A snapshot is current.
    Open(Reader),
    /// The last attempt failed, and no snapshot is current.
    Failed(forebay_storage::Error),
}

/// An entry of the list of datasets.
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) phase: Phase,
    /// Reason why the last attempt to list the files again failed; `None` if it succeeded.
    pub(crate) refresh_error: Option<String>,
    /// Time for which requests to the store have been waiting without an answer; `None` if no request waits.
    pub(crate) silence: Option<Duration>,
}

impl Datasets {
    /// Registers the datasets of `settings` without opening them. Their footers are parsed on `pool`.
    ///
    /// # Errors
    /// If a URL is invalid.
    pub(crate) fn new(
        settings: &Settings,
        state: State,
        pool: &Pool,
        events: Events,
    ) -> anyhow::Result<Self> {
        let mut entries = BTreeMap::new();
        for (name, url) in &settings.datasets {
            let location =
                Location::parse(url, &settings.storage).with_context(|| format!("dataset '{name}'"))?;
            entries.insert(name.clone(), Arc::new(Dataset::new(location)));
        }
        Ok(Self {
            shared: Arc::new(Shared {
                entries: RwLock::new(entries),
                opened: settings.open_datasets.then(|| Record::new(&state)),
                holder_key: settings.open_datasets.then(|| HolderKey::new(&state)),
                state,
                pool: pool.clone(),
                config: settings.storage.clone(),
                limits: settings.limits.clone(),
                refresh_interval: settings.refresh_interval,
                events,
                pinned: DashMap::new(),
                loads: Loads::new(),
            }),
        })
    }

    /// Key of the names of datasets that callers open with credentials; `None` if they can't open any.
    pub(crate) fn holder_key(&self) -> Option<HolderKey> {
        self.shared.holder_key.clone()
    }

    /// Adds the dataset `opened`, unless it was added before, and lists its files. Returns its name, the reader of its current
    /// snapshot, and true if that differs from the previous one. A dataset that can't be opened is not added. Its store is opened with
    /// `credentials` alone. With other credentials it is another dataset, and nothing that is cached of one is found for the other.
    ///
    /// # Errors
    /// If the URL is invalid, the files can't be read, the caller has not shown to have the credentials, or there are too many datasets.
    pub(crate) async fn open(
        &self,
        access: &Access,
        opened: &Opened,
        credentials: &Credentials,
    ) -> Result<(String, Reader, bool), Error> {
        access.check_owner()?;
        opened.check()?;
        let holding = match &self.shared.holder_key {
            Some(key) if !credentials.is_empty() => {
                let proof = credentials.proof();
                access.check_holds(&proof)?;
                Some(key.holding(&proof).await?)
            }
            Some(_) | None => None,
        };
        let suffix = holding.as_ref().map_or("", |holding| holding.suffix.as_str());
        let name = format!("{}{suffix}", opened.name());
        let is_new = self.add(&name, opened, credentials, holding.map(|holding| holding.scope))?;
        let result = self.refresh(access, &name).await;
        let is_open = matches!(self.phase(&name), Some(Phase::Open(_)));
        if is_new && !is_open {
            self.shared.entries.write().remove(&name);
        }
        if is_new && is_open && self.shared.refresh_interval.is_some() {
            tokio::spawn(self.clone().run(name.clone()));
        }
        let (reader, changed) = result?;
        Ok((name, reader, changed))
    }

    /// Notes in the state that a dataset is open, unless credentials of a caller are needed to open it.
    ///
    /// # Errors
    /// If the state can't be written.
    pub(crate) async fn record(&self, name: &str, opened: &Opened) -> Result<(), Error> {
        match &self.shared.opened {
            Some(record) if !needs_credentials(name) => record.put(name, opened).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the dataset that was opened as `name` on any server of the state; `None` if callers can't add datasets.
    ///
    /// # Errors
    /// If the state can't be read.
    pub(crate) async fn opened(&self, name: &str) -> Result<Option<Opened>, Error> {
        match &self.shared.opened {
            Some(record) => record.get(name).await,
            None => Ok(None),
        }
    }

    /// Adds a dataset without opening it. Returns false if there is one with this name.
    fn add(
        &self,
        name: &str,
        opened: &Opened,
        credentials: &Credentials,
        scope: Option<u128>,
    ) -> Result<bool, Error> {
        let location = Location::parse_with(&opened.url, &self.shared.config, credentials, scope)?;
        let mut entries = self.shared.entries.write();
        let is_full = entries.len() >= MAX_DATASETS;
        match entries.entry(name.to_owned()) {
            Entry::Occupied(_) => Ok(false),
            Entry::Vacant(_) if is_full => Err(Error::limit(format!(
                "{MAX_DATASETS} datasets are open, the maximum number; stop the server to close them"
            ))),
            Entry::Vacant(entry) => {
                entry.insert(Arc::new(Dataset::new(location)));
                Ok(true)
            }
        }
    }

    /// Opens dataset `name`, and refreshes it every `refresh_interval` if that is set. Retries with backoff, and emits an event
    /// when the failure changes.
    pub(crate) fn run(self, name: String) -> BoxFuture<'static, ()> {
        Box::pin(self.run_inner(name))
    }

    async fn run_inner(self, name: String) {
        let max_backoff = self.shared.limits.max_open_backoff;
        let mut delays = retry_delays(max_backoff);
        let mut noted = None;
        loop {
            match self.refresh(&Access::everything(), &name).await {
                Ok(_) => {
                    let Some(interval) = self.shared.refresh_interval else { return };
                    tokio::time::sleep(interval).await;
                    delays = retry_delays(max_backoff);
                    noted = None;
                }
                Err(error) => {
                    if noted.as_deref() != Some(error.message()) {
                        self.note_failure(&name, &error);
                        noted = Some(error.message().to_owned());
                    }
                    tokio::time::sleep(delays.next().unwrap_or(max_backoff)).await;
                }
            }
        }
    }

    /// Takes a snapshot and makes it current. Returns its reader, and true if it differs from the previous snapshot. If this fails,
    /// the previous snapshot stays current.
    pub(crate) async fn refresh(&self, access: &Access, name: &str) -> Result<(Reader, bool), Error> {
        let dataset = &*self.find(access, name).await?;
        let called = Instant::now();
        let id = || match &*dataset.phase.borrow() {
            Phase::Open(reader) => reader.snapshot().id().to_owned(),
            Phase::Opening { .. } | Phase::Failed(_) => String::new(),
        };
        let before = id();
        let mut taken = dataset.taking.lock().await;
        // Another call listed the files after this one began to wait.
        if let (Some(looked), Phase::Open(reader)) = (*taken, &*dataset.phase.borrow())
            && looked >= called
        {
            return Ok((reader.clone(), reader.snapshot().id() != before));
        }
        let current = match &*dataset.phase.borrow() {
            Phase::Open(reader) => Some(reader.clone()),
            Phase::Opening { .. } | Phase::Failed(_) => None,
        };
        let looked = Instant::now();
        let previous = current.as_ref().map(Reader::snapshot);
        let take = || self.take(name, dataset, access.tenant(), previous);
        let take = async {
            let snapshot = self.with_room(take).await?;
            let is_current = |current: &Reader| current.snapshot().id() == snapshot.id();
            match current.clone().filter(is_current) {
                // A local file may have been replaced by one of the same size and modification time.
                Some(current) if current.reads_current_files().await => Ok(current),
                _ => Ok(self.reader(dataset, snapshot).await),
            }
        };
        let url = dataset.location.url();
        match caught(take, |reason| forebay_storage::Error::panicked(url, reason)).await {
            Ok(reader) => {
                let (id, opened) = (reader.snapshot().id().to_owned(), described(reader.snapshot()));
                let is_current = |current: &Reader| current.snapshot().id() == id;
                // From here on nothing waits, so that a cancelled call changes all or nothing.
                *taken = Some(looked);
                *dataset.refresh_error.lock() = None;
                dataset.note_seen(&id, looked);
                let note = match current {
                    Some(current) if is_current(&current) => {
                        let is_replaced = !current.shares_pins_with(&reader);
                        if is_replaced {
                            // Earlier snapshots may have the same files. Their readers are rebuilt.
                            self.shared.pinned.retain(|(of, _), _| of != name);
                            dataset.phase.send_replace(Phase::Open(reader.clone()));
                            let note = format!("{opened}, with files that were replaced");
                            let note = Event::new(Kind::DatasetChanged, &note);
                            self.shared.events.note(note.dataset(name));
                        }
                        return Ok((reader, is_replaced));
                    }
                    Some(current) => {
                        let before = described(current.snapshot());
                        self.keep_pinned(name, current);
                        Event::new(Kind::DatasetChanged, &format!("{opened}, before {before}"))
                    }
                    None => Event::new(Kind::DatasetOpen, &opened),
                };
                dataset.phase.send_replace(Phase::Open(reader.clone()));
                self.shared.events.note(note.dataset(name));
                Ok((reader, true))
            }
            Err(error) => {
                if current.is_none() {
                    dataset.phase.send_replace(Phase::Failed(error.clone()));
                } else {
                    *dataset.refresh_error.lock() = Some(error.to_string());
                }
                Err(named(name, error))
            }
        }
    }

    /// Returns the reader of the current snapshot. Waits for a dataset that is being opened.
    pub(crate) async fn current(&self, access: &Access, name: &str) -> Result<Reader, Error> {
        let dataset = self.find(access, name).await?;
        let mut phase = dataset.phase.subscribe();
        let opened = phase.wait_for(|phase| !matches!(phase, Phase::Opening { .. }));
        let waited = tokio::time::timeout(self.shared.limits.open_timeout, opened).await.map(|phase| {
            phase.map_or_else(|_| Phase::Opening { files_done: 0, files: 0 }, |phase| phase.clone())
        });
        match waited.unwrap_or_else(|_| dataset.phase.borrow().clone()) {
            Phase::Open(reader) => Ok(reader),
            Phase::Failed(error) => Err(named(name, error)),
            Phase::Opening { files_done, files } => Err(Error::unavailable(format!(
                "dataset '{name}' is being opened ({files_done} of {files} files)"
            ))),
        }
    }

    /// The reader of snapshot `id`, current or not. An empty id means the current one.
    pub(crate) async fn pinned(&self, access: &Access, name: &str, id: &str) -> Result<Reader, Error> {
        self.pinned_of(access, Some(&access.caller()), name, id).await
    }

    /// As [`pinned`](Self::pinned), for the server itself. Its loads are not queued behind those of callers.
    ///
    /// # Errors
    /// The reason why it cannot be loaded; unavailable if the state can't be read.
    pub(crate) async fn pinned_by_server(
        &self,
        name: &str,
        id: &str,
    ) -> Result<Reader, forebay_loader::Error> {
        let unavailable = |error: Error| forebay_loader::Error::Unavailable(error.message().to_owned());
        let dataset = self.find(&Access::everything(), name).await.map_err(unavailable)?;
        let pinned = self.pinned_reader(&dataset, None, (name, id)).await.map_err(unavailable)?;
        pinned.map_err(forebay_loader::Error::from)
    }

    /// `caller` is the one whose loads are queued; `None` for the server itself.
    async fn pinned_of(
        &self,
        access: &Access,
        caller: Option<&Caller>,
        name: &str,
        id: &str,
    ) -> Result<Reader, Error> {
        let dataset = &*self.find(access, name).await?;
        if id.is_empty() {
            return self.current(access, name).await;
        }
        match self.pinned_reader(dataset, caller, (name, id)).await? {
            Ok(reader) => Ok(reader),
            Err(error @ forebay_storage::Error::UnknownSnapshot { .. }) => {
                let current = match &*dataset.phase.borrow() {
                    Phase::Open(reader) => format!("the current snapshot is {}", reader.snapshot().id()),
                    Phase::Opening { .. } | Phase::Failed(_) => "no snapshot is current".to_owned(),
                };
                Err(Error::precondition(format!("{error}; {current}")))
            }
            Err(error) => Err(named(name, error)),
        }
    }

    /// Returns the reader of snapshot `id` of a dataset, or the reason why it cannot be loaded.
    ///
    /// # Errors
    /// If too many callers load snapshots.
    async fn pinned_reader(
        &self,
        dataset: &Dataset,
        caller: Option<&Caller>,
        (name, id): (&str, &str),
    ) -> Result<Result<Reader, forebay_storage::Error>, Error> {
        if let Phase::Open(reader) = &*dataset.phase.borrow()
            && reader.snapshot().id() == id
        {
            return Ok(Ok(reader.clone()));
        }
        let key = (name.to_owned(), id.to_owned());
        if let Some(reader) = self.kept_pinned(&key) {
            return Ok(Ok(reader));
        }
        self.shared.loads.join(caller, &key, || self.load_pinned(dataset, &key)).await
    }

    /// Adds the dataset to a failure of a request that reads the datasets `names`, and for a changed file the current snapshot. Of
    /// several datasets, the failure is of the one whose URL it contains. Without a URL it is about the request.
    pub(crate) fn read_error<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        error: forebay_loader::Error,
    ) -> Error {
        let changed =
            matches!(&error, forebay_loader::Error::Storage(forebay_storage::Error::Changed { .. }));
        let failed = self.failed_dataset(names, &error.to_string());
        let error = Error::from(error);
        let Some(name) = failed else { return error };
        let error = error.in_dataset(name);
        let current = self.entry(name).map(|dataset| dataset.phase.borrow().clone());
        match current {
            Some(Phase::Open(reader)) if changed => {
                let id = reader.snapshot().id();
                error.with_hint(&format!("the current snapshot is {id}, and `refresh` takes a new one"))
            }
            Some(Phase::Open(_) | Phase::Opening { .. } | Phase::Failed(_)) | None => error,
        }
    }

    /// Returns the dataset among `names` that a failure is about, or the only one; `None` if it is unknown.
    fn failed_dataset<'a>(&self, names: impl IntoIterator<Item = &'a str>, failure: &str) -> Option<&'a str> {
        let names: Vec<&str> = names.into_iter().collect();
        if let [only] = names[..] {
            return Some(only);
        }
        let urls = names
            .into_iter()
            .filter_map(|name| Some((self.entry(name)?.location.url().to_owned(), name)))
            .filter(|(url, _)| failure.contains(url));
        // The URL of one dataset may begin with that of another.
        urls.max_by_key(|(url, _)| url.len()).map(|(_, name)| name)
    }

    /// Returns the state of dataset `name`.
    pub(crate) fn phase(&self, name: &str) -> Option<Phase> {
        self.entry(name).map(|dataset| dataset.phase.borrow().clone())
    }

    /// Time for which requests to the store of dataset `name` have been waiting without an answer; `None` if no request waits.
    pub(crate) fn silence(&self, name: &str) -> Option<Duration> {
        self.entry(name)?.location.silence()
    }

    /// Subscribes to the state of dataset `name`.
    pub(crate) fn watch(&self, name: &str) -> Option<watch::Receiver<Phase>> {
        self.entry(name).map(|dataset| dataset.phase.subscribe())
    }

    /// Time since snapshot `id` of dataset `name` was last verified to be current, if known.
    pub(crate) fn age(&self, name: &str, id: &str) -> Option<Duration> {
        let dataset = self.entry(name)?;
        let seen = dataset.seen.lock();
        seen.iter().find(|(seen, _)| seen == id).map(|(_, when)| when.elapsed())
    }

    /// Readers of all open snapshots of dataset `name`.
    pub(crate) fn open_readers(&self, access: &Access, name: &str) -> Result<Vec<Reader>, Error> {
        let dataset = self.dataset(access, name)?;
        let pinned = self.shared.pinned.iter().filter(|entry| entry.key().0 == name);
        let mut readers: Vec<Reader> = pinned.map(|entry| entry.value().clone()).collect();
        if let Phase::Open(reader) = &*dataset.phase.borrow() {
            readers.push(reader.clone());
        }
        Ok(readers)
    }

    /// Datasets that the caller may read, by name.
    pub(crate) fn list(&self, access: &Access) -> Vec<Listed> {
        let listed = |(name, dataset): (&String, &Arc<Dataset>)| Listed {
            name: name.clone(),
            url: dataset.location.url().to_owned(),
            phase: dataset.phase.borrow().clone(),
            refresh_error: dataset.refresh_error.lock().clone(),
            silence: dataset.location.silence(),
        };
        let entries = self.shared.entries.read();
        entries.iter().filter(|(name, _)| access.may_read(name)).map(listed).collect()
    }

    /// Number of datasets for which no attempt of opening has ended.
    pub(crate) fn untried(&self) -> usize {
        let is_untried = |dataset: &&Arc<Dataset>| matches!(&*dataset.phase.borrow(), Phase::Opening { .. });
        self.shared.entries.read().values().filter(is_untried).count()
    }

    /// Returns dataset `name`, if there is one.
    fn entry(&self, name: &str) -> Option<Arc<Dataset>> {
        self.shared.entries.read().get(name).cloned()
    }

    /// Looks up a dataset on behalf of a caller like [`dataset`](Self::dataset), also one that was opened before a restart or on
    /// another server of the state.
    async fn find(&self, access: &Access, name: &str) -> Result<Arc<Dataset>, Error> {
        let missing = match self.dataset(access, name) {
            Err(missing) if access.may_read(name) => missing,
            found => return found,
        };
        let Some(opened) = self.opened(name).await? else { return Err(missing) };
        if self.add(name, &opened, &Credentials::default(), None)? {
            tokio::spawn(self.clone().run(name.to_owned()));
        }
        self.dataset(access, name)
    }

    /// Looks up a dataset on behalf of a caller. Every access to a dataset goes through this check.
    fn dataset(&self, access: &Access, name: &str) -> Result<Arc<Dataset>, Error> {
        access.check(name)?;
        self.entry(name).ok_or_else(|| {
            if self.shared.holder_key.is_some() && needs_credentials(name) {
                return credentials_are_missing(name);
            }
            let entries = self.shared.entries.read();
            let readable = || entries.keys().map(String::as_str).filter(|name| access.may_read(name));
            let similar = similar_names(name, readable());
            let hint = match similar.is_empty() {
                true => format!("this server has {} datasets", readable().count()),
                false => format!("did you mean '{}'?", similar.join("' or '")),
            };
            Error::not_found(format!("there is no dataset '{name}'; {hint}"))
        })
    }

    /// Runs `take`, which needs memory for a snapshot. If memory is missing, the readers of snapshots that are not current are released, and
    /// it runs once more.
    async fn with_room<T, F>(&self, take: impl Fn() -> F) -> Result<T, forebay_storage::Error>
    where
        F: Future<Output = Result<T, forebay_storage::Error>>,
    {
        match take().await {
            Err(error) if error.is_without_snapshot_memory() && !self.shared.pinned.is_empty() => {
                self.shared.pinned.clear();
                take().await
            }
            taken => taken,
        }
    }

    /// Takes a snapshot after `previous`, which is the current one, as work of `tenant`.
    async fn take(
        &self,
        name: &str,
        dataset: &Dataset,
        tenant: Tenant,
        previous: Option<&Arc<Snapshot>>,
    ) -> Result<Arc<Snapshot>, forebay_storage::Error> {
        let progress = |files_done, files| {
            dataset.phase.send_if_modified(|phase| {
                if let Phase::Opening { .. } = phase {
                    *phase = Phase::Opening { files_done, files };
                }
                false
            });
        };
        let Shared { state, config, pool, .. } = &*self.shared;
        let state = state.computed_by(pool.compute(Flow::of(tenant), Priority::Background));
        refresh_snapshot(name, &dataset.location, &state, config, previous, progress).await
    }

    fn note_failure(&self, name: &str, error: &Error) {
        let is_open = matches!(self.phase(name), Some(Phase::Open(_)));
        let (failed, severity) =
            if is_open { ("refresh", Severity::Warning) } else { ("opening", Severity::Error) };
        let event =
            Event::new(Kind::DatasetFailed, &format!("{failed} failed, retrying: {}", error.message()));
        self.shared.events.note(event.severity(severity).dataset(name));
    }

    async fn reader(&self, dataset: &Dataset, snapshot: Arc<Snapshot>) -> Reader {
        let config = self.shared.config.clone();
        let reader = Reader::new(snapshot, dataset.location.clone(), &self.shared.state, config);
        reader.prepare().await;
        reader
    }

    /// Loads a pinned snapshot and keeps its reader, unless another call has kept one in the meantime.
    async fn load_pinned(&self, dataset: &Dataset, key: &Key) -> Result<Reader, forebay_storage::Error> {
        if let Some(reader) = self.kept_pinned(key) {
            return Ok(reader);
        }
        let (name, id) = key;
        let snapshot = self.with_room(|| load_snapshot(name, id, &self.shared.state)).await?;
        let reader = self.reader(dataset, Arc::new(snapshot)).await;
        self.keep_pinned(name, reader.clone());
        Ok(reader)
    }

    fn kept_pinned(&self, key: &Key) -> Option<Reader> {
        self.shared.pinned.get(key).map(|reader| reader.clone())
    }

    fn keep_pinned(&self, name: &str, reader: Reader) {
        let pinned = &self.shared.pinned;
        while pinned.len() >= self.shared.limits.max_pinned_snapshots {
            // Any reader can be dropped: it is loaded again from its manifest on demand.
            let any = pinned.iter().next().map(|entry| entry.key().clone());
            let Some(key) = any else { break };
            pinned.remove(&key);
        }
        pinned.insert((name.to_owned(), reader.snapshot().id().to_owned()), reader);
    }
}

impl Dataset {
    fn new(location: Location) -> Self {
        Self {
            location,
            phase: watch::Sender::new(Phase::Opening { files_done: 0, files: 0 }),
            seen: parking_lot::Mutex::default(),
            refresh_error: parking_lot::Mutex::default(),
            taking: Mutex::default(),
        }
    }

    fn note_seen(&self, id: &str, when: Instant) {
        let mut seen = self.seen.lock();
        seen.retain(|(other, _)| other != id);
        seen.push_front((id.to_owned(), when));
        seen.truncate(REMEMBERED_SNAPSHOTS);
    }
}

/// Size and id of a snapshot, for events.
fn described(snapshot: &Snapshot) -> String {
    format!("files: {}, rows: {}, snapshot {}", snapshot.files().len(), snapshot.rows(), snapshot.id())
}

fn named(name: &str, error: forebay_storage::Error) -> Error {
    Error::from(error).in_dataset(name)
}
