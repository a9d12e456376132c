//! The service `FlightService`, except DoGet.

use std::sync::Arc;

use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, Result as ActionResult, SchemaResult, Ticket,
    flight_service_server::FlightService,
};
use futures::{StreamExt, stream};
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{
    actions, call_layer,
    incoming::Charging,
    methods::{Methods, Reply},
};
use crate::members;

/// The Flight service, except DoGet.
pub(crate) struct Flight {
    pub(super) methods: Arc<dyn Methods>,
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
        Ok(Response::new(self.methods.list_flights(&access)))
    }

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        let access = call_layer::access(request.extensions())?;
        let zone = members::zone(request.metadata().as_ref())?;
        self.methods.flight_info(access, request.into_inner(), zone).await
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        unimplemented("PollFlightInfo", "GetFlightInfo answers at once")
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let access = call_layer::access(request.extensions())?;
        self.methods.schema(access, request.into_inner()).await
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        unimplemented("DoGet", "its framed route answers before this one")
    }

    async fn do_put(
        &self,
        mut request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        let access = call_layer::access(request.extensions())?;
        let charging = request.extensions_mut().remove::<Charging>().unwrap_or_default();
        self.methods.put_values(access, charging, request.into_inner()).await.map(Response::new)
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let access = call_layer::access(request.extensions())?;
        self.methods.action(access, request.into_inner()).await.map(Response::new)
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Ok(Response::new(stream::iter(actions::types().map(Ok)).boxed()))
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        unimplemented("DoExchange", "its own route answers before this one")
    }
}
