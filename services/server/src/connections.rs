//! Accepted connections: their number, their time limits, TLS, and the HTTP server that gRPC and the HTTP routes share.
//!
//! - `config`: all limits.
//! - `places`: limits on the number of connections of a listener and of one peer.
//! - `connection`: what the requests of a connection tell about it, and when it is closed.
//! - `answer`: the body of a response, whose bytes are charged and must be accepted in time.

mod answer;
mod config;
mod connection;
mod places;

use std::{
    future::ready,
    io,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, response::IntoResponse};
use futures::{FutureExt, future::BoxFuture};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::{either::Either, sync::CancellationToken};
use tonic::Status;

use crate::{
    Address, Error,
    address::{Listener, Peer, Stream},
    auth::Acceptor,
    settings::Limits,
};

use answer::Answer;
pub(crate) use answer::{size_limit, unsent_limit};
pub(crate) use config::Config;
use connection::Next;
pub(crate) use connection::{Connection, MayPause, Watch};
use places::Place;
pub(crate) use places::Places;

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time limit for the head of an HTTP/1 request after the first one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which a connection that is being finished is checked.
const CLOSE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum size of the headers of a gRPC call in bytes.
const MAX_GRPC_HEADER_BYTES: u32 = 16 << 10;

/// Protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// gRPC over HTTP/2.
    Grpc,
    /// HTTP/1 and HTTP/2.
    Http,
}

impl Protocol {
    fn is_probe(self, path: &str) -> bool {
        match self {
            Self::Grpc => path == "/grpc.health.v1.Health/Check",
            Self::Http => matches!(path, "/livez" | "/readyz" | "/grpc.health.v1.Health/Check"),
        }
    }

    /// Response to a request that is no probe, on a connection above the limit.
    fn refusal(self, max: usize) -> axum::response::Response {
        let error = Error::unavailable(format!(
            "{max} connections are open, which is limits.max_connections; retry later or on another server"
        ));
        match self {
            Self::Grpc => Status::from(error).into_http(),
            Self::Http => {
                let problem = serde_json::json!({ "error": error.message() });
                let headers = [("retry-after", "1"), ("connection", "close")];
                (error.http_code(), headers, axum::Json(problem)).into_response()
            }
        }
    }
}

/// A listener and the limits of its connections.
pub(crate) struct Connections {
    listener: Listener,
    address: Address,
    tls: Option<Acceptor>,
    config: Config,
    places: Places,
}

impl Connections {
    /// With `tls`, TCP connections use TLS.
    pub(crate) fn new(listener: Listener, config: Config, tls: Option<Acceptor>) -> io::Result<Self> {
        let address = listener.address()?;
        let places = Places::new(config.clone());
        Ok(Self { listener, address, tls, config, places })
    }

    /// Listen address.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Open connections of the listener.
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// Serves `app` until `stop`, and then until all running requests have ended.
    pub(crate) async fn serve(
        self,
        protocol: Protocol,
        app: Router,
        limits: Arc<Limits>,
        stop: CancellationToken,
    ) {
        let server = Arc::new(Server { builder: builder(protocol, &limits), protocol, app, stop });
        let mut connections = JoinSet::new();
        loop {
            let (stream, peer) = tokio::select! {
                () = server.stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.listener) => accepted,
            };
            let Some(place) = self.places.take(peer.address()) else { continue };
            let (tls, config) = (self.tls.clone(), self.config.clone());
            connections.spawn(Arc::clone(&server).run((stream, peer), place, tls, config));
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }
}

async fn accept(listener: &Listener) -> (Stream, Peer) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                // Without a pause, a lack of file descriptors would make this loop spin.
                tracing::debug!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Bytes of a request that a client may send before the server reads them.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Bytes of all requests of a connection that a client may send before the server reads them.
const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;

/// Largest number of concurrent requests per connection to the HTTP port. A health probe waits behind all requests that arrived before it. A
/// client must therefore not be able to send hundreds at once.
const MAX_HTTP_REQUESTS: u32 = 32;

