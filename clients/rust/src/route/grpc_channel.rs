//! A gRPC channel whose responses are checked to be those of gRPC.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{StatusCode, header::CONTENT_TYPE};
use tonic::{Status, body::Body, transport::Channel};
use tower::{BoxError, Service};

use crate::Error;

/// A channel to the server at a URL. Its calls fail with [`Error`] if the response is not one of gRPC, such as a page of an HTTP server,
/// which the generated clients would decode.
#[derive(Clone)]
pub(super) struct GrpcChannel {
    pub(super) url: Arc<str>,
    pub(super) channel: Channel,
}

impl Service<http::Request<Body>> for GrpcChannel {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.channel.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (url, call) = (Arc::clone(&self.url), self.channel.call(request));
        Box::pin(async move {
            let response = call.await?;
            check(&url, &response)?;
            Ok(response)
        })
    }
}

/// Checks that a response of the server at `url` is one of gRPC.
///
/// # Errors
/// [`Error::Lost`] for a status of a proxy whose server is unavailable; [`Error::Protocol`] for other responses.
pub(super) fn check(url: &str, response: &http::Response<Body>) -> Result<(), Error> {
    let (status, headers) = (response.status(), response.headers());
    if Status::from_header_map(headers).is_some() {
        return Ok(());
    }
    if matches!(status.as_u16(), 429 | 502 | 503 | 504) {
        return Err(Error::lost(url, format!("HTTP status {status}")));
    }
    let kind = headers.get(CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()));
    let is_grpc = kind.as_ref().is_none_or(|kind| kind.starts_with("application/grpc"));
    if status == StatusCode::OK && is_grpc {
        return Ok(());
    }
    let kind = kind.map_or(String::new(), |kind| format!(" and {}", kind.escape_debug()));
    Err(Error::Protocol(format!(
        "{url} answers with HTTP status {status}{kind}, expected a gRPC response; use the address of the server's setting `grpc`, by \
         default with port 8815, not the one of the dashboard or of another web server"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_of_a_web_server_is_no_response_of_grpc() {
        let checked = |status: u16, kind: Option<&str>, grpc_status: Option<&str>| {
            let mut response = http::Response::builder().status(status);
            for (name, value) in [("content-type", kind), ("grpc-status", grpc_status)] {
                if let Some(value) = value {
                    response = response.header(name, value);
                }
            }
            check("grpc://a:1", &response.body(Body::empty()).unwrap())
        };
        for kind in [None, Some("application/grpc"), Some("application/grpc+proto")] {
            assert!(checked(200, kind, None).is_ok(), "{kind:?}");
        }
        assert!(checked(404, Some("text/plain"), Some("12")).is_ok(), "the status of gRPC counts");
        assert!(matches!(checked(503, Some("text/plain"), None), Err(Error::Lost { .. })));
        for (status, kind) in [(200, Some("text/html")), (403, Some("application/json")), (404, None)] {
            let error = checked(status, kind, None).unwrap_err();
            assert!(matches!(error, Error::Protocol(_)), "{error}");
            let words = error.to_string();
            assert!(words.contains(&format!("HTTP status {status}")) && words.contains("8815"), "{words}");
        }
    }
}
