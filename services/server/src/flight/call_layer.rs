//! The layer that wraps every gRPC call, including the framed route: metrics, authentication, limits of the caller, rejection while
//! the server drains, and tracing.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use futures::StreamExt;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Limited;
use tonic::{Code, Status, body::Body};
use tracing::Instrument;

use super::incoming::{Charging, Incoming, Messages};
use crate::{
    Error,
    auth::{Access, Authenticator},
    callers::{Account, Callers, Charge, Resource, SharedCharge},
    connections::{Connection, Watch},
    drain::{Drain, stopping},
    services::Services,
    settings::Limits,
    telemetry::audit,
    traces::{Span, Trace, Traces},
};

/// Maximum size of the request of a health check, in bytes: the name of a service.
const MAX_HEALTH_BYTES: usize = 4096;

/// Authenticates every call, charges it to its caller, and rejects calls while the server drains. Handlers find the caller's
/// [`Access`] among the request's extensions, and the charge for the call, which otherwise lasts until the answer is sent.
#[derive(Clone)]
pub(crate) struct CallLayer {
    drain: Drain,
    authenticator: Authenticator,
    callers: Callers,
    limits: Arc<Limits>,
    traces: Traces,
}

impl CallLayer {
    pub(crate) fn new(services: &Services, authenticator: Authenticator) -> Self {
        let Services { drain, callers, limits, traces, .. } = services.clone();
        Self { drain, authenticator, callers, limits, traces }
    }

    fn authorize(
        &self,
        headers: &http::HeaderMap,
        connection: Option<&Connection>,
        method: &str,
    ) -> Result<Access, Status> {
        let access = self.authenticator.authorize(headers, connection.map(Connection::peer))?;
        connection.map_or(Ok(()), |connection| connection.authenticated(&access.caller()))?;
        // The actions decide themselves: other servers may still ask who this one is.
        if self.drain.is_draining() && method != "DoAction" {
            return Err(stopping().into());
        }
        Ok(access)
    }

    /// Charges the call, and what it will hold of its request and its answer.
    ///
    /// # Errors
    /// Busy, if the caller or all callers have too many calls.
    fn admit(
        &self,
        access: Access,
        call: &mut Call,
        mut request: http::Request<axum::body::Body>,
    ) -> Result<http::Request<axum::body::Body>, Status> {
        let account = Account::new(&self.callers, access.caller());
        let charge = account.take(Resource::Calls, 1)?.shared();
        // Reflection is "other". Its client sends any number of requests.
        let messages = match call.method {
            "DoExchange" | "DoPut" | "other" => Messages::Many,
            _ => Messages::One,
        };
        let charging = Charging::default();
        let extensions = request.extensions_mut();
        extensions.insert(access);
        extensions.insert(charge.clone());
        extensions.insert(charging.clone());
        call.held = Some((account.clone(), charge));
        let incoming =
            |body| axum::body::Body::new(Incoming::new(body, messages, account, &self.limits, charging));
        let request = request.map(incoming);
        if call.method != "other" {
            return Ok(request);
        }
        // A client may leave its request open. A draining server does not wait for it.
        let drain = self.drain.clone();
        let drained = async move { drain.drained().await };
        Ok(request.map(|body| axum::body::Body::from_stream(body.into_data_stream().take_until(drained))))
    }
}

/// Permissions of the caller, which [`CallLayer`] stored in the request's extensions.
pub(super) fn access(extensions: &http::Extensions) -> Result<Access, Status> {
    let missing = || Error::unauthenticated("internal: the request reached a handler unauthenticated").into();
    extensions.get::<Access>().cloned().ok_or_else(missing)
}

/// Takes the charge for the call, so that it ends when it is dropped.
pub(super) fn charge(extensions: &mut http::Extensions) -> Option<Charge> {
    Charge::from_extension(extensions)
}

/// Trace of the call, if the call is traced.
pub(super) fn trace(extensions: &http::Extensions) -> Option<Trace> {
    extensions.get::<Trace>().cloned()
}

