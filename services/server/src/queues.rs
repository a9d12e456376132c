//! The batch queues of this server.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::ensure;
use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use forebay_inference::{
    KeySpec, Keys,
    queue::{Queue, QueueConfig},
};
use forebay_proto::v1::{self, LookupMetadata};
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::{door::Access, traces::Trace};

/// A queue, as it stands in `forebay.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSpec {
    /// What workers get for a row, as in the lookups of docs/inference.md: `dataset`, `columns`, `tensors`, `select`, `with`, ...
    pub features: v1::Lookup,
    /// When batches are closed, and who is let in.
    pub batching: QueueConfig,
}

impl QueueSpec {
    /// Checks what can be checked before anything is opened.
    pub(crate) fn check(
        &self,
        online: &BTreeMap<String, KeySpec>,
        max_answer_bytes: u64,
    ) -> anyhow::Result<()> {
        crate::online::check_lookup(&self.features)
            .map_err(|status| anyhow::anyhow!("features: {}", status.message()))?;
        for part in std::iter::once(&self.features).chain(&self.features.with) {
            ensure!(!part.dataset.is_empty(), "features: names no dataset");
            ensure!(part.keys.is_empty(), "features: has `keys`, which come from the callers");
            let name = &part.dataset;
            ensure!(
                online.contains_key(name),
                "features: dataset '{name}' is not looked up; add [online.{name}]"
            );
        }
        check_batching(&self.batching, max_answer_bytes)
            .map_err(|reason| anyhow::anyhow!("batching.{reason}"))
    }
}

/// Checks that a queue can work so beside the server's other settings.
///
/// # Errors
/// The setting, its value and what was expected.
pub(crate) fn check_batching(batching: &QueueConfig, max_answer_bytes: u64) -> Result<(), String> {
    batching.check()?;
    let (found, most) = (batching.max_batch_bytes, max_answer_bytes / 2);
    if found > most {
        return Err(format!(
            "max_batch_bytes is {found}, expected at most {most}, half of lookups.max_answer_bytes"
        ));
    }
    Ok(())
}

/// The rows of a worker's reply that are one request's, as a message, and of which snapshots its features were.
pub(crate) struct Scored {
    pub(crate) schema: SchemaRef,
    pub(crate) rows: FlightData,
    pub(crate) features: Arc<LookupMetadata>,
}

/// What a request carries through its queue.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) keys: Arc<Keys>,
    /// Its span, if it is traced.
    pub(crate) trace: Option<Trace>,
}

/// A queue that runs.
pub(crate) struct Served {
    pub(crate) features: v1::Lookup,
    pub(crate) queue: Queue<Asked, Scored>,
    /// Requests of one exchange that may wait for an answer.
    pub(crate) max_pending: usize,
    /// Bytes that a batch's features may take.
    pub(crate) max_answer_bytes: u64,
}

/// Queues by name. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Queues {
    entries: Arc<BTreeMap<String, Arc<Served>>>,
}

impl Queues {
    /// Those of `specs`.
    ///
    /// # Errors
    /// Of a setting that can't work.
    pub(crate) fn new(
        specs: &BTreeMap<String, QueueSpec>,
        max_pending: usize,
        max_answer_bytes: u64,
    ) -> anyhow::Result<Self> {
        let served = |(name, spec): (&String, &QueueSpec)| {
            let queue = Queue::new(name, spec.batching.clone()).map_err(anyhow::Error::msg)?;
            let features = spec.features.clone();
            Ok((name.clone(), Arc::new(Served { features, queue, max_pending, max_answer_bytes })))
        };
        Ok(Self { entries: Arc::new(specs.iter().map(served).collect::<anyhow::Result<_>>()?) })
    }

    /// The queue `name`, for one who may read all that its features are of.
    ///
    /// # Errors
    /// `NOT_FOUND` with the names there are, or that of a caller who may not read it.
    pub(crate) fn get(&self, name: &str, access: &Access) -> Result<Arc<Served>, Status> {
        let found = self.entries.get(name).filter(|served| served.may_read(access));
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = self.list(access).map(|(name, _)| name).collect();
            Status::not_found(crate::status::clip(&format!("there is no queue '{name}' among {names:?}")))
        })
    }

    /// Those that a caller may know of.
    pub(crate) fn list<'a>(&'a self, access: &'a Access) -> impl Iterator<Item = (&'a str, &'a Arc<Served>)> {
        let entries = self.entries.iter().filter(|(_, served)| served.may_read(access));
        entries.map(|(name, served)| (name.as_str(), served))
    }

    /// All that run.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Queue<Asked, Scored>> {
        self.entries.values().map(|served| &served.queue)
    }

    /// Lets no request in any more; what is there is computed.
    pub(crate) fn drain(&self) {
        self.all().for_each(Queue::drain);
    }
}

impl Served {
    /// The datasets that its features are of.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.features).chain(&self.features.with).map(|part| part.dataset.as_str())
    }

    fn may_read(&self, access: &Access) -> bool {
        self.reads().all(|dataset| access.may_read(dataset))
    }
}
