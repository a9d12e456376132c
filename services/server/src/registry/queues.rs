//! Batch queues by name.

pub(crate) mod worker_names;

use std::{collections::BTreeMap, sync::Arc};

use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use forebay_inference::{
    LookupKeys, RequestColumns,
    queue::{Priority, Queue},
};
use forebay_proto::v1::{self, LookupMetadata};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    Error, QueueSpec, Settings,
    auth::Access,
    callers::{Caller, Callers, Charge, Resource, SharedCharge},
    reads,
    traces::Trace,
};
use worker_names::WorkerNames;

/// Rows of a worker's reply that belong to one request, and the snapshots of the features.
pub(crate) struct Scored {
    pub(crate) schema: SchemaRef,
    pub(crate) rows: FlightData,
    pub(crate) features: Arc<LookupMetadata>,
    /// Bytes of the header and the body of the rows.
    pub(crate) charge: Charge,
    /// Time of the reply.
    pub(crate) replied: Instant,
}

/// Payload of a queued request.
#[derive(Clone)]
pub(crate) struct QueuedKeys {
    pub(crate) keys: Arc<LookupKeys>,
    pub(crate) caller: Caller,
    /// Charge for the keys, the columns that came with them, the features, and what else the request holds. The worker's answer takes
    /// the charge over. It is released if the request ends without an answer.
    pub(crate) charge: SharedCharge,
    /// Trace of the request, if it is traced.
    pub(crate) trace: Option<Trace>,
}

/// A running queue.
pub(crate) struct Served {
    pub(crate) features: v1::Lookup,
    pub(crate) request_columns: Arc<RequestColumns>,
    pub(crate) queue: Queue<QueuedKeys, Scored>,
    /// Maximum number of unanswered requests per DoExchange stream.
    pub(crate) max_pending: usize,
    /// Maximum size of the features of a batch, in bytes.
    pub(crate) max_answer_bytes: u64,
    /// Schema of the last reply of a worker.
    reply_schema: Mutex<Option<SchemaRef>>,
    /// Names of the connected workers.
    pub(crate) worker_names: WorkerNames,
}

/// Queues by name. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Queues {
    entries: Arc<BTreeMap<String, Arc<Served>>>,
}

impl Queues {
    /// Creates the queues of `settings`.
    ///
    /// # Errors
    /// The first invalid setting.
    pub(crate) fn new(settings: &Settings) -> anyhow::Result<Self> {
        let max_pending = settings.limits.max_pending_requests;
        let max_answer_bytes = settings.lookups.max_answer_bytes;
        let served = |(name, spec): (&String, &QueueSpec)| {
            let queue = Queue::new(name, spec.batching.clone()).map_err(anyhow::Error::msg)?;
            let features = spec.features.clone();
            let request_columns = RequestColumns::new(&spec.request_columns).map_err(anyhow::Error::msg)?;
            Ok((
                name.clone(),
                Arc::new(Served {
                    features,
                    request_columns: Arc::new(request_columns),
                    queue,
                    max_pending,
                    max_answer_bytes,
                    reply_schema: Mutex::default(),
                    worker_names: WorkerNames::default(),
                }),
            ))
        };
        Ok(Self { entries: Arc::new(settings.queues.iter().map(served).collect::<anyhow::Result<_>>()?) })
    }

    /// Returns the queue `name` if the caller may read all datasets of its features.
    ///
    /// # Errors
    /// Not found, with the names of the queues that the caller may use.
    pub(crate) fn get(&self, name: &str, access: &Access) -> Result<Arc<Served>, Error> {
        let found = self.entries.get(name).filter(|served| served.may_read(access));
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = self.list(access).map(|(name, _)| name).collect();
            Error::not_found(format!("there is no queue '{name}' among {names:?}"))
        })
    }

    /// Queues whose datasets the caller may read.
    pub(crate) fn list<'a>(&'a self, access: &'a Access) -> impl Iterator<Item = (&'a str, &'a Arc<Served>)> {
        let entries = self.entries.iter().filter(|(_, served)| served.may_read(access));
        entries.map(|(name, served)| (name.as_str(), served))
    }

    /// All queues.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Queue<QueuedKeys, Scored>> {
        self.entries.values().map(|served| &served.queue)
    }

    /// Rejects new requests; queued requests are still computed.
    pub(crate) fn drain(&self) {
        self.all().for_each(Queue::drain);
    }
}

impl Served {
    /// Charges a request to `caller`: its keys, their features, and `other_bytes`, which its call holds until the answer. The size of
    /// the features is the mean size of a row for each key, because they are looked up later. Requests of low priority are refused
    /// first.
    ///
    /// # Errors
    /// Busy, if the caller holds too much.
    pub(crate) fn queued(
        &self,
        callers: &Callers,
        caller: Caller,
        priority: Priority,
        keys: LookupKeys,
        other_bytes: u64,
        trace: Option<Trace>,
    ) -> Result<QueuedKeys, Error> {
        let features = keys.answer_bytes().min(self.max_answer_bytes);
        let bytes = keys.memory_bytes().saturating_add(features).saturating_add(other_bytes);
        let charge = callers.take_for(priority, &caller, Resource::UnsentBytes, bytes)?.shared();
        Ok(QueuedKeys { keys: Arc::new(keys), caller, charge, trace })
    }

    /// Notes the schema of a worker's reply.
    pub(crate) fn replied(&self, schema: &SchemaRef) {
        let mut known = self.reply_schema.lock();
        if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, schema)) {
            *known = Some(Arc::clone(schema));
        }
    }

    /// Schema of the last reply of a worker; `None` before the first.
    pub(crate) fn reply_schema(&self) -> Option<SchemaRef> {
        self.reply_schema.lock().clone()
    }

    /// Names of the datasets of the features.
    pub(crate) fn reads(&self) -> impl Iterator<Item = &str> {
        reads::of_lookup(&self.features)
    }

    fn may_read(&self, access: &Access) -> bool {
        self.reads().all(|dataset| access.may_read(dataset))
    }
}
