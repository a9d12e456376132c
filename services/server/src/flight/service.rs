//! The Flight methods except DoGet.

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, Result as ActionResult, SchemaAsIpc,
    SchemaResult, Ticket, flight_service_server::FlightService,
};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::{ArrowError, Schema};
use forebay_proto::{Encoding, v1::DatasetInfo};
use forebay_storage::Snapshot;
use futures::{StreamExt, stream, stream::BoxStream};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    Context, actions, call_layer,
    commands::{Described, described, ticket},
    exchange,
};
use crate::{
    auth::Access,
    registry::datasets::{Listed, Phase},
};

/// Maximum number of endpoints per FlightInfo.
const MAX_ENDPOINTS: u64 = 4096;

/// Value of an unknown number in Flight.
const UNKNOWN: i64 = -1;

/// Maximum total size of the tickets of a FlightInfo, in bytes.
const MAX_TICKET_BYTES: u64 = 16 << 20;

/// The Flight service, except DoGet.
pub(crate) struct Flight {
    pub(super) context: Context,
}

type Reply<T> = BoxStream<'static, Result<T, Status>>;

impl Flight {
    async fn train_info(
        &self,
        access: &Access,
        descriptor: FlightDescriptor,
        command: &[u8],
    ) -> Result<FlightInfo, Status> {
        let asked = self.context.job(access, command).await?;
        let job = &asked.job;
        let train = job.train();
        let ranks = if train.rank.is_some() { 1 } else { train.world_size() };
        let endpoints = ranks * if train.lane.is_some() { 1 } else { train.lanes() };
        if endpoints > MAX_ENDPOINTS {
            return Err(Status::resource_exhausted(format!(
                "world_size {} with {} lanes makes {endpoints} endpoints, the limit is {MAX_ENDPOINTS}; name a rank",
                train.world_size(),
                train.lanes(),
            )));
        }
        let tickets = ticket(&asked, u32::MAX, u32::MAX).len() as u64 * endpoints;
        if tickets > MAX_TICKET_BYTES {
            return Err(Status::resource_exhausted(format!(
                "the tickets of {endpoints} endpoints take {tickets} bytes, the limit is {MAX_TICKET_BYTES}; name a rank"
            )));
        }
        let mut info = FlightInfo::new()
            .with_descriptor(descriptor)
            .with_ordered(false)
            .with_app_metadata(asked.encoding.encode(&job.summary()))
            .try_with_schema(job.view().schema())
            .map_err(|error| internal(&error))?;
        let mut rows = Some(0u64);
        for (rank, lane) in job.endpoints() {
            rows = rows.and_then(|rows| Some(rows.saturating_add(job.rows(rank, lane)?)));
            let ticket = Ticket::new(ticket(&asked, rank, lane));
            info = info.with_endpoint(FlightEndpoint::new().with_ticket(ticket));
        }
        let rows = rows.map_or(UNKNOWN, |rows| i64::try_from(rows).unwrap_or(i64::MAX));
        Ok(info.with_total_records(rows))
    }
}

/// FlightInfo of a dataset, for listings and path descriptors.
fn dataset_info(name: &str, snapshot: &Snapshot) -> Result<FlightInfo, Status> {
    let about = DatasetInfo {
        dataset: name.to_owned(),
        snapshot: snapshot.id().to_owned(),
        rows: snapshot.rows(),
        files: snapshot.files().len() as u64,
        blocks: snapshot.blocks().len() as u64,
        error: String::new(),
    };
    Ok(described_info(&about, snapshot.schema())?
        .with_total_records(i64::try_from(snapshot.rows()).unwrap_or(i64::MAX))
        .with_total_bytes(i64::try_from(snapshot.uncompressed_bytes()).unwrap_or(i64::MAX)))
}

fn listed_info(listed: &Listed) -> Result<FlightInfo, Status> {
    let error = match &listed.phase {
        Phase::Open(reader) => return dataset_info(&listed.name, reader.snapshot()),
        Phase::Opening { files_done, files } => format!("is being opened ({files_done} of {files} files)"),
        Phase::Failed(error) => error.to_string(),
    };
    let about = DatasetInfo { dataset: listed.name.clone(), error, ..DatasetInfo::default() };
    described_info(&about, &Schema::empty())
}

fn described_info(about: &DatasetInfo, schema: &Schema) -> Result<FlightInfo, Status> {
    FlightInfo::new()
        .with_descriptor(FlightDescriptor::new_path(vec![about.dataset.clone()]))
        .with_app_metadata(Encoding::Json.encode(about))
        .try_with_schema(schema)
        .map_err(|error| internal(&error))
}

fn internal(error: &ArrowError) -> Status {
    Status::internal(error.to_string())
}

fn unimplemented<T>(method: &str, instead: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!("{method} is not supported; {instead}")))
}

#[async_trait]
impl FlightService for Flight {
    type HandshakeStream = Reply<HandshakeResponse>;
    type ListFlightsStream = Reply<FlightInfo>;
    type DoGetStream = Reply<FlightData>;
    type DoPutStream = Reply<PutResult>;
    type DoActionStream = Reply<ActionResult>;
    type ListActionsStream = Reply<ActionType>;
    type DoExchangeStream = Reply<FlightData>;

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        unimplemented("Handshake", "no handshake is needed")
    }

    async fn list_flights(
        &self,
        request: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        let access = call_layer::access(request.extensions())?;
        let infos: Vec<_> = self.context.services.datasets.list(&access).iter().map(listed_info).collect();
        Ok(Response::new(stream::iter(infos).boxed()))
    }

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let access = call_layer::access(request.extensions())?;
        let descriptor = request.into_inner();
        let info = match described(&descriptor)? {
            Described::Command(command) => {
                let command = command.to_vec();
                self.train_info(&access, descriptor, &command).await?
            }
            Described::Dataset(name) => {
                dataset_info(name, self.context.services.datasets.current(&access, name).await?.snapshot())?
            }
        };
        Ok(Response::new(info))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        unimplemented("PollFlightInfo", "GetFlightInfo answers at once")
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let access = call_layer::access(request.extensions())?;
        let descriptor = request.into_inner();
        let schema = match described(&descriptor)? {
            Described::Command(command) => {
                self.context.job(&access, command).await?.job.view().schema().clone()
            }
            Described::Dataset(name) => {
                self.context.services.datasets.current(&access, name).await?.snapshot().schema().clone()
            }
        };
        let result: Result<SchemaResult, ArrowError> =
            SchemaAsIpc::new(&schema, &IpcWriteOptions::default()).try_into();
        result.map(Response::new).map_err(|error| internal(&error))
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        unimplemented("DoGet", "its framed route answers before this one")
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        unimplemented("DoPut", "datasets are read from their own location")
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let access = call_layer::access(request.extensions())?;
        let action = request.into_inner();
        Ok(Response::new(actions::run(self.context.clone(), access, action).await?))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Ok(Response::new(stream::iter(actions::types().map(Ok)).boxed()))
    }

    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        let access = call_layer::access(request.extensions())?;
        let trace = call_layer::trace(request.extensions());
        exchange::exchange(&self.context, access, trace, request.into_inner()).await.map(Response::new)
    }
}
