//! What the observer sees, as metrics.

use std::{collections::BTreeMap, sync::Arc};

use forebay_loader::Loader;
use forebay_stall::{Limit, Stage};

use crate::sessions::{Session, Sessions};

/// Records what there is now: of the trainers in `running` and of all before, the stages, and what limits.
pub(super) fn set(
    sessions: &Sessions,
    running: &[Arc<Session>],
    loader: &Loader,
    limit: Limit,
    gpu_hour_cost: Option<f64>,
) {
    for known in Limit::ALL {
        metrics::gauge!("forebay_verdict", "limit" => known.name()).set(f64::from(known == limit));
    }
    of_running(sessions, running);
    of_time(sessions, gpu_hour_cost);
    of_stages(loader);
}

fn of_running(sessions: &Sessions, running: &[Arc<Session>]) {
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

fn of_time(sessions: &Sessions, gpu_hour_cost: Option<f64>) {
    for (dataset, buckets) in sessions.by_dataset() {
        for (bucket, time) in buckets.iter() {
            let seconds = time.as_secs_f64();
            metrics::gauge!("forebay_session_seconds_total", "dataset" => dataset.clone(), "bucket" => bucket.name())
                .set(seconds);
        }
    }
    for (dataset, did) in sessions.activities() {
        for (activity, seconds) in [("wait", did.wait), ("compute", did.compute), ("copy", did.copy)] {
            metrics::gauge!("forebay_trainer_seconds_total", "dataset" => dataset.clone(), "activity" => activity)
                .set(seconds);
        }
        if did.gpu_busy + did.gpu_idle > 0.0 {
            for (state, seconds) in [("busy", did.gpu_busy), ("idle", did.gpu_idle)] {
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

fn of_stages(loader: &Loader) {
    let waiting = loader.waiting();
    for stage in Stage::ALL {
        let queue = match stage {
            Stage::Storage => waiting.reads,
            Stage::Decode => waiting.decodes,
            Stage::Gather => waiting.gathers,
        };
        let work = loader.work(stage);
        metrics::gauge!("forebay_stage_active", "stage" => stage.name()).set(work.active as f64);
        metrics::gauge!("forebay_stage_seconds_total", "stage" => stage.name()).set(work.busy.as_secs_f64());
        metrics::counter!("forebay_stage_bytes_total", "stage" => stage.name()).absolute(work.bytes);
        metrics::gauge!("forebay_stage_queue", "stage" => stage.name()).set(queue as f64);
    }
}
