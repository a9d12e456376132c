//! gRPC: Arrow Flight, lookups for callers without Arrow, the Open Inference Protocol, health and reflection.

mod actions;
mod batches;
mod call_layer;
mod commands;
mod context;
mod exchange;
mod framed;
mod incoming;
mod inference_service;
mod lookups;
mod methods;
mod open_inference;
mod packed;
mod put_values;
mod service;
mod unary;

use std::sync::Arc;

use arrow_flight::flight_service_server::FlightServiceServer;
use forebay_proto::{
    inference::grpc_inference_service_server::GrpcInferenceServiceServer, v1::online_server::OnlineServer,
};

use crate::auth::Authenticator;

pub(crate) use batches::{BatchReader, Received, Wanted, hostile};
use call_layer::CallLayer;
pub(crate) use context::Context;
use exchange::ExchangeRoute;
use framed::FramedDoGet;
use inference_service::OpenInference;
use methods::Methods;
use service::Flight;
use unary::Unary;

/// Maximum size of a request of reflection, in bytes: the name of a file or a type.
const MAX_REFLECTION_BYTES: usize = 16 << 10;

/// Builds the router of all gRPC methods. [`FramedDoGet`] replaces the DoGet route of tonic. All routes share one call layer.
pub(crate) fn router(
    context: Context,
    authenticator: Authenticator,
    health: tonic_health::pb::health_server::HealthServer<impl tonic_health::pb::health_server::Health>,
) -> Result<axum::Router, tonic_reflection::server::Error> {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(forebay_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(forebay_proto::FLIGHT_DESCRIPTORS)
        .register_encoded_file_descriptor_set(forebay_proto::INFERENCE_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?
        .max_decoding_message_size(MAX_REFLECTION_BYTES);
    let max_request_bytes = context.services.limits.max_request_bytes;
    let methods: Arc<dyn Methods> = Arc::new(context.clone());
    let flight = FlightServiceServer::new(Flight { methods: Arc::clone(&methods) })
        .max_decoding_message_size(max_request_bytes);
    let exchanges = ExchangeRoute::new(Arc::clone(&methods), &context.services.limits);
    let unary = OnlineServer::new(Unary { methods: Arc::clone(&methods) })
        .max_decoding_message_size(max_request_bytes);
    let inference = GrpcInferenceServiceServer::new(OpenInference { methods })
        .max_decoding_message_size(max_request_bytes);
    let layer = CallLayer::new(&context.services, authenticator);
    Ok(tonic::service::Routes::new(flight)
        .add_service(unary)
        .add_service(inference)
        .add_service(health)
        .add_service(reflection)
        .into_axum_router()
        .route_service("/arrow.flight.protocol.FlightService/DoGet", FramedDoGet::new(context))
        .route_service("/arrow.flight.protocol.FlightService/DoExchange", exchanges)
        .layer(layer))
}
