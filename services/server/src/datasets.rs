//! The datasets by name: opened in the background, tried again with backoff, refreshed on demand.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use dashmap::DashMap;
use forebay_loader::near;
use forebay_storage::{Error, Location, Reader, Snapshot, State, load_snapshot, take_snapshot};
use tokio::sync::{Mutex, watch};
use tonic::Status;

use crate::{
    Settings,
    door::Access,
    events::{Events, Kind, Note, Severity},
    settings::Limits,
    status,
};

/// Snapshots of a dataset of which it is known when they were current.
const REMEMBERED_SNAPSHOTS: usize = 4;

/// All datasets of a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Datasets {
    shared: Arc<Shared>,
}

struct Shared {
    entries: BTreeMap<String, Dataset>,
    state: State,
    config: forebay_storage::Config,
    limits: Limits,
    events: Events,
    /// Readers of snapshots other than the current ones, by dataset and id.
    pinned: DashMap<(String, String), Reader>,
}

struct Dataset {
    location: Location,
    phase: watch::Sender<Phase>,
    /// When the current snapshot, and the one before, were last seen to be what is there; newest first.
    seen: std::sync::Mutex<VecDeque<(String, Instant)>>,
    /// Held while a snapshot is taken.
    taking: Mutex<()>,
    /// Held while a pinned snapshot is loaded, so that a thousand ranks load it once.
    loading: Mutex<()>,
}

/// Where a dataset stands.
#[derive(Clone)]
pub(crate) enum Phase {
    /// Listed and its footers being read for the first time.
    Opening { files_done: u64, files: u64 },
    /// There is a current snapshot.
    Open(Reader),
    /// The last try failed, and there is no snapshot.
    Failed(Error),
}

/// A dataset as it is listed.
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) phase: Phase,
}

impl Datasets {
    /// The datasets of `settings`, none of them opened yet.
    ///
    /// # Errors
    /// When a URL makes no sense.
    pub(crate) fn new(settings: &Settings, state: State, events: Events) -> anyhow::Result<Self> {
        let mut entries = BTreeMap::new();
        for (name, url) in &settings.datasets {
            let location =
                Location::parse(url, &settings.storage).with_context(|| format!("dataset '{name}'"))?;
            let phase = watch::Sender::new(Phase::Opening { files_done: 0, files: 0 });
            entries.insert(
                name.clone(),
                Dataset {
                    location,
                    phase,
                    seen: std::sync::Mutex::default(),
                    taking: Mutex::default(),
                    loading: Mutex::default(),
                },
            );
        }
        Ok(Self {
            shared: Arc::new(Shared {
                entries,
                state,
                config: settings.storage.clone(),
                limits: settings.limits.clone(),
                events,
                pinned: DashMap::new(),
            }),
        })
    }

    /// Opens dataset `name` and keeps it fresh; never returns. A failure is tried again, and noted when it is another one than
    /// before.
    pub(crate) async fn tend(self, name: String, refresh_interval: Option<Duration>) {
        let mut backoff = Duration::from_secs(1);
        let mut noted = None;
        loop {
            match self.refresh(&Access::everything(), &name).await {
                Ok(_) => {
                    let Some(interval) = refresh_interval else { return };
                    tokio::time::sleep(interval).await;
                    backoff = Duration::from_secs(1);
                    noted = None;
                }
                Err(error) => {
                    if noted.as_deref() != Some(error.message()) {
                        self.note_failure(&name, &error);
                        noted = Some(error.message().to_owned());
                    }
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(self.shared.limits.max_open_backoff);
                }
            }
        }
    }

    /// Takes a snapshot of what is there now, and makes it the current one. Returns it, and whether it
    /// differs from the one before. When that fails, an older snapshot stays current.
    pub(crate) async fn refresh(&self, access: &Access, name: &str) -> Result<(Reader, bool), Status> {
        let dataset = self.dataset(access, name)?;
        let _taking = dataset.taking.lock().await;
        let current = match &*dataset.phase.borrow() {
            Phase::Open(reader) => Some(reader.clone()),
            Phase::Opening { .. } | Phase::Failed(_) => None,
        };
        let looked = Instant::now();
        match self.take(name, dataset).await {
            Ok(snapshot) => {
                dataset.note_seen(snapshot.id(), looked);
                let opened = Opened::of(&snapshot);
                let note = match current {
                    Some(current) if current.snapshot().id() == snapshot.id() => {
                        return Ok((current, false));
                    }
                    Some(current) => {
                        let before = Opened::of(current.snapshot());
                        self.keep_pinned(name, current);
                        Note::new(Kind::DatasetChanged, &format!("{opened}, before {before}"))
                    }
                    None => Note::new(Kind::DatasetOpen, &opened.to_string()),
                };
                let reader = self.reader(dataset, snapshot);
                dataset.phase.send_replace(Phase::Open(reader.clone()));
                self.shared.events.note(note.dataset(name));
                Ok((reader, true))
            }
            Err(error) => {
                if current.is_none() {
                    dataset.phase.send_replace(Phase::Failed(error.clone()));
                }
                Err(named(name, &error))
            }
        }
    }

