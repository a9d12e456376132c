//! The gRPC methods, except DoGet, independent of the services of tonic.

use arrow_flight::{
    Action, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, PutResult, Result as ActionResult,
    SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::{ArrowError, Schema};
use forebay_proto::{
    Encoding,
    inference::{
        ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest,
    },
    v1::{DatasetInfo, Lookup, LookupAnswer},
};
use forebay_storage::Snapshot;
use futures::{StreamExt, future::BoxFuture, stream, stream::BoxStream};
use tonic::{Response, Status, Streaming};

use super::{
    Context, actions,
    call_layer::charged,
    commands::{Described, described, ticket},
    exchange,
    incoming::Charging,
    lookups::LookedUp,
    open_inference,
    packed::pack,
    put_values,
};
use crate::{
    Error,
    auth::Access,
    callers::Resource,
    drain::stopping,
    readiness,
    registry::datasets::{Listed, Phase},
    traces::Trace,
};

/// Maximum number of endpoints per FlightInfo.
const MAX_ENDPOINTS: u64 = 4096;

/// Value of an unknown number in Flight.
const UNKNOWN: i64 = -1;

/// Maximum total size of the tickets of a FlightInfo, in bytes.
const MAX_TICKET_BYTES: u64 = 16 << 20;

/// Stream of the messages of a response.
pub(super) type Reply<T> = BoxStream<'static, Result<T, Status>>;

/// Result of a method, which is awaited on any thread.
type Answer<'a, T> = BoxFuture<'a, Result<T, Status>>;

/// The gRPC methods, as a trait object for the services of tonic.
///
/// If these services held a [`Context`] directly, the compiler would check for each method of their traits that the whole state
/// of the server is `Send` and `Sync`. That would add 30 s to the build.
pub(super) trait Methods: Send + Sync {
    /// ListFlights.
    fn list_flights(&self, access: &Access) -> Reply<FlightInfo>;

    /// GetFlightInfo. Locations are of servers in `zone`, if there are any.
    fn flight_info(
        &self,
        access: Access,
        descriptor: FlightDescriptor,
        zone: Option<String>,
    ) -> Answer<'_, Response<FlightInfo>>;

    /// GetSchema.
    fn schema(&self, access: Access, descriptor: FlightDescriptor) -> Answer<'_, Response<SchemaResult>>;

    /// DoAction.
    fn action(&self, access: Access, action: Action) -> Answer<'_, Reply<ActionResult>>;

    /// DoPut, which stores a set of values. `charging` decides how further messages are charged.
    fn put_values(
        &self,
        access: Access,
        charging: Charging,
        messages: Streaming<FlightData>,
    ) -> Answer<'_, Reply<PutResult>>;

    /// DoExchange.
    fn exchange(
        &self,
        begun: exchange::Begun,
        messages: Streaming<FlightData>,
    ) -> Answer<'_, Response<Reply<FlightData>>>;

    /// True if the server accepts new work.
    fn is_ready(&self) -> bool;

    /// True if the queue of a model has a worker, and its datasets are loaded.
    fn is_queue_ready(&self, access: &Access, model: ModelReadyRequest) -> Result<bool, Status>;

    /// ModelMetadata of the service `GRPCInferenceService`.
    fn queue_metadata(
        &self,
        access: Access,
        model: ModelMetadataRequest,
    ) -> Answer<'_, Response<ModelMetadataResponse>>;

    /// ModelInfer of the service `GRPCInferenceService`.
    fn infer(
        &self,
        access: Access,
        trace: Option<Trace>,
        request: ModelInferRequest,
    ) -> Answer<'_, Response<ModelInferResponse>>;

    /// Lookup of the service `Online`.
    fn look_up_packed(
        &self,
        access: Access,
        trace: Option<Trace>,
        wanted: Lookup,
    ) -> Answer<'_, Response<LookupAnswer>>;
}

impl Methods for Context {
    fn list_flights(&self, access: &Access) -> Reply<FlightInfo> {
        // Each one is made when the client can receive it.
        stream::iter(self.services.datasets.list(access)).map(|listed| listed_info(&listed)).boxed()
    }

    fn flight_info(
        &self,
        access: Access,
        descriptor: FlightDescriptor,
        zone: Option<String>,
    ) -> Answer<'_, Response<FlightInfo>> {
        Box::pin(async move {
            match described(&descriptor)? {
                Described::Command(command) => {
                    let command = command.to_vec();
                    train_info(self, &access, descriptor, &command, zone).await
                }
                Described::Dataset(name) => {
                    let current = self.services.datasets.current(&access, name).await?;
                    dataset_info(name, current.snapshot()).map(Response::new)
                }
            }
        })
    }

    fn schema(&self, access: Access, descriptor: FlightDescriptor) -> Answer<'_, Response<SchemaResult>> {
        Box::pin(async move {
            let schema = match described(&descriptor)? {
                Described::Command(command) => self.schema_of(&access, command).await?,
                Described::Dataset(name) => {
                    self.services.datasets.current(&access, name).await?.snapshot().schema().clone()
                }
            };
            let result: Result<SchemaResult, ArrowError> =
                SchemaAsIpc::new(&schema, &IpcWriteOptions::default()).try_into();
            let result = result.map_err(|error| internal(&error))?;
            // The message and its encoded form.
            let bytes = 2 * result.schema.len() as u64;
            let charge = self.services.callers.take(&access.caller(), Resource::UnsentBytes, bytes)?;
            Ok(charged(result, charge))
        })
    }

    fn action(&self, access: Access, action: Action) -> Answer<'_, Reply<ActionResult>> {
        Box::pin(async move {
            if action.r#type == actions::HELLO.0 {
                return Ok(actions::run(self.clone(), access, action).await?);
            }
            if self.services.drain.is_draining() {
                return Err(stopping().into());
            }
            let results = actions::run(self.clone(), access, action).await?;
            // The results are sent until the server drains: `warm`, `pin` and `count-rows` can take longer than any grace period, and what
            // they have loaded so far is of no use to the next process. The other actions have ended before their results are sent.
            let running = (results, self.services.drain.clone(), false);
            let results = stream::unfold(running, |(mut results, drain, ended)| async move {
                let next = tokio::select! {
                    biased;
                    () = std::future::ready(()), if ended => None,
                    next = results.next() => next.map(|result| (result, false)),
                    () = drain.drained() => Some((Err(stopping().into()), true)),
                };
                next.map(|(result, ended)| (result, (results, drain, ended)))
            });
            Ok(results.boxed())
        })
    }

    fn put_values(
        &self,
        access: Access,
        charging: Charging,
        messages: Streaming<FlightData>,
    ) -> Answer<'_, Reply<PutResult>> {
        Box::pin(async move {
            let stored = put_values::store(self, &access, &charging, messages).await?;
            Ok(stream::iter([Ok(stored)]).boxed())
        })
    }

    fn exchange(
        &self,
        begun: exchange::Begun,
        messages: Streaming<FlightData>,
    ) -> Answer<'_, Response<Reply<FlightData>>> {
        Box::pin(exchange::exchange(self, begun, messages))
    }

    fn is_ready(&self) -> bool {
        readiness::is_ready(&self.services)
    }

    fn is_queue_ready(&self, access: &Access, model: ModelReadyRequest) -> Result<bool, Status> {
        Ok(open_inference::is_queue_ready(self, access, &model)?)
    }

    fn queue_metadata(
        &self,
        access: Access,
        model: ModelMetadataRequest,
    ) -> Answer<'_, Response<ModelMetadataResponse>> {
        Box::pin(async move { Ok(open_inference::metadata(self, &access, model).await?) })
    }

    fn infer(
        &self,
        access: Access,
        trace: Option<Trace>,
        request: ModelInferRequest,
    ) -> Answer<'_, Response<ModelInferResponse>> {
        Box::pin(async move { Ok(open_inference::infer(self, &access, trace, request).await?) })
    }

    fn look_up_packed(
        &self,
        access: Access,
        trace: Option<Trace>,
        wanted: Lookup,
    ) -> Answer<'_, Response<LookupAnswer>> {
        Box::pin(async move {
            let found = self.look_up(&access, wanted, trace.as_ref()).await?;
            let LookedUp { schema, batch, about, charge } = found;
            let packed = self.services.online.work(&access, batch.body.len(), move || pack(&schema, batch));
            let answer = LookupAnswer { metadata: Some(about), columns: packed.await?? };
            Ok(charged(answer, charge))
        })
    }
}

