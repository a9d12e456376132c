//! Readiness of the server, its datasets and its queues, for the HTTP probes and gRPC health.

use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use forebay_inference::OnlineDataset;
use forebay_proto::v1::online_server::OnlineServer;
use tonic::server::NamedService;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::{
    auth::Access,
    flight::{Flight, Unary},
    registry::datasets::Phase,
    services::Services,
};

/// Interval at which gRPC health is updated.
const INTERVAL: Duration = Duration::from_millis(250);

/// True if the server accepts new work: it has tried to open every dataset and to load every dataset with lookups, and is not about
/// to stop. What failed is retried and makes only its own calls fail.
pub(crate) fn is_ready(services: &Services) -> bool {
    let Services { datasets, online, drain, .. } = services;
    let is_tried = |name: &str| {
        online.get(name).is_none_or(|online| online.is_ready() || online.progress().error.is_some())
            || matches!(datasets.phase(name), Some(Phase::Failed(_)))
    };
    !drain.is_leaving() && datasets.all_tried() && online.names().all(is_tried)
}

/// True if a dataset is open and, if it serves lookups, loaded.
fn is_dataset_ready(services: &Services, name: &str) -> bool {
    let is_open = matches!(services.datasets.phase(name), Some(Phase::Open(_)));
    is_open && services.online.get(name).is_none_or(OnlineDataset::is_ready)
}

/// Sets the status of the services `dataset/NAME` and `queue/NAME`, of the gRPC services, and of the whole server.
pub(crate) async fn report(services: &Services, health: &HealthReporter) {
    let set = async |name: &str, is_serving: bool| {
        let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        health.set_service_status(name, status).await;
    };
    let (access, is_leaving) = (Access::everything(), services.drain.is_leaving());
    for dataset in services.datasets.list(&access) {
        let is_serving = !is_leaving && is_dataset_ready(services, &dataset.name);
        set(&format!("dataset/{}", dataset.name), is_serving).await;
    }
    for (name, served) in services.queues.list(&access) {
        let has_workers = served.queue.status().load.workers > 0;
        let is_serving =
            !is_leaving && has_workers && served.reads().all(|name| is_dataset_ready(services, name));
        set(&format!("queue/{name}"), is_serving).await;
    }
    let is_serving = is_ready(services);
    for name in ["", FlightServiceServer::<Flight>::NAME, OnlineServer::<Unary>::NAME] {
        set(name, is_serving).await;
    }
}

/// Keeps gRPC health up to date; never returns.
pub(crate) async fn run(services: Services, health: HealthReporter) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        report(&services, &health).await;
    }
}
