//! Gauges that are updated when metrics are read instead of when their values change.

use forebay_inference::Progress;
use forebay_storage::Reader;
use metrics::gauge;

use super::Context;
use crate::{auth::Access, registry::datasets::Phase, services::Services, telemetry::process};

/// Sets the gauges to the current values.
pub(super) fn update(context: &Context) {
    let Services { datasets, online, queues, drain, members, .. } = &context.services;
    process::update();
    gauge!("forebay_draining").set(f64::from(u8::from(drain.is_draining())));
    for (state, count) in members.view().iter().flat_map(|cluster| cluster.counts()) {
        gauge!("forebay_members", "state" => state).set(count as f64);
    }
    let everything = Access::everything();
    for listed in datasets.list(&everything) {
        let reader = match &listed.phase {
            Phase::Open(reader) => Some(reader),
            Phase::Opening { .. } | Phase::Failed(_) => None,
        };
        let is_open = f64::from(u8::from(reader.is_some()));
        gauge!("forebay_dataset_open", "dataset" => listed.name.clone()).set(is_open);
        let Some(snapshot) = reader.map(Reader::snapshot) else { continue };
        gauge!("forebay_dataset_rows", "dataset" => listed.name.clone()).set(snapshot.rows() as f64);
        if let Some(age) = datasets.age(&listed.name, snapshot.id()) {
            let gauge = gauge!("forebay_dataset_snapshot_age_seconds", "dataset" => listed.name.clone());
            gauge.set(age.as_secs_f64());
        }
        if let Some(online) = online.get(&listed.name) {
            let Progress { ready, error, .. } = online.progress();
            gauge!("forebay_lookup_failed", "dataset" => listed.name.clone())
                .set(f64::from(u8::from(error.is_some())));
            let is_outdated = ready.is_some_and(|ready| ready.snapshot != snapshot.id());
            gauge!("forebay_lookup_outdated", "dataset" => listed.name.clone())
                .set(f64::from(u8::from(is_outdated)));
        }
    }
    for (name, served) in queues.list(&everything) {
        let load = served.queue.status().load;
        if let Some(demand) = served.queue.demand() {
            gauge!("forebay_queue_demand_workers", "queue" => name.to_owned()).set(demand);
        }
        gauge!("forebay_queue_workers", "queue" => name.to_owned()).set(load.workers as f64);
        gauge!("forebay_queue_overdue_workers", "queue" => name.to_owned()).set(load.overdue_workers as f64);
        gauge!("forebay_queue_suspended_workers", "queue" => name.to_owned())
            .set(load.suspended_workers as f64);
    }
}
