//! DoExchange: lookups, and the two sides of a batch queue. Its first message says which.

mod callers;
mod lookups;
mod workers;

use std::{pin::pin, time::Duration};

use arrow_flight::FlightData;
use forebay_inference::Answer;
use forebay_proto::{Encoding, v1::Command};
use futures::{StreamExt, stream, stream::BoxStream};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, Streaming};

use super::{Context, batches::in_one_piece, guard::Guard};
use crate::{door::Access, status, traces::Trace};

/// How long an exchange may say nothing of what it wants.
const PATIENCE: Duration = Duration::from_secs(20);

type Messages = BoxStream<'static, Result<FlightData, Status>>;

/// An exchange that has begun: what all kinds of them have.
struct Exchange {
    context: Context,
    access: Access,
    encoding: Encoding,
    messages: Messages,
    permit: OwnedSemaphorePermit,
    /// If its call is traced.
    trace: Option<Trace>,
}

/// Answers an exchange whose first message says what is wanted.
pub(super) async fn exchange(
    context: &Context,
    access: Access,
    trace: Option<Trace>,
    mut messages: Streaming<FlightData>,
) -> Result<Messages, Status> {
    let permit = context.enter()?;
    let missing =
        || Status::invalid_argument("the exchange is empty; its first message carries a descriptor");
    let first = unless_drained(&context.guard, tokio::time::timeout(PATIENCE, messages.message())).await?;
    let late = |_| Status::deadline_exceeded(format!("no descriptor came within {PATIENCE:?}"));
    let first = first.map_err(late)??.ok_or_else(missing)?;
    let command =
        first.flight_descriptor.as_ref().map(|descriptor| descriptor.cmd.clone()).unwrap_or_default();
    let encoding = Encoding::of(&command);
    let command: Command = encoding.decode("Command", &command).map_err(|error| status::of_decode(&error))?;
    // Some clients send the descriptor alone, others the schema with it.
    let messages = stream::iter([Ok(first)]).chain(messages).boxed();
    let exchange = Exchange { context: context.clone(), access, encoding, messages, permit, trace };
    match command {
        Command { lookup: Some(wanted), train: None, infer: None, serve: None } => {
            lookups::answers(exchange, wanted).await
        }
        Command { infer: Some(infer), train: None, lookup: None, serve: None } => {
            callers::answers(exchange, &infer).await
        }
        Command { serve: Some(serve), train: None, lookup: None, infer: None } => {
            workers::batches(exchange, &serve).await
        }
        _ => Err(Status::invalid_argument(
            "the descriptor's command is none for an exchange; expected one of {\"lookup\": {...}}, {\"infer\": {...}} and \
             {\"serve\": {...}}",
        )),
    }
}

/// What `work` gives, unless the server stops before.
pub(super) async fn unless_drained<T>(guard: &Guard, work: impl Future<Output = T>) -> Result<T, Status> {
    let (work, drained) = (pin!(work), pin!(guard.drained()));
    tokio::select! {
        biased;
        () = drained => Err(stopping()),
        done = work => Ok(done),
    }
}

fn stopping() -> Status {
    Status::unavailable("the server is stopping; go on on another one")
}

/// The message of an answer.
fn message(answer: Answer, metadata: Vec<u8>) -> FlightData {
    FlightData {
        data_header: answer.batch.header,
        app_metadata: metadata.into(),
        data_body: in_one_piece(answer.batch.body),
        ..FlightData::default()
    }
}
