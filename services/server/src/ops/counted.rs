//! Rate, errors and duration of HTTP, by route.

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use metrics::{counter, histogram};

/// Counts a request under its route's template, never its path, when its answer begins.
pub(super) async fn count(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let started = Instant::now();
    let response = next.run(request).await;
    let code = response.status().as_str().to_owned();
    histogram!("forebay_http_request_duration_seconds", "route" => route.clone()).record(started.elapsed());
    counter!("forebay_http_requests_total", "route" => route, "code" => code).increment(1);
    response
}
