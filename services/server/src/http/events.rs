//! `/api/v1/events`: recent operational events.

use std::sync::Arc;

use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    context::View,
    response::{AuthErrors, Parameters},
};
use crate::events::Event;

/// Default number of events per response.
const DEFAULT_LIMIT: usize = 200;

/// Selection of events.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventQuery {
    /// Id of an event: returns the first `limit` events after it. Default: none, returns the last `limit` events.
    after: Option<u64>,
    /// Maximum number of events to return. The server keeps the last `limits.max_events` events. Default: 200.
    limit: Option<usize>,
}

/// List of events.
#[derive(Serialize, ToSchema)]
pub(super) struct EventList {
    /// Events, oldest first.
    #[schema(value_type = Vec<Event>)]
    events: Vec<Arc<Event>>,
}

/// Lists recent events of the server and of the datasets and queues that the caller may read.
#[utoipa::path(
    get, path = "/api/v1/events", operation_id = "list_events", tag = "events",
    params(EventQuery), responses((status = 200, body = EventList), AuthErrors),
)]
pub(super) async fn list(view: View, Parameters(query): Parameters<EventQuery>) -> Json<EventList> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    let mut events = view.context.services.events.after(query.after.unwrap_or(0), &view.access);
    if query.after.is_none() {
        events.drain(..events.len().saturating_sub(limit));
    }
    events.truncate(limit);
    Json(EventList { events })
}
