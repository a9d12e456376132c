//! `/api/v1/sessions` and `/api/v1/stalls`: training sessions, and the time of their trainers by bucket.

mod advice;
mod ranks;
mod schema;

use std::{sync::Arc, time::Instant};

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    context::View,
    response::{AuthErrors, Parameters, PathParameter, Problem, Rejection},
};
use crate::{
    Error,
    sessions::{KEPT_SECONDS, Session},
};

pub(super) use ranks::{JobInfo, jobs};
use schema::SessionInfo;
pub(super) use schema::{Stalls, Verdict};

/// Default number of sessions per response, and number of sessions in `State`.
pub(super) const DEFAULT_LIMIT: usize = 100;
/// Largest number of sessions per response.
const MAX_LIMIT: usize = 1000;
/// Default number of seconds of a time series.
const DEFAULT_SECONDS: usize = 300;

/// Selection of sessions.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionQuery {
    /// Maximum number of sessions to return, at most 1,000; larger values count as 1,000. Default: 100.
    limit: Option<usize>,
    /// Id of a session, which may have ended within the last minute: returns the sessions that started after it. Default: none,
    /// returns the oldest sessions.
    after: Option<String>,
}

/// Sessions with open streams.
#[derive(Serialize, ToSchema)]
pub(super) struct SessionList {
    /// Number of running sessions that the caller may see, including those not listed.
    total: u64,
    /// Sessions, oldest first.
    sessions: Vec<SessionInfo>,
}

/// A session, and the recent time of its trainer by bucket.
#[derive(Serialize, ToSchema)]
pub(super) struct SessionDetails {
    #[serde(flatten)]
    session: SessionInfo,
    /// Time of the trainer by bucket in each of the last 300 seconds.
    stalls: Stalls,
}

/// Selection of a time range and of sessions.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TimeRange {
    /// Number of most recent whole seconds to return, at most 600; larger values count as 600. Default: 300.
    seconds: Option<usize>,
    /// Id of a session, which may have ended within the last minute; restricts the result to this session and takes precedence over
    /// `job_name`. Default: none, all sessions.
    session: Option<String>,
    /// Name of a job; restricts the result to its sessions. Default: none, all jobs.
    job_name: Option<String>,
}

/// Lists running sessions of datasets that the caller may read. A session comprises all open streams of one trainer.
#[utoipa::path(
    get, path = "/api/v1/sessions", operation_id = "list_sessions", tag = "sessions",
    params(SessionQuery), responses((status = 200, body = SessionList), AuthErrors),
)]
pub(super) async fn list(
    view: View,
    Parameters(query): Parameters<SessionQuery>,
) -> Result<Json<SessionList>, Rejection> {
    let after = query.after.map(|id| find(&view, &id)).transpose()?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    Ok(Json(of(&view, limit, after.as_deref())))
}

/// Returns a session, and the time of its trainer by bucket, second by second. A session remains available for a minute after its
/// end.
#[utoipa::path(
    get, path = "/api/v1/sessions/{id}", operation_id = "show_session", tag = "sessions",
    params(("id" = String, Path, description = "Id of the session, 16 hexadecimal digits.")),
    responses(
        (status = 200, body = SessionDetails),
        (status = 404, description = "The session is unknown or has ended.", body = Problem),
        AuthErrors,
    ),
)]
pub(super) async fn show(
    view: View,
    PathParameter(id): PathParameter,
) -> Result<Json<SessionDetails>, Rejection> {
    let found = find(&view, &id)?;
    let now = Instant::now();
    let session = SessionInfo::new(&found, now, &view.context.observer);
    let stalls = Stalls::new([found.history(now, DEFAULT_SECONDS)]);
    Ok(Json(SessionDetails { session, stalls }))
}

/// Returns the time of trainers by bucket, second by second: of all sessions, or of one session or job.
#[utoipa::path(
    get, path = "/api/v1/stalls", operation_id = "show_stalls", tag = "sessions",
    params(TimeRange),
    responses(
        (status = 200, body = Stalls),
        (status = 404, description = "The session is unknown or has ended.", body = Problem),
        AuthErrors,
    ),
)]
pub(super) async fn stalls(
    view: View,
    Parameters(time): Parameters<TimeRange>,
) -> Result<Json<Stalls>, Rejection> {
    let seconds = time.seconds.unwrap_or(DEFAULT_SECONDS).min(KEPT_SECONDS);
    if let Some(id) = time.session {
        let history = find(&view, &id)?.history(Instant::now(), seconds);
        return Ok(Json(Stalls::new([history])));
    }
    Ok(Json(stalls_of(&view, seconds, time.job_name.as_deref())))
}

/// Returns the `limit` oldest running sessions visible to the caller that started after `after`.
pub(super) fn of(view: &View, limit: usize, after: Option<&Session>) -> SessionList {
    let (running, now) = (running(view), Instant::now());
    let start = after.map_or(0, |after| {
        running.partition_point(|session| (session.started, session.id) <= (after.started, after.id))
    });
    let listed = running.iter().skip(start).take(limit);
    let sessions = listed.map(|session| SessionInfo::new(session, now, &view.context.observer)).collect();
    SessionList { total: running.len() as u64, sessions }
}

/// Returns the time by bucket of the sessions visible to the caller, or of those of one job.
pub(super) fn stalls_of(View { context, access }: &View, seconds: usize, job_name: Option<&str>) -> Stalls {
    let (sessions, now) = (&context.services.sessions, Instant::now());
    if access.check_all_datasets().is_ok() && job_name.is_none() {
        // The history of all sessions includes those that ended.
        return Stalls::new([sessions.history(now, seconds)]);
    }
    let mut sessions = sessions.list(true);
    sessions.retain(|session| session.is_visible_to(access));
    sessions.retain(|session| job_name.is_none_or(|name| session.train.job_name == name));
    Stalls::new(sessions.iter().map(|session| session.history(now, seconds)))
}

/// Returns the running sessions visible to the caller, oldest first.
pub(super) fn running(view: &View) -> Vec<Arc<Session>> {
    let mut running = view.context.services.sessions.list(false);
    running.retain(|session| session.is_visible_to(&view.access));
    running
}

fn find(View { context, access }: &View, id: &str) -> Result<Arc<Session>, Rejection> {
    let unknown = || Rejection::from(Error::not_found(format!("session '{id}' is unknown or has ended")));
    let known = u64::from_str_radix(id, 16).ok().filter(|_| id.len() == 16);
    let found = known.and_then(|id| context.services.sessions.get(id)).ok_or_else(unknown)?;
    if found.is_visible_to(access) { Ok(found) } else { Err(unknown()) }
}
