//! A baseline with stock arrow-rs: its Flight server and client over tonic, the table in memory, and a full shuffle.
//!
//! Its settings are the best that its interfaces allow: large frames and windows on both sides, batches that are not split,
//! and prefetching in the server and the client.

use std::{io::Read, pin::Pin, sync::Arc, time::Duration};

use arrow_array::{RecordBatch, UInt32Array};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightClient, FlightData, FlightDescriptor, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, Result as ActionResult, SchemaResult, Ticket,
    encode::FlightDataEncoderBuilder,
    error::FlightError,
    flight_service_client::FlightServiceClient,
    flight_service_server::{FlightService, FlightServiceServer},
};
use arrow_schema::{ArrowError, DataType};
use arrow_select::{interleave::interleave, take::take};
use clap::Args;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{mpsc, oneshot},
    time::sleep,
};
use tonic::{
    Request, Response, Status, Streaming, async_trait,
    service::Routes,
    transport::{Endpoint, Server, server::TcpIncoming},
};

use crate::{
    logical,
    protocol::say,
    receive::{Arrived, BatchStream},
    source::Source,
    table,
};

const FRAME_BYTES: u32 = 1 << 20;
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// Prefetched batches on each side.
const PREFETCHED: usize = 2;
/// Wait for connections that stay open after the end of the input.
const GRACE: Duration = Duration::from_secs(1);

/// Flags of `forebay-load serve-stock`.
#[derive(Debug, Args)]
pub(crate) struct ServeStock {
    #[command(flatten)]
    source: Source,
    /// Serve plain columns instead of tensors.
    #[arg(long)]
    without_tensors: bool,
}

impl ServeStock {
    /// Serves until standard input ends.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.load()?;
        let request = match self.without_tensors {
            true => table::without_tensors(&scenario.request, data.sizes.names())?,
            false => scenario.request,
        };
        let table = table::load(&data.path, &request, usize::MAX)?;
        let stock = Stock { table, batch_size: scenario.batch_size as usize };
        serve(Routes::new(FlightServiceServer::new(stock)))
    }
}

/// Serves `routes` on a free port, prints the port, and stops when standard input ends.
pub(super) fn serve(routes: Routes) -> anyhow::Result<()> {
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        say(&json!({ "ready": true, "url": format!("http://{}", listener.local_addr()?) }))?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let ended = input_ended().shared();
        let serving = Server::builder()
            .max_frame_size(FRAME_BYTES)
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, ended.clone());
        tokio::select! {
            served = serving => Ok(served?),
            () = ended.then(|()| sleep(GRACE)) => Ok(()),
        }
    })
}

async fn input_ended() {
    let (sender, ended) = oneshot::channel();
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        sender.send(()).ok();
    });
    drop(ended.await);
}

struct Stock {
    table: RecordBatch,
    batch_size: usize,
}

/// Content of a ticket.
#[derive(Deserialize)]
pub(super) struct TicketContent {
    epoch: u64,
    pub(super) epochs: u64,
}

type Reply<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

impl Stock {
    /// Returns shuffled batches, which are prefetched on other threads.
    fn batches(
        &self,
        ticket: &TicketContent,
    ) -> impl Stream<Item = Result<RecordBatch, FlightError>> + Send + 'static + use<> {
        let (table, batch_size) = (self.table.clone(), self.batch_size);
        let rows = table.num_rows();
        let parts = stream::iter(ticket.epoch..ticket.epoch + ticket.epochs).flat_map(move |epoch| {
            let order = Arc::new(permutation(rows, epoch));
            let firsts = stream::iter((0..rows).step_by(batch_size));
            firsts.map(move |first| (Arc::clone(&order), first..rows.min(first + batch_size)))
        });
        let taken = parts.map(move |(order, part)| {
            let table = table.clone();
            tokio::task::spawn_blocking(move || gather(&table, &order[part]))
        });
        taken.buffered(PREFETCHED).map(|taken| match taken {
            Ok(batch) => batch.map_err(FlightError::from),
            Err(error) => Err(FlightError::ExternalError(error.into())),
        })
    }
}