fn builder(protocol: Protocol, limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(match protocol {
            Protocol::Grpc => limits.max_calls_per_connection,
            Protocol::Http => limits.max_calls_per_connection.min(MAX_HTTP_REQUESTS),
        })
        // A request that waits does not fill the window of its connection, so that others are received.
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(limits.keepalive_interval)
        .keep_alive_timeout(limits.keepalive_timeout);
    match protocol {
        Protocol::Grpc => {
            builder.http2().max_header_list_size(MAX_GRPC_HEADER_BYTES);
            builder.http2_only()
        }
        Protocol::Http => builder,
    }
}

/// State that all connections of a listener share.
struct Server {
    builder: Builder<TokioExecutor>,
    protocol: Protocol,
    app: Router,
    stop: CancellationToken,
}

impl Server {
    /// Serves one connection until it ends, is closed, or has finished its requests after the server stopped.
    async fn run(
        self: Arc<Self>,
        (stream, peer): (Stream, Peer),
        place: Place,
        tls: Option<Acceptor>,
        config: Config,
    ) {
        let Some(stream) =
            place.replaced.clone().run_until_cancelled_owned(secured(stream, tls)).await.flatten()
        else {
            return;
        };
        let connection = Arc::new(Connection::new(place, peer, config.clone()));
        let app = Requests {
            app: self.app.clone(),
            connection: Arc::clone(&connection),
            protocol: self.protocol,
            max: config.max,
        };
        let serving = self.builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
        let mut serving = pin!(serving);
        let mut check = Instant::now();
        let mut finishing = false;
        loop {
            tokio::select! {
                served = &mut serving => {
                    if let Err(error) = served {
                        tracing::debug!(error, "a connection failed");
                    }
                    return;
                }
                () = connection.replaced() => return,
                () = self.stop.cancelled(), if !finishing => {
                    serving.as_mut().graceful_shutdown();
                    (finishing, check) = (true, Instant::now() + CLOSE_INTERVAL);
                }
                () = tokio::time::sleep_until(check) => {
                    let now = Instant::now();
                    let next = match finishing {
                        // The transport may still hold bytes of the last answer.
                        true if connection.idle_since().is_some_and(|since| since + config.receive_timeout <= now) => {
                            Next::Close
                        }
                        true if connection.deadline().is_some_and(|at| at <= now) => Next::Close,
                        true => Next::Check(now + CLOSE_INTERVAL),
                        false => connection.next(now),
                    };
                    match next {
                        Next::Check(at) => check = at,
                        Next::Close => return,
                        Next::Finish => {
                            serving.as_mut().graceful_shutdown();
                            (finishing, check) = (true, now + CLOSE_INTERVAL);
                        }
                    }
                }
            }
        }
    }
}

type Secured = Either<Stream, Box<tokio_rustls::server::TlsStream<tokio::net::TcpStream>>>;

async fn secured(stream: Stream, tls: Option<Acceptor>) -> Option<Secured> {
    match (stream, tls) {
        (Either::Left(stream), Some(tls)) => match tls.accept(stream).await {
            Ok(stream) => Some(Either::Right(Box::new(stream))),
            Err(error) => {
                metrics::counter!("forebay_tls_errors_total").increment(1);
                tracing::debug!(%error, "TLS handshake failed");
                None
            }
        },
        // File permissions control access to a Unix socket.
        (stream, _) => Some(Either::Left(stream)),
    }
}

/// The app as one connection sees it.
#[derive(Clone)]
struct Requests {
    app: Router,
    connection: Arc<Connection>,
    protocol: Protocol,
    max: usize,
}

impl<B> tower::Service<http::Request<B>> for Requests
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = http::Response<Answer>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        <Router as tower::Service<http::Request<B>>>::poll_ready(&mut self.app, context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        let running = self.connection.begin();
        if self.connection.is_for_probes() && !self.protocol.is_probe(request.uri().path()) {
            let refusal = self.protocol.refusal(self.max);
            return ready(Ok(Answer::of(refusal, running))).boxed();
        }
        request.extensions_mut().insert(Arc::clone(&self.connection));
        let answer = self.app.call(request);
        async { Ok(Answer::of(answer.await?, running)) }.boxed()
    }
}
