//! `/api/v1/queues`: state of batch queues, forecasts for other batch sizes, and changes of settings at run time.

use std::{collections::HashSet, fmt};

use axum::{
    Json,
    body::Bytes,
    extract::rejection::BytesRejection,
    http::{HeaderMap, StatusCode},
};
use forebay_inference::{
    RequestColumn,
    queue::{self, QueueConfig},
};
use forebay_proto::v1;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use super::{
    context::View,
    queue_schema::{
        Forecast, QueueSettings, QueueStatus, SilentWorker, SuspendedWorker, ThroughputLatencyCurve,
    },
    response::{AuthErrors, Parameters, PathParameter, Problem, Rejection, check_json},
};
use crate::{
    auth::Access,
    events::{Event, Kind},
    registry::queues::Served,
    services::Services,
    settings::check_batching,
    telemetry::audit,
};

/// List of queues.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueList {
    /// Queues, sorted by name.
    queues: Vec<QueueInfo>,
}

/// A batch queue.
#[derive(Serialize, ToSchema)]
#[schema(as = Queue)]
pub(super) struct QueueInfo {
    /// Name of the queue.
    name: String,
    /// Lookup that produces the features of a row, see docs/how-to/batch-queues.md.
    #[schema(value_type = Object)]
    features: v1::Lookup,
    /// Columns that callers send with their keys: `name`, `dtype` and, for several values per row, `length`.
    #[schema(value_type = Vec<Object>)]
    request_columns: Vec<RequestColumn>,
    /// Current settings.
    #[schema(value_type = QueueSettings)]
    batching: QueueConfig,
    #[serde(flatten, with = "QueueStatus")]
    #[schema(value_type = QueueStatus)]
    status: queue::QueueStatus,
    /// Overdue workers, the one that has not answered for the longest time first, at most 16. `load.overdue_workers` counts all of them.
    silent_workers: Vec<SilentWorker>,
    /// Suspended workers, the one with the longest suspension ahead first, at most 16. `load.suspended_workers` counts all of them.
    suspended_workers: Vec<SuspendedWorker>,
    /// Forecast for the current settings and load; null without workers or before the first computed batch.
    #[schema(required)]
    forecast: Option<Forecast>,
}

/// Result of a change of queue settings, or of its dry run.
#[derive(Serialize, ToSchema)]
pub(super) struct SettingsChange {
    /// Name of the queue.
    name: String,
    /// True if the settings were only validated and not changed.
    dry_run: bool,
    /// Settings after the change; for a dry run, as they would be.
    #[schema(value_type = QueueSettings)]
    batching: QueueConfig,
    /// Forecast for these settings; null without workers or before the first computed batch.
    #[schema(required)]
    forecast: Option<Forecast>,
    /// Forecast for the previous settings; null unless this is a dry run.
    #[schema(required)]
    forecast_before: Option<Forecast>,
}

/// Throughput-latency curve of a queue.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueCurve {
    /// Name of the queue.
    name: String,
    #[serde(flatten)]
    curve: ThroughputLatencyCurve,
}

/// Options of a change of queue settings.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ChangeQuery {
    /// Flag that validates the settings and returns a forecast without changing them. Any value except `false` sets it, also an
    /// empty one. Default: `false`, the settings are changed.
    dry_run: Option<String>,
}

/// Lists the queues whose features come only from datasets that the caller may read.
#[utoipa::path(get, path = "/api/v1/queues", operation_id = "list_queues", tag = "queues", responses((status = 200, body = QueueList), AuthErrors))]
pub(super) async fn list(view: View) -> Json<QueueList> {
    Json(of(&view))
}

