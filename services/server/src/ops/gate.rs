//! What comes from pages of other sites, and under names that are not ours, before anybody looks at it; and what browsers are told
//! about every answer.

use std::net::IpAddr;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{admit::is_read, answer::Refusal};

/// What a page of ours may do: run and fetch what this server serves, and nothing else. No inline script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// What is let through to the door.
#[derive(Clone, Copy)]
pub(crate) struct Gate {
    /// Only requests to an address or to `localhost`: a page of another site whose name was made to mean this machine names itself.
    local_names_only: bool,
}

impl Gate {
    /// Of a server that only this machine can reach (`is_local`). Behind tokens a name tells nobody anything, because a browser has
    /// no token for it.
    pub(crate) fn new(is_local: bool, has_tokens: bool) -> Self {
        Self { local_names_only: is_local && !has_tokens }
    }

    fn check(self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = host(uri, headers);
        if self.local_names_only && host.as_ref().is_some_and(|host| !is_local_name(host.host())) {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "the Host header names another machine; ask for localhost or an address, or start the server with --tokens",
            ));
        }
        if is_from_elsewhere(method, host.as_ref(), headers) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "a page of another site asks, which may not"));
        }
        Ok(())
    }
}

/// Lets through what may come, and gives browsers their rules.
pub(super) async fn pass(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let mut response = match gate.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // What is kept is asked after each time, and what does not say so is not kept.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The name under which the server was asked; HTTP/2 has it in the URI.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let named = || headers.get(header::HOST).map(|host| Authority::try_from(host.as_bytes()));
    match (uri.authority(), named()) {
        (Some(authority), _) => Some(authority.clone()),
        // What is no name is none of ours.
        (None, Some(host)) => Some(host.unwrap_or(Authority::from_static("invalid"))),
        (None, None) => None,
    }
}

fn is_local_name(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok() || bare.eq_ignore_ascii_case("localhost")
}

/// Whether a browser says that the page of another site asks; links from there may be followed.
fn is_from_elsewhere(method: &Method, host: Option<&Authority>, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get(FETCH_SITE) {
        let follows_link =
            *method == Method::GET && headers.get(FETCH_MODE).is_some_and(|mode| mode == "navigate");
        return site != "same-origin" && site != "none" && !follows_link;
    }
    // Older browsers say at least so much of what may change something.
    let Some(origin) = headers.get(header::ORIGIN).filter(|_| !is_read(method)) else { return false };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, origin)| origin);
    origin.is_none_or(|origin| host.is_none_or(|host| !host.as_str().eq_ignore_ascii_case(origin)))
}

#[cfg(test)]
mod tests;
