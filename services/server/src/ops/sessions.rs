//! `/api/v1/sessions`: the batch streams that are running.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::{Extension, Json, extract::State};
use forebay_proto::v1::ReportRequest;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Ops,
    answer::{Parameters, Refused},
};
use crate::{door::Access, sessions::Session};

/// Sessions of an answer if the request does not say, and of a state.
pub(super) const DEFAULT_LIMIT: usize = 100;

/// Which sessions are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// At most so many, the oldest first. Default: 100.
    limit: Option<usize>,
}

/// Streams that are running.
#[derive(Serialize, ToSchema)]
pub(super) struct SessionList {
    /// That the caller may know of, listed or not.
    total: u64,
    /// The oldest first.
    sessions: Vec<SessionInfo>,
}

/// A stream that is running.
#[derive(Serialize, ToSchema)]
#[schema(as = Session)]
struct SessionInfo {
    /// As the trainer calls it; may be empty.
    job: String,
    dataset: String,
    snapshot: String,
    rank: u64,
    world_size: u64,
    lanes: u64,
    wall_seconds: f64,
    /// Of the last batch that was sent.
    epoch: u64,
    /// Of the last batch that was sent.
    step: u64,
    /// That were sent.
    batches: u64,
    /// That will be sent in all.
    batches_total: u64,
    /// That were sent.
    rows: u64,
    /// That were sent.
    bytes: u64,
    /// Whether the trainer reports how it spends its time.
    reports: bool,
    /// What it reported last.
    #[schema(required)]
    client: Option<ClientShares>,
}

/// How a trainer spends its time, as shares of it.
#[derive(Serialize, ToSchema)]
struct ClientShares {
    /// Waiting for batches.
    wait: f64,
    /// Computing, and asking for nothing.
    compute: f64,
    /// Copying to its device.
    copy: f64,
}

/// The batch streams of datasets that the caller may read.
#[utoipa::path(
    get, path = "/api/v1/sessions", operation_id = "list_sessions", tag = "sessions",
    params(Which), responses((status = 200, body = SessionList), Refused),
)]
pub(super) async fn list(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Parameters(which): Parameters<Which>,
) -> Json<SessionList> {
    Json(of(&ops, &access, which.limit.unwrap_or(DEFAULT_LIMIT)))
}

/// The oldest `limit` that `access` may know of.
pub(super) fn of(ops: &Ops, access: &Access, limit: usize) -> SessionList {
    let mut running = ops.sessions.list();
    running.retain(|session| access.may_read(&session.train.dataset));
    let sessions = running.iter().take(limit).map(|session| shown(session)).collect();
    SessionList { total: running.len() as u64, sessions }
}

fn shown(session: &Session) -> SessionInfo {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (train, report) = (&session.train, session.report());
    SessionInfo {
        job: train.job.clone(),
        dataset: train.dataset.clone(),
        snapshot: train.snapshot.clone(),
        rank: train.rank(),
        world_size: train.world_size.unwrap_or(1),
        lanes: train.lanes.unwrap_or(1),
        wall_seconds: session.started.elapsed().as_secs_f64(),
        epoch: count(&session.epoch),
        step: count(&session.step),
        batches: count(&session.batches_sent),
        batches_total: session.batches,
        rows: count(&session.rows_sent),
        bytes: count(&session.bytes_sent),
        reports: report.is_some(),
        client: report.as_ref().map(shares),
    }
}

fn shares(report: &ReportRequest) -> ClientShares {
    let share = |seconds: f64| seconds / report.seconds.max(1e-3);
    ClientShares {
        wait: share(report.wait_seconds),
        compute: share(report.compute_seconds),
        copy: share(report.copy_seconds),
    }
}
