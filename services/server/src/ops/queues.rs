//! `/api/v1/queues`: what the queues do, and how they are tuned while they run.

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Path, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode},
};
use forebay_inference::queue::{Forecast, QueueConfig, QueueStatus};
use forebay_proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use super::{
    Ops,
    answer::{Parameters, Problem, Refusal, Refused, check_json},
};
use crate::{
    door::Access,
    events::{Kind, Note},
    queues::{Served, check_batching},
};

/// The queues of a server.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueList {
    /// By name.
    queues: Vec<QueueInfo>,
}

/// A queue, for operators.
#[derive(Serialize, ToSchema)]
#[schema(as = Queue)]
pub(super) struct QueueInfo {
    name: String,
    /// What workers get for a row, as in docs/inference.md.
    #[schema(value_type = Object)]
    features: v1::Lookup,
    batching: QueueConfig,
    #[serde(flatten)]
    status: QueueStatus,
    /// What its settings are expected to do under the load of now; without workers or experience there is none.
    #[schema(required)]
    forecast: Option<Forecast>,
}

/// How a queue was tuned, or would be.
#[derive(Serialize, ToSchema)]
pub(super) struct Tuned {
    name: String,
    /// Nothing was changed.
    dry_run: bool,
    batching: QueueConfig,
    /// With these settings.
    #[schema(required)]
    forecast: Option<Forecast>,
    /// With those before; of a dry run alone.
    #[schema(required)]
    forecast_before: Option<Forecast>,
}

/// How a queue is tuned.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Tuning {
    /// Changes nothing, and says what would be; `false` is as if it were not there.
    dry_run: Option<String>,
}

/// The queues of whose features the caller may read all datasets.
#[utoipa::path(get, path = "/api/v1/queues", operation_id = "list_queues", tag = "queues", responses((status = 200, body = QueueList), Refused))]
pub(super) async fn list(State(ops): State<Ops>, Extension(access): Extension<Access>) -> Json<QueueList> {
    Json(of(&ops, &access))
}

/// One queue.
#[utoipa::path(
    get, path = "/api/v1/queues/{name}", operation_id = "show_queue", tag = "queues",
    params(("name" = String, Path, description = "Of the queue.")),
    responses(
        (status = 200, body = QueueInfo),
        (status = 404, description = "The caller knows of no such queue.", body = Problem),
        Refused,
    ),
)]
pub(super) async fn show(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Result<Json<QueueInfo>, Refusal> {
    Ok(Json(shown(&name, &*ops.queues.get(&name, &access)?)))
}

/// Changes the fields of `batching` that the body has. They hold until the server ends. Wants an admin, a dry run does not.
#[utoipa::path(
    patch, path = "/api/v1/queues/{name}", operation_id = "tune_queue", tag = "queues",
    params(("name" = String, Path, description = "Of the queue."), Tuning),
    request_body(content = QueueConfig, description = "The fields to change; the others stay."),
    responses(
        (status = 200, body = Tuned),
        (status = 404, description = "The caller knows of no such queue.", body = Problem),
        (status = 413, description = "The body is too large.", body = Problem),
        (status = 415, description = "The body is not JSON.", body = Problem),
        (status = 422, description = "It can't work so; nothing was changed.", body = Problem),
        Refused,
    ),
)]
pub(super) async fn tune(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
    Parameters(tuning): Parameters<Tuning>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Tuned>, Refusal> {
    let dry_run = tuning.dry_run.is_some_and(|value| value != "false");
    if !dry_run {
        access.check_admin()?;
    }
    check_json(&headers)?;
    let body = body?;
    let served = ops.queues.get(&name, &access)?;
    let most = served.max_answer_bytes;
    let tuned = if dry_run {
        let before = served.queue.config();
        changed(&before, &body, most).map(|after| (before, after))
    } else {
        served.queue.retune(|before| changed(before, &body, most))
    };
    let (before, batching) = tuned.map_err(|why| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why))?;
    if !dry_run && before != batching {
        let by = access.name().map_or_else(String::new, |name| format!(", by token '{name}'"));
        let words = format!("{}{by}", differences(&before, &batching));
        ops.events.note(Note::new(Kind::QueueTuned, &words).queue(&name, served.reads()));
    }
    let forecast = served.queue.forecast(&batching);
    let forecast_before = dry_run.then(|| served.queue.forecast(&before)).flatten();
    Ok(Json(Tuned { name, dry_run, batching, forecast, forecast_before }))
}

/// Those that `access` may know of.
pub(super) fn of(ops: &Ops, access: &Access) -> QueueList {
    QueueList { queues: ops.queues.list(access).map(|(name, served)| shown(name, served)).collect() }
}

fn shown(name: &str, served: &Served) -> QueueInfo {
    let batching = served.queue.config();
    let forecast = served.queue.forecast(&batching);
    let features = served.features.clone();
    QueueInfo { name: name.to_owned(), features, status: served.queue.status(), batching, forecast }
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

/// What is different, in words: `max_batch_rows: 4096, before 1024`.
fn differences(before: &QueueConfig, after: &QueueConfig) -> String {
    let fields = |config| match serde_json::to_value(config) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let before = fields(before);
    let changed = fields(after).into_iter().filter_map(|(name, value)| {
        let was = before.get(&name).filter(|was| **was != value)?;
        Some(format!("{name}: {}, before {}", word(&value), word(was)))
    });
    changed.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_changed_is_said_with_what_was_before() {
        let before = QueueConfig::default();
        let slower = Duration::from_millis(20);
        let after = QueueConfig { max_queue_delay: slower, pad_to: vec![8, 64], ..before.clone() };
        assert_eq!(
            differences(&before, &after),
            "max_queue_delay: 20ms, before 5ms; pad_to: [8,64], before []"
        );
        assert_eq!(differences(&before, &before), "");
    }
}
