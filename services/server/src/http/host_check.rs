//! Protection against requests from other sites and against DNS rebinding, and the security headers of every response.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{authorize::is_read, response::Rejection};
use crate::Error;

/// Content security policy of the dashboard: only scripts, styles and data of this server, no inline scripts.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Check of the `Host` header and of the origin of a request.
#[derive(Clone)]
pub(crate) struct HostCheck {
    /// Names that are accepted as host, in addition to IP addresses and names without a dot; `None` if all are. A DNS
    /// rebinding attack has the attacker's name in the `Host` header, which ends with a public domain.
    allowed: Option<Arc<[String]>>,
}

impl HostCheck {
    /// Creates the check; `allowed` are further names of the server. With tokens the host is not checked, because the browser
    /// has no token for the attacker's name.
    pub(crate) fn new(allowed: &[String], has_tokens: bool) -> Self {
        Self { allowed: (!has_tokens).then(|| allowed.into()) }
    }

    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Rejection> {
        if headers.get_all(header::HOST).iter().count() > 1 {
            return Err(Error::invalid("the request has several Host headers, expected one").into());
        }
        let host = host(uri, headers);
        if let (Some(allowed), Some(host)) = (&self.allowed, &host)
            && !is_local_name(host.host())
            && !allowed.iter().any(|name| name.eq_ignore_ascii_case(host.host()))
        {
            return Err(Error::permission_denied(
                "the Host header has an unknown name; use localhost or an IP address, list the name in `allowed_hosts`, or start \
                 the server with --tokens",
            )
            .into());
        }
        if is_cross_site(method, host.as_ref(), headers) {
            return Err(
                Error::permission_denied("requests from a page of another site are not allowed").into()
            );
        }
        Ok(())
    }
}

/// Rejects requests that fail the check, and adds the security headers to every response.
pub(super) async fn check(State(host_check): State<HostCheck>, request: Request, next: Next) -> Response {
    let mut response = match host_check.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(rejection) => rejection.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // Responses without a cache policy of their own must not be stored.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Returns the requested host: from the URI in HTTP/2, from the `Host` header in HTTP/1.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let named = || headers.get(header::HOST).map(|host| Authority::try_from(host.as_bytes()));
    match (uri.authority(), named()) {
        (Some(authority), _) => Some(authority.clone()),
        // An invalid header matches no allowed host.
        (None, Some(host)) => Some(host.unwrap_or(Authority::from_static("invalid"))),
        (None, None) => None,
    }
}

fn is_local_name(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok() || (!bare.is_empty() && bare != "invalid" && !bare.contains('.'))
}

/// True if the browser marks the request as sent by a page of another site. Following a link from there is allowed.
fn is_cross_site(method: &Method, host: Option<&Authority>, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get(FETCH_SITE) {
        let follows_link =
            *method == Method::GET && headers.get(FETCH_MODE).is_some_and(|mode| mode == "navigate");
        return site != "same-origin" && site != "none" && !follows_link;
    }
    // Older browsers send at least the origin of requests that may change state.
    let Some(origin) = headers.get(header::ORIGIN).filter(|_| !is_read(method)) else { return false };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, origin)| origin);
    origin.is_none_or(|origin| host.is_none_or(|host| !host.as_str().eq_ignore_ascii_case(origin)))
}

#[cfg(test)]
mod tests;
