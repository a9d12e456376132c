//! A gRPC connection to one Flight server.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use arrow_flight::{
    Action, Criteria, FlightData, FlightDescriptor, FlightInfo, Ticket,
    flight_service_client::FlightServiceClient,
};
use arrow_schema::Schema;
use bytes::Bytes;
use forebay_proto::{
    Encoding,
    v1::{Command, PutValues},
};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::{
    net::TcpStream,
    sync::{Semaphore, mpsc},
};
use tonic::{
    Code, Request, Status,
    body::Body,
    metadata::{MetadataMap, MetadataValue},
    transport::{Channel, Endpoint},
};
use tower::{Service, ServiceExt};

use super::{
    address::http_url,
    candidates::CandidateNumber,
    grpc_channel::{self, GrpcChannel},
    peer::FirstBytes,
    tls::tls_config,
};
use crate::{
    Config, Error, ValueSet,
    config::zone_header,
    memory::Slabs,
    wire::{RequestBody, Response, framed},
};

/// Header with the ID of a trainer. The server uses it to associate streams and reports.
const TRAINER_HEADER: &str = "forebay-trainer";
/// Header with the index of the server in the list of servers that the client tries for a stream, or `last` for a server that must not
/// redirect the client.
const CANDIDATE_HEADER: &str = "forebay-candidate";
/// Header with the zone of the client. The plan then contains locations in this zone.
const ZONE_HEADER: &str = "forebay-zone";
/// Header of a response of DoExchange with the maximum size of a message that the server receives, in bytes.
const MAX_MESSAGE_HEADER: &str = "forebay-max-message-bytes";
const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";
const DO_EXCHANGE: &str = "/arrow.flight.protocol.FlightService/DoExchange";
/// Size of the parts in which a set of values is sent, in bytes. Servers accept messages of 1 MiB by default.
const PART_BYTES: usize = 256 << 10;
/// Length of the prefix of a gRPC message.
const MESSAGE_PREFIX_BYTES: usize = 5;
/// Status of a healthy server in the health service of gRPC.
const SERVING: i32 = 1;

/// The request of the health service of gRPC. Without the name of a service, it is about the whole server.
#[derive(Clone, PartialEq, Message)]
struct HealthCheck {
    #[prost(string, tag = "1")]
    service: String,
}

/// The answer of the health service of gRPC.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckAnswer {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The headers of a request for a stream that describe the client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamSender {
    /// ID of the trainer; 0 for none.
    pub(crate) trainer: u64,
    /// Position of the server in the list of servers that the client tries; `None` without a list.
    pub(crate) candidate: Option<CandidateNumber>,
}

/// A gRPC connection to one Flight server. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub(crate) struct Transport {
    url: Arc<str>,
    channel: Channel,
    config: Arc<Config>,
    /// First bytes of the server over TCP, which tell what answers if it is no gRPC server.
    first_bytes: FirstBytes,
}

impl Transport {
    /// Connects to `url`; see [`Connection::open`](crate::Connection::open).
    pub(crate) async fn open(url: &str, config: Arc<Config>) -> Result<Self, Error> {
        let endpoint = endpoint(url, &config)?;
        // The timeout of the endpoint does not include the TLS handshake.
        let connected = tokio::time::timeout(config.connect_timeout, endpoint.connect()).await;
        let channel = connected.map_err(|late| Error::connect(url, late))?;
        let channel = channel.map_err(|error| Error::connect(url, error))?;
        Ok(Self { url: url.into(), channel, config, first_bytes: FirstBytes::default() })
    }

