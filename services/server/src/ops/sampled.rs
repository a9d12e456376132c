//! What is looked at when somebody scrapes, instead of being recorded whenever it changes.

use forebay_storage::Reader;
use metrics::gauge;

use super::{Ops, process};
use crate::{datasets::Phase, door::Access};

/// Records what there is now.
pub(super) fn sample(ops: &Ops) {
    process::sample();
    gauge!("forebay_draining").set(f64::from(u8::from(ops.guard.is_draining())));
    let everything = Access::everything();
    for listed in ops.datasets.list(&everything) {
        let reader = match &listed.phase {
            Phase::Open(reader) => Some(reader),
            Phase::Opening { .. } | Phase::Failed(_) => None,
        };
        let is_open = f64::from(u8::from(reader.is_some()));
        gauge!("forebay_dataset_open", "dataset" => listed.name.clone()).set(is_open);
        let Some(snapshot) = reader.map(Reader::snapshot) else { continue };
        gauge!("forebay_dataset_rows", "dataset" => listed.name.clone()).set(snapshot.rows() as f64);
        if let Some(age) = ops.datasets.age(&listed.name, snapshot.id()) {
            let gauge = gauge!("forebay_dataset_snapshot_age_seconds", "dataset" => listed.name.clone());
            gauge.set(age.as_secs_f64());
        }
    }
    for (name, served) in ops.queues.list(&everything) {
        let workers = served.queue.status().load.workers;
        gauge!("forebay_queue_workers", "queue" => name.to_owned()).set(workers as f64);
    }
}
