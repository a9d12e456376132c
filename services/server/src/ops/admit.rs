//! Who is let in over HTTP, and who may change something.

use axum::{
    extract::{Request, State},
    http::{HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::answer::Refusal;
use crate::door::{Access, Door};

/// How a token may be shown. Each has a header of its own, because browsers take no more than one from each: the first one makes them
/// ask their users.
const CHALLENGES: [&str; 2] =
    ["Basic realm=\"forebay: the password is a token\"", "Bearer realm=\"forebay\""];

/// Lets those in who show a token, and to what changes something only those who may. What lies behind finds the [`Access`] of its
/// caller among the request's extensions.
pub(super) async fn admit(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let admitted = door.admit(request.headers()).and_then(|access| {
        if !is_read(request.method()) && !decides_itself(&request) {
            access.check_admin()?;
        }
        Ok(access)
    });
    match admitted {
        Ok(access) => {
            request.extensions_mut().insert::<Access>(access);
            next.run(request).await
        }
        Err(status) => refuse(Refusal::from(status)),
    }
}

/// Whether who may ask is decided by what answers: a question that does not fit into a URL changes nothing, and neither does the dry
/// run of a change.
fn decides_itself(request: &Request) -> bool {
    match (request.method(), request.uri().path()) {
        (&Method::POST, path) => path == "/api/v1/explain",
        (&Method::PATCH, path) => {
            path.strip_prefix("/api/v1/queues/").is_some_and(|queue| !queue.contains('/'))
        }
        _ => false,
    }
}

/// Whether a request of this method changes nothing.
pub(super) fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn refuse(refusal: Refusal) -> Response {
    let mut response = refusal.into_response();
    if response.status() == StatusCode::UNAUTHORIZED {
        for challenge in CHALLENGES {
            response.headers_mut().append(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
    }
    response
}
