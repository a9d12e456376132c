//! `/api/v1/overview`: the server at a glance.

use std::time::{Instant, SystemTime};

use axum::{Extension, Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Ops,
    answer::Refused,
    measured::{Measured, Process, Tier},
    sessions::running,
};
use crate::{
    Address,
    door::Access,
    events::unix_seconds,
    stalls::{StageAnswer, VerdictAnswer},
};

/// The server at a glance.
#[derive(Serialize, ToSchema)]
pub(super) struct Overview {
    server: ServerInfo,
    /// Over the trainers of datasets that the caller may read.
    verdict: VerdictAnswer,
    /// The stages that rows go through, the store's end first; for all trainers.
    pipeline: Vec<StageAnswer>,
    /// Memory, and disk if there is one.
    cache: Vec<Tier>,
    /// Null where the system does not tell.
    #[schema(required)]
    process: Option<Process>,
    /// Null unless the server was told what a GPU costs.
    #[schema(required)]
    cost: Option<Cost>,
}

/// What it costs that trainers wait.
#[derive(Serialize, ToSchema)]
struct Cost {
    /// Of one GPU, in whatever money it was told in.
    gpu_hour_cost: f64,
    /// An hour of waiting as of now, all trainers together that report.
    idle_per_hour: f64,
    /// Since the start.
    idle_total: f64,
}

/// Which server this is.
#[derive(Serialize, ToSchema)]
struct ServerInfo {
    version: &'static str,
    /// Unix seconds.
    started_at: f64,
    uptime_seconds: f64,
    /// Unix seconds, by the server's clock.
    now: f64,
    /// Whether it stops.
    draining: bool,
    /// Where a Flight client connects to.
    grpc: String,
    /// Whether the caller may change how it works.
    admin: bool,
}

/// The server at a glance.
#[utoipa::path(get, path = "/api/v1/overview", operation_id = "show_overview", tag = "server", responses((status = 200, body = Overview), Refused))]
pub(super) async fn show(State(ops): State<Ops>, Extension(access): Extension<Access>) -> Json<Overview> {
    Json(of(&ops, &access))
}

/// As `access` may see it.
pub(super) fn of(ops: &Ops, access: &Access) -> Overview {
    let (started_at, now) = (unix_seconds(ops.started), unix_seconds(SystemTime::now()));
    let server = ServerInfo {
        version: env!("CARGO_PKG_VERSION"),
        started_at,
        uptime_seconds: (now - started_at).max(0.0),
        now,
        draining: ops.guard.is_draining(),
        grpc: location(ops),
        admin: access.check_admin().is_ok(),
    };
    let (instant, measured) = (Instant::now(), Measured::now(ops));
    let sessions = running(ops, access);
    let verdict = ops.observer.verdict(&sessions, instant);
    let cost = ops.observer.gpu_hour_cost().map(|gpu_hour_cost| {
        let idle = sessions.iter().filter_map(|session| Some(1.0 - session.verdict(instant).0.utilization?));
        let idle_total = ops.sessions.idle().as_secs_f64() / 3600.0 * gpu_hour_cost;
        Cost { gpu_hour_cost, idle_per_hour: idle.sum::<f64>() * gpu_hour_cost, idle_total }
    });
    Overview {
        server,
        pipeline: ops.observer.stages(verdict.limit),
        verdict,
        cache: measured.tiers(ops),
        process: measured.process(),
        cost,
    }
}

/// How a Flight client spells it.
fn location(ops: &Ops) -> String {
    match &ops.grpc {
        Address::Tcp(address) if ops.tls => format!("grpc+tls://{address}"),
        Address::Tcp(address) => format!("grpc://{address}"),
        Address::Unix(path) => format!("grpc+unix://{}", path.display()),
    }
}
