//! gRPC: Arrow Flight, lookups for callers without Arrow, health and reflection.

mod actions;
mod batches;
mod commands;
mod exchange;
mod framed;
mod guard;
mod lookups;
mod packed;
mod service;
mod unary;

use std::sync::Arc;

use arrow_flight::flight_service_server::FlightServiceServer;
use forebay_loader::Loader;
use forebay_proto::v1::online_server::OnlineServer;
use tokio::sync::Semaphore;

use crate::{
    datasets::Datasets, door::Door, events::Events, jobs::Notes, online::OnlineDatasets, queues::Queues,
    sessions::Sessions, settings::Limits, traces::Traces,
};

pub(crate) use batches::{in_one_piece, read_own};
pub(crate) use framed::FramedDoGet;
pub(crate) use guard::{Guard, GuardLayer};
pub(crate) use service::Flight;
pub(crate) use unary::Unary;

/// What every Flight method works with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) datasets: Datasets,
    pub(crate) loader: Loader,
    pub(crate) online: OnlineDatasets,
    pub(crate) queues: Queues,
    pub(crate) events: Events,
    /// Exchanges and lookups that may begin: limits.max_streams of them at a time.
    pub(crate) exchanges: Arc<Semaphore>,
    pub(crate) sessions: Sessions,
    pub(crate) jobs: Notes,
    pub(crate) limits: Arc<Limits>,
    pub(crate) guard: Guard,
    pub(crate) traces: Traces,
}

/// The router of all gRPC methods. DoGet, whose bytes are framed by hand, lies before tonic's own route
/// of that name; all of them pass the same guard and door.
pub(crate) fn router(
    context: Context,
    door: Door,
    health: tonic_health::pb::health_server::HealthServer<impl tonic_health::pb::health_server::Health>,
) -> Result<axum::Router, tonic_reflection::server::Error> {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(forebay_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(forebay_proto::FLIGHT_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let max_request_bytes = context.limits.max_request_bytes;
    let flight =
        FlightServiceServer::new(Flight::new(context.clone())).max_decoding_message_size(max_request_bytes);
    // Replies of workers are larger than requests.
    let exchanges = FlightServiceServer::new(Flight::new(context.clone()))
        .max_decoding_message_size(context.limits.max_exchange_bytes);
    let unary = OnlineServer::new(Unary::new(context.clone())).max_decoding_message_size(max_request_bytes);
    let guard = GuardLayer::new(context.guard.clone(), door, context.traces.clone());
    Ok(tonic::service::Routes::new(flight)
        .add_service(unary)
        .add_service(health)
        .add_service(reflection)
        .into_axum_router()
        .route_service("/arrow.flight.protocol.FlightService/DoGet", FramedDoGet::new(context))
        .route_service("/arrow.flight.protocol.FlightService/DoExchange", exchanges)
        .layer(guard))
}
