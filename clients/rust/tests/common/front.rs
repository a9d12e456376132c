//! A Flight server in front of a real one, which changes what the real one says about locations.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, Location, PollInfo, PutResult, SchemaResult, Ticket,
    flight_service_client::FlightServiceClient,
    flight_service_server::{FlightService, FlightServiceServer},
};
use bytes::Bytes;
use forebay::Server;
use forebay_client::proto::{
    Encoding,
    v1::{Command, PlanSummary},
};
use futures::{StreamExt, future::ready, stream::BoxStream};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Request, Response, Status, Streaming,
    metadata::MetadataMap,
    transport::{Channel, Endpoint, ServerTlsConfig, server::TcpIncoming},
};

type Reply<T> = BoxStream<'static, Result<T, Status>>;
type Locate = Box<dyn Fn(u64) -> Vec<String> + Send + Sync>;
type Judge = Box<dyn Fn(&MetadataMap) -> Result<(), Status> + Send + Sync>;

/// A Flight server whose plans are those of a real server, with other locations, and whose streams are those of the real server.
/// Dropping it stops it.
pub(crate) struct Front {
    /// URL of the server, with the host `127.0.0.1`, or `localhost` with TLS.
    pub(crate) url: String,
    pub(crate) shared: Arc<Shared>,
    _serving: AbortOnDropHandle<()>,
}

/// Behavior of a [`Front`], and the requests that it has received.
pub(crate) struct Shared {
    client: FlightServiceClient<Channel>,
    locate: Mutex<Locate>,
    /// Decides whether a request for a plan is rejected.
    judge_plan: Mutex<Judge>,
    /// Decides whether a stream is rejected.
    judge_stream: Mutex<Judge>,
    /// Replaces the plan hash, if it is not empty.
    plan_hash: Mutex<String>,
    /// Number of answered requests for plans.
    pub(crate) plans: AtomicU64,
    /// Headers of the requests for plans and streams.
    pub(crate) headers: Mutex<Vec<MetadataMap>>,
    /// Number of opened streams.
    pub(crate) streams: AtomicU64,
    /// Number of reports of trainers.
    pub(crate) reports: AtomicU64,
    /// Number of exchanges.
    pub(crate) exchanges: AtomicU64,
}

impl Front {
    /// Starts a server in front of `server`. Its plans have no locations.
    pub(crate) async fn before(server: &Server) -> Self {
        Self::start(server, None).await
    }

    /// Starts a server with TLS in front of `server`, which has none.
    pub(crate) async fn with_tls(server: &Server, tls: ServerTlsConfig) -> Self {
        Self::start(server, Some(tls)).await
    }