/// Returns the given rows of `table`. Lists of fixed size are interleaved row by row, which is several times as fast as
/// `take` of arrow-select.
fn gather(table: &RecordBatch, rows: &[u32]) -> Result<RecordBatch, ArrowError> {
    let taken = UInt32Array::from(rows.to_vec());
    let places: Vec<(usize, usize)> = rows.iter().map(|row| (0, *row as usize)).collect();
    let columns = table.columns().iter().map(|column| match column.data_type() {
        DataType::FixedSizeList(_, _) => interleave(&[column.as_ref()], &places),
        _ => take(column, &taken, None),
    });
    RecordBatch::try_new(table.schema(), columns.collect::<Result<_, _>>()?)
}

/// Returns a shuffle of `0..rows`.
fn permutation(rows: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rows as u32).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order
}

fn unsupported<T>() -> Answer<T> {
    Err(Status::unimplemented("only DoGet is served"))
}

#[async_trait]
impl FlightService for Stock {
    type HandshakeStream = Reply<HandshakeResponse>;
    type ListFlightsStream = Reply<FlightInfo>;
    type DoGetStream = Reply<FlightData>;
    type DoPutStream = Reply<PutResult>;
    type DoActionStream = Reply<ActionResult>;
    type ListActionsStream = Reply<ActionType>;
    type DoExchangeStream = Reply<FlightData>;

    async fn do_get(&self, request: Request<Ticket>) -> Answer<Self::DoGetStream> {
        let ticket: TicketContent = serde_json::from_slice(&request.into_inner().ticket)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let stream = FlightDataEncoderBuilder::new()
            .with_schema(self.table.schema())
            .with_max_flight_data_size(usize::MAX)
            .build(self.batches(&ticket))
            .map_err(Status::from);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Answer<Self::HandshakeStream> {
        unsupported()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        unsupported()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Answer<FlightInfo> {
        unsupported()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Answer<PollInfo> {
        unsupported()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Answer<SchemaResult> {
        unsupported()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        unsupported()
    }

    async fn do_action(&self, _: Request<Action>) -> Answer<Self::DoActionStream> {
        unsupported()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Answer<Self::ListActionsStream> {
        unsupported()
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Answer<Self::DoExchangeStream> {
        unsupported()
    }
}

/// The client of arrow-flight.
pub(crate) struct Client {
    client: FlightClient,
}

impl Client {
    pub(crate) async fn connect(url: &str) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(url.to_owned())?
            .max_frame_size(FRAME_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .connect()
            .await?;
        let client = FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        Ok(Self { client: FlightClient::new_from_inner(client) })
    }

    pub(crate) async fn get(&mut self, ticket: &str) -> anyhow::Result<Batches> {
        let mut stream = self.client.do_get(Ticket::new(ticket.to_owned())).await?;
        let (sender, received) = mpsc::channel(PREFETCHED);
        tokio::spawn(async move {
            while let Some(batch) = stream.next().await {
                if sender.send(batch).await.is_err() {
                    return;
                }
            }
        });
        Ok(Batches { received })
    }
}

/// A stream of prefetched batches.
pub(crate) struct Batches {
    received: mpsc::Receiver<Result<RecordBatch, FlightError>>,
}

impl BatchStream for Batches {
    async fn next(&mut self) -> anyhow::Result<Option<Arrived>> {
        let Some(batch) = self.received.recv().await else { return Ok(None) };
        let batch = batch?;
        let mut bytes = 0;
        for column in batch.columns() {
            bytes += logical::array_bytes(column)? as u64;
        }
        Ok(Some(Arrived { rows: batch.num_rows() as u64, bytes, epoch: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_has_all_rows_once_in_a_different_order() {
        let (first, second) = (permutation(1000, 0), permutation(1000, 1));
        assert_ne!(first, second);
        for mut order in [first, second] {
            order.sort_unstable();
            assert_eq!(order, (0..1000).collect::<Vec<u32>>());
        }
    }
}
