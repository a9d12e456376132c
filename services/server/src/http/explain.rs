//! `/api/v1/jobs` and `/api/v1/explain`: recorded jobs, and their batches, rebuilt.

use axum::{
    Json,
    body::Bytes,
    extract::rejection::BytesRejection,
    http::header,
    response::{IntoResponse, Response},
};
use forebay_explain::{At, DEFAULT_MAX_LISTED_ROWS, Format, JobList, JobRecord, Summary};
use forebay_proto::{Encoding, v1};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    context::View,
    response::{AuthErrors, Parameters, Problem, Rejection},
};
use crate::Error;

/// Selection of a batch, and the response format.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExplainQuery {
    /// Name or id of the job. Of several jobs with the name, the most recently streamed one is selected. Required for `GET`;
    /// ignored by `POST`, whose body contains the request.
    #[serde(default)]
    job_name: String,
    /// Epoch of the batch, counted from 0. Default: 0 for a job, `epoch` of the request in a body.
    epoch: Option<u64>,
    /// Step of the batch within its epoch, counted from 0. Required for `GET`. Default for `POST`: `start_step` of the request in
    /// the body.
    step: Option<u64>,
    /// Rank that received the batch, counted from 0. Default: `rank` of the request in a body, else 0.
    rank: Option<u64>,
    /// Response format. `summary`: locations and statistics of the rows, as JSON; `parquet`, `json` or `arrow`: the batch itself as a
    /// file of this format. Default: `summary`.
    #[serde(default)]
    #[param(inline)]
    format: ResponseFormat,
    /// Maximum number of row indices listed per row group in a summary. Default: 1,000.
    max_listed_rows: Option<usize>,
}

#[derive(Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ResponseFormat {
    #[default]
    Summary,
    Parquet,
    Json,
    Arrow,
}

impl ResponseFormat {
    /// Returns the file format of the batch, `None` for a summary.
    fn format(self) -> Option<Format> {
        match self {
            Self::Summary => None,
            Self::Parquet => Some(Format::Parquet),
            Self::Json => Some(Format::Json),
            Self::Arrow => Some(Format::Arrow),
        }
    }
}

/// Responses of an explanation.
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, clippy::large_enum_variant, reason = "only their descriptions are used")]
pub(super) enum Explanation {
    /// Locations and statistics of the rows; with a file `format`, the batch itself.
    #[response(status = 200)]
    Explained(Summary),
    /// The request is invalid, or the step is out of range.
    #[response(status = 400)]
    Invalid(Problem),
    /// The job or dataset is unknown or not visible to the caller.
    #[response(status = 404)]
    Missing(Problem),
    /// The files of the dataset have changed, or the snapshot is no longer available.
    #[response(status = 409)]
    Changed(Problem),
    /// The batch exceeds `limits.max_explain_bytes`.
    #[response(status = 413)]
    TooLarge(Problem),
    /// Too many explanations are queued, or this one was queued for longer than `limits.explain_timeout`.
    #[response(status = 429)]
    TooMany(Problem),
    /// The explanation took longer than `limits.explain_timeout`.
    #[response(status = 504)]
    TimedOut(Problem),
}

/// Lists the recorded jobs whose datasets the caller may read, most recently streamed first.
#[utoipa::path(
    get, path = "/api/v1/jobs", operation_id = "list_jobs", tag = "explain",
    responses((status = 200, body = JobList), AuthErrors),
)]
pub(super) async fn jobs(view: View) -> Result<Response, Rejection> {
    let list = view.context.services.explainer.job_list(&view.access).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], list).into_response())
}

/// Rebuilds a batch of a recorded job: returns locations and statistics of its rows or, with a file `format`, the batch itself.
#[utoipa::path(
    get,
    path = "/api/v1/explain",
    operation_id = "explain",
    tag = "explain",
    params(ExplainQuery),
    responses(Explanation, AuthErrors)
)]
pub(super) async fn explain(
    view: View,
    Parameters(query): Parameters<ExplainQuery>,
) -> Result<Response, Rejection> {
    if query.step.is_none() {
        let message = "step: is missing, expected the number of a step";
        return Err(Error::invalid(message).into());
    }
    let found = view.context.services.explainer.job(&view.access, &query.job_name).await?;
    answer(&view, &query, &found.record.request, found.others).await
}

/// Rebuilds a batch of the request in the body: returns locations and statistics of its rows or, with a file `format`, the batch
/// itself. Changes nothing on the server.
#[utoipa::path(
    post, path = "/api/v1/explain", operation_id = "explain_request", tag = "explain",
    params(ExplainQuery),
    request_body(
        content = Object,
        description = "Ticket for batches from `GetFlightInfo`, or any `{\"train\": {...}}` command as in \
            docs/reference/protocol.md that names the snapshot of every dataset. JSON, or the same message as binary protobuf.",
    ),
    responses(Explanation, AuthErrors),
)]
pub(super) async fn explain_request(
    view: View,
    Parameters(query): Parameters<ExplainQuery>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let body = body?;
    let command: v1::Command = Encoding::of(&body).decode("Command", &body).map_err(Error::from)?;
    let expected = "expected a ticket for batches, {\"train\": {...}}";
    let train = command.train.ok_or_else(|| Error::invalid(expected))?;
    answer(&view, &query, &train, Vec::new()).await
}

async fn answer(
    View { context, access }: &View,
    query: &ExplainQuery,
    train: &v1::Train,
    others: Vec<String>,
) -> Result<Response, Rejection> {
    let explainer = &context.services.explainer;
    let at = At { epoch: query.epoch, step: query.step, rank: query.rank };
    let Some(format) = query.format.format() else {
        let max_listed_rows = query.max_listed_rows.unwrap_or(DEFAULT_MAX_LISTED_ROWS);
        let summary = explainer.summary(access, train, at, max_listed_rows).await?;
        return Ok(Json(Summary { others, ..summary }).into_response());
    };
    let bytes = explainer.export(access, train, at, format).await?;
    let id = JobRecord::new(train, 0.0).id;
    let (epoch, step) = (at.epoch.unwrap_or(train.epoch), at.step.unwrap_or(train.start_step));
    let rank = at.rank.or(train.rank).unwrap_or(0);
    let name = format!("attachment; filename=\"{id}-{epoch}-{step}-{rank}.{}\"", format.name());
    let headers = [(header::CONTENT_TYPE, format.media_type()), (header::CONTENT_DISPOSITION, &name)];
    Ok((headers, bytes).into_response())
}
