//! `/api/v1/queues/NAME/throughput-latency`: forecasts for other batch sizes.

use axum::{Json, extract::Path};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    context::View,
    queue_schema::ThroughputLatencyCurve,
    response::{AuthErrors, Problem, Rejection},
};

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
pub(super) async fn show(view: View, Path(name): Path<String>) -> Result<Json<QueueCurve>, Rejection> {
    let served = view.context.services.queues.get(&name, &view.access)?;
    Ok(Json(QueueCurve { curve: served.queue.throughput_latency_curve().into(), name }))
}
