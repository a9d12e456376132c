//! `/api/v1/queues/NAME/throughput-latency`: forecasts for other batch sizes.

use axum::{
    Extension, Json,
    extract::{Path, State},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Context,
    queue_schema::ThroughputLatencyCurve,
    response::{AuthErrors, Problem, Rejection},
};
use crate::auth::Access;

/// Throughput-latency curve of a queue.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueCurve {
    /// Name of the queue.
    name: String,
    #[serde(flatten)]
    curve: ThroughputLatencyCurve,
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
pub(super) async fn show(
    State(context): State<Context>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Result<Json<QueueCurve>, Rejection> {
    let served = context.queues.get(&name, &access)?;
    Ok(Json(QueueCurve { curve: served.queue.throughput_latency_curve().into(), name }))
}
