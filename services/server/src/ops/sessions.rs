//! `/api/v1/sessions` and `/api/v1/stalls`: the trainers, and where their time goes.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension, Json,
    extract::{Path, State},
    http::StatusCode,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Ops,
    answer::{Parameters, Problem, Refusal, Refused},
};
use crate::{
    door::Access,
    sessions::{KEPT_SECONDS, Session},
    stalls::{SessionAnswer, StallsAnswer},
};

/// Sessions of an answer if the request does not say, and of a state.
pub(super) const DEFAULT_LIMIT: usize = 100;
/// Most sessions of an answer.
const MAX_LIMIT: usize = 1000;
/// Seconds of an answer if the request does not say.
const DEFAULT_SECONDS: usize = 300;

/// Which sessions are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// At most so many, the oldest first. Default: 100; at most 1,000.
    limit: Option<usize>,
    /// Those after the one with this id. It may have ended meanwhile, within a minute.
    after: Option<String>,
}

/// Trainers with running streams.
#[derive(Serialize, ToSchema)]
pub(super) struct SessionList {
    /// That the caller may know of, listed or not.
    total: u64,
    /// The oldest first.
    sessions: Vec<SessionAnswer>,
}

/// A session, and where its time went of late.
#[derive(Serialize, ToSchema)]
pub(super) struct SessionInFull {
    #[serde(flatten)]
    session: SessionAnswer,
    stalls: StallsAnswer,
}

/// Which time is wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Time {
    /// The last so many whole seconds. Default: 300; at most 600.
    seconds: Option<usize>,
    /// Of this session alone, by its id.
    session: Option<String>,
    /// Of the sessions of this job alone.
    job: Option<String>,
}

/// The trainers of datasets that the caller may read, one session each: all streams that a trainer has open.
#[utoipa::path(
    get, path = "/api/v1/sessions", operation_id = "list_sessions", tag = "sessions",
    params(Which), responses((status = 200, body = SessionList), Refused),
)]
pub(super) async fn list(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Parameters(which): Parameters<Which>,
) -> Result<Json<SessionList>, Refusal> {
    let after = which.after.map(|id| find(&ops, &access, &id)).transpose()?;
    let limit = which.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    Ok(Json(of(&ops, &access, limit, after.as_deref())))
}

/// One session, also one that ended within the last minute, and where its time went.
#[utoipa::path(
    get, path = "/api/v1/sessions/{id}", operation_id = "show_session", tag = "sessions",
    params(("id" = String, Path, description = "16 hexadecimal digits.")),
    responses(
        (status = 200, body = SessionInFull),
        (status = 404, description = "There is no such session, or it ended.", body = Problem),
        Refused,
    ),
)]
pub(super) async fn show(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Path(id): Path<String>,
) -> Result<Json<SessionInFull>, Refusal> {
    let found = find(&ops, &access, &id)?;
    let now = Instant::now();
    let session = SessionAnswer::new(&found, now, &ops.observer.facts());
    let stalls = StallsAnswer::new([found.history(now, DEFAULT_SECONDS)]);
    Ok(Json(SessionInFull { session, stalls }))
}

/// Where the time of all trainers went, second by second, or that of one session or job.
#[utoipa::path(
    get, path = "/api/v1/stalls", operation_id = "show_stalls", tag = "sessions",
    params(Time),
    responses(
        (status = 200, body = StallsAnswer),
        (status = 404, description = "There is no such session, or it ended.", body = Problem),
        Refused,
    ),
)]
pub(super) async fn stalls(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Parameters(time): Parameters<Time>,
) -> Result<Json<StallsAnswer>, Refusal> {
    let seconds = time.seconds.unwrap_or(DEFAULT_SECONDS).min(KEPT_SECONDS);
    if let Some(id) = time.session {
        let history = find(&ops, &access, &id)?.history(Instant::now(), seconds);
        return Ok(Json(StallsAnswer::new([history])));
    }
    Ok(Json(stalls_of(&ops, &access, seconds, time.job.as_deref())))
}

/// The oldest `limit` that `access` may know of, after that one.
pub(super) fn of(ops: &Ops, access: &Access, limit: usize, after: Option<&Session>) -> SessionList {
    let (running, facts, now) = (running(ops, access), ops.observer.facts(), Instant::now());
    let begins = after.map_or(0, |after| {
        running.partition_point(|session| (session.started, session.id) <= (after.started, after.id))
    });
    let listed = running.iter().skip(begins).take(limit);
    let sessions = listed.map(|session| SessionAnswer::new(session, now, &facts)).collect();
    SessionList { total: running.len() as u64, sessions }
}

/// Where the time of those that `access` may know of went.
pub(super) fn stalls_of(ops: &Ops, access: &Access, seconds: usize, job: Option<&str>) -> StallsAnswer {
    let now = Instant::now();
    if access.check_everything().is_ok() && job.is_none() {
        // Those that ended are in it.
        return StallsAnswer::new([ops.sessions.history(now, seconds)]);
    }
    let mut sessions = ops.sessions.list(true);
    sessions.retain(|session| access.may_read(&session.train.dataset));
    sessions.retain(|session| job.is_none_or(|job| session.train.job == job));
    StallsAnswer::new(sessions.iter().map(|session| session.history(now, seconds)))
}

/// The trainers with streams that `access` may know of, the oldest first.
pub(super) fn running(ops: &Ops, access: &Access) -> Vec<Arc<Session>> {
    let mut running = ops.sessions.list(false);
    running.retain(|session| access.may_read(&session.train.dataset));
    running
}

fn find(ops: &Ops, access: &Access, id: &str) -> Result<Arc<Session>, Refusal> {
    let none = || Refusal::new(StatusCode::NOT_FOUND, format!("there is no session '{id}', or it ended"));
    let known = u64::from_str_radix(id, 16).ok().filter(|_| id.len() == 16);
    let found = known.and_then(|id| ops.sessions.get(id)).ok_or_else(none)?;
    if access.may_read(&found.train.dataset) { Ok(found) } else { Err(none()) }
}
