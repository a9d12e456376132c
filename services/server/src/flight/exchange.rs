//! DoExchange: lookups, and the two sides of a batch queue. Its first message says which.

mod callers;
mod lookups;
mod workers;

use std::{pin::pin, time::Duration};

use arrow_flight::FlightData;
use bytes::Bytes;
use forebay_inference::Answer;
use forebay_proto::{
    Encoding,
    v1::{Command, Lookup as Wanted, LookupMetadata},
};
use futures::{StreamExt, stream, stream::BoxStream};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, Streaming};

use super::{Context, guard::Guard};
use crate::{door::Access, online::max_age, status};

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
}

/// Answers an exchange whose first message says what is wanted.
pub(super) async fn exchange(
    context: &Context,
    access: Access,
    mut messages: Streaming<FlightData>,
) -> Result<Messages, Status> {
    let limit = context.limits.max_streams;
    let permit = context.exchanges.clone().try_acquire_owned().map_err(|_| {
        Status::resource_exhausted(format!("{limit} exchanges are running, which is limits.max_streams"))
    })?;
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
    let exchange = Exchange { context: context.clone(), access, encoding, messages, permit };
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
async fn unless_drained<T>(guard: &Guard, work: impl Future<Output = T>) -> Result<T, Status> {
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

impl Context {
    /// Refuses a caller who may not read all of the datasets of a lookup.
    fn check_access(&self, access: &Access, wanted: &Wanted) -> Result<(), Status> {
        access.check(&wanted.dataset)?;
        wanted.with.iter().try_for_each(|other| access.check(&other.dataset))
    }

    /// Of which snapshots the rows of an answer are.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` when one was last seen to be current longer ago than was wanted.
    fn about(&self, wanted: &Wanted, answer: &Answer) -> Result<LookupMetadata, Status> {
        let mut parts = Vec::with_capacity(1 + wanted.with.len());
        for ((resident, found), wanted) in
            answer.residents.iter().zip(&answer.found).zip(std::iter::once(wanted).chain(&wanted.with))
        {
            let snapshot = resident.snapshot().id();
            let age = self.datasets.age(&wanted.dataset, snapshot);
            if let Some(most) = max_age(wanted)?
                && age.is_none_or(|age| age > most)
            {
                let seen = age.map_or("was seen to be current nobody knows when".to_owned(), |age| {
                    format!("was last seen to be current {age:?} ago")
                });
                let dataset = &wanted.dataset;
                return Err(Status::failed_precondition(format!(
                    "dataset '{dataset}': snapshot {snapshot} {seen}, max_age is {most:?}"
                )));
            }
            let age = age.map(|age| age.as_secs_f64());
            parts.push(LookupMetadata {
                snapshot: snapshot.to_owned(),
                age,
                found: *found,
                with: Vec::new(),
            });
        }
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or_else(|| Status::internal("an answer of no dataset"))?;
        Ok(LookupMetadata { with: parts.collect(), ..first })
    }
}

/// The message of an answer.
fn message(answer: Answer, metadata: Vec<u8>) -> FlightData {
    let body = match <[Bytes; 1]>::try_from(answer.batch.body.into_pieces()) {
        Ok([body]) => body,
        Err(pieces) => pieces.concat().into(),
    };
    FlightData {
        data_header: answer.batch.header,
        app_metadata: metadata.into(),
        data_body: body,
        ..FlightData::default()
    }
}