/// A response that holds `charge` until it is sent.
pub(super) fn charged<T>(message: T, charge: Charge) -> tonic::Response<T> {
    let mut response = tonic::Response::new(message);
    response.extensions_mut().insert(charge.shared());
    response
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

impl<S> tower::Service<http::Request<axum::body::Body>> for CallService<S>
where
    S: tower::Service<http::Request<axum::body::Body>, Response = http::Response<axum::body::Body>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<axum::body::Body>) -> Self::Future {
        let mut call = Call::new(method(request.uri().path()));
        // Orchestrators check health without a token, and also while the server drains.
        let mut timeout = timeout(request.headers());
        if call.method == "health" {
            let connection = request.extensions().get::<Arc<Connection>>();
            if let Some(connection) = connection.filter(|_| request.uri().path().ends_with("/Watch")) {
                match connection.watch() {
                    Ok(watch) => call.watch = Some(watch),
                    Err(error) => {
                        let refused = Status::from(error);
                        return Box::pin(async move { Ok(call.observe(refused.into_http::<Body>())) });
                    }
                }
            }
            let limit = self.layer.limits.request_timeout;
            timeout = Some(timeout.map_or(limit, |timeout| timeout.min(limit)));
            request = request.map(|body| axum::body::Body::new(Limited::new(body, MAX_HEALTH_BYTES)));
        } else {
            let connection = request.extensions().get::<Arc<Connection>>().cloned();
            let authorized = self.layer.authorize(request.headers(), connection.as_deref(), call.method);
            match authorized.and_then(|access| self.layer.admit(access, &mut call, request)) {
                Ok(admitted) => request = admitted,
                Err(refused) => {
                    if refused.code() == Code::Unauthenticated {
                        audit::failed_login(
                            connection.and_then(|connection| connection.peer().address()),
                            refused.message(),
                        );
                    }
                    return Box::pin(async move { Ok(call.observe(refused.into_http::<Body>())) });
                }
            }
            call.start_span(&self.layer.traces, &mut request);
        }
        let answer = self.inner.call(request).instrument(call.log.clone());
        Box::pin(async move {
            let Some(timeout) = timeout else { return Ok(call.observe(answer.await?)) };
            match tokio::time::timeout(timeout, answer).await {
                Ok(answer) => Ok(call.observe(answer?)),
                Err(_) => Ok(call.observe(late().into_http::<Body>())),
            }
        })
    }
}

/// Time limit of the caller until the response begins: the header `grpc-timeout`, up to eight digits and a unit.
fn timeout(headers: &http::HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let amount: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

fn late() -> Status {
    Status::deadline_exceeded("the deadline of the call (grpc-timeout) has passed")
}

/// Value of the `method` label: a fixed set, so that callers cannot create label values.
fn method(path: &str) -> &'static str {
    if path == "/forebay.v1.Online/Lookup" {
        return "Lookup";
    }
    if let Some(inference) = path.strip_prefix("/inference.GRPCInferenceService/") {
        return match inference {
            "ModelInfer" => "ModelInfer",
            "ModelMetadata" => "ModelMetadata",
            "ModelReady" => "ModelReady",
            "ServerLive" => "ServerLive",
            "ServerMetadata" => "ServerMetadata",
            "ServerReady" => "ServerReady",
            _ => "other",
        };
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
    /// Caller of the call, and its charge for the call. The handler may take the charge.
    held: Option<(Account, SharedCharge)>,
    /// Health watch of the call, if it is one.
    watch: Option<Watch>,
    span: Option<Span>,
    /// Span of the call's log lines.
    log: tracing::Span,
}

impl Call {
    fn new(method: &'static str) -> Self {
        Self {
            method,
            started: Instant::now(),
            code: None,
            held: None,
            watch: None,
            span: None,
            log: tracing::Span::none(),
        }
    }

    /// Starts a span if the call is traced, and stores its [`Trace`] in the request's extensions.
    fn start_span<B>(&mut self, traces: &Traces, request: &mut http::Request<B>) {
        // The caller chooses unknown paths, so they are not recorded.
        let is_known = self.method != "other";
        let name = if is_known { &request.uri().path()[1..] } else { "grpc" };
        let method = if is_known { name } else { "_OTHER" }.to_owned();
        let Some(mut span) = traces.call(name, request.headers()) else { return };
        // The semantic conventions of OpenTelemetry for gRPC servers.
        span.set("rpc.system.name", "grpc");
        span.set("rpc.method", method);
        let connection = request.extensions().get::<Arc<Connection>>();
        let peer = connection.and_then(|connection| connection.peer().address());
        if let Some(peer) = peer {
            span.set("client.address", peer.to_string());
        }
        self.log = span.trace().log_span();
        request.extensions_mut().insert(span.trace().clone());
        self.span = Some(span);
    }

    fn observe<B>(mut self, mut response: http::Response<B>) -> http::Response<Body>
    where
        B: HttpBody<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(code) = corrected(response.headers()) {
            response.headers_mut().insert("grpc-status", http::HeaderValue::from(code as i32));
        }
        self.record_status(response.headers());
        if let Some((account, _)) = &self.held {
            response.extensions_mut().insert(account.clone());
        }
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
            let name = forebay_proto::code_name(code);
            span.set("rpc.response.status_code", name);
            if is_server_error(code) {
                span.set("error.type", name);
                span.fail(name);
            }
        }
        let code = forebay_proto::code_name(code);
        metrics::counter!("forebay_grpc_calls_total", "method" => self.method, "code" => code).increment(1);
        metrics::histogram!("forebay_grpc_call_duration_seconds", "method" => self.method)
            .record(self.started.elapsed());
    }
}

