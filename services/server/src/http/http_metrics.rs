//! Rate, errors and duration of HTTP requests, by route.

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use metrics::{counter, histogram};

/// Records a request when its response begins, under the template of its route instead of its path.
pub(super) async fn record(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let started = Instant::now();
    let response = next.run(request).await;
    let code = response.status().as_str().to_owned();
    histogram!("forebay_http_request_duration_seconds", "route" => route.clone()).record(started.elapsed());
    counter!("forebay_http_requests_total", "route" => route, "code" => code).increment(1);
    response
}
