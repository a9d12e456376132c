//! Error responses, and parsing of requests.

use std::time::Duration;

use axum::{
    Json,
    extract::{FromRequestParts, Path, Query, Request, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use utoipa::{IntoResponses, ToSchema};

use crate::{Error, error::clip};

/// Body of an error response.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// Reason of the error, and how to correct the request.
    error: String,
}

/// An error response: a status code and a [`Problem`].
#[derive(Debug)]
pub(super) struct Rejection {
    code: StatusCode,
    problem: Problem,
    retry_after_seconds: Option<u32>,
}

impl Rejection {
    pub(super) fn new(code: StatusCode, message: impl Into<String>) -> Self {
        Self { code, problem: Problem { error: message.into() }, retry_after_seconds: None }
    }
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        let retry_after_seconds = error.retry_after_seconds();
        Self { retry_after_seconds, ..Self::new(error.http_code(), error.message()) }
    }
}

impl From<BytesRejection> for Rejection {
    fn from(rejection: BytesRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text())
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let mut response = (self.code, Json(self.problem)).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// Errors of all authenticated routes, for the OpenAPI document.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only their descriptions are used")]
pub(super) enum AuthErrors {
    /// The token is missing, unknown or expired.
    #[response(status = 401)]
    Unauthenticated(Problem),
    /// The token lacks the permission, or the request comes from another site.
    #[response(status = 403)]
    PermissionDenied(Problem),
}

/// Query parameters of a request. Unknown parameters are rejected.
pub(super) struct Parameters<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let read = Query::from_request_parts(parts, state).await;
        let Query(parameters) = read.map_err(|rejection| Error::invalid(rejection.body_text()))?;
        Ok(Self(parameters))
    }
}

/// Parameter in the path of a request, such as the name of a queue.
pub(super) struct PathParameter(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathParameter {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let read = Path::from_request_parts(parts, state).await;
        let Path(parameter) =
            read.map_err(|rejection| Rejection::new(rejection.status(), rejection.body_text()))?;
        Ok(Self(parameter))
    }
}

/// Rejects a body without the JSON content type. Browsers let other sites send other types without a preflight request.
pub(super) fn check_json(headers: &HeaderMap) -> Result<(), Rejection> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = format!(
        "the content type of the body is '{}'; send the header 'content-type: application/json'",
        clip(kind)
    );
    Err(Rejection::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Rejects a request whose response does not begin within the timeout, for example because its body is not sent.
pub(super) async fn with_timeout(State(timeout): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(timeout, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("the request was not completed within {timeout:?}");
            Rejection::new(StatusCode::REQUEST_TIMEOUT, message).into_response()
        }
    }
}

pub(super) async fn unknown_route() -> Rejection {
    Error::not_found("unknown path; see /api/v1/openapi.json for all paths").into()
}

pub(super) async fn unknown_method() -> Rejection {
    Rejection::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method not allowed for this path; see /api/v1/openapi.json for its methods",
    )
}
