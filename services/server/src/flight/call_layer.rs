//! The layer that wraps every gRPC call, including the framed route: metrics, authentication, rejection while the server drains,
//! and tracing.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Instant,
};

use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::{Code, Status, body::Body};
use tracing::Instrument;

use crate::{
    Error,
    auth::{Access, Authenticator},
    connections::Connection,
    drain::{Drain, stopping},
    telemetry::audit,
    traces::{Span, Trace, Traces},
};

/// Authenticates every call and rejects calls while the server drains. Handlers find the caller's [`Access`] among the request's
/// extensions.
#[derive(Clone)]
pub(crate) struct CallLayer {
    drain: Drain,
    authenticator: Authenticator,
    traces: Traces,
}

impl CallLayer {
    pub(crate) fn new(drain: Drain, authenticator: Authenticator, traces: Traces) -> Self {
        Self { drain, authenticator, traces }
    }

    fn authorize(&self, headers: &http::HeaderMap) -> Result<Access, Status> {
        let access = self.authenticator.authenticate(headers)?;
        if self.drain.is_draining() {
            return Err(stopping().into());
        }
        Ok(access)
    }
}

/// Permissions of the caller, which [`CallLayer`] stored in the request's extensions.
pub(super) fn access(extensions: &http::Extensions) -> Result<Access, Status> {
    let missing = || Error::unauthenticated("internal: the request reached a handler unauthenticated").into();
    extensions.get::<Access>().cloned().ok_or_else(missing)
}

/// Trace of the call, if the call is traced.
pub(super) fn trace(extensions: &http::Extensions) -> Option<Trace> {
    extensions.get::<Trace>().cloned()
}

impl<S> tower::Layer<S> for CallLayer {
    type Service = CallService<S>;

    fn layer(&self, inner: S) -> CallService<S> {
        CallService { inner, layer: self.clone() }
    }
}

/// A service wrapped by [`CallLayer`].
#[derive(Clone)]
pub(crate) struct CallService<S> {
    inner: S,
    layer: CallLayer,
}

impl<S, B> tower::Service<http::Request<B>> for CallService<S>
where
    S: tower::Service<http::Request<B>, Response = http::Response<axum::body::Body>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        let mut call = Call::new(method(request.uri().path()));
        // Orchestrators check health without a token, and also while the server drains.
        if call.method != "health" {
            match self.layer.authorize(request.headers()) {
                Ok(access) => {
                    let connection = request.extensions().get::<Arc<Connection>>();
                    let peer = connection.and_then(|connection| connection.authenticated());
                    request.extensions_mut().insert(access.at(peer));
                    call.start_span(&self.layer.traces, &mut request);
                }
                Err(refused) => {
                    if refused.code() == Code::Unauthenticated {
                        let connection = request.extensions().get::<Arc<Connection>>();
                        audit::failed_login(
                            connection.and_then(|connection| connection.peer()),
                            refused.message(),
                        );
                    }
                    return Box::pin(async move { Ok(call.observe(refused.into_http::<Body>())) });
                }
            }
        }
        let answer = self.inner.call(request).instrument(call.log.clone());
        Box::pin(async { Ok(call.observe(answer.await?)) })
    }
}

/// Value of the `method` label: a fixed set, so that callers cannot create label values.
fn method(path: &str) -> &'static str {
    if path == "/forebay.v1.Online/Lookup" {
        return "Lookup";
    }
    let Some(flight) = path.strip_prefix("/arrow.flight.protocol.FlightService/") else {
        return if path.starts_with("/grpc.health.") { "health" } else { "other" };
    };
    match flight {
        "DoAction" => "DoAction",
        "DoExchange" => "DoExchange",
        "DoGet" => "DoGet",
        "DoPut" => "DoPut",
        "GetFlightInfo" => "GetFlightInfo",
        "GetSchema" => "GetSchema",
        "Handshake" => "Handshake",
        "ListActions" => "ListActions",
        "ListFlights" => "ListFlights",
        "PollFlightInfo" => "PollFlightInfo",
        _ => "other",
    }
}

/// One call, recorded when its response ends. A response that ends without a status was cancelled.
struct Call {
    method: &'static str,
    started: Instant,
    code: Option<Code>,
    span: Option<Span>,
    /// Span of the call's log lines.
    log: tracing::Span,
}

impl Call {
    fn new(method: &'static str) -> Self {
        Self { method, started: Instant::now(), code: None, span: None, log: tracing::Span::none() }
    }

    /// Starts a span if the call is traced, and stores its [`Trace`] in the request's extensions.
    fn start_span<B>(&mut self, traces: &Traces, request: &mut http::Request<B>) {
        // The caller chooses unknown paths, so they are not recorded.
        let name = if self.method == "other" { "other" } else { &request.uri().path()[1..] };
        let Some(mut span) = traces.call(name, request.headers()) else { return };
        span.set("rpc.system", "grpc");
        span.set("rpc.method", self.method);
        self.log = span.trace().log_span();
        request.extensions_mut().insert(span.trace().clone());
        self.span = Some(span);
    }

    fn observe<B>(mut self, mut response: http::Response<B>) -> http::Response<Body>
    where
        B: HttpBody<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(code) = response.headers_mut().get_mut("grpc-status")
            && Code::from_bytes(code.as_bytes()) == Code::OutOfRange
        {
            // tonic reports a message over its size limit as OUT_OF_RANGE; no handler here returns that code.
            *code = http::HeaderValue::from(Code::ResourceExhausted as i32);
        }
        self.record_status(response.headers());
        response.map(|body| Body::new(Observed { body: Box::pin(body), call: self }))
    }

    fn record_status(&mut self, headers: &http::HeaderMap) {
        if let Some(code) = headers.get("grpc-status") {
            self.code = Some(Code::from_bytes(code.as_bytes()));
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let code = self.code.unwrap_or(Code::Cancelled);
        if let Some(span) = &mut self.span {
            span.set("rpc.grpc.status_code", i64::from(code as i32));
            if code != Code::Ok {
                span.fail(forebay_proto::code_name(code));
            }
        }
        let code = forebay_proto::code_name(code);
        metrics::counter!("forebay_grpc_calls_total", "method" => self.method, "code" => code).increment(1);
        metrics::histogram!("forebay_grpc_call_duration_seconds", "method" => self.method)
            .record(self.started.elapsed());
    }
}

/// A response body that passes its trailers to the [`Call`].
struct Observed<B> {
    body: Pin<Box<B>>,
    call: Call,
}

impl<B: HttpBody> HttpBody for Observed<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let Self { body, call } = &mut *self;
        let frame = ready!(call.log.in_scope(|| body.as_mut().poll_frame(context)));
        if let Some(Ok(frame)) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            call.record_status(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
