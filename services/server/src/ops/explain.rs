//! `/api/v1/jobs` and `/api/v1/explain`: what was streamed, and any batch of it again.

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use forebay_proto::{Encoding, v1};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    Ops,
    answer::{Parameters, Problem, Refusal, Refused},
};
use crate::{
    door::Access,
    explain::{At, DEFAULT_LISTED_ROWS, Format, JobList, Summary},
    jobs::Record,
    status,
};

/// Which batch is asked for, and in what form.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
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

/// What may come of an explanation.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, clippy::large_enum_variant, reason = "only their descriptions are used")]
pub(super) enum Explanation {
    /// Where the rows lie and what they are like; with a `format`, the batch itself, as a file of that kind.
    #[response(status = 200)]
    Explained(Summary),
    /// There is no such step, or what is asked for makes no sense.
    #[response(status = 400)]
    Invalid(Problem),
    /// The caller knows of no such job or dataset.
    #[response(status = 404)]
    Missing(Problem),
    /// Its files have changed, or its snapshot is gone.
    #[response(status = 409)]
    Changed(Problem),
    /// It is larger than `limits.max_explain_bytes`.
    #[response(status = 413)]
    TooLarge(Problem),
    /// It took longer than `limits.explain_timeout`.
    #[response(status = 504)]
    TooLate(Problem),
}

/// The jobs of which the caller may read all datasets, the one that was seen last first.
#[utoipa::path(
    get, path = "/api/v1/jobs", operation_id = "list_jobs", tag = "explain",
    responses((status = 200, body = JobList), Refused),
)]
pub(super) async fn jobs(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
) -> Result<Json<JobList>, Refusal> {
    Ok(Json(ops.explainer.jobs(&access).await?.into()))
}

/// Where the rows of one batch of a job lie and what they are like, or, with a `format`, the batch itself again.
#[utoipa::path(
    get,
    path = "/api/v1/explain",
    operation_id = "explain",
    tag = "explain",
    params(Asked),
    responses(Explanation, Refused)
)]
pub(super) async fn explain(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Parameters(asked): Parameters<Asked>,
) -> Result<Response, Refusal> {
    if asked.step.is_none() {
        let words = "step: is missing, expected the number of a step";
        return Err(Refusal::new(StatusCode::BAD_REQUEST, words));
    }
    let found = ops.explainer.job(&access, &asked.job).await?;
    answer(&ops, &access, &asked, &found.record.request, found.others).await
}

/// As `GET`, of a ticket, or another command that pins its snapshots, instead of a job. What is left out is the ticket's. It changes
/// nothing.
#[utoipa::path(
    post, path = "/api/v1/explain", operation_id = "explain_request", tag = "explain",
    params(Asked), request_body = Object, responses(Explanation, Refused),
)]
pub(super) async fn explain_request(
    State(ops): State<Ops>,
    Extension(access): Extension<Access>,
    Parameters(asked): Parameters<Asked>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let body = body?;
    let command: v1::Command =
        Encoding::of(&body).decode("Command", &body).map_err(|error| status::of_decode(&error))?;
    let none = "expected a ticket for batches, {\"train\": {...}}";
    let train = command.train.ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, none))?;
    answer(&ops, &access, &asked, &train, Vec::new()).await
}

async fn answer(
    ops: &Ops,
    access: &Access,
    asked: &Asked,
    train: &v1::Train,
    others: Vec<String>,
) -> Result<Response, Refusal> {
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
