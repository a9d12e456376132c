//! Lookup indexes of the current snapshots of datasets, by name.

mod builds;
mod index_builder;

use std::{sync::Arc, time::Duration};

use dashmap::DashMap;
use forebay_inference::{Lookup, LookupMemory, OnlineDataset, Requirements, Takeover};
use forebay_loader::{Flow, Loader, Pool, Priority};
use forebay_proto::v1;
use forebay_storage::Reader;
use tokio::sync::watch;
use tonic::Code;

use super::{panics::caught, retry_delays::retry_delays};
use crate::{
    Error, Settings,
    auth::Access,
    events::{Event, Events, Kind, Severity},
    lookup_request::check_lookup,
    registry::{
        datasets::{Datasets, Opened, Phase},
        queues::Served,
    },
    settings::OnlineSpec,
};
use builds::Builds;
use index_builder::IndexBuilder;

/// Maximum size of an answer that is processed on the network thread, in bytes.
const INLINE_BYTES: usize = 128 << 10;

/// Lookup indexes by dataset name. Cheap to clone.
#[derive(Clone)]
pub(crate) struct OnlineDatasets {
    /// Indexes and the columns of their keys.
    entries: Arc<DashMap<String, (OnlineDataset, Vec<String>)>>,
    builder: IndexBuilder,
    builds: Builds,
    lookups: Pool,
    max_keys: usize,
    max_answer_bytes: u64,
    events: Events,
}

impl OnlineDatasets {
    /// Registers the datasets of `settings.online`; indexes are stored in the cache directory. `pools` are the CPU threads and the
    /// lookup threads.
    pub(crate) fn new(settings: &Settings, loader: &Loader, pools: &(Pool, Pool), events: Events) -> Self {
        let config = &settings.lookups;
        let memory = LookupMemory::new(loader.clone());
        let online = |(name, spec): (&String, &OnlineSpec)| {
            let folder = settings.cache_dir.join("indexes").join(name);
            let declared: Vec<_> = spec.views.iter().chain(features(settings, name)).map(selection).collect();
            let requirements = Requirements { views: declared, canary: spec.canary.clone() };
            let (config, memory, pools) = (config.clone(), memory.clone(), pools.clone());
            let online = OnlineDataset::new(name, spec.key(), config, memory, pools, folder, requirements);
            (name.clone(), (online, spec.key.clone()))
        };
        let entries = Arc::new(settings.online.iter().map(online).collect());
        let (max_keys, max_answer_bytes) = (config.max_keys, config.max_answer_bytes);
        let builder = IndexBuilder::new(settings, loader, memory.clone(), pools);
        let builds = Builds::default();
        Self { entries, builder, builds, lookups: pools.1.clone(), max_keys, max_answer_bytes, events }
    }

    /// Returns the index of dataset `name`, if the dataset serves lookups.
    pub(crate) fn get(&self, name: &str) -> Option<OnlineDataset> {
        self.entries.get(name).map(|entry| entry.value().0.clone())
    }

    /// Makes dataset `name` serve lookups by `key`. Waits until the index of `reader`, its current snapshot, is loaded. The index is
    /// built to the end if this call is dropped, and other calls wait for the same build.
    ///
    /// # Errors
    /// If the dataset serves lookups by another key, or the index can't be built; nothing has changed then.
    pub(crate) async fn open(
        &self,
        datasets: &Datasets,
        name: &str,
        key: &[String],
        reader: Reader,
    ) -> Result<(), Error> {
        if self.serves(name, key)? {
            return Ok(());
        }
        let build = || self.clone().build(datasets.clone(), name.to_owned(), key.to_vec(), reader.clone());
        self.builds.join(name, key, build).await
    }

    /// Returns true if dataset `name` serves lookups by `key`.
    ///
    /// # Errors
    /// If it serves lookups by another key.
    fn serves(&self, name: &str, key: &[String]) -> Result<bool, Error> {
        match self.entries.get(name).as_deref() {
            None => Ok(false),
            Some((_, before)) if before == key => Ok(true),
            Some((_, before)) => Err(Error::invalid(format!(
                "dataset '{name}': lookups are by {before:?}, so that they can't be by {key:?}"
            ))),
        }
    }

    /// Builds the index of dataset `name` by `key`, after the builds of other datasets.
    async fn build(
        self,
        datasets: Datasets,
        name: String,
        key: Vec<String>,
        reader: Reader,
    ) -> Result<(), Error> {
        let mut turn = self.builder.turn().await;
        if self.serves(&name, &key)? {
            return Ok(());
        }
        let online = turn.build(&name, &key)?;
        online.load_snapshot(reader).await.map_err(|error| datasets.read_error([name.as_str()], error))?;
        self.entries.insert(name.clone(), (online, key));
        tokio::spawn(self.clone().run(datasets, name, None, self.builder.max_backoff));
        Ok(())
    }

