//! Metrics of HTTP requests: their number per route and status code, and their duration per route.

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use metrics::{counter, histogram};

/// Counts a request and records the time until the head of its response.
///
/// The label `route` is the template of the matched route, such as `/api/v1/queues/{name}`, or `other` if none
/// matches.
pub(super) async fn record(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let started = Instant::now();
    let response = next.run(request).await;
    let code = response.status().as_str().to_owned();
    histogram!("forebay_http_request_duration_seconds", "route" => route.clone()).record(started.elapsed());
    counter!("forebay_http_requests_total", "route" => route, "code" => code).increment(1);
    response
}