/// Returns the right code for an error of tonic about a message of the caller; `None` if the code of tonic is right.
fn corrected(headers: &http::HeaderMap) -> Option<Code> {
    match Code::from_bytes(headers.get("grpc-status")?.as_bytes()) {
        // A message over the size limit. No handler here returns that code.
        Code::OutOfRange => Some(Code::ResourceExhausted),
        // A malformed message. The text is percent-encoded.
        Code::Internal => {
            let text = headers.get("grpc-message")?.to_str().ok()?;
            text.replace("%20", " ").starts_with(MALFORMED).then_some(Code::InvalidArgument)
        }
        _ => None,
    }
}

/// Prefix of the messages of all errors of the Protobuf decoder.
const MALFORMED: &str = "failed to decode Protobuf message";

/// True for codes that mean a failure of the server, by the semantic conventions of OpenTelemetry.
fn is_server_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
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

#[cfg(test)]
mod tests {
    use arrow_flight::FlightDescriptor;
    use prost::Message;

    use super::*;

    #[test]
    fn a_malformed_message_is_an_invalid_argument_and_a_defect_is_not() {
        let code = |message: &str| {
            let refused = Status::internal(message).into_http::<Body>();
            Code::from_bytes(Call::new("GetFlightInfo").observe(refused).headers()["grpc-status"].as_bytes())
        };
        let malformed = FlightDescriptor::decode(&[0xff, 0xff, 1][..]).unwrap_err();
        assert_eq!(code(&malformed.to_string()), Code::InvalidArgument, "{malformed}");
        assert_eq!(code("a thread panicked"), Code::Internal);
    }

    #[test]
    fn the_deadline_of_a_call_is_read_as_grpc_defines_it() {
        let timeout = |text: &'static str| {
            timeout(
                &[(http::HeaderName::from_static("grpc-timeout"), http::HeaderValue::from_static(text))]
                    .into_iter()
                    .collect(),
            )
        };
        assert_eq!(timeout("2M"), Some(Duration::from_secs(120)));
        assert_eq!(timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(timeout("5m"), Some(Duration::from_millis(5)));
        assert_eq!(timeout("7u"), Some(Duration::from_micros(7)));
        for malformed in ["", "S", "5", "-5S", "123456789S", "5s", "5\u{b5}"] {
            let Ok(value) = http::HeaderValue::from_str(malformed) else { continue };
            let headers = [(http::HeaderName::from_static("grpc-timeout"), value)].into_iter().collect();
            assert_eq!(super::timeout(&headers), None, "{malformed}");
        }
    }
}
