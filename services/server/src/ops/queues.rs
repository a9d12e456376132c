//! `/api/v1/queues`: what the queues do, and how they are tuned while they run.

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use forebay_inference::queue::{Forecast, QueueConfig, QueueStatus};
use forebay_proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Ops;
use crate::{
    door::Access,
    queues::{Served, check_batching},
};

/// A queue, for operators.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    features: &'a v1::Lookup,
    batching: QueueConfig,
    #[serde(flatten)]
    status: QueueStatus,
    /// What its settings are expected to do under the load of now.
    forecast: Option<Forecast>,
}

#[derive(Deserialize)]
pub(super) struct Tuning {
    /// Nothing is changed.
    dry_run: Option<String>,
}

/// `GET /api/v1/queues`.
pub(super) async fn list(State(ops): State<Ops>, Extension(access): Extension<Access>) -> Response {
    let queues: Vec<_> = ops.queues.list(&access).map(|(name, served)| shown(name, served)).collect();
    Json(json!({ "queues": queues })).into_response()
}

/// `GET /api/v1/queues/NAME`.
pub(super) async fn show(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Response {
    match ops.queues.get(&name, &access) {
        Ok(served) => Json(shown(&name, &served)).into_response(),
        Err(status) => refused(StatusCode::NOT_FOUND, status.message()),
    }
}

/// `PATCH /api/v1/queues/NAME[?dry_run]`: the fields of `batching` that are to be changed. The answer is `batching` as it is then,
/// and what is expected of it; with `dry_run` nothing is changed.
pub(super) async fn tune(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
    Query(tuning): Query<Tuning>,
    body: Bytes,
) -> Response {
    // Whoever tunes a queue decides for all who use it.
    if let Err(status) = access.check_everything() {
        return refused(StatusCode::FORBIDDEN, status.message());
    }
    let served = match ops.queues.get(&name, &access) {
        Ok(served) => served,
        Err(status) => return refused(StatusCode::NOT_FOUND, status.message()),
    };
    let is_dry = tuning.dry_run.is_some_and(|value| value != "false");
    let most = served.max_answer_bytes;
    let tuned = if is_dry {
        let before = served.queue.config();
        changed(&before, &body, most).map(|after| (before, after))
    } else {
        served.queue.retune(|before| changed(before, &body, most))
    };
    let (before, changed) = match tuned {
        Ok(tuned) => tuned,
        Err(why) => return refused(StatusCode::UNPROCESSABLE_ENTITY, &why),
    };
    if !is_dry {
        tracing::info!(queue = name, ?before, after = ?changed, "a queue was tuned");
    }
    let forecast = served.queue.forecast(&changed);
    let now = is_dry.then(|| served.queue.forecast(&before)).flatten();
    Json(json!({ "name": name, "dry_run": is_dry, "batching": changed, "forecast": forecast, "forecast_before": now }))
        .into_response()
}

fn shown<'a>(name: &'a str, served: &'a Served) -> Shown<'a> {
    let batching = served.queue.config();
    let forecast = served.queue.forecast(&batching);
    Shown { name, features: &served.features, status: served.queue.status(), batching, forecast }
}

/// The settings with the fields in `body` changed.
fn changed(config: &QueueConfig, body: &[u8], max_answer_bytes: u64) -> Result<QueueConfig, String> {
    let patch: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| format!("expected a JSON object: {error}"))?;
    let mut whole = serde_json::to_value(config).map_err(|error| error.to_string())?;
    let mut changed = config.clone();
    // One by one, so that an error names its field.
    for (name, value) in patch {
        whole[&name] = value;
        changed = serde_json::from_value(whole.clone()).map_err(|error| format!("{name}: {error}"))?;
    }
    check_batching(&changed, max_answer_bytes)?;
    Ok(changed)
}

fn refused(code: StatusCode, why: &str) -> Response {
    (code, Json(json!({ "error": why }))).into_response()
}
