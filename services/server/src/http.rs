//! HTTP: the dashboard, the API, the probes and the metrics.
//!
//! ```text
//! listener --> http_metrics --> host_check --> authorize --> page | API --+-- queues, throughput_latency
//!              rate, errors,    Host header,   tokens,                    +-- datasets, events, sessions, overview, explain
//!              duration         other sites    administrators             +-- live: state and events as server-sent events
//!                                                                         +-- openapi: description of all routes
//! ```
//!
//! - `response`: errors as JSON, and parsing of requests.
//! - `state`: everything that the dashboard shows; its parts are the responses of the routes.
//! - `resources`, `queue_schema`, `sessions/schema`: JSON of cache tiers, queues and sessions.

mod authorize;
mod datasets;
mod events;
mod explain;
mod host_check;
mod http_metrics;
mod listener;
mod live;
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
mod state;
mod throughput_latency;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn, from_fn_with_state},
};
use forebay_loader::Loader;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::{
    auth::Authenticator, drain::Drain, events::Events, explainer::Explainer, registry::datasets::Datasets,
    registry::online::OnlineDatasets, registry::queues::Queues, sessions::Sessions, stalls::Observer,
};

pub(crate) use host_check::HostCheck;
pub(crate) use listener::serve;
pub(crate) use live::Live;

/// Time limit for reading a request. Handlers have time limits of their own.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Components that the HTTP routes read. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) datasets: Datasets,
    pub(crate) sessions: Sessions,
    pub(crate) observer: Observer,
    pub(crate) loader: Loader,
    pub(crate) online: OnlineDatasets,
    pub(crate) explainer: Explainer,
    pub(crate) queues: Queues,
    pub(crate) events: Events,
    pub(crate) drain: Drain,
    pub(crate) authenticator: Authenticator,
    pub(crate) host_check: HostCheck,
    pub(crate) live: Arc<Live>,
    pub(crate) recorder: PrometheusHandle,
    pub(crate) grpc: crate::Address,
    pub(crate) tls: bool,
    pub(crate) started: SystemTime,
    /// Time limit for explaining a batch.
    pub(crate) explain_timeout: Duration,
    /// Largest request body in bytes; the body may be a ticket.
    pub(crate) max_request_bytes: usize,
}

/// Returns the router. The health probes need no token; all other routes, unknown paths included, are authenticated.
pub(crate) fn router(context: Context) -> Router {
    let openapi::Routes { probes, api, .. } = openapi::routes();
    let authenticated_routes = api
        .merge(page::routes())
        .fallback(response::unknown_route)
        .method_not_allowed_fallback(response::unknown_method)
        .layer(from_fn_with_state(context.authenticator.clone(), authorize::authorize));
    probes
        .method_not_allowed_fallback(response::unknown_method)
        .merge(authenticated_routes)
        .layer(DefaultBodyLimit::max(context.max_request_bytes))
        .layer(from_fn_with_state(
            READ_TIMEOUT.saturating_add(context.explain_timeout),
            response::with_timeout,
        ))
        .layer(from_fn_with_state(context.host_check, host_check::check))
        .layer(from_fn(http_metrics::record))
        .with_state(context)
}