    /// The reader of the current snapshot. Waits for a dataset that is being opened.
    pub(crate) async fn current(&self, access: &Access, name: &str) -> Result<Reader, Status> {
        let dataset = self.dataset(access, name)?;
        let mut phase = dataset.phase.subscribe();
        let opened = phase.wait_for(|phase| !matches!(phase, Phase::Opening { .. }));
        let waited = tokio::time::timeout(self.shared.limits.open_timeout, opened).await.map(|phase| {
            phase.map_or_else(|_| Phase::Opening { files_done: 0, files: 0 }, |phase| phase.clone())
        });
        match waited.unwrap_or_else(|_| dataset.phase.borrow().clone()) {
            Phase::Open(reader) => Ok(reader),
            Phase::Failed(error) => Err(named(name, &error)),
            Phase::Opening { files_done, files } => Err(Status::unavailable(format!(
                "dataset '{name}' is still being opened ({files_done} of {files} files)"
            ))),
        }
    }

    /// The reader of snapshot `id`, current or not. An empty id means the current one.
    pub(crate) async fn pinned(&self, access: &Access, name: &str, id: &str) -> Result<Reader, Status> {
        let dataset = self.dataset(access, name)?;
        if id.is_empty() {
            return self.current(access, name).await;
        }
        if let Phase::Open(reader) = &*dataset.phase.borrow()
            && reader.snapshot().id() == id
        {
            return Ok(reader.clone());
        }
        let key = (name.to_owned(), id.to_owned());
        let pinned = || self.shared.pinned.get(&key).map(|reader| reader.clone());
        if let Some(reader) = pinned() {
            return Ok(reader);
        }
        let _loading = dataset.loading.lock().await;
        if let Some(reader) = pinned() {
            return Ok(reader);
        }
        match load_snapshot(name, id, &self.shared.state).await {
            Ok(snapshot) => {
                let reader = self.reader(dataset, snapshot);
                self.keep_pinned(name, reader.clone());
                Ok(reader)
            }
            Err(error @ Error::UnknownSnapshot { .. }) => {
                let current = match &*dataset.phase.borrow() {
                    Phase::Open(reader) => format!("the current one is {}", reader.snapshot().id()),
                    Phase::Opening { .. } | Phase::Failed(_) => "there is no current one".to_owned(),
                };
                Err(Status::failed_precondition(format!("{error}; {current}")))
            }
            Err(error) => Err(named(name, &error)),
        }
    }

    /// The status of a failure in mid-stream: with the dataset, and for a changed file the current snapshot.
    pub(crate) fn stream_status(&self, name: &str, error: &forebay_loader::Error) -> Status {
        let status = status::of_load(error);
        let changed = matches!(error, forebay_loader::Error::Storage(Error::Changed { .. }));
        let current = self.shared.entries.get(name).map(|dataset| dataset.phase.borrow().clone());
        let hint = match current {
            Some(Phase::Open(reader)) if changed => {
                format!("; the current snapshot is {}, and `refresh` takes a new one", reader.snapshot().id())
            }
            _ => String::new(),
        };
        Status::new(status.code(), format!("dataset '{name}': {}{hint}", status.message()))
    }

    /// Where dataset `name` stands, now and whenever that changes.
    pub(crate) fn watch(&self, name: &str) -> Option<watch::Receiver<Phase>> {
        self.shared.entries.get(name).map(|dataset| dataset.phase.subscribe())
    }

    /// How long ago snapshot `id` of dataset `name` was last seen to be the current one, if that is known.
    pub(crate) fn age(&self, name: &str, id: &str) -> Option<Duration> {
        let seen = self.shared.entries.get(name)?.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().find(|(seen, _)| seen == id).map(|(_, when)| when.elapsed())
    }

