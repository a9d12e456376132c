//! HTTP: the page, the probes and the metrics.

mod metrics;
mod page;

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{Html, IntoResponse},
    routing::get,
};
use forebay_loader::Loader;
use metrics_exporter_prometheus::PrometheusHandle;

use crate::{
    datasets::{Datasets, Phase},
    flight::Guard,
    sessions::Sessions,
};

pub(crate) use metrics::install as install_metrics;

/// What the HTTP routes look at. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ops {
    pub(crate) datasets: Datasets,
    pub(crate) sessions: Sessions,
    pub(crate) loader: Loader,
    pub(crate) guard: Guard,
    pub(crate) recorder: PrometheusHandle,
    pub(crate) grpc: crate::Address,
}

pub(crate) fn router(ops: Ops) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/metrics", get(scrape))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(ops)
}

async fn page(State(ops): State<Ops>) -> impl IntoResponse {
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(page::render(&ops)))
}

async fn scrape(State(ops): State<Ops>) -> impl IntoResponse {
    ops.recorder.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], ops.recorder.render())
}

/// 200 once every dataset has been tried once, whether or not it could be opened; 503 while draining.
async fn ready(State(ops): State<Ops>) -> impl IntoResponse {
    let (mut opening, mut failed) = (Vec::new(), serde_json::Map::new());
    for dataset in ops.datasets.list() {
        match dataset.phase {
            Phase::Opening { .. } => opening.push(dataset.name),
            Phase::Failed(error) => {
                failed.insert(dataset.name, error.to_string().into());
            }
            Phase::Open(_) => {}
        }
    }
    let draining = ops.guard.is_draining();
    let ready = ops.datasets.all_tried() && !draining;
    let body = serde_json::json!({
        "ready": ready, "draining": draining, "opening": opening, "failed": failed,
    });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body))
}
