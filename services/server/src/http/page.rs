//! Files of the dashboard, built from `page/src` and embedded in the binary.

use std::{future::ready, sync::Arc};

use axum::{
    Router,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use ring::digest::{SHA256, digest};

use super::Context;

/// Returns the routes of the dashboard, which reads all of its data from the API.
pub(super) fn routes() -> Router<Arc<Context>> {
    Router::new()
        .route("/", file("text/html; charset=utf-8", include_bytes!("../../page/dist/index.html")))
        .route("/page.js", file("text/javascript; charset=utf-8", include_bytes!("../../page/dist/page.js")))
        .route("/page.css", file("text/css; charset=utf-8", include_bytes!("../../page/dist/page.css")))
        .route("/icon.svg", file("image/svg+xml", include_bytes!("../../page/dist/icon.svg")))
}

/// Returns a route that serves a file, or 304 if the caller has it cached.
fn file(kind: &'static str, bytes: &'static [u8]) -> MethodRouter<Arc<Context>> {
    let tag = tag_of(bytes);
    get(move |headers: HeaderMap| ready(answer(&headers, kind, bytes, tag)))
}

fn answer(headers: &HeaderMap, kind: &'static str, bytes: &'static [u8], tag: HeaderValue) -> Response {
    let is_known = headers.get_all(header::IF_NONE_MATCH).iter().any(|known| names(known, &tag));
    // Cached but revalidated on each use, so that a new server version shows its page immediately.
    let kept = [(header::ETAG, tag), (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    if is_known {
        return (StatusCode::NOT_MODIFIED, kept).into_response();
    }
    (kept, [(header::CONTENT_TYPE, HeaderValue::from_static(kind))], bytes).into_response()
}

/// True if a list of entity tags contains `tag`.
fn names(list: &HeaderValue, tag: &HeaderValue) -> bool {
    let list = list.to_str().unwrap_or_default();
    list.split(',').map(|each| each.trim().trim_start_matches("W/")).any(|each| each == "*" || each == tag)
}

fn tag_of(bytes: &[u8]) -> HeaderValue {
    let digest = hex::encode(&digest(&SHA256, bytes).as_ref()[..8]);
    HeaderValue::try_from(format!("\"{digest}\"")).expect("hexadecimal digits in quotes")
}

#[cfg(test)]
mod tests;