async fn train_info(
    context: &Context,
    access: &Access,
    descriptor: FlightDescriptor,
    command: &[u8],
    zone: Option<String>,
) -> Result<Response<FlightInfo>, Status> {
    let requested = context.job(access, command).await?;
    let job = &requested.job;
    let train = job.train();
    let ranks = if requested.rank.is_some() { 1 } else { train.world_size() };
    let endpoints = ranks * if requested.lane.is_some() { 1 } else { train.lanes() };
    if endpoints > MAX_ENDPOINTS {
        return Err(Error::limit(format!(
            "world_size {} with {} lanes makes {endpoints} endpoints, the limit is {MAX_ENDPOINTS}; name a rank",
            train.world_size(),
            train.lanes(),
        )).into());
    }
    let tickets = ticket(&requested, u32::MAX, u32::MAX).len() as u64 * endpoints;
    if tickets > MAX_TICKET_BYTES {
        return Err(Error::limit(format!(
            "the tickets of {endpoints} endpoints take {tickets} bytes, the limit is {MAX_TICKET_BYTES}; name a rank"
        )).into());
    }
    let locations = context.services.members.locations(train, requested.rank, zone).await?;
    // The message and its encoded form.
    let bytes =
        tickets + locations.bytes_of(job.endpoints(requested.rank, requested.lane).map(|(rank, _)| rank));
    let charge = context.services.callers.take(&access.caller(), Resource::UnsentBytes, 2 * bytes)?;
    let mut info = FlightInfo::new()
        .with_descriptor(descriptor)
        .with_ordered(false)
        .with_app_metadata(requested.encoding.encode(&job.summary()))
        .try_with_schema(job.view().schema())
        .map_err(|error| internal(&error))?;
    let mut rows = Some(0u64);
    for (rank, lane) in job.endpoints(requested.rank, requested.lane) {
        rows = rows.and_then(|rows| Some(rows.saturating_add(job.rows(rank, lane)?)));
        let ticket = Ticket::new(ticket(&requested, rank, lane));
        let endpoint = FlightEndpoint::new().with_ticket(ticket);
        info = info.with_endpoint(locations.of(rank).iter().fold(endpoint, FlightEndpoint::with_location));
    }
    let rows = rows.map_or(UNKNOWN, |rows| i64::try_from(rows).unwrap_or(i64::MAX));
    Ok(charged(info.with_total_records(rows), charge))
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
        stored_bytes: snapshot.stored_bytes(),
        decoded_bytes: snapshot.decoded_bytes(),
    };
    Ok(described_info(&about, snapshot.schema())?
        .with_total_records(i64::try_from(snapshot.rows()).unwrap_or(i64::MAX))
        .with_total_bytes(i64::try_from(snapshot.decoded_bytes()).unwrap_or(i64::MAX)))
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
    Error::internal(error.to_string()).into()
}
