//! The datasets that are looked up, kept ready for their current snapshots.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use forebay_inference::{Config, KeySpec, Lookup, Online};
use forebay_loader::{Loader, Pool, Priority};
use forebay_proto::v1;
use tokio::sync::watch;
use tonic::Status;

use crate::{
    datasets::{Datasets, Phase},
    door::Access,
    status,
};

/// Lookups beside a lookup.
const MAX_BESIDE: usize = 16;

/// Checks what can be checked of a lookup before anything is opened.
///
/// # Errors
/// `INVALID_ARGUMENT` for lookups inside of others' `with`, too many of them, and a `max_age` that is no time.
pub(crate) fn check_lookup(wanted: &v1::Lookup) -> Result<(), Status> {
    if wanted.with.len() > MAX_BESIDE {
        let found = wanted.with.len();
        return Err(Status::invalid_argument(format!(
            "with: names {found} lookups, expected at most {MAX_BESIDE}"
        )));
    }
    if wanted.with.iter().any(|other| !other.with.is_empty()) {
        return Err(Status::invalid_argument(
            "with: a lookup in it has others in its own `with`; name them beside it",
        ));
    }
    std::iter::once(wanted).chain(&wanted.with).try_for_each(|part| max_age(part).map(drop))
}

/// How old the snapshot of an answer may be; `None`: as it is.
///
/// # Errors
/// `INVALID_ARGUMENT` for what is no time.
pub(crate) fn max_age(wanted: &v1::Lookup) -> Result<Option<Duration>, Status> {
    let seconds = wanted.max_age;
    let invalid =
        || Status::invalid_argument(format!("lookup.max_age: is {seconds}, expected seconds of 0 or more"));
    let age = Duration::try_from_secs_f64(seconds).map_err(|_| invalid())?;
    Ok((!age.is_zero()).then_some(age))
}

/// Work on an answer of at most so many bytes is done by the thread that reads the network.
const INLINE_BYTES: usize = 128 << 10;

/// Datasets by name. Cheap to clone.
#[derive(Clone)]
pub(crate) struct OnlineDatasets {
    entries: Arc<BTreeMap<String, Online>>,
    lookups: Pool,
    max_keys: usize,
}

impl OnlineDatasets {
    /// Those of `specs`; their indexes are kept below `folder`.
    pub(crate) fn new(
        specs: &BTreeMap<String, KeySpec>,
        config: &Config,
        loader: &Loader,
        pools: &(Pool, Pool),
        folder: &Path,
    ) -> Self {
        let online = |(name, spec): (&String, &KeySpec)| {
            let folder = folder.join("indexes").join(name);
            let online =
                Online::new(name, spec.clone(), config.clone(), loader.clone(), pools.clone(), folder);
            (name.clone(), online)
        };
        let entries = Arc::new(specs.iter().map(online).collect());
        Self { entries, lookups: pools.1.clone(), max_keys: config.max_keys }
    }

    /// The dataset `name`, if it is looked up.
    pub(crate) fn get(&self, name: &str) -> Option<&Online> {
        self.entries.get(name)
    }

    /// The lookups that are wanted, in one dataset or in several.
    ///
    /// # Errors
    /// For a dataset that is not there or not looked up, for lookups inside of others' `with`, and for keys: who takes them from
    /// the request has taken them before.
    pub(crate) async fn lookup(
        &self,
        datasets: &Datasets,
        access: &Access,
        wanted: &v1::Lookup,
    ) -> Result<Lookup, Status> {
        check_lookup(wanted)?;
        let mut lookup = self.part(datasets, access, wanted).await?;
        for other in &wanted.with {
            lookup = lookup.beside(self.part(datasets, access, other).await?);
        }
        Ok(lookup)
    }

    async fn part(
        &self,
        datasets: &Datasets,
        access: &Access,
        wanted: &v1::Lookup,
    ) -> Result<Lookup, Status> {
        let name = &wanted.dataset;
        access.check(name)?;
        let Some(online) = self.get(name) else {
            // Whether there is such a dataset at all is for its list to say.
            datasets.current(access, name).await?;
            return Err(Status::failed_precondition(format!(
                "dataset '{name}' is not looked up by keys; start the server with --online {name}=COLUMN"
            )));
        };
        if !wanted.keys.is_empty() {
            return Err(Status::invalid_argument(
                "keys: stand in a ticket of DoGet or a request of Online.Lookup, and not in `with`; an exchange sends them as \
                 batches",
            ));
        }
        let v1::Lookup { filter, columns, tensors, select, key, .. } = wanted.clone();
        Ok(online.lookup(&v1::Train { filter, columns, tensors, select, ..v1::Train::default() }, key))
    }

    /// Most keys of one lookup.
    pub(crate) fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Does `work` on an answer of so many bytes, on a thread for lookups if it may take long.
    ///
    /// # Errors
    /// When the threads have stopped.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        if bytes <= INLINE_BYTES {
            return Ok(work());
        }
        let done = self.lookups.run(Priority::First, move || Ok(work())).await;
        done.map_err(|error| status::of_load(&error))
    }

    /// Their names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Those of which nothing is ready yet.
    pub(crate) fn unready(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(_, online)| !online.is_ready()).map(|(name, _)| name.as_str())
    }

    /// Makes every snapshot of dataset `name` ready that becomes current; never returns. What fails is logged, and tried again
    /// with backoff.
    pub(crate) async fn tend(self, datasets: Datasets, name: String, max_backoff: Duration) {
        let (Some(online), Some(mut phase)) = (self.get(&name), datasets.watch(&name)) else { return };
        let mut backoff = Duration::from_secs(1);
        loop {
            let Some(reader) = opened(&mut phase).await else { return };
            match online.adopt(reader).await {
                Ok(()) => {
                    backoff = Duration::from_secs(1);
                    if phase.changed().await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let error = status::of_load(&error);
                    let error = error.message();
                    tracing::warn!(dataset = name, error, "can't be looked up, trying again in {backoff:?}");
                    // Another snapshot may be better.
                    drop(tokio::time::timeout(backoff, phase.changed()).await);
                    backoff = (backoff * 2).min(max_backoff);
                }
            }
        }
    }
}

/// The current snapshot, once there is one.
async fn opened(phase: &mut watch::Receiver<Phase>) -> Option<forebay_storage::Reader> {
    let phase = phase.wait_for(|phase| matches!(phase, Phase::Open(_))).await.ok()?;
    match &*phase {
        Phase::Open(reader) => Some(reader.clone()),
        Phase::Opening { .. } | Phase::Failed(_) => None,
    }
}