/// Returns the settings, load, outcomes and forecast of a queue.
#[utoipa::path(
    get, path = "/api/v1/queues/{name}", operation_id = "show_queue", tag = "queues",
    params(("name" = String, Path, description = "Name of the queue.")),
    responses(
        (status = 200, body = QueueInfo),
        (status = 404, description = "The queue is unknown or not visible to the caller.", body = Problem),
        AuthErrors,
    ),
)]
pub(super) async fn show(
    view: View,
    PathParameter(name): PathParameter,
) -> Result<Json<QueueInfo>, Rejection> {
    let served = view.context.services.queues.get(&name, &view.access)?;
    Ok(Json(shown(&name, &served, &view.access)))
}

/// Returns forecasts of throughput and latency for different batch sizes under the current load.
#[utoipa::path(
    get, path = "/api/v1/queues/{name}/throughput-latency", operation_id = "show_throughput_latency", tag = "queues",
    params(("name" = String, Path, description = "Name of the queue.")),
    responses(
        (status = 200, body = QueueCurve),
        (status = 404, description = "The queue is unknown or not visible to the caller.", body = Problem),
        AuthErrors,
    ),
)]
pub(super) async fn throughput_latency(
    view: View,
    PathParameter(name): PathParameter,
) -> Result<Json<QueueCurve>, Rejection> {
    let served = view.context.services.queues.get(&name, &view.access)?;
    Ok(Json(QueueCurve { curve: served.queue.throughput_latency_curve().into(), name }))
}

