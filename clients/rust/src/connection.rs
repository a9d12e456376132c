//! A connection to one server.

use std::sync::Arc;

use arrow_flight::{
    Action, FlightData, FlightDescriptor, Ticket, flight_service_client::FlightServiceClient,
};
use bytes::Bytes;
use forebay_proto::{
    Encoding,
    v1::{Command, Lookup, PlanSummary, ReportRequest, Train},
};
use http_body_util::Full;
use tokio::sync::{Semaphore, mpsc};
use tonic::{
    Request, Status,
    body::Body,
    metadata::MetadataMap,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tower::{Service, ServiceExt};

use crate::{
    Batches, Caller, Config, Device, Error, Lookups, Plan, Worker,
    config::Tls,
    messages::{Messages, Outgoing, framed},
    route::Route,
    slabs::Slabs,
    stream::Stream,
};

/// The header by which a server knows which trainer a stream and a report are of.
const TRAINER_HEADER: &str = "forebay-trainer";

/// A connection to one server. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct Connection {
    url: Arc<str>,
    channel: Channel,
    config: Arc<Config>,
}

impl Connection {
    /// Connects to `url`: `http://HOST:PORT` (or `grpc://`), `https://HOST:PORT` (or `grpc+tls://`), or `unix:/path` for
    /// a server on the same host.
    ///
    /// # Errors
    /// [`Error::Connect`] when the address makes no sense or nobody answers there; [`Error::Request`] when a
    /// certificate can't be read.
    pub async fn open(url: &str, config: Arc<Config>) -> Result<Self, Error> {
        let senseless = |error: tonic::transport::Error| Error::Request(format!("{url}: {}", causes(&error)));
        let failed = |source| Error::Connect { url: url.to_owned(), source };
        let address = address(url);
        let mut endpoint = Endpoint::from_shared(address.clone())
            .map_err(senseless)?
            .tcp_nodelay(true)
            .connect_timeout(config.connect_timeout)
            .http2_keep_alive_interval(config.keepalive_interval)
            .keep_alive_timeout(config.keepalive_timeout)
            .keep_alive_while_idle(true)
            .max_frame_size(config.max_frame_bytes)
            .initial_stream_window_size(config.stream_window_bytes)
            .initial_connection_window_size(config.connection_window_bytes);
        if address.starts_with("https:") {
            endpoint = endpoint.tls_config(tls(&config.tls)?).map_err(senseless)?;
        }
        // The endpoint's own limit does not cover the handshake of TLS.
        let connected = tokio::time::timeout(config.connect_timeout, endpoint.connect()).await;
        let channel = connected.map_err(|late| failed(late.into()))?.map_err(|error| failed(error.into()))?;
        Ok(Self { url: url.into(), channel, config })
    }