    /// The readers of all snapshots of dataset `name` that are open.
    pub(crate) fn open_readers(&self, access: &Access, name: &str) -> Result<Vec<Reader>, Status> {
        let dataset = self.dataset(access, name)?;
        let pinned = self.shared.pinned.iter().filter(|entry| entry.key().0 == name);
        let mut readers: Vec<Reader> = pinned.map(|entry| entry.value().clone()).collect();
        if let Phase::Open(reader) = &*dataset.phase.borrow() {
            readers.push(reader.clone());
        }
        Ok(readers)
    }

    /// Every dataset that `access` may read with where it stands, by name.
    pub(crate) fn list(&self, access: &Access) -> Vec<Listed> {
        let listed = |(name, dataset): (&String, &Dataset)| Listed {
            name: name.clone(),
            url: dataset.location.url().to_owned(),
            phase: dataset.phase.borrow().clone(),
        };
        self.shared.entries.iter().filter(|(name, _)| access.may_read(name)).map(listed).collect()
    }

    /// Whether every dataset has been tried once.
    pub(crate) fn all_tried(&self) -> bool {
        self.shared.entries.values().all(|dataset| !matches!(&*dataset.phase.borrow(), Phase::Opening { .. }))
    }

    /// The one way to a dataset: whoever asks has to say for whom.
    fn dataset(&self, access: &Access, name: &str) -> Result<&Dataset, Status> {
        access.check(name)?;
        self.shared.entries.get(name).ok_or_else(|| {
            let readable =
                || self.shared.entries.keys().map(String::as_str).filter(|name| access.may_read(name));
            let near = near(name, readable());
            let hint = match near.is_empty() {
                true => format!("this server has {} datasets", readable().count()),
                false => format!("did you mean '{}'?", near.join("' or '")),
            };
            Status::not_found(status::clip(&format!("there is no dataset '{name}'; {hint}")))
        })
    }

    async fn take(&self, name: &str, dataset: &Dataset) -> Result<Snapshot, Error> {
        let progress = |files_done, files| {
            dataset.phase.send_if_modified(|phase| {
                if let Phase::Opening { .. } = phase {
                    *phase = Phase::Opening { files_done, files };
                }
                false
            });
        };
        take_snapshot(name, &dataset.location, &self.shared.state, &self.shared.config, progress).await
    }

    fn note_failure(&self, name: &str, error: &Status) {
        let is_open = self
            .shared
            .entries
            .get(name)
            .is_some_and(|dataset| matches!(&*dataset.phase.borrow(), Phase::Open(_)));
        let note = if is_open {
            let words = format!("can't be looked at for changes, and is tried again: {}", error.message());
            Note::new(Kind::DatasetFailed, &words).severity(Severity::Warning)
        } else {
            let words = format!("can't be opened, and is tried again: {}", error.message());
            Note::new(Kind::DatasetFailed, &words)
        };
        self.shared.events.note(note.dataset(name));
    }

    fn reader(&self, dataset: &Dataset, snapshot: Snapshot) -> Reader {
        let config = self.shared.config.clone();
        Reader::new(Arc::new(snapshot), dataset.location.clone(), &self.shared.state, config)
    }

    fn keep_pinned(&self, name: &str, reader: Reader) {
        let pinned = &self.shared.pinned;
        if pinned.len() >= self.shared.limits.max_pinned_snapshots {
            // Any will do: it is loaded again from its manifest when it is asked for.
            let any = pinned.iter().next().map(|entry| entry.key().clone());
            any.and_then(|key| pinned.remove(&key));
        }
        pinned.insert((name.to_owned(), reader.snapshot().id().to_owned()), reader);
    }
}

impl Dataset {
    fn note_seen(&self, id: &str, when: Instant) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|(other, _)| other != id);
        seen.push_front((id.to_owned(), when));
        seen.truncate(REMEMBERED_SNAPSHOTS);
    }
}

/// What was found of a dataset, in words.
struct Opened {
    files: usize,
    rows: u64,
    snapshot: String,
}

impl Opened {
    fn of(snapshot: &Snapshot) -> Self {
        Self { files: snapshot.files().len(), rows: snapshot.rows(), snapshot: snapshot.id().to_owned() }
    }
}

impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "files: {}, rows: {}, snapshot {}", self.files, self.rows, self.snapshot)
    }
}

fn named(name: &str, error: &Error) -> Status {
    let status = status::of_storage(error);
    Status::new(status.code(), format!("dataset '{name}': {}", status.message()))
}
