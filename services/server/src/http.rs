//! HTTP: the dashboard, the API, the probes and the metrics.
//!
//! ```text
//! listener --> http_metrics --> host_check --> authorize --> page | API --+-- queues, datasets, events, sessions, overview,
//!              rate, errors,    Host header,   tokens,                    |   explain, members
//!              duration         other sites    administrators             +-- live: state and events as server-sent events
//!                                                                         +-- openapi: description of all routes
//! ```
//!
//! - `context`: the state of the routes, and what a handler needs for one caller.
//! - `response`: errors as JSON, and parsing of requests.
//! - `subscribers`: the state that the subscribers of `live` share.
//! - `state`: everything that the dashboard shows; its parts are the responses of the routes.
//! - `resources`, `stages`, `queue_schema`, `sessions/schema`: JSON of cache tiers, pipeline stages, queues and sessions.

mod authorize;
mod callers;
mod context;
mod datasets;
mod events;
mod explain;
mod host_check;
mod http_metrics;
mod live;
mod members;
mod openapi;
mod overview;
mod page;
mod probes;
mod queue_schema;
mod queues;
mod resources;
mod response;
mod scrape_gauges;
mod sessions;
mod stages;
mod state;
mod subscribers;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn, from_fn_with_state},
};
use tokio::runtime::Handle;

use crate::http_runtime::on_io_threads;

pub(crate) use context::Context;
pub(crate) use host_check::HostCheck;
pub(crate) use subscribers::Subscribers;

/// Returns the router. The health probes need no token, and are answered on the thread of the connection. All other routes, unknown
/// paths included, are authenticated, and are handled on the runtime that calls this function.
pub(crate) fn router(context: Arc<Context>, host_check: HostCheck) -> Router {
    let limits = &context.services.limits;
    // An explanation is queued for at most its timeout.
    let explain_time = limits.explain_timeout.saturating_mul(2);
    let openapi::Routes { probes, api, .. } = openapi::routes();
    let authenticated_routes = api
        .merge(page::routes())
        .fallback(response::unknown_route)
        .method_not_allowed_fallback(response::unknown_method)
        .layer(from_fn_with_state(Arc::clone(&context), authorize::authorize))
        .layer(from_fn_with_state(Handle::current(), on_io_threads));
    probes
        .method_not_allowed_fallback(response::unknown_method)
        .merge(authenticated_routes)
        .layer(DefaultBodyLimit::max(limits.max_request_bytes))
        .layer(from_fn_with_state(
            limits.request_timeout.saturating_add(explain_time),
            response::with_timeout,
        ))
        .layer(from_fn_with_state(host_check, host_check::check))
        .layer(from_fn(http_metrics::record))
        .with_state(context)
}