    /// Where the server is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Asks what `train` would deliver.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn plan(&self, train: &Train) -> Result<Plan, Error> {
        let request = self.request(FlightDescriptor::new_cmd(command(train)))?;
        let info =
            self.flight().get_flight_info(request).await.map_err(|status| self.failed(status))?.into_inner();
        let malformed =
            |error: &dyn std::fmt::Display| Error::protocol(format!("malformed FlightInfo: {error}"));
        let summary: PlanSummary = Encoding::Protobuf
            .decode("PlanSummary", &info.app_metadata)
            .map_err(|error| malformed(&error))?;
        let tickets: Vec<_> = info.endpoint.iter().filter_map(|endpoint| endpoint.ticket.as_ref()).collect();
        let first = tickets.first().ok_or_else(|| malformed(&"it has no endpoint"))?;
        let resolved: Command =
            Encoding::Protobuf.decode("Command", &first.ticket).map_err(|error| malformed(&error))?;
        let resolved = resolved.train.ok_or_else(|| malformed(&"its ticket holds no request"))?;
        Ok(Plan {
            resolved: Train { rank: train.rank, lane: train.lane, ..resolved },
            summary,
            total_records: info.total_records,
            tickets: tickets.iter().map(|ticket| ticket.ticket.clone()).collect(),
            schema: Arc::new(info.try_decode_schema().map_err(|error| malformed(&error))?),
        })
    }

    /// The batches of one rank and lane, which `train` names unless there is only one, as they come: what is lost with the
    /// connection is lost. [`Client::train`](crate::Client::train) goes on elsewhere.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn train(&self, train: &Train) -> Result<Batches, Error> {
        self.get(command(train).into()).await
    }

    /// The batches of a ticket of any Flight server.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn get(&self, ticket: Bytes) -> Result<Batches, Error> {
        let slabs = Slabs::new(self.config.idle_slab_bytes, Device::host());
        let stream = self.stream(ticket, 0, slabs).await?;
        let schema = Arc::clone(stream.schema());
        Ok(Batches::receive(stream, schema, &self.config))
    }

    /// Runs one action to its end, and returns the bodies of its results.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn action(&self, kind: &str, body: impl Into<Bytes>) -> Result<Vec<Bytes>, Error> {
        let request = self.request(Action::new(kind, body))?;
        let failed = |status| self.failed(status);
        let mut results = self.flight().do_action(request).await.map_err(failed)?.into_inner();
        let mut bodies = Vec::new();
        while let Some(result) = results.message().await.map_err(failed)? {
            bodies.push(result.body);
        }
        Ok(bodies)
    }

    /// Looks up rows by their keys on this server: what is lost with an exchange is lost, and the next call opens another one.
    /// [`Client::lookup`](crate::Client::lookup) goes on elsewhere.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn lookup(&self, wanted: &Lookup) -> Result<Lookups, Error> {
        Lookups::open(Route::One(self.clone()), wanted).await
    }

    /// The caller's side of the batch queue `queue` on this server.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn infer(&self, queue: &str) -> Result<Caller, Error> {
        Caller::open(Route::One(self.clone()), queue).await
    }

    /// The worker's side of the batch queue `queue` on this server, with `credits` batches at a time; 0: 2.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn serve(&self, queue: &str, credits: u64) -> Result<Worker, Error> {
        Worker::open(Route::One(self.clone()), queue, credits).await
    }

    /// Tells the server what a trainer did since its last report.
    pub(crate) async fn report(&self, report: &ReportRequest) -> Result<(), Error> {
        self.action("report", Encoding::Protobuf.encode(report)).await.map(drop)
    }

    /// The response to a ticket, whose bodies are received into `slabs`.
    pub(crate) async fn stream(&self, ticket: Bytes, trainer: u64, slabs: Slabs) -> Result<Stream, Error> {
        let message = framed(&Ticket { ticket })?;
        let mut headers = self.headers()?;
        if trainer != 0 {
            headers.insert(TRAINER_HEADER, format!("{trainer:016x}").parse().expect("hexadecimal digits"));
        }
        let response = self.respond("DoGet", headers, Body::new(Full::new(message))).await?;
        Stream::open(Messages::new(&self.url, response, &self.config, slabs)).await
    }

    /// Opens an exchange about `command`: where its messages are sent, with room for `capacity` that the connection has not
    /// taken yet, and the messages that come, whose bodies are received into `slabs`.
    pub(crate) async fn exchange(
        &self,
        command: &Command,
        capacity: usize,
        slabs: Slabs,
    ) -> Result<(mpsc::Sender<Bytes>, Messages), Error> {
        let descriptor = FlightDescriptor::new_cmd(Encoding::Protobuf.encode(command));
        let first = FlightData { flight_descriptor: Some(descriptor), ..FlightData::default() };
        let (sender, outgoing) = Outgoing::new(capacity.saturating_add(1).min(Semaphore::MAX_PERMITS));
        // A server answers once it knows what is wanted.
        sender.try_send(framed(&first)?).expect("there is room for one message at least");
        let response = self.respond("DoExchange", self.headers()?, Body::new(outgoing)).await?;
        Ok((sender, Messages::new(&self.url, response, &self.config, slabs)))
    }

    /// The body of the response to a call of Flight's `method`, once the server has begun it.
    async fn respond(&self, method: &str, headers: MetadataMap, body: Body) -> Result<Body, Error> {
        let mut request = http::Request::post(format!("/arrow.flight.protocol.FlightService/{method}"))
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .body(body)
            .expect("the request is well formed, whatever its body");
        request.headers_mut().extend(headers.into_headers());
        let mut channel = self.channel.clone();
        let lost = |error: tonic::transport::Error| Error::lost(&self.url, error);
        let response = channel.ready().await.map_err(lost)?.call(request).await.map_err(lost)?;
        if let Some(status) = Status::from_header_map(response.headers()) {
            return Err(status.into());
        }
        if matches!(response.status().as_u16(), 429 | 502 | 503 | 504) {
            // A proxy before the server, which is away.
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

    /// The client's settings.
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// A status that has a cause was made here, of a connection that was lost; others are the server's.
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
                Error::Request(format!("traceparent: '{}' can't be a header", traceparent.escape_debug()))
            };
            headers.insert("traceparent", traceparent.parse().map_err(malformed)?);
        }
        Ok(headers)
    }
}

/// The ticket that asks for `train`.
pub(crate) fn command(train: &Train) -> Vec<u8> {
    Encoding::Protobuf.encode(&Command::from(train.clone()))
}

/// An error with what caused it.
fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", causes(cause)),
        None => error.to_string(),
    }
}

/// As the transport spells it.
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

fn tls(tls: &Tls) -> Result<ClientTlsConfig, Error> {
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| Error::Request(format!("can't read {}: {error}", path.display())))
    };
    let mut config = match &tls.ca {
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
        None => ClientTlsConfig::new().with_webpki_roots(),
    };
    match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        (None, None) => {}
        _ => {
            return Err(Error::Request(
                "tls: certificate and key go together, one of them is missing".into(),
            ));
        }
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_flight_and_as_http_spell_them() {
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
