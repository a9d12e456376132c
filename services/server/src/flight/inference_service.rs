//! The service `GRPCInferenceService` of the Open Inference Protocol.

use std::sync::Arc;

use forebay_proto::inference::{
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest,
    ModelReadyResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse,
    ServerReadyRequest, ServerReadyResponse, grpc_inference_service_server::GrpcInferenceService,
};
use tonic::{Request, Response, Status, async_trait};

use super::{call_layer, methods::Methods};

/// The service `GRPCInferenceService`.
pub(crate) struct OpenInference {
    pub(super) methods: Arc<dyn Methods>,
}

#[async_trait]
impl GrpcInferenceService for OpenInference {
    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        Ok(Response::new(ServerReadyResponse { ready: self.methods.is_ready() }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        let access = call_layer::access(request.extensions())?;
        let ready = self.methods.is_queue_ready(&access, &request.into_inner().name)?;
        Ok(Response::new(ModelReadyResponse { ready }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        let (name, version) = ("forebay".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Ok(Response::new(ServerMetadataResponse { name, version, extensions: Vec::new() }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let access = call_layer::access(request.extensions())?;
        self.methods.queue_metadata(access, request.into_inner().name).await
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        let access = call_layer::access(request.extensions())?;
        let trace = call_layer::trace(request.extensions());
        self.methods.infer(access, trace, request.into_inner()).await
    }
}
