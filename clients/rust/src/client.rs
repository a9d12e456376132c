//! A connection to one server.

use std::sync::Arc;

use arrow_flight::{FlightDescriptor, Ticket, flight_service_client::FlightServiceClient};
use arrow_schema::SchemaRef;
use bytes::{BufMut, Bytes, BytesMut};
use forebay_proto::{
    Encoding,
    v1::{Command, PlanSummary, Train},
};
use http_body_util::Full;
use prost::Message;
use tonic::{
    Status,
    body::Body,
    transport::{Channel, Endpoint},
};
use tower::{Service, ServiceExt};

use crate::{Batches, Config, Error};

/// A connection to one server. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    config: Arc<Config>,
}

/// What a server says of a job before it runs.
#[derive(Debug, Clone)]
pub struct Info {
    /// The schema of its batches.
    pub schema: SchemaRef,
    /// Rows that all its tickets together will deliver.
    pub total_records: i64,
    /// The plan: snapshot, steps, windows.
    pub summary: PlanSummary,
    /// A ticket for each rank and lane, rank-major.
    pub tickets: Vec<Bytes>,
}

impl Client {
    /// Connects to `url`: `http://HOST:PORT`, or `unix:/path` for a server on the same host.
    ///
    /// # Errors
    /// [`Error::Connect`] when the address makes no sense or nobody answers there.
    pub async fn connect(url: &str, config: Config) -> Result<Self, Error> {
        let failed =
            |error: tonic::transport::Error| Error::Connect { url: url.to_owned(), source: error.into() };
        let channel = Endpoint::from_shared(url.to_owned())
            .map_err(failed)?
            .tcp_nodelay(true)
            .connect_timeout(config.connect_timeout)
            .max_frame_size(config.max_frame_bytes)
            .initial_stream_window_size(config.stream_window_bytes)
            .initial_connection_window_size(config.connection_window_bytes)
            .connect()
            .await
            .map_err(failed)?;
        Ok(Self { channel, config: Arc::new(config) })
    }

    /// Asks what `train` would deliver.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn info(&self, train: &Train) -> Result<Info, Error> {
        let mut client = FlightServiceClient::new(self.channel.clone())
            .max_decoding_message_size(usize::try_from(self.config.max_header_bytes).unwrap_or(usize::MAX));
        let info = client.get_flight_info(FlightDescriptor::new_cmd(command(train))).await?.into_inner();
        let malformed =
            |error: &dyn std::fmt::Display| Error::protocol(format!("malformed FlightInfo: {error}"));
        let summary = Encoding::Protobuf.decode("PlanSummary", &info.app_metadata);
        let summary = summary.map_err(|error| malformed(&error))?;
        let tickets = info.endpoint.iter().filter_map(|endpoint| endpoint.ticket.as_ref());
        Ok(Info {
            summary,
            total_records: info.total_records,
            tickets: tickets.map(|ticket| ticket.ticket.clone()).collect(),
            schema: Arc::new(info.try_decode_schema().map_err(|error| malformed(&error))?),
        })
    }

    /// The batches of one rank and lane, which `train` names unless there is only one.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn train(&self, train: &Train) -> Result<Batches, Error> {
        self.get(command(train).into()).await
    }

    /// The batches of a ticket.
    ///
    /// # Errors
    /// The server's own, by their status.
    pub async fn get(&self, ticket: Bytes) -> Result<Batches, Error> {
        let ticket = Ticket { ticket };
        let length =
            u32::try_from(ticket.encoded_len()).map_err(|_| Error::protocol("a ticket over 4 GiB"))?;
        let mut message = BytesMut::with_capacity(5 + ticket.encoded_len());
        message.put_u8(0);
        message.put_u32(length);
        ticket.encode(&mut message).expect("the buffer grows");
        let request = http::Request::post("/arrow.flight.protocol.FlightService/DoGet")
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .body(Body::new(Full::new(message.freeze())))
            .expect("a constant request is well formed");
        let mut channel = self.channel.clone();
        let unavailable = |error: tonic::transport::Error| Status::from_error(error.into());
        let response =
            channel.ready().await.map_err(unavailable)?.call(request).await.map_err(unavailable)?;
        if let Some(status) = Status::from_header_map(response.headers()) {
            return Err(status.into());
        }
        if response.status() != http::StatusCode::OK {
            return Err(Error::protocol(format!(
                "HTTP status {}, expected a gRPC response",
                response.status()
            )));
        }
        Batches::open(response.into_body(), &self.config).await
    }
}

fn command(train: &Train) -> Vec<u8> {
    Encoding::Protobuf.encode(&Command { train: Some(train.clone()) })
}
