//! Metrics of sessions and stages.

use std::{collections::BTreeMap, sync::Arc};

use forebay_loader::{Loader, Purpose};
use forebay_stall::{Bottleneck, Stage};

use crate::sessions::{Session, Sessions};

/// Sets the metrics of sessions, stages and the bottleneck. `running` are the sessions that are running now.
///
/// Totals of seconds are gauges, because counters of the crate `metrics` hold integers.
pub(super) fn set(
    sessions: &Sessions,
    running: &[Arc<Session>],
    loader: &Loader,
    bottleneck: Bottleneck,
    gpu_hour_cost: Option<f64>,
) {
    for value in Bottleneck::ALL {
        metrics::gauge!("forebay_bottleneck", "bottleneck" => value.name())
            .set(f64::from(value == bottleneck));
    }
    set_running(sessions, running);
    set_time(sessions, gpu_hour_cost);
    set_stages(loader);
}

fn set_running(sessions: &Sessions, running: &[Arc<Session>]) {
    let mut by_dataset: BTreeMap<String, Vec<&Session>> =
        sessions.by_dataset().into_keys().map(|dataset| (dataset, Vec::new())).collect();
    for session in running {
        by_dataset.entry(session.train.dataset.clone()).or_default().push(session);
    }
    for (dataset, running) in by_dataset {
        let skewed = running.iter().filter(|session| session.skew().is_skewed()).count();
        metrics::gauge!("forebay_sessions", "dataset" => dataset.clone()).set(running.len() as f64);
        metrics::gauge!("forebay_label_skewed_sessions", "dataset" => dataset).set(skewed as f64);
    }
}

fn set_time(sessions: &Sessions, gpu_hour_cost: Option<f64>) {
    for (dataset, buckets) in sessions.by_dataset() {
        for (bucket, time) in buckets.iter() {
            let seconds = time.as_secs_f64();
            metrics::gauge!("forebay_session_seconds_total", "dataset" => dataset.clone(), "activity" => bucket.name())
                .set(seconds);
        }
    }
    for (dataset, spent) in sessions.activities() {
        for (activity, seconds) in [("wait", spent.wait), ("compute", spent.compute), ("copy", spent.copy)] {
            metrics::gauge!("forebay_trainer_seconds_total", "dataset" => dataset.clone(), "activity" => activity)
                .set(seconds);
        }
        if spent.gpu_busy + spent.gpu_idle > 0.0 {
            for (state, seconds) in [("busy", spent.gpu_busy), ("idle", spent.gpu_idle)] {
                metrics::gauge!("forebay_trainer_gpu_seconds_total", "dataset" => dataset.clone(), "state" => state)
                    .set(seconds);
            }
        }
    }
    if let Some(cost) = gpu_hour_cost {
        let hours = sessions.idle().as_secs_f64() / 3600.0;
        metrics::gauge!("forebay_idle_gpu_cost_total").set(hours * cost);
    }
}

fn set_stages(loader: &Loader) {
    let waiting = loader.waiting();
    for stage in Stage::ALL {
        let queue = match stage {
            Stage::Storage => waiting.reads,
            Stage::Decode => waiting.decodes,
            Stage::Gather => waiting.gathers,
        };
        let work = loader.work(stage);
        metrics::gauge!("forebay_stage_in_flight", "stage" => stage.name()).set(work.active as f64);
        metrics::gauge!("forebay_stage_seconds_total", "stage" => stage.name()).set(work.busy.as_secs_f64());
        metrics::counter!("forebay_stage_bytes_total", "stage" => stage.name()).absolute(work.bytes);
        metrics::gauge!("forebay_stage_queue_depth", "stage" => stage.name()).set(queue as f64);
    }
    for purpose in Purpose::ALL {
        let reads = loader.reads_in_flight(purpose) as f64;
        metrics::gauge!("forebay_block_reads_in_flight", "purpose" => purpose.name()).set(reads);
    }
}
