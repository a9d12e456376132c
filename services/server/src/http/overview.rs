//! `/api/v1/overview`: summary of the server.

use std::time::{Instant, SystemTime};

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    context::View,
    resources::{self, Process, Tier},
    response::AuthErrors,
    sessions::{JobInfo, Verdict, jobs, running},
    stages::{StageStatus, stages},
};
use crate::events::unix_seconds;

/// Summary of the server.
#[derive(Serialize, ToSchema)]
pub(super) struct Overview {
    /// The server process.
    server: ServerInfo,
    /// Bottleneck of the running sessions of datasets that the caller may read.
    verdict: Verdict,
    /// Jobs with several ranks at this server, those with a straggler first; at most 20.
    jobs: Vec<JobInfo>,
    /// Pipeline stages from the store to the trainers, for all sessions.
    pipeline: Vec<StageStatus>,
    /// Cache tiers: memory, and disk if configured.
    cache: Vec<Tier>,
    /// Resources used by the process; null on systems without `/proc`.
    #[schema(required)]
    process: Option<Process>,
    /// Cost of GPUs while their trainers wait; null unless `gpu_hour_cost` is configured.
    #[schema(required)]
    cost: Option<Cost>,
}

/// Cost of GPUs while their trainers wait, in the currency of `gpu_hour_cost`.
#[derive(Serialize, ToSchema)]
struct Cost {
    /// Configured price of one GPU hour.
    gpu_hour_cost: f64,
    /// Current cost of waiting per hour, for the running sessions whose clients report.
    idle_per_hour: f64,
    /// Cost of waiting since the start of the server, for the sessions whose clients report.
    idle_total: f64,
}

/// The server process.
#[derive(Serialize, ToSchema)]
struct ServerInfo {
    /// Version of the server.
    version: &'static str,
    /// Start time, in Unix seconds.
    started_at: f64,
    /// Time since the start, in seconds.
    uptime_seconds: f64,
    /// Current time of the server, in Unix seconds.
    now: f64,
    /// True if the server is shutting down.
    draining: bool,
    /// Location for Flight clients, such as `grpc://127.0.0.1:8815`.
    grpc: String,
    /// True if the caller may change settings of the server.
    can_administer: bool,
}

/// Returns a summary of the server: bottleneck, pipeline, cache and process.
#[utoipa::path(get, path = "/api/v1/overview", operation_id = "show_overview", tag = "server", responses((status = 200, body = Overview), AuthErrors))]
pub(super) async fn show(view: View) -> Json<Overview> {
    Json(of(&view))
}

/// Returns the summary visible to the caller.
pub(super) fn of(view: &View) -> Overview {
    let View { context, access } = view;
    let (started_at, now) = (unix_seconds(context.started), unix_seconds(SystemTime::now()));
    let server = ServerInfo {
        version: env!("CARGO_PKG_VERSION"),
        started_at,
        uptime_seconds: (now - started_at).max(0.0),
        now,
        draining: context.services.drain.is_draining(),
        grpc: context.location.clone(),
        can_administer: access.check_admin().is_ok(),
    };
    let (instant, readout) = (Instant::now(), resources::read_metrics(context));
    let sessions = running(view);
    let observer = &context.observer;
    let judgement = observer.judge(&sessions, instant);
    let cost = context.observer.gpu_hour_cost().map(|gpu_hour_cost| {
        let compute =
            |session| observer.judge(std::slice::from_ref(session), instant).verdict.compute_fraction;
        let idle = sessions.iter().filter_map(|session| Some(1.0 - compute(session)?));
        let idle_total = context.services.sessions.idle().as_secs_f64() / 3600.0 * gpu_hour_cost;
        Cost { gpu_hour_cost, idle_per_hour: idle.sum::<f64>() * gpu_hour_cost, idle_total }
    });
    Overview {
        server,
        pipeline: stages(context, judgement.verdict.bottleneck),
        verdict: Verdict::new(&judgement, || observer.facts(&sessions)),
        jobs: jobs(&sessions, observer, instant),
        cache: resources::tiers(&readout, context),
        process: resources::process(&readout),
        cost,
    }
}
