//! For whoever keeps the server running: whether it lives, whether it is ready, and its metrics.

use std::collections::BTreeMap;

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Ops,
    answer::{Refusal, Refused},
    metrics, sampled,
};
use crate::{datasets::Phase, door::Access};

/// Whether trainers may come, and what they have to wait for. Datasets are named to those who may read them.
#[derive(Serialize, ToSchema)]
pub(super) struct Readiness {
    ready: bool,
    draining: bool,
    /// Datasets that are opened for the first time.
    opening: Vec<String>,
    /// Datasets that are being made ready to be looked up.
    preparing: Vec<String>,
    /// Datasets that can't be opened, and why.
    failed: BTreeMap<String, String>,
}

/// Whether the process lives.
#[utoipa::path(get, path = "/livez", operation_id = "alive", tag = "probes", responses((status = 200, description = "It does.", body = String)))]
pub(super) async fn alive() -> &'static str {
    "alive\n"
}

/// Whether every dataset has been tried once, opened or not, and the server does not stop.
#[utoipa::path(
    get, path = "/readyz", operation_id = "ready", tag = "probes",
    responses((status = 200, body = Readiness), (status = 503, description = "Not yet, or no more.", body = Readiness)),
)]
pub(super) async fn ready(State(ops): State<Ops>, headers: HeaderMap) -> (StatusCode, Json<Readiness>) {
    let (mut opening, mut preparing, mut failed) = (Vec::new(), Vec::new(), BTreeMap::new());
    let named = ops.door.admit(&headers).map(|access| ops.datasets.list(&access)).unwrap_or_default();
    for dataset in named {
        if ops.online.unready().any(|name| name == dataset.name) {
            preparing.push(dataset.name.clone());
        }
        match dataset.phase {
            Phase::Opening { .. } => opening.push(dataset.name),
            Phase::Failed(error) => {
                failed.insert(dataset.name, error.to_string());
            }
            Phase::Open(_) => {}
        }
    }
    let draining = ops.guard.is_draining();
    let ready = ops.datasets.all_tried() && ops.online.unready().next().is_none() && !draining;
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready, draining, opening, preparing, failed }))
}

/// The metrics, for Prometheus. They are of all datasets together, and for those who may read all.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "probes",
    responses((status = 200, description = "Prometheus text, version 0.0.4.", body = String), Refused),
)]
pub(super) async fn scrape(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
) -> Result<Response, Refusal> {
    access.check_everything()?;
    sampled::sample(&ops);
    let text = metrics::render(&ops.recorder);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
