//! Liveness and readiness probes, and the metrics.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use forebay_inference::Progress;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Context,
    context::View,
    response::{AuthErrors, Rejection},
    scrape_gauges,
};
use crate::{readiness, registry::datasets::Phase, services::Services, telemetry::recorder};

/// Readiness of the server. Datasets are listed only for callers that may read them.
#[derive(Serialize, ToSchema)]
pub(super) struct Readiness {
    /// True if the server accepts new work.
    ready: bool,
    /// True if the server is shutting down.
    draining: bool,
    /// True while the files that an earlier server left in the disk cache are being found. Until then the disk cache is not used.
    recovering_cache: bool,
    /// False while no call of this server to its own name (`advertise`) has reached it. Always true without `members`.
    reachable: bool,
    /// Conditions that the server waits for before it accepts new work, also if the caller may not read the datasets; empty if it is ready.
    waiting_for: Vec<String>,
    /// Names of datasets that are being opened for the first time.
    opening: Vec<String>,
    /// Names of datasets whose lookup index is being built for the first time.
    preparing: Vec<String>,
    /// Reason of the failure of each dataset that cannot be opened or loaded for lookups, by the name of the dataset.
    failed: BTreeMap<String, String>,
    /// Reason for each dataset of which an earlier snapshot is served, by the name of the dataset: the files could not be listed again, or
    /// the current snapshot cannot be loaded for lookups or was rejected. The server is ready nevertheless.
    outdated: BTreeMap<String, String>,
}

/// Liveness probe: succeeds while the process runs.
#[utoipa::path(get, path = "/livez", operation_id = "alive", tag = "probes", responses((status = 200, description = "The process is alive.", body = String)))]
pub(super) async fn alive() -> &'static str {
    "alive\n"
}

/// Readiness probe: succeeds once the server has recovered the disk cache, has tried to open every dataset and to load every dataset
/// with lookups, and was reached at its name if it is a member of a cluster, until it is about to shut down.
#[utoipa::path(
    get, path = "/readyz", operation_id = "ready", tag = "probes",
    responses((status = 200, description = "The server accepts new work.", body = Readiness), (status = 503, description = "The server is starting or shutting down.", body = Readiness)),
)]
pub(super) async fn ready(
    State(context): State<Arc<Context>>,
    headers: HeaderMap,
) -> (StatusCode, Json<Readiness>) {
    let (mut opening, mut preparing) = (Vec::new(), Vec::new());
    let (mut failed, mut outdated) = (BTreeMap::new(), BTreeMap::new());
    let Services { datasets, loader, online, members, drain, .. } = &context.services;
    let access = context.authenticator.authenticate(&headers);
    let named = access.map(|access| datasets.list(&access)).unwrap_or_default();
    for dataset in named {
        if let Some(Progress { ready, error, .. }) = online.get(&dataset.name).map(|online| online.progress())
        {
            match (ready, error) {
                (None, Some(error)) => drop(failed.insert(dataset.name.clone(), error)),
                (None, None) => preparing.push(dataset.name.clone()),
                (Some(_), Some(error)) => drop(outdated.insert(dataset.name.clone(), error)),
                (Some(_), None) => {}
            }
        }
        match dataset.phase {
            Phase::Opening { .. } => opening.push(dataset.name),
            Phase::Failed(error) => {
                failed.insert(dataset.name, error.to_string());
            }
            Phase::Open(_) => {
                if let Some(error) = dataset.refresh_error {
                    outdated.entry(dataset.name).or_insert(error);
                }
            }
        }
    }
    let waiting_for = readiness::unready(&context.services);
    let (draining, ready) = (drain.is_leaving(), waiting_for.is_empty());
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let recovering_cache = !loader.is_recovered();
    let reachable = members.is_reachable();
    (
        status,
        Json(Readiness {
            ready,
            draining,
            recovering_cache,
            reachable,
            waiting_for,
            opening,
            preparing,
            failed,
            outdated,
        }),
    )
}

/// Returns the metrics in the Prometheus text format. The caller must be allowed to read all datasets.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "probes",
    responses((status = 200, description = "Metrics in the Prometheus text format, version 0.0.4.", body = String), AuthErrors),
)]
pub(super) async fn scrape(View { context, access }: View) -> Result<Response, Rejection> {
    access.check_all_datasets()?;
    scrape_gauges::update(&context);
    let text = recorder::render(&context.recorder);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}