    async fn start(server: &Server, tls: Option<ServerTlsConfig>) -> Self {
        let channel = Endpoint::from_shared(server.grpc().url()).unwrap().connect().await.unwrap();
        let shared = Arc::new(Shared {
            client: FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX),
            locate: Mutex::new(Box::new(|_| Vec::new())),
            judge_plan: Mutex::new(Box::new(|_| Ok(()))),
            judge_stream: Mutex::new(Box::new(|_| Ok(()))),
            plan_hash: Mutex::default(),
            plans: AtomicU64::new(0),
            headers: Mutex::default(),
            streams: AtomicU64::new(0),
            reports: AtomicU64::new(0),
            exchanges: AtomicU64::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = match tls {
            Some(_) => format!("grpc+tls://localhost:{port}"),
            None => format!("grpc://127.0.0.1:{port}"),
        };
        let mut builder = tonic::transport::Server::builder();
        if let Some(tls) = tls {
            builder = builder.tls_config(tls).unwrap();
        }
        let service = FlightServiceServer::new(Service(Arc::clone(&shared)));
        let serving = builder.add_service(service).serve_with_incoming(TcpIncoming::from(listener));
        let serving = tokio::spawn(async move { serving.await.unwrap() });
        Self { url, shared, _serving: AbortOnDropHandle::new(serving) }
    }

    /// Names `locations` for every ticket.
    pub(crate) fn locate<S: Into<String>>(&self, locations: impl IntoIterator<Item = S>) {
        let locations: Vec<String> = locations.into_iter().map(Into::into).collect();
        self.locate_by_rank(move |_| locations.clone());
    }

    /// Names the locations that `locate` returns for the rank of a ticket.
    pub(crate) fn locate_by_rank(&self, locate: impl Fn(u64) -> Vec<String> + Send + Sync + 'static) {
        *self.shared.locate.lock() = Box::new(locate);
    }

    /// Rejects requests for plans for which `judge` returns a status.
    pub(crate) fn judge_plans(
        &self,
        judge: impl Fn(&MetadataMap) -> Result<(), Status> + Send + Sync + 'static,
    ) {
        *self.shared.judge_plan.lock() = Box::new(judge);
    }

    /// Rejects streams for which `judge` returns a status.
    pub(crate) fn judge_streams(
        &self,
        judge: impl Fn(&MetadataMap) -> Result<(), Status> + Send + Sync + 'static,
    ) {
        *self.shared.judge_stream.lock() = Box::new(judge);
    }

    /// Answers with plans of the hash `hash`.
    pub(crate) fn answer_with_plan_hash(&self, hash: &str) {
        *self.shared.plan_hash.lock() = hash.to_owned();
    }

    /// Returns the number of answered requests for plans.
    pub(crate) fn plans(&self) -> u64 {
        self.shared.plans.load(Ordering::Relaxed)
    }

    /// Returns the number of opened streams.
    pub(crate) fn streams(&self) -> u64 {
        self.shared.streams.load(Ordering::Relaxed)
    }

    /// Returns the values of the header `name` of all requests for plans and streams that have it.
    pub(crate) fn header(&self, name: &str) -> Vec<String> {
        let headers = self.shared.headers.lock();
        let values = headers.iter().filter_map(|headers| headers.get(name));
        values.map(|value| value.to_str().unwrap().to_owned()).collect()
    }
}

struct Service(Arc<Shared>);

/// Returns a request for the real server with the headers of `request`.
fn forwarded<T>(request: Request<T>) -> Request<T> {
    let (metadata, _, message) = request.into_parts();
    let mut forwarded = Request::new(message);
    for name in ["authorization", "forebay-trainer", "traceparent"] {
        if let Some(value) = metadata.get(name) {
            forwarded.metadata_mut().insert(name, value.clone());
        }
    }
    forwarded
}

fn unused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not used by these tests"))
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = Reply<HandshakeResponse>;
    type ListFlightsStream = Reply<FlightInfo>;
    type DoGetStream = Reply<FlightData>;
    type DoPutStream = Reply<PutResult>;
    type DoActionStream = Reply<arrow_flight::Result>;
    type ListActionsStream = Reply<ActionType>;
    type DoExchangeStream = Reply<FlightData>;

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let shared = &self.0;
        shared.headers.lock().push(request.metadata().clone());
        (shared.judge_plan.lock())(request.metadata())?;
        let mut info = shared.client.clone().get_flight_info(forwarded(request)).await?.into_inner();
        for endpoint in &mut info.endpoint {
            let ticket = &endpoint.ticket.as_ref().unwrap().ticket;
            let command: Command = Encoding::Protobuf.decode("Command", ticket).unwrap();
            let locations = (shared.locate.lock())(command.train.unwrap().rank());
            endpoint.location = locations.into_iter().map(|uri| Location { uri }).collect();
        }
        let hash = shared.plan_hash.lock().clone();
        if !hash.is_empty() {
            let summary: PlanSummary = Encoding::Protobuf.decode("PlanSummary", &info.app_metadata).unwrap();
            let changed = PlanSummary { plan_hash: hash, ..summary };
            info.app_metadata = Encoding::Protobuf.encode(&changed).into();
        }
        shared.plans.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(info))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        self.0.headers.lock().push(request.metadata().clone());
        (self.0.judge_stream.lock())(request.metadata())?;
        let stream = self.0.client.clone().do_get(forwarded(request)).await?.into_inner();
        self.0.streams.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(stream.boxed()))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        if request.get_ref().r#type == "report" {
            self.0.reports.fetch_add(1, Ordering::Relaxed);
        }
        let results = self.0.client.clone().do_action(forwarded(request)).await?.into_inner();
        Ok(Response::new(results.boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        unused()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        unused()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        unused()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        unused()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        unused()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        unused()
    }

    /// Forwards an exchange without the metadata of its batches, as a server of an earlier version ignores them.
    async fn do_exchange(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        self.0.exchanges.fetch_add(1, Ordering::Relaxed);
        let request = forwarded(request).map(|messages| {
            messages
                .take_while(|message| ready(message.is_ok()))
                .filter_map(|message| ready(message.ok()))
                .map(|message| match message.flight_descriptor {
                    None => FlightData { app_metadata: Bytes::new(), ..message },
                    Some(_) => message,
                })
        });
        let answers = self.0.client.clone().do_exchange(request).await?.into_inner();
        Ok(Response::new(answers.boxed()))
    }
}
