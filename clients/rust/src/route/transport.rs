//! A gRPC connection to one Flight server.

use std::sync::Arc;

use arrow_flight::{
    Action, FlightData, FlightDescriptor, FlightInfo, Ticket, flight_service_client::FlightServiceClient,
};
use bytes::Bytes;
use forebay_proto::{Encoding, v1::Command};
use http_body_util::Full;
use tokio::sync::{Semaphore, mpsc};
use tonic::{
    Request, Status,
    body::Body,
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};
use tower::{Service, ServiceExt};

use super::tls::tls_config;
use crate::{
    Config, Error,
    memory::Slabs,
    wire::{RequestBody, Response, framed},
};

/// Header with the ID of a trainer. The server uses it to associate streams and reports.
const TRAINER_HEADER: &str = "forebay-trainer";

/// A gRPC connection to one Flight server. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub(crate) struct Transport {
    url: Arc<str>,
    channel: Channel,
    config: Arc<Config>,
}

impl Transport {
    /// Connects to `url`; see [`Connection::open`](crate::Connection::open).
    pub(crate) async fn open(url: &str, config: Arc<Config>) -> Result<Self, Error> {
        let invalid = |error: tonic::transport::Error| Error::Request(format!("{url}: {}", causes(&error)));
        let address = address(url);
        let mut endpoint = Endpoint::from_shared(address.clone())
            .map_err(invalid)?
            .tcp_nodelay(true)
            .connect_timeout(config.connect_timeout)
            .http2_keep_alive_interval(config.keepalive_interval)
            .keep_alive_timeout(config.keepalive_timeout)
            .keep_alive_while_idle(true)
            .max_frame_size(config.max_frame_bytes)
            .initial_stream_window_size(config.stream_window_bytes)
            .initial_connection_window_size(config.connection_window_bytes);
        if address.starts_with("https:") {
            endpoint = endpoint.tls_config(tls_config(&config.tls)?).map_err(invalid)?;
        }
        // The timeout of the endpoint does not include the TLS handshake.
        let connected = tokio::time::timeout(config.connect_timeout, endpoint.connect()).await;
        let channel = connected.map_err(|late| Error::connect(url, late))?;
        let channel = channel.map_err(|error| Error::connect(url, error))?;
        Ok(Self { url: url.into(), channel, config })
    }

    /// Returns the URL of the server.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the settings of the client.
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Calls GetFlightInfo with `command`.
    pub(crate) async fn flight_info(&self, command: Bytes) -> Result<FlightInfo, Error> {
        let request = self.request(FlightDescriptor::new_cmd(command))?;
        let info = self.flight().get_flight_info(request).await;
        Ok(info.map_err(|status| self.failed(status))?.into_inner())
    }

    /// Calls DoAction and returns the bodies of all results.
    pub(crate) async fn action(&self, kind: &str, body: impl Into<Bytes>) -> Result<Vec<Bytes>, Error> {
        let request = self.request(Action::new(kind, body))?;
        let failed = |status| self.failed(status);
        let mut results = self.flight().do_action(request).await.map_err(failed)?.into_inner();
        let mut bodies = Vec::new();
        while let Some(result) = results.message().await.map_err(failed)? {
            bodies.push(result.body);
        }
        Ok(bodies)
    }

    /// Calls DoGet with `ticket`. Bodies are received into `slabs`. `trainer` is the ID of the trainer, 0 for none.
    pub(crate) async fn get(&self, ticket: Bytes, trainer: u64, slabs: Slabs) -> Result<Response, Error> {
        let message = framed(&Ticket { ticket })?;
        let mut headers = self.headers()?;
        if trainer != 0 {
            headers.insert(TRAINER_HEADER, format!("{trainer:016x}").parse().expect("hexadecimal digits"));
        }
        let response = self.respond("DoGet", headers, Body::new(Full::new(message))).await?;
        Ok(Response::new(&self.url, response, &self.config, slabs))
    }

    /// Calls DoExchange with `command` as descriptor. Returns a sender of framed messages and the response, whose bodies are
    /// received into `slabs`. The sender holds up to `capacity` messages that the connection has not read yet.
    pub(crate) async fn exchange(
        &self,
        command: &Command,
        capacity: usize,
        slabs: Slabs,
    ) -> Result<(mpsc::Sender<Bytes>, Response), Error> {
        let descriptor = FlightDescriptor::new_cmd(Encoding::Protobuf.encode(command));
        let first = FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() };
        let (sender, body) = RequestBody::new(capacity.saturating_add(1).min(Semaphore::MAX_PERMITS));
        // The server responds after it has received the descriptor.
        sender.try_send(framed(&first)?).expect("the capacity is at least one message");
        let response = self.respond("DoExchange", self.headers()?, Body::new(body)).await?;
        Ok((sender, Response::new(&self.url, response, &self.config, slabs)))
    }

    /// Calls `method` of the Flight service and returns the body of the response after its headers.
    async fn respond(&self, method: &str, headers: MetadataMap, body: Body) -> Result<Body, Error> {
        let mut request = http::Request::post(format!("/arrow.flight.protocol.FlightService/{method}"))
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .body(body)
            .expect("the path and headers are valid");
        request.headers_mut().extend(headers.into_headers());
        let mut channel = self.channel.clone();
        let lost = |error: tonic::transport::Error| Error::lost(&self.url, error);
        let response = channel.ready().await.map_err(lost)?.call(request).await.map_err(lost)?;
        if let Some(status) = Status::from_header_map(response.headers()) {
            return Err(status.into());
        }
        if matches!(response.status().as_u16(), 429 | 502 | 503 | 504) {
            // Sent by a proxy whose server is unavailable.
            return Err(Error::lost(&self.url, format!("HTTP status {}", response.status())));
        }
        if response.status() != http::StatusCode::OK {
            return Err(Error::protocol(format!(
                "HTTP status {}, expected a gRPC response",
                response.status()
            )));
        }
        Ok(response.into_body())
    }

    /// Converts a status. A status with a source was created by this client after the connection was lost; others were sent by
    /// the server.
    fn failed(&self, status: Status) -> Error {
        match std::error::Error::source(&status) {
            Some(_) => Error::lost(&self.url, status),
            None => Error::Status(status),
        }
    }

    fn flight(&self) -> FlightServiceClient<Channel> {
        FlightServiceClient::new(self.channel.clone())
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

/// Formats an error and its sources.
fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", causes(cause)),
        None => error.to_string(),
    }
}

/// Converts the scheme of a Flight URL to the scheme that the transport expects.
fn address(url: &str) -> String {
    for (flight, http) in [
        ("grpc+tls://", "https://"),
        ("grpc+tcp://", "http://"),
        ("grpc://", "http://"),
        ("grpc+unix://", "unix:"),
    ] {
        if let Some(rest) = url.strip_prefix(flight) {
            return format!("{http}{rest}");
        }
    }
    url.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_accepted_with_flight_and_http_schemes() {
        for (url, expected) in [
            ("grpc://a:1", "http://a:1"),
            ("grpc+tcp://a:1", "http://a:1"),
            ("grpc+tls://a:1", "https://a:1"),
            ("grpc+unix:///run/a", "unix:/run/a"),
            ("unix:/run/a", "unix:/run/a"),
            ("https://a", "https://a"),
        ] {
            assert_eq!(address(url), expected);
        }
    }
}
