//! `/api/v1/queues/NAME/frontier`: what other sizes of batches would do.

use axum::{
    Extension, Json,
    extract::{Path, State},
};
use forebay_inference::queue::Frontier;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Ops,
    answer::{Problem, Refusal, Refused},
};
use crate::door::Access;

/// The frontier of a queue.
#[derive(Serialize, ToSchema)]
pub(super) struct QueueFrontier {
    name: String,
    #[serde(flatten)]
    frontier: Frontier,
}

/// What a queue's batches would do if they were smaller or larger, under the load of now.
#[utoipa::path(
    get, path = "/api/v1/queues/{name}/frontier", operation_id = "show_frontier", tag = "queues",
    params(("name" = String, Path, description = "Of the queue.")),
    responses(
        (status = 200, body = QueueFrontier),
        (status = 404, description = "The caller knows of no such queue.", body = Problem),
        Refused,
    ),
)]
pub(super) async fn show(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Result<Json<QueueFrontier>, Refusal> {
    let served = ops.queues.get(&name, &access)?;
    Ok(Json(QueueFrontier { frontier: served.queue.frontier(), name }))
}
