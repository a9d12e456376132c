//! What every gRPC call passes, the framed route included: counting, the door, refusal while draining, and the call's trace.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};

use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, body::Body};
use tracing::Instrument;

use crate::{
    door::{Access, Door},
    traces::{Span, Trace, Traces},
};

/// The server's state as calls see it. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Guard {
    draining: CancellationToken,
    handed_over: CancellationToken,
}

impl Guard {
    /// From now on no call is let in.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
    }

    /// From now on running streams end with `UNAVAILABLE` instead of their next batch.
    pub(crate) fn hand_over(&self) {
        self.handed_over.cancel();
    }

    /// Waits until no call is let in any more.
    pub(crate) async fn drained(&self) {
        self.draining.cancelled().await;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    pub(crate) async fn handed_over(&self) {
        self.handed_over.cancelled().await;
    }
}

/// Puts a [`Guard`] and a [`Door`] before every route. What lies behind finds the [`Access`] of its caller among the
/// request's extensions.
#[derive(Clone)]
pub(crate) struct GuardLayer {
    guard: Guard,
    door: Door,
    traces: Traces,
}

impl GuardLayer {
    pub(crate) fn new(guard: Guard, door: Door, traces: Traces) -> Self {
        Self { guard, door, traces }
    }
}

/// What the caller of a request may read, as [`GuardLayer`] found.
pub(super) fn access(extensions: &http::Extensions) -> Result<Access, Status> {
    let missing = || Status::unauthenticated("the call did not come through the door");
    extensions.get::<Access>().cloned().ok_or_else(missing)
}

/// The trace of a request's call, if it is traced.
pub(super) fn trace(extensions: &http::Extensions) -> Option<Trace> {
    extensions.get::<Trace>().cloned()
}

impl<S> tower::Layer<S> for GuardLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        let Self { guard, door, traces } = self.clone();
        Guarded { inner, guard, door, traces }
    }
}

/// A service behind a [`Guard`].
#[derive(Clone)]
pub(crate) struct Guarded<S> {
    inner: S,
    guard: Guard,
    door: Door,
    traces: Traces,
}

impl<S, B> tower::Service<http::Request<B>> for Guarded<S>
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
        let mut call = Call::of(method(request.uri().path()));
        // Health is asked after by whoever keeps the server running, and on purpose while it drains.
        if call.method != "health" {
            match self.let_in(request.headers()) {
                Ok(access) => {
                    request.extensions_mut().insert(access);
                    call.traced(&self.traces, &mut request);
                }
                Err(refused) => {
                    return Box::pin(async move { Ok(call.observe(refused.into_http::<Body>())) });
                }
            }
        }
        let answer = self.inner.call(request).instrument(call.log.clone());
        Box::pin(async { Ok(call.observe(answer.await?)) })
    }
}

impl<S> Guarded<S> {
    fn let_in(&self, headers: &http::HeaderMap) -> Result<Access, Status> {
        let access = self.door.admit(headers)?;
        if self.guard.is_draining() {
            return Err(Status::unavailable("the server is stopping; go on on another one"));
        }
        Ok(access)
    }
}

/// The methods that are counted under their own name; one label value each, whatever is asked for.
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

/// One call, counted when its response ends; one that ends without a status was cancelled.
struct Call {
    method: &'static str,
    started: Instant,
    code: Option<Code>,
    span: Option<Span>,
    /// What its log lines carry.
    log: tracing::Span,
}

impl Call {
    fn of(method: &'static str) -> Self {
        Self { method, started: Instant::now(), code: None, span: None, log: tracing::Span::none() }
    }

    /// Begins its span, if it is traced. What lies behind finds the [`Trace`] among the request's extensions.
    fn traced<B>(&mut self, traces: &Traces, request: &mut http::Request<B>) {
        // A path that is none of ours is the caller's own invention.
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
            // So tonic words a message over its limit, and we word nothing.
            *code = http::HeaderValue::from(Code::ResourceExhausted as i32);
        }
        self.see(response.headers());
        response.map(|body| Body::new(Observed { body: Box::pin(body), call: self }))
    }

    fn see(&mut self, headers: &http::HeaderMap) {
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
        let code = format!("{code:?}");
        metrics::counter!("forebay_grpc_calls_total", "method" => self.method, "code" => code).increment(1);
        metrics::histogram!("forebay_grpc_call_duration_seconds", "method" => self.method)
            .record(self.started.elapsed());
    }
}

/// A response body whose trailers are seen.
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
            call.see(trailers);
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