/// Changes the `batching` settings in the body until the server restarts. Requires a token with `admin = true`, except for a dry
/// run.
#[utoipa::path(
    patch, path = "/api/v1/queues/{name}", operation_id = "change_queue", tag = "queues",
    params(("name" = String, Path, description = "Name of the queue."), ChangeQuery),
    request_body(content = QueueSettings, description = "Settings to change; omitted ones keep their values."),
    responses(
        (status = 200, body = SettingsChange),
        (status = 404, description = "The queue is unknown or not visible to the caller.", body = Problem),
        (status = 413, description = "The body is too large.", body = Problem),
        (status = 415, description = "The body is not JSON.", body = Problem),
        (status = 422, description = "Invalid settings; nothing was changed.", body = Problem),
        AuthErrors,
    ),
)]
pub(super) async fn change(
    view: View,
    PathParameter(name): PathParameter,
    Parameters(query): Parameters<ChangeQuery>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<SettingsChange>, Rejection> {
    let dry_run = query.dry_run.is_some_and(|value| value != "false");
    let result = changed_queue(&view, &name, dry_run, &headers, body);
    if !dry_run {
        audit::change(
            &view.access,
            "queue settings",
            &name,
            result.as_ref().map(drop).map_err(Rejection::message),
        );
    }
    result.map(Json)
}

/// Changes the settings of a queue, or only checks the change.
fn changed_queue(
    View { context, access }: &View,
    name: &str,
    dry_run: bool,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<SettingsChange, Rejection> {
    if !dry_run {
        access.check_admin()?;
    }
    check_json(headers)?;
    let body = body?;
    let Services { queues, events, .. } = &context.services;
    let served = queues.get(name, access)?;
    let check =
        |batching: &QueueConfig| check_batching(batching, &served.request_columns, served.max_answer_bytes);
    let changed_settings = if dry_run {
        let before = served.queue.config();
        changed(&before, &body, check).map(|after| (before, after))
    } else {
        served.queue.update_config(|before| changed(before, &body, check))
    };
    let (before, batching) =
        changed_settings.map_err(|why| Rejection::new(StatusCode::UNPROCESSABLE_ENTITY, why))?;
    if !dry_run && before != batching {
        let by = access.name().map_or_else(String::new, |name| format!(", by token '{name}'"));
        let message = format!("{}{by}", differences(&before, &batching));
        events.note(Event::new(Kind::QueueSettingsChanged, &message).queue(name, served.reads()));
    }
    let forecast = served.queue.forecast(&batching).map(Forecast::from);
    let forecast_before = dry_run.then(|| served.queue.forecast(&before)).flatten().map(Forecast::from);
    Ok(SettingsChange { name: name.to_owned(), dry_run, batching, forecast, forecast_before })
}

/// Returns the queues visible to the caller.
pub(super) fn of(view: &View) -> QueueList {
    let queues = view.context.services.queues.list(&view.access);
    QueueList { queues: queues.map(|(name, served)| shown(name, served, &view.access)).collect() }
}

fn shown(name: &str, served: &Served, access: &Access) -> QueueInfo {
    let batching = served.queue.config();
    let forecast = served.queue.forecast(&batching).map(Forecast::from);
    let (status, name_of) = (served.queue.status(), |worker| served.worker_names.name(worker, access));
    let silent = status.silent_workers.iter().map(|silent| SilentWorker::new(silent, name_of));
    let suspended = status.suspended_workers.iter().map(|suspended| SuspendedWorker::new(suspended, name_of));
    QueueInfo {
        name: name.to_owned(),
        features: served.features.clone(),
        request_columns: served.request_columns.columns().to_vec(),
        batching,
        silent_workers: silent.collect(),
        suspended_workers: suspended.collect(),
        status,
        forecast,
    }
}

/// Maximum size of changed settings, in bytes. Small values of JSON take up to a hundred times their bytes in memory.
const MAX_PATCH_BYTES: usize = 64 << 10;

/// Changed settings, each of which is given once.
struct Patch(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Patch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Patch;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of settings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Patch, A::Error> {
                let mut fields: Vec<(String, Value)> = Vec::new();
                let mut names = HashSet::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("duplicate field `{name}`")));
                    }
                    fields.push((name, value));
                }
                Ok(Patch(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// Returns the settings with the fields in `body` changed.
fn changed(
    config: &QueueConfig,
    body: &[u8],
    check: impl FnOnce(&QueueConfig) -> Result<(), String>,
) -> Result<QueueConfig, String> {
    if body.len() > MAX_PATCH_BYTES {
        return Err(format!("the settings have {} bytes, expected at most {MAX_PATCH_BYTES}", body.len()));
    }
    let patch: Patch =
        serde_json::from_slice(body).map_err(|error| format!("expected a JSON object: {error}"))?;
    let mut whole = serde_json::to_value(config).map_err(|error| error.to_string())?;
    let mut changed = config.clone();
    // Fields are applied one at a time, so that an error names its field.
    for (name, value) in patch.0 {
        whole[&name] = value;
        changed = serde_json::from_value(whole.clone()).map_err(|error| format!("{name}: {error}"))?;
    }
    check(&changed)?;
    Ok(changed)
}

/// Describes the differences, such as `max_batch_rows: 4096, before 1024`.
fn differences(before: &QueueConfig, after: &QueueConfig) -> String {
    let fields = |config| match serde_json::to_value(config) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let before = fields(before);
    let changed = fields(after).into_iter().filter_map(|(name, value)| {
        let was = before.get(&name).filter(|was| **was != value)?;
        Some(format!("{name}: {}, before {}", text(&value), text(was)))
    });
    changed.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_setting_that_is_given_twice_is_an_error() {
        let change = |body: &str| changed(&QueueConfig::default(), body.as_bytes(), |_| Ok(()));
        assert_eq!(change(r#"{"max_batch_rows": 5, "pad_to": [8]}"#).unwrap().max_batch_rows, 5);
        let error = change(r#"{"max_batch_rows": 5, "pad_to": [8], "max_batch_rows": 7}"#).unwrap_err();
        assert!(error.contains("duplicate field `max_batch_rows`"), "{error}");
        assert!(change("[]").unwrap_err().contains("expected a JSON object"));
    }

    #[test]
    fn differences_name_the_new_and_the_previous_value() {
        let before = QueueConfig::default();
        let slower = Duration::from_millis(20);
        let after = QueueConfig { max_batch_delay: slower, pad_to: vec![8, 64], ..before.clone() };
        assert_eq!(
            differences(&before, &after),
            "max_batch_delay: 20ms, before 5ms; pad_to: [8,64], before []"
        );
        assert_eq!(differences(&before, &before), "");
    }
}
