//! The page for a person: files that lie in this binary, as they were built from `page/src`.

use std::future::ready;

use axum::{
    Router,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use ring::digest::{SHA256, digest};

use super::Ops;

/// The page and what it refers to. It asks the API for everything that it shows.
pub(super) fn routes() -> Router<Ops> {
    Router::new()
        .route("/", file("text/html; charset=utf-8", include_bytes!("../../page/dist/index.html")))
        .route("/page.js", file("text/javascript; charset=utf-8", include_bytes!("../../page/dist/page.js")))
        .route("/page.css", file("text/css; charset=utf-8", include_bytes!("../../page/dist/page.css")))
        .route("/icon.svg", file("image/svg+xml", include_bytes!("../../page/dist/icon.svg")))
}

/// Answers with a file; who has it already is told so.
fn file(kind: &'static str, bytes: &'static [u8]) -> MethodRouter<Ops> {
    let tag = tag_of(bytes);
    get(move |headers: HeaderMap| ready(answer(&headers, kind, bytes, tag)))
}

fn answer(headers: &HeaderMap, kind: &'static str, bytes: &'static [u8], tag: HeaderValue) -> Response {
    let is_known = headers.get_all(header::IF_NONE_MATCH).iter().any(|known| names(known, &tag));
    // Kept, and asked after each time: a new server has a new page at once.
    let kept = [(header::ETAG, tag), (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    if is_known {
        return (StatusCode::NOT_MODIFIED, kept).into_response();
    }
    (kept, [(header::CONTENT_TYPE, HeaderValue::from_static(kind))], bytes).into_response()
}

/// Whether a list of tags has this one.
fn names(list: &HeaderValue, tag: &HeaderValue) -> bool {
    let list = list.to_str().unwrap_or_default();
    list.split(',').map(|each| each.trim().trim_start_matches("W/")).any(|each| each == "*" || each == tag)
}

fn tag_of(bytes: &[u8]) -> HeaderValue {
    let digest: String =
        digest(&SHA256, bytes).as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::try_from(format!("\"{digest}\"")).expect("hexadecimal digits in quotes")
}

#[cfg(test)]
mod tests;
