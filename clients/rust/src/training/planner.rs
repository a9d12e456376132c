//! Requests of plans.

use std::sync::Arc;

use arrow_flight::{FlightDescriptor, FlightEndpoint};
use forebay_proto::{
    Encoding,
    v1::{Command, PlanSummary, Train},
};
use prost::Message;

use super::{plan::Plan, ticket_stream::ticket};
use crate::{Error, route::Transport};

/// Requests the plan of `train` from one server.
///
/// # Errors
/// The status of the server; [`Error::Protocol`] if the response is malformed.
pub(crate) async fn plan(transport: &Transport, train: &Train) -> Result<Plan, Error> {
    let info = transport.flight_info(FlightDescriptor::new_cmd(ticket(train))).await?;
    let malformed = |error: &dyn std::fmt::Display| Error::protocol(format!("malformed FlightInfo: {error}"));
    // Fields of later servers, which this client does not know, are ignored.
    let summary = PlanSummary::decode(info.app_metadata.as_ref()).map_err(|error| malformed(&error))?;
    let tickets = info.endpoint.iter().map(|endpoint| endpoint.ticket.as_ref());
    let tickets: Option<Vec<_>> = tickets.collect();
    let tickets = tickets.ok_or_else(|| malformed(&"an endpoint has no ticket"))?;
    let first = tickets.first().ok_or_else(|| malformed(&"it has no endpoint"))?;
    let resolved: Command =
        Encoding::Protobuf.decode("Command", &first.ticket).map_err(|error| malformed(&error))?;
    let resolved = resolved.train.ok_or_else(|| malformed(&"its ticket has no `train` command"))?;
    Ok(Plan {
        resolved: Train { rank: train.rank, lane: train.lane, ..resolved },
        summary,
        total_records: info.total_records,
        locations: info.endpoint.iter().map(locations).collect(),
        tickets: tickets.iter().map(|ticket| ticket.ticket.clone()).collect(),
        schema: Arc::new(info.try_decode_schema().map_err(|error| malformed(&error))?),
    })
}

/// Returns the URIs of the locations of `endpoint`, in their order.
fn locations(endpoint: &FlightEndpoint) -> Vec<String> {
    endpoint.location.iter().map(|location| location.uri.clone()).collect()
}