    /// Like [`get`](Self::get), also for a dataset that was opened before a restart or on another server of the state. Fails for
    /// a dataset that does not exist.
    async fn find(
        &self,
        datasets: &Datasets,
        access: &Access,
        name: &str,
    ) -> Result<Option<OnlineDataset>, Error> {
        if let Some(online) = self.get(name) {
            return Ok(Some(online));
        }
        let reader = datasets.current(access, name).await?;
        match datasets.opened(name).await? {
            Some(Opened { key, .. }) if !key.is_empty() => self.open(datasets, name, &key, reader).await?,
            Some(_) | None => {}
        }
        Ok(self.get(name))
    }

    /// Prepares a lookup in one or several datasets.
    ///
    /// # Errors
    /// If a dataset does not exist or does not serve lookups, `joins` are nested, or the request still holds keys: callers that
    /// accept keys in the request remove them first.
    pub(crate) async fn lookup(
        &self,
        datasets: &Datasets,
        access: &Access,
        wanted: &v1::Lookup,
    ) -> Result<Lookup, Error> {
        check_lookup(wanted)?;
        let mut lookup = self.part(datasets, access, wanted).await?;
        for other in &wanted.joins {
            lookup = lookup.join(self.part(datasets, access, other).await?);
        }
        Ok(lookup.of_tenant(access.tenant()))
    }

