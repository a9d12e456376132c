//! HTTP: the page, the API, the probes and the metrics.
//!
//! ```text
//! listener --> counted --> gate --> admit --> page | api --+-- queues, frontier
//!              RED         hosts,   tokens,                +-- datasets, events, sessions, overview
//!                          sites    admins                 +-- live     state and events as they come
//!                                                          +-- openapi  says so itself
//! ```
//!
//! - `answer`: refusals in words, and what is read of a request.
//! - `state`: what the page shows; the parts of it are what the API's routes answer.

mod admit;
mod answer;
mod catalog;
mod counted;
mod datasets;
mod events;
mod explain;
mod frontier;
mod gate;
mod lag;
mod listener;
mod live;
mod measured;
mod metrics;
mod openapi;
mod overview;
mod page;
mod probes;
mod process;
mod queues;
mod sampled;
mod sessions;
mod state;

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
    datasets::Datasets, door::Door, events::Events, explain::Explainer, flight::Guard,
    online::OnlineDatasets, queues::Queues, sessions::Sessions, stalls::Observer,
};

pub(crate) use gate::Gate;
pub(crate) use lag::measure as measure_lag;
pub(crate) use listener::serve;
pub(crate) use live::Live;
pub(crate) use measured::Measured;
pub(crate) use metrics::install as install_metrics;

/// How long it may take to read a request; what it takes to answer has limits of its own.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// What the HTTP routes look at. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ops {
    pub(crate) datasets: Datasets,
    pub(crate) sessions: Sessions,
    pub(crate) observer: Observer,
    pub(crate) loader: Loader,
    pub(crate) online: OnlineDatasets,
    pub(crate) explainer: Explainer,
    pub(crate) queues: Queues,
    pub(crate) events: Events,
    pub(crate) guard: Guard,
    pub(crate) door: Door,
    pub(crate) gate: Gate,
    pub(crate) live: Arc<Live>,
    pub(crate) recorder: PrometheusHandle,
    pub(crate) grpc: crate::Address,
    pub(crate) tls: bool,
    pub(crate) started: SystemTime,
    /// The longest time that an answer may take.
    pub(crate) explain_timeout: Duration,
    /// Largest body of a request, which may be a ticket.
    pub(crate) max_request_bytes: usize,
}

/// All routes. The probes are for whoever keeps the server running; everything else, unknown paths included, is behind the door.
pub(crate) fn router(ops: Ops) -> Router {
    let openapi::Routes { probes, api, .. } = openapi::routes();
    let behind_the_door = api
        .merge(page::routes())
        .fallback(answer::no_such_route)
        .method_not_allowed_fallback(answer::no_such_method)
        .layer(from_fn_with_state(ops.door.clone(), admit::admit));
    probes
        .method_not_allowed_fallback(answer::no_such_method)
        .merge(behind_the_door)
        .layer(DefaultBodyLimit::max(ops.max_request_bytes))
        .layer(from_fn_with_state(READ_TIMEOUT.saturating_add(ops.explain_timeout), answer::in_time))
        .layer(from_fn_with_state(ops.gate, gate::pass))
        .layer(from_fn(counted::count))
        .with_state(ops)
}
