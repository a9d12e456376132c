//! `/api/v1/jobs` and `/api/v1/explain`: what was streamed, and any batch of it again.

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{Query, State, rejection::QueryRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use forebay_proto::{Encoding, v1};
use serde::Deserialize;
use serde_json::json;
use tonic::Status;
use utoipa::{IntoParams, ToSchema};

use super::{Ops, answer::Refused};
use crate::{
    door::Access,
    explain::{At, DEFAULT_LISTED_ROWS, Format, Summary, jobs_value},
    jobs::Record,
    status,
};

/// Which batch is asked for, and in what form.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Asked {
    /// The job's name or id; not with a request in the body.
    #[serde(default)]
    job: String,
    epoch: Option<u64>,
    step: Option<u64>,
    rank: Option<u64>,
    #[serde(default)]
    #[param(inline)]
    format: Wanted,
    /// Row numbers that a summary lists of each piece.
    listed_rows: Option<usize>,
}

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Wanted {
    #[default]
    Summary,
    Parquet,
    Json,
    Arrow,
}

impl Wanted {
    /// In which format the batch is wanted, if it is.
    fn format(self) -> Option<Format> {
        match self {
            Self::Summary => None,
            Self::Parquet => Some(Format::Parquet),
            Self::Json => Some(Format::Json),
            Self::Arrow => Some(Format::Arrow),
        }
    }
}

/// The jobs of which the caller may read all datasets, the one that was seen last first.
#[utoipa::path(
    get, path = "/api/v1/jobs", operation_id = "list_jobs", tag = "explain",
    responses((status = 200, description = "What was asked for, by whom it was called so, and when it was seen.", body = Object), Refused),
)]
pub(super) async fn jobs(State(ops): State<Ops>, Extension(access): Extension<Access>) -> Response {
    match ops.explainer.jobs(&access).await {
        Ok(jobs) => Json(jobs_value(&jobs)).into_response(),
        Err(status) => refused(&status),
    }
}

/// Where the rows of one batch of a job lie and what they are like, or, with a `format`, the batch itself again.
#[utoipa::path(
    get, path = "/api/v1/explain", operation_id = "explain", tag = "explain",
    params(Asked), responses((status = 200, description = "A summary, or the batch.", body = Object), Refused),
)]
pub(super) async fn explain(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Response {
    let answered = async {
        let asked = query(asked)?;
        if asked.step.is_none() {
            return Err(Status::invalid_argument("step: is missing, expected the number of a step"));
        }
        let found = ops.explainer.job(&access, &asked.job).await?;
        answer(&ops, &access, &asked, &found.record.request, found.others).await
    };
    answered.await.unwrap_or_else(|status| refused(&status))
}

/// As `GET`, of a ticket, or another command that pins its snapshots, instead of a job. What is left out is the ticket's. It changes
/// nothing.
#[utoipa::path(
    post, path = "/api/v1/explain", operation_id = "explain_request", tag = "explain",
    params(Asked), request_body = Object,
    responses((status = 200, description = "A summary, or the batch.", body = Object), Refused),
)]
pub(super) async fn explain_request(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    asked: Result<Query<Asked>, QueryRejection>,
    body: Bytes,
) -> Response {
    let answered = async {
        let asked = query(asked)?;
        let command: v1::Command =
            Encoding::of(&body).decode("Command", &body).map_err(|error| status::of_decode(&error))?;
        let none = || Status::invalid_argument("expected a ticket for batches, {\"train\": {...}}");
        answer(&ops, &access, &asked, &command.train.ok_or_else(none)?, Vec::new()).await
    };
    answered.await.unwrap_or_else(|status| refused(&status))
}

async fn answer(
    ops: &Ops,
    access: &Access,
    asked: &Asked,
    train: &v1::Train,
    others: Vec<String>,
) -> Result<Response, Status> {
    let at = At { epoch: asked.epoch, step: asked.step, rank: asked.rank };
    let Some(format) = asked.format.format() else {
        let listed_rows = asked.listed_rows.unwrap_or(DEFAULT_LISTED_ROWS);
        let summary = ops.explainer.summary(access, train, at, listed_rows).await?;
        return Ok(Json(Summary { others, ..summary }).into_response());
    };
    let bytes = ops.explainer.written(access, train, at, format).await?;
    let id = Record::of(train, 0.0).id;
    let (epoch, step) = (at.epoch.unwrap_or(train.epoch), at.step.unwrap_or(train.start_step));
    let rank = at.rank.or(train.rank).unwrap_or(0);
    let name = format!("attachment; filename=\"{id}-{epoch}-{step}-{rank}.{}\"", format.word());
    let headers = [(header::CONTENT_TYPE, format.media_type()), (header::CONTENT_DISPOSITION, &name)];
    Ok((headers, bytes).into_response())
}

fn query(asked: Result<Query<Asked>, QueryRejection>) -> Result<Asked, Status> {
    asked.map(|Query(asked)| asked).map_err(|error| Status::invalid_argument(error.body_text()))
}

fn refused(status: &Status) -> Response {
    let code = StatusCode::from_u16(status::http(status.code())).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, Json(json!({ "error": status.message() }))).into_response()
}
