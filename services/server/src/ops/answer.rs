//! What every route answers in one way: refusals in words, and how a request is read.

use std::time::Duration;

use axum::{
    Json,
    extract::{FromRequestParts, Query, Request, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use tonic::Status;
use utoipa::{IntoResponses, ToSchema};

use crate::status;

/// Why there is no other answer.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// In words for a person.
    error: String,
}

/// An answer that says why there is no other.
#[derive(Debug)]
pub(super) struct Refusal {
    code: StatusCode,
    problem: Problem,
}

impl Refusal {
    pub(super) fn new(code: StatusCode, words: impl Into<String>) -> Self {
        Self { code, problem: Problem { error: words.into() } }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::new(status::http(status.code()), status.message())
    }
}

impl From<BytesRejection> for Refusal {
    fn from(rejection: BytesRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.code, Json(self.problem)).into_response()
    }
}

/// What any route behind the door may answer, for the document.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only their descriptions are used")]
pub(super) enum Refused {
    /// There is no token, or none that is known and has not expired.
    #[response(status = 401)]
    Unknown(Problem),
    /// The token is not good for that, or another site asks.
    #[response(status = 403)]
    NotAllowed(Problem),
}

/// The query string of a request; parameters that are not known are refused.
pub(super) struct Parameters<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let read = Query::from_request_parts(parts, state).await;
        let Query(parameters) =
            read.map_err(|rejection| Refusal::new(StatusCode::BAD_REQUEST, rejection.body_text()))?;
        Ok(Self(parameters))
    }
}

/// Refuses a body that does not say that it is JSON: pages of other sites can send the other types without being asked first.
pub(super) fn check_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let words = format!(
        "the body is '{}'; send it with the header 'content-type: application/json'",
        status::clip(kind)
    );
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, words))
}

/// Ends what takes longer until its answer begins, such as a body that does not come.
pub(super) async fn in_time(State(timeout): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(timeout, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let words = format!("there was no answer within {timeout:?}");
            Refusal::new(StatusCode::REQUEST_TIMEOUT, words).into_response()
        }
    }
}

pub(super) async fn no_such_route() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "there is no such path; /api/v1/openapi.json describes those there are",
    )
}

pub(super) async fn no_such_method() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path has no such method; /api/v1/openapi.json says which",
    )
}
