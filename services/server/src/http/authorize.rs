//! Authentication and authorization of HTTP requests, and the charge of what they and their responses hold.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use http_body::Body;

use super::{Context, response::Rejection};
use crate::{
    Error,
    address::Peer,
    auth::Access,
    callers::{Account, Charge, Resource},
    connections::Connection,
    telemetry::audit,
};

/// Accepted authentication schemes. Each is sent in a header of its own, because browsers read only one scheme per header; the
/// first one makes them prompt the user.
const CHALLENGES: [&str; 2] =
    ["Basic realm=\"forebay: the password is a token\"", "Bearer realm=\"forebay\""];

/// Authenticates the caller and requires an administrator for requests that change state. Stores the [`Access`] of the caller in
/// the extensions of the request. Charges the body of the request until its response begins, and that of the response until it is
/// sent.
pub(super) async fn authorize(
    State(context): State<Arc<Context>>,
    mut request: Request,
    next: Next,
) -> Response {
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    let peer = connection.as_ref().map(|connection| connection.peer());
    let authorized = context.authenticator.authorize(request.headers(), peer).and_then(|access| {
        connection.as_ref().map_or(Ok(()), |connection| connection.authenticated(&access.caller()))?;
        if !is_read(request.method()) && !handler_authorizes(&request) {
            access.check_admin()?;
        }
        Ok(access)
    });
    match authorized {
        Ok(access) => {
            let account = Account::new(&context.services.callers, access.caller());
            let max_bytes = context.services.limits.max_request_bytes as u64;
            let receiving = match incoming(&account, &request, max_bytes) {
                Ok(charge) => charge,
                Err(error) => return reject(Rejection::from(error)),
            };
            request.extensions_mut().insert::<Access>(access.shown_all());
            let response = next.run(request).await;
            drop(receiving);
            charged(account, response)
        }
        Err(error) => {
            // Browsers ask without a token first.
            let has_token = request.headers().contains_key(header::AUTHORIZATION);
            if error.http_code() == StatusCode::UNAUTHORIZED && has_token {
                audit::failed_login(peer.and_then(Peer::address), error.message());
            }
            reject(Rejection::from(error))
        }
    }
}

/// Charges the body of a request, of which the server receives at most `max_bytes`.
fn incoming(account: &Account, request: &Request, max_bytes: u64) -> Result<Option<Charge>, Error> {
    let bytes = request.body().size_hint().exact().unwrap_or(max_bytes).min(max_bytes);
    (bytes > 0).then(|| account.take(Resource::IncomingBytes, bytes)).transpose()
}

/// A response that is charged until it is sent. One of unknown size is charged as its parts are sent.
fn charged(account: Account, mut response: Response) -> Response {
    if let Some(bytes) = response.body().size_hint().exact().filter(|bytes| *bytes > 0) {
        match account.take_small(bytes) {
            Ok(charge) => drop(response.extensions_mut().insert(charge.shared())),
            Err(error) => return reject(Rejection::from(error)),
        }
    }
    response.extensions_mut().insert(account);
    response
}

/// True if the handler of the route authorizes the request: `POST /api/v1/explain` changes nothing, and neither does a dry run of
/// a change of queue settings.
fn handler_authorizes(request: &Request) -> bool {
    match (request.method(), request.uri().path()) {
        (&Method::POST, path) => path == "/api/v1/explain",
        (&Method::PATCH, path) => {
            path.strip_prefix("/api/v1/queues/").is_some_and(|queue| !queue.contains('/'))
        }
        _ => false,
    }
}

/// True if requests with this method change nothing.
pub(super) fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn reject(rejection: Rejection) -> Response {
    let mut response = rejection.into_response();
    if response.status() == StatusCode::UNAUTHORIZED {
        for challenge in CHALLENGES {
            response.headers_mut().append(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
    }
    response
}
