//! DoExchange: lookups, and both sides of a batch queue. The first message selects the kind.

mod callers;
mod lookups;
mod reply_rows;
mod route;
mod stream;
mod workers;

use std::time::Duration;

use arrow_flight::FlightData;
use forebay_proto::{Encoding, v1::Command};
use futures::{StreamExt, stream as streams};
use tonic::{Response, Status, Streaming};

pub(super) use self::route::ExchangeRoute;
use self::stream::{Exchange, Messages, is_too_long};
use super::{Context, incoming::Charging};
use crate::{
    Error,
    auth::Access,
    callers::{Charge, MessageCharges, Resource},
    connections::MayPause,
    traces::Trace,
};

/// Timeout of the first message.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// A DoExchange call whose kind is not known.
pub(super) struct Begun {
    pub(super) access: Access,
    /// Trace of the call, if it is traced.
    pub(super) trace: Option<Trace>,
    /// Charge for the call, until its kind is known.
    pub(super) call: Option<Charge>,
    /// Decides how further messages are charged.
    pub(super) charging: Charging,
}

/// Returns the status of a message that could not be received. The status of one that is too long names the setting.
fn with_setting(status: Status) -> Status {
    if !is_too_long(&status) {
        return status;
    }
    Status::out_of_range(format!(
        "{} (limits.max_exchange_bytes); send fewer rows at a time",
        status.message()
    ))
}

/// Answers a DoExchange stream.
pub(super) async fn exchange(
    context: &Context,
    Begun { access, trace, call, charging }: Begun,
    mut messages: Streaming<FlightData>,
) -> Result<Response<Messages>, Status> {
    let (callers, caller) = (&context.services.callers, access.caller());
    let missing = || Error::invalid("the stream is empty; expected a first message with a descriptor");
    let first = context
        .services
        .drain
        .unless_drained(tokio::time::timeout(FIRST_MESSAGE_TIMEOUT, messages.message()))
        .await?;
    let late = |_| Error::timeout(format!("received no descriptor within {FIRST_MESSAGE_TIMEOUT:?}"));
    let mut first = first.map_err(late)??.ok_or_else(missing)?;
    let descriptor = first.flight_descriptor.take().unwrap_or_default();
    let encoding = Encoding::of(&descriptor.cmd);
    let command: Command = encoding.decode("Command", &descriptor.cmd).map_err(Error::from)?;
    drop(descriptor);
    // The first message may also hold the schema, so it is read again.
    let messages = messages.map(|message| message.map_err(with_setting));
    let messages = streams::iter([Ok(first)]).chain(messages).boxed();
    let is_worker = command.worker.is_some();
    let resource = if is_worker { Resource::Workers } else { Resource::Exchanges };
    let charge = callers.take(&caller, resource, 1)?;
    drop(call);
    if is_worker {
        charging.as_replies();
    }
    let answers = MessageCharges::default();
    let context = context.clone();
    let exchange = Exchange { context, access, encoding, messages, charge, answers: answers.clone(), trace };
    let messages = match command {
        Command { lookup: Some(wanted), train: None, infer: None, worker: None } => {
            lookups::answers(exchange, wanted).await
        }
        Command { infer: Some(infer), train: None, lookup: None, worker: None } => {
            callers::answers(exchange, &infer).await
        }
        Command { worker: Some(worker), train: None, lookup: None, infer: None } => {
            workers::batches(exchange, &worker).await
        }
        _ => Err(Error::invalid(
            "the descriptor's command is not valid for DoExchange; expected one of {\"lookup\": {...}}, {\"infer\": {...}} and \
             {\"worker\": {...}}",
        )
        .into()),
    }?;
    let mut response = Response::new(messages);
    response.extensions_mut().insert(answers);
    if is_worker {
        // A worker computes before it reads the next batch. Its batches are charged to the callers of the queue.
        response.extensions_mut().insert(MayPause::always());
    }
    Ok(response)
}
