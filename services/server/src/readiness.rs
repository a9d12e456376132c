//! Readiness of the server, its datasets and its queues, for the HTTP probes and gRPC health.

use std::{collections::HashMap, time::Duration};

use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    auth::Access,
    registry::{datasets::Phase, queues::Served},
    services::Services,
};

/// Interval at which gRPC health is updated.
const INTERVAL: Duration = Duration::from_millis(250);

/// The whole server, and its gRPC services.
const GENERAL: [&str; 4] =
    ["", "arrow.flight.protocol.FlightService", "forebay.v1.Online", "inference.GRPCInferenceService"];

/// True if the server accepts new work: it has recovered the disk cache, has tried to open every dataset and to load every dataset
/// with lookups, was reached at its name if it is a member of a cluster, and is not about to stop. What failed is retried and makes only its own calls fail.
pub(crate) fn is_ready(services: &Services) -> bool {
    unready(services).is_empty()
}

/// Returns what the server waits for before it is [ready](is_ready), without names of datasets; nothing if it is ready.
pub(crate) fn unready(services: &Services) -> Vec<String> {
    let Services { datasets, loader, online, members, drain, .. } = services;
    let is_untried = |name: &&String| {
        online.get(name).is_some_and(|online| !online.is_ready() && online.progress().error.is_none())
            && !matches!(datasets.phase(name), Some(Phase::Failed(_)))
    };
    let (opening, names) = (datasets.untried(), online.names());
    let loading = names.iter().filter(is_untried).count();
    let mut waits = Vec::new();
    if drain.is_leaving() {
        waits.push("the server is shutting down".to_owned());
    }
    if !loader.is_recovered() {
        waits.push("the files of an earlier server in the disk cache are being found".to_owned());
    }
    if !members.is_reachable() {
        waits.push("no call of this server to its own name (advertise) has reached it".to_owned());
    }
    if opening > 0 {
        waits.push(format!("datasets that are being opened for the first time: {opening}"));
    }
    if loading > 0 {
        waits.push(format!("datasets that are being loaded for lookups for the first time: {loading}"));
    }
    waits
}

/// True if a dataset is open and, if it serves lookups, loaded.
fn is_dataset_ready(services: &Services, name: &str) -> bool {
    let is_open = matches!(services.datasets.phase(name), Some(Phase::Open(_)));
    is_open && services.online.get(name).is_none_or(|online| online.is_ready())
}

/// True if a queue has a worker that is neither overdue nor suspended, its datasets are ready, and the server is not about to stop.
///
/// If all workers are suspended, the queue sends them batches nevertheless, because a failing worker is better than none. The queue is still not
/// ready, so that callers prefer another server: each of these workers has failed batches that another one computed.
pub(crate) fn is_queue_ready(services: &Services, served: &Served) -> bool {
    let has_workers = served.queue.status().load.workers > 0;
    !services.drain.is_leaving() && has_workers && served.reads().all(|name| is_dataset_ready(services, name))
}

/// Reports to gRPC health: the status of the whole server, of the gRPC services and, if callers need no token, of the services
/// `dataset/NAME` and `queue/NAME`.
pub(crate) struct Reporter {
    services: Services,
    health: HealthReporter,
    /// True if a caller without a token may learn names.
    names: bool,
    /// Reported statuses, because reporting the same again would send it to all watchers.
    reported: HashMap<String, bool>,
}

impl Reporter {
    pub(crate) fn new(services: Services, health: HealthReporter, names: bool) -> Self {
        Self { services, health, names, reported: HashMap::new() }
    }

    /// Reports what has changed.
    pub(crate) async fn report(&mut self) {
        let services = &self.services;
        let (access, is_leaving, is_serving) =
            (Access::everything(), services.drain.is_leaving(), is_ready(services));
        let mut statuses: Vec<(String, bool)> =
            GENERAL.into_iter().map(|name| (name.to_owned(), is_serving)).collect();
        if self.names {
            for dataset in services.datasets.list(&access) {
                let is_serving = !is_leaving && is_dataset_ready(services, &dataset.name);
                statuses.push((format!("dataset/{}", dataset.name), is_serving));
            }
            for (name, served) in services.queues.list(&access) {
                statuses.push((format!("queue/{name}"), is_queue_ready(services, served)));
            }
        }
        for (name, is_serving) in statuses {
            if self.reported.insert(name.clone(), is_serving) != Some(is_serving) {
                let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
                self.health.set_service_status(&name, status).await;
            }
        }
    }

    /// Reports until the server is about to stop, and then once more.
    pub(crate) async fn run(mut self) {
        let drain = self.services.drain.clone();
        while drain.unless_left(tokio::time::sleep(INTERVAL)).await.is_some() {
            self.report().await;
        }
        self.report().await;
    }
}