    /// Connects to `url` at `address`, which is one of the addresses of its host, within `limit`.
    ///
    /// # Errors
    /// [`Error::Protocol`] if a server of another protocol answers; otherwise [`Error::Connect`].
    pub(super) async fn open_at(
        url: &str,
        address: SocketAddr,
        limit: Duration,
        config: Arc<Config>,
    ) -> Result<Self, Error> {
        let endpoint = endpoint(url, &config)?;
        // The connection keeps the name of the host as its authority, and for the verification of certificates.
        let (first_bytes, uses_tls) = (FirstBytes::default(), uses_tls(url));
        let observed = first_bytes.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let observed = observed.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok::<_, std::io::Error>(TokioIo::new(observed.of(stream)))
            }
        });
        let connected = tokio::time::timeout(limit, endpoint.connect_with_connector(connector)).await;
        let channel = connected.map_err(|late| Error::connect(url, late))?;
        let channel = channel.map_err(|error| {
            first_bytes.mismatch(url, uses_tls).unwrap_or_else(|| Error::connect(url, error))
        })?;
        Ok(Self { url: url.into(), channel, config, first_bytes })
    }

    /// Verifies that the server is healthy. A server without the health service of gRPC counts as healthy.
    ///
    /// # Errors
    /// [`Error::Lost`] if the server is draining; the error of the call.
    pub(super) async fn check_health(&self) -> Result<(), Error> {
        let request = framed(&HealthCheck { service: String::new() })?;
        let path = "/grpc.health.v1.Health/Check";
        let body = match self.respond(path, self.headers()?, Body::new(Full::new(request))).await {
            Ok(response) => response.into_body(),
            Err(error) if error.code() == Some(Code::Unimplemented) => return Ok(()),
            Err(error) => return Err(error),
        };
        let body = body.collect().await.map_err(|status| Error::lost(&self.url, status))?.to_bytes();
        let answer = HealthCheckAnswer::decode(body.get(MESSAGE_PREFIX_BYTES..).unwrap_or_default());
        let answer = answer.map_err(Error::malformed("answer of the health service"))?;
        if answer.status != SERVING {
            return Err(Error::lost(&self.url, "the server is not serving"));
        }
        Ok(())
    }

    /// Returns the URL of the server.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the settings of the client.
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Calls GetFlightInfo.
    pub(crate) async fn flight_info(&self, descriptor: FlightDescriptor) -> Result<FlightInfo, Error> {
        let mut request = self.request(descriptor)?;
        if let Some(zone) = &self.config.zone {
            request.metadata_mut().insert(ZONE_HEADER, zone_header(zone)?);
        }
        let info = self.flight().get_flight_info(request).await;
        Ok(info.map_err(|status| self.failed(status))?.into_inner())
    }

    /// Calls GetSchema with `command`.
    pub(crate) async fn schema(&self, command: Bytes) -> Result<Schema, Error> {
        let request = self.request(FlightDescriptor::new_cmd(command))?;
        let answer = self.flight().get_schema(request).await.map_err(|status| self.failed(status))?;
        Schema::try_from(&answer.into_inner()).map_err(Error::malformed("schema"))
    }

    /// Calls DoAction and returns the bodies of all results.
    pub(crate) async fn action(&self, kind: &str, body: impl Into<Bytes>) -> Result<Vec<Bytes>, Error> {
        let mut bodies = Vec::new();
        self.action_results(kind, body, |body| bodies.push(body)).await?;
        Ok(bodies)
    }

    /// Calls DoAction, and `take` with the body of each result as it arrives.
    pub(crate) async fn action_results(
        &self,
        kind: &str,
        body: impl Into<Bytes>,
        mut take: impl FnMut(Bytes),
    ) -> Result<(), Error> {
        let request = self.request(Action::new(kind, body))?;
        let failed = |status| self.failed(status);
        let mut results = self.flight().do_action(request).await.map_err(failed)?.into_inner();
        while let Some(result) = results.message().await.map_err(failed)? {
            take(result.body);
        }
        Ok(())
    }

    /// Calls ListFlights.
    pub(crate) async fn list_flights(&self) -> Result<Vec<FlightInfo>, Error> {
        let failed = |status| self.failed(status);
        let request = self.request(Criteria::default())?;
        let mut flights = self.flight().list_flights(request).await.map_err(failed)?.into_inner();
        let mut listed = Vec::new();
        while let Some(info) = flights.message().await.map_err(failed)? {
            listed.push(info);
        }
        Ok(listed)
    }

    /// Calls DoGet with `ticket`. Bodies are received into `slabs`.
    pub(crate) async fn get(
        &self,
        ticket: Bytes,
        sender: StreamSender,
        slabs: Slabs,
    ) -> Result<Response, Error> {
        let message = framed(&Ticket { ticket })?;
        let mut headers = self.headers()?;
        let StreamSender { trainer, candidate } = sender;
        if trainer != 0 {
            headers.insert(TRAINER_HEADER, format!("{trainer:016x}").parse().expect("hexadecimal digits"));
        }
        match candidate {
            Some(CandidateNumber::Number(number)) => drop(headers.insert(CANDIDATE_HEADER, number.into())),
            Some(CandidateNumber::Last) => {
                headers.insert(CANDIDATE_HEADER, MetadataValue::from_static("last"));
            }
            None => {}
        }
        let response = self.respond(DO_GET, headers, Body::new(Full::new(message))).await?;
        Ok(Response::new(&self.url, response.into_body(), &self.config, slabs))
    }

    /// Calls DoExchange with `command` as descriptor. Returns a sender of framed messages, the response, whose bodies are received into
    /// `slabs`, and the maximum size of a message that the server receives, if it says so. The sender holds up to `capacity` messages
    /// that the connection has not read yet.
    pub(crate) async fn exchange(
        &self,
        command: &Command,
        capacity: usize,
        slabs: Slabs,
    ) -> Result<(mpsc::Sender<Bytes>, Response, Option<u64>), Error> {
        let descriptor = FlightDescriptor::new_cmd(Encoding::Protobuf.encode(command));
        let first = FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() };
        let (sender, body) = RequestBody::new(capacity.saturating_add(1).min(Semaphore::MAX_PERMITS));
        // The server responds after it has received the descriptor.
        sender.try_send(framed(&first)?).expect("the capacity is at least one message");
        let response = self.respond(DO_EXCHANGE, self.headers()?, Body::new(body)).await?;
        let limit =
            response.headers().get(MAX_MESSAGE_HEADER).and_then(|limit| limit.to_str().ok()?.parse().ok());
        Ok((sender, Response::new(&self.url, response.into_body(), &self.config, slabs), limit))
    }

    /// Calls DoPut with a set of values, in parts.
    pub(crate) async fn put_values(&self, set: &ValueSet) -> Result<(), Error> {
        let encoded = set.encoded();
        let put = PutValues { sha256: set.sha256().to_owned(), bytes: encoded.len() as u64 };
        let descriptor = FlightDescriptor::new_cmd(Encoding::Protobuf.encode(&put));
        let first = FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() };
        let parts = (0..encoded.len()).step_by(PART_BYTES).map({
            let encoded = encoded.clone();
            move |at| {
                let data_body = encoded.slice(at..encoded.len().min(at + PART_BYTES));
                FlightData { data_body, ..FlightData::default() }
            }
        });
        let messages = tokio_stream::iter(std::iter::once(first).chain(parts));
        let failed = |status| self.failed(status);
        let mut results = self.flight().do_put(self.request(messages)?).await.map_err(failed)?.into_inner();
        while results.message().await.map_err(failed)?.is_some() {}
        Ok(())
    }

    /// Calls the method at `path` and returns the response after its headers.
    async fn respond(
        &self,
        path: &str,
        headers: MetadataMap,
        body: Body,
    ) -> Result<http::Response<Body>, Error> {
        let mut request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .body(body)
            .expect("the path and headers are valid");
        request.headers_mut().extend(headers.into_headers());
        let mut channel = self.channel.clone();
        let lost = |error: tonic::transport::Error| self.lost(error);
        let response = channel.ready().await.map_err(lost)?.call(request).await.map_err(lost)?;
        if let Some(status) = Status::from_header_map(response.headers()) {
            return Err(status.into());
        }
        grpc_channel::check(&self.url, &response)?;
        Ok(response)
    }

    /// Converts a status. A status with a source was created by this client after the connection was lost; others were sent by
    /// the server.
    fn failed(&self, status: Status) -> Error {
        match std::error::Error::source(&status).map(|cause| cause.downcast_ref::<Error>().cloned()) {
            Some(Some(error)) => error,
            Some(None) => self.lost(status),
            None => Error::Status(status),
        }
    }

    /// Returns the error of a lost connection; [`Error::Protocol`] if a server of another protocol has answered.
    fn lost(&self, error: impl Into<tower::BoxError>) -> Error {
        let mismatch = self.first_bytes.mismatch(&self.url, uses_tls(&self.url));
        mismatch.unwrap_or_else(|| Error::lost(&self.url, error))
    }

    fn flight(&self) -> FlightServiceClient<GrpcChannel> {
        let channel = GrpcChannel { url: Arc::clone(&self.url), channel: self.channel.clone() };
        FlightServiceClient::new(channel)
            .max_decoding_message_size(usize::try_from(self.config.max_header_bytes).unwrap_or(usize::MAX))
    }

    fn request<T>(&self, message: T) -> Result<Request<T>, Error> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.headers()?;
        Ok(request)
    }

    fn headers(&self) -> Result<MetadataMap, Error> {
        let mut headers = MetadataMap::new();
        if let Some(token) = &self.config.token {
            headers.insert("authorization", token.header()?);
        }
        if let Some(traceparent) = &self.config.traceparent {
            let malformed = |_| {
                Error::Request(format!(
                    "traceparent: '{}' is not a valid header value, expected '00-TRACE-SPAN-01'",
                    traceparent.escape_debug()
                ))
            };
            headers.insert("traceparent", traceparent.parse().map_err(malformed)?);
        }
        Ok(headers)
    }
}

/// Returns the settings of connections to `url`.
fn endpoint(url: &str, config: &Config) -> Result<Endpoint, Error> {
    let invalid = |error: tonic::transport::Error| Error::Request(format!("{url}: {}", causes(&error)));
    let address = http_url(url);
    let mut endpoint = Endpoint::from_shared(address)
        .map_err(invalid)?
        .tcp_nodelay(true)
        .connect_timeout(config.connect_timeout)
        .http2_keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout)
        .keep_alive_while_idle(true)
        .max_frame_size(config.max_frame_bytes)
        .initial_stream_window_size(config.stream_window_bytes)
        .initial_connection_window_size(config.connection_window_bytes);
    if uses_tls(url) {
        endpoint = endpoint.tls_config(tls_config(&config.tls)?).map_err(invalid)?;
    }
    Ok(endpoint)
}

/// Returns true if connections to `url` use TLS.
fn uses_tls(url: &str) -> bool {
    http_url(url).starts_with("https:")
}

/// Formats an error and its sources.
fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", causes(cause)),
        None => error.to_string(),
    }
}
