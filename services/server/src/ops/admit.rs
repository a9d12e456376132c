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
        if !is_read(request.method()) && !is_question(&request) {
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

/// A question that does not fit into a URL, and changes nothing.
fn is_question(request: &Request) -> bool {
    *request.method() == Method::POST && request.uri().path() == "/api/v1/explain"
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
