//! `/api/v1/events`: what happened lately.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Ops,
    answer::{Parameters, Refused},
};
use crate::{door::Access, events::Event};

/// Events of an answer if the request does not say.
const DEFAULT_LIMIT: usize = 200;

/// Which events are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Which {
    /// Those after the one with this number, the first ones if there are more than `limit`. Without it, the last ones.
    after: Option<u64>,
    /// At most so many. Default: 200; there are never more than `limits.max_events`.
    limit: Option<usize>,
}

/// What happened.
#[derive(Serialize, ToSchema)]
pub(super) struct EventList {
    /// The newest last.
    #[schema(value_type = Vec<Event>)]
    events: Vec<Arc<Event>>,
}

/// What happened to what the caller may read.
#[utoipa::path(
    get, path = "/api/v1/events", operation_id = "list_events", tag = "events",
    params(Which), responses((status = 200, body = EventList), Refused),
)]
pub(super) async fn list(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Parameters(which): Parameters<Which>,
) -> Json<EventList> {
    let limit = which.limit.unwrap_or(DEFAULT_LIMIT);
    let mut events = ops.events.after(which.after.unwrap_or(0), &access);
    if which.after.is_none() {
        events.drain(..events.len().saturating_sub(limit));
    }
    events.truncate(limit);
    Json(EventList { events })
}