    /// Prepares the lookup of a queue's features, with the columns that come with its requests.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    pub(crate) async fn lookup_of(
        &self,
        datasets: &Datasets,
        access: &Access,
        queue: &Served,
    ) -> Result<Lookup, Error> {
        let lookup = self.lookup(datasets, access, &queue.features).await?;
        Ok(lookup.with_request_columns(Arc::clone(&queue.request_columns)))
    }

    async fn part(&self, datasets: &Datasets, access: &Access, wanted: &v1::Lookup) -> Result<Lookup, Error> {
        let name = &wanted.dataset;
        access.check(name)?;
        let Some(online) = self.find(datasets, access, name).await? else {
            return Err(self
                .online(name)
                .err()
                .unwrap_or_else(|| Error::internal("the dataset serves lookups")));
        };
        if !wanted.keys.is_empty() {
            return Err(Error::invalid(
                "keys: are allowed in a DoGet ticket or an Online.Lookup request, but not in `joins`; DoExchange sends them as \
                 batches",
            ));
        }
        Ok(online.lookup(&selection(wanted), wanted.key.clone()))
    }

    /// Maximum number of keys per lookup.
    pub(crate) fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Maximum size of an answer, in bytes.
    pub(crate) fn max_answer_bytes(&self) -> u64 {
        self.max_answer_bytes
    }

    /// Runs `work` of a caller on an answer of `bytes` bytes, on a lookup thread if the answer is large.
    ///
    /// # Errors
    /// If the threads have stopped.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        access: &Access,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        if bytes <= INLINE_BYTES {
            return Ok(work());
        }
        let flow = Flow::of(access.tenant());
        let done = self.lookups.run_for(flow, Priority::Interactive, move || Ok(work())).await;
        done.map_err(Error::from)
    }

    /// Names of the datasets that serve lookups.
    pub(crate) fn names(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.key().clone()).collect()
    }

    /// Pins snapshot `pinned` if it is given, and loads the index of every snapshot of dataset `name` that becomes current; never
    /// returns. Failures are logged and retried with backoff.
    pub(crate) async fn run(
        self,
        datasets: Datasets,
        name: String,
        mut pinned: Option<String>,
        max_backoff: Duration,
    ) {
        let (Some(online), Some(mut phase)) = (self.get(&name), datasets.watch(&name)) else { return };
        let mut delays = retry_delays(max_backoff);
        // Reason why lookups do not follow the dataset, after its event.
        let mut reported: Option<String> = None;
        loop {
            let Some(reader) = opened(&mut phase, &online).await else { return };
            let id = reader.snapshot().id().to_owned();
            let load = async {
                match &pinned {
                    Some(pinned) => {
                        let reader = datasets.pinned_by_server(&name, pinned).await?;
                        online.pin_first(reader).await.map(|()| Takeover::Pinned)
                    }
                    None => {
                        self.load_accepted(&datasets, &online, &name).await?;
                        online.load_snapshot(reader).await
                    }
                }
            };
            match caught(load, |reason| forebay_loader::Error::Internal(reason.to_owned())).await {
                Ok(takeover) => {
                    if let Takeover::Rejected { reason } = takeover {
                        let message = format!("snapshot {id} does not answer lookups: {reason}");
                        self.events.note(Event::new(Kind::SnapshotRejected, &message).dataset(&name));
                    }
                    if reported.take().is_some() {
                        let message = format!("lookups follow the dataset again, with snapshot {id}");
                        let event = Event::new(Kind::LookupsOutdated, &message).severity(Severity::Info);
                        self.events.note(event.dataset(&name));
                    }
                    (delays, pinned) = (retry_delays(max_backoff), None);
                    tokio::select! {
                        biased;
                        () = online.unpinned() => {}
                        changed = phase.changed() => if changed.is_err() {
                            return;
                        },
                    }
                }
                Err(error) => {
                    online.failed(&error);
                    let error = Error::from(error);
                    let error = error.message();
                    let delay = delays.next().unwrap_or(max_backoff);
                    if reported.as_deref() == Some(error) {
                        tracing::debug!(dataset = name, error, "lookups still cannot follow the dataset");
                    } else {
                        reported = Some(error.to_owned());
                        let message = cannot_follow(&online, &id, error);
                        self.events.note(Event::new(Kind::LookupsOutdated, &message).dataset(&name));
                    }
                    tokio::select! {
                        biased;
                        () = online.unpinned() => pinned = None,
                        // A new snapshot is tried at once.
                        _ = phase.changed() => {}
                        () = tokio::time::sleep(delay) => {}
                    }
                    if online.progress().pinned.is_some() {
                        // An operator has pinned another one.
                        pinned = None;
                    }
                }
            }
        }
    }

    /// Loads the snapshot that answered lookups before a restart, if there is a canary, which compares the current one with it. A snapshot
    /// that can no longer be read is skipped, with a warning.
    ///
    /// # Errors
    /// If the store does not answer.
    async fn load_accepted(
        &self,
        datasets: &Datasets,
        online: &OnlineDataset,
        name: &str,
    ) -> Result<(), forebay_loader::Error> {
        let Some(id) = online.last_accepted().filter(|_| !online.is_ready()) else { return Ok(()) };
        let loaded = match datasets.pinned_by_server(name, &id).await {
            Ok(reader) => online.load_snapshot(reader).await.map(drop),
            Err(error) => Err(error),
        };
        match loaded {
            Err(error) if Error::from(error.clone()).grpc_code() == Code::Unavailable => Err(error),
            Err(error) => {
                let error = datasets.read_error([name], error);
                let error = error.message();
                tracing::warn!(
                    dataset = name,
                    snapshot = id,
                    error,
                    "cannot load the snapshot that answered lookups before the restart; the current one is not compared"
                );
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Answers lookups in dataset `name` from snapshot `id` until it is unpinned.
    ///
    /// # Errors
    /// If the snapshot is unknown, its files have changed, or it cannot be loaded. Nothing has changed then.
    pub(crate) async fn pin(
        &self,
        datasets: &Datasets,
        access: &Access,
        name: &str,
        id: &str,
    ) -> Result<(), Error> {
        let online = self.online(name)?;
        let reader = datasets.pinned(access, name, id).await?;
        online.pin(reader).await.map_err(|error| datasets.read_error([name], error))?;
        let message = format!("snapshot {id} answers lookups until another one is pinned, or none");
        self.events.note(Event::new(Kind::SnapshotPinned, &message).dataset(name));
        Ok(())
    }

    /// Answers lookups in dataset `name` from the current snapshots again.
    ///
    /// # Errors
    /// If the dataset does not serve lookups.
    pub(crate) async fn unpin(&self, name: &str) -> Result<(), Error> {
        let online = self.online(name)?;
        online.unpin().await;
        let message = "the current snapshot answers lookups as soon as it is loaded";
        self.events.note(Event::new(Kind::SnapshotUnpinned, message).dataset(name));
        Ok(())
    }

    fn online(&self, name: &str) -> Result<OnlineDataset, Error> {
        self.get(name).ok_or_else(|| {
            Error::unsupported(format!(
                "dataset '{name}' does not serve lookups; start the server with --online {name}=COLUMN"
            ))
        })
    }
}

/// Message about snapshot `id`, which cannot be loaded for lookups.
fn cannot_follow(online: &OnlineDataset, id: &str, error: &str) -> String {
    match online.progress().ready {
        Some(ready) => format!(
            "lookups cannot follow the dataset to snapshot {id}, and are answered from snapshot {}: {error}; the server tries again",
            ready.snapshot
        ),
        None => format!("lookups cannot be answered from snapshot {id}: {error}; the server tries again"),
    }
}

/// The lookups of queues in dataset `name`.
fn features<'a>(settings: &'a Settings, name: &'a str) -> impl Iterator<Item = &'a v1::Lookup> {
    let parts = settings
        .queues
        .values()
        .flat_map(|queue| std::iter::once(&queue.features).chain(&queue.features.joins));
    parts.filter(move |part| part.dataset == name)
}

/// The part of a lookup that selects columns and rows.
fn selection(wanted: &v1::Lookup) -> v1::Train {
    let v1::Lookup { filter, columns, tensors, select, .. } = wanted.clone();
    v1::Train { filter, columns, tensors, select, ..v1::Train::default() }
}

/// Waits for the current snapshot. Lookups before the first one fail with the reason why the dataset cannot be opened.
async fn opened(phase: &mut watch::Receiver<Phase>, online: &OnlineDataset) -> Option<Reader> {
    loop {
        match &*phase.borrow_and_update() {
            Phase::Open(reader) => return Some(reader.clone()),
            Phase::Failed(error) if !online.is_ready() => online.failed(&error.clone().into()),
            Phase::Opening { .. } | Phase::Failed(_) => {}
        }
        phase.changed().await.ok()?;
    }
}

#[cfg(test)]
mod tests;
