//! DoExchange: lookups.

use std::{pin::pin, time::Duration};

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_inference::{Answer, Lookup};
use forebay_proto::{
    Encoding,
    v1::{Command, LookupMetadata, Train},
};
use futures::{Stream, StreamExt, stream, stream::BoxStream};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Status, Streaming};

use super::{Context, guard::Guard, keys::KeyReader};
use crate::{door::Access, status};

/// How long an exchange may say nothing of what it wants.
const PATIENCE: Duration = Duration::from_secs(20);

/// Answers an exchange whose first message says what is wanted.
pub(super) async fn exchange(
    context: &Context,
    access: Access,
    mut messages: Streaming<FlightData>,
) -> Result<BoxStream<'static, Result<FlightData, Status>>, Status> {
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
    let (Some(wanted), None) = (command.lookup, command.train) else {
        return Err(Status::invalid_argument(
            "the descriptor's command is none for an exchange; expected {\"lookup\": {...}}",
        ));
    };
    access.check(&wanted.dataset)?;
    let Some(online) = context.online.get(&wanted.dataset) else {
        let name = &wanted.dataset;
        // Whether there is such a dataset at all is for its list to say.
        context.datasets.current(&access, name).await?;
        return Err(Status::failed_precondition(format!(
            "dataset '{name}' is not looked up by keys; start the server with --online {name}=COLUMN"
        )));
    };
    let max_age = max_age(wanted.max_age)?;
    let train =
        Train { columns: wanted.columns, tensors: wanted.tensors, select: wanted.select, ..Train::default() };
    let mut lookup = online.lookup(&train);
    let resident = unless_drained(&context.guard, lookup.resident()).await?;
    let failed = |error| context.datasets.stream_status(&wanted.dataset, &error);
    let schema = resident.map_err(failed)?.view().schema().clone();
    let head = FlightData::from(SchemaAsIpc::new(&schema, &IpcWriteOptions::default()));
    let exchange = Exchange {
        context: context.clone(),
        access,
        dataset: wanted.dataset,
        max_age,
        encoding,
        lookup,
        schema,
        // Some clients send the descriptor alone, others the schema of the keys with it.
        messages: stream::iter([Ok(first)]).chain(messages).boxed(),
        keys: KeyReader::default(),
        max_keys: context.online.max_keys(),
        _permit: permit,
    };
    Ok(stream::iter([Ok(head)]).chain(exchange.answers()).boxed())
}

/// What `work` gives, unless the server stops before.
async fn unless_drained<T>(guard: &Guard, work: impl Future<Output = T>) -> Result<T, Status> {
    let (work, drained) = (pin!(work), pin!(guard.drained()));
    tokio::select! {
        biased;
        () = drained => Err(Status::unavailable("the server is stopping; go on on another one")),
        done = work => Ok(done),
    }
}

fn max_age(seconds: f64) -> Result<Option<Duration>, Status> {
    let invalid =
        || Status::invalid_argument(format!("lookup.max_age: is {seconds}, expected seconds of 0 or more"));
    let age = Duration::try_from_secs_f64(seconds).map_err(|_| invalid())?;
    Ok((!age.is_zero()).then_some(age))
}

/// A running exchange.
struct Exchange {
    context: Context,
    access: Access,
    dataset: String,
    max_age: Option<Duration>,
    encoding: Encoding,
    lookup: Lookup,
    /// That of every answer.
    schema: SchemaRef,
    messages: BoxStream<'static, Result<FlightData, Status>>,
    keys: KeyReader,
    max_keys: usize,
    _permit: OwnedSemaphorePermit,
}

impl Exchange {
    /// An answer for each batch of keys; ends with the keys, or with the first status.
    fn answers(self) -> impl Stream<Item = Result<FlightData, Status>> + Send {
        stream::unfold(Some(self), |exchange| async {
            let mut exchange = exchange?;
            match exchange.next().await {
                Ok(Some(answer)) => Some((Ok(answer), Some(exchange))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        })
    }

    async fn next(&mut self) -> Result<Option<FlightData>, Status> {
        let Some(keys) = self.next_keys().await? else { return Ok(None) };
        // A token may be taken back while its exchange runs.
        self.access.check(&self.dataset)?;
        let answer = unless_drained(&self.context.guard, self.lookup.look_up(keys)).await?;
        let answer = answer.map_err(|error| self.context.datasets.stream_status(&self.dataset, &error))?;
        self.message(answer).map(Some)
    }

    async fn next_keys(&mut self) -> Result<Option<RecordBatch>, Status> {
        loop {
            let message = unless_drained(&self.context.guard, self.messages.next()).await?;
            let Some(message) = message.transpose()? else { return Ok(None) };
            if let Some(keys) = self.keys.read(&message, self.max_keys)? {
                return Ok(Some(keys));
            }
        }
    }

    fn message(&self, Answer { resident, batch }: Answer) -> Result<FlightData, Status> {
        if resident.view().schema() != &self.schema {
            return Err(Status::failed_precondition(format!(
                "dataset '{}': the columns have changed with snapshot {}; begin another exchange",
                self.dataset,
                resident.snapshot().id()
            )));
        }
        let snapshot = resident.snapshot().id();
        let age = self.context.datasets.age(&self.dataset, snapshot);
        if let Some(most) = self.max_age
            && age.is_none_or(|age| age > most)
        {
            let found = age.map_or("was seen to be current nobody knows when".to_owned(), |age| {
                format!("was last seen to be current {age:?} ago")
            });
            return Err(Status::failed_precondition(format!(
                "dataset '{}': snapshot {snapshot} {found}, max_age is {most:?}",
                self.dataset
            )));
        }
        let metadata = LookupMetadata {
            snapshot: snapshot.to_owned(),
            age: age.map(|age| age.as_secs_f64()),
            found: batch.rows,
        };
        let body = match <[Bytes; 1]>::try_from(batch.body.into_pieces()) {
            Ok([body]) => body,
            Err(pieces) => pieces.concat().into(),
        };
        Ok(FlightData {
            data_header: batch.header,
            app_metadata: self.encoding.encode(&metadata).into(),
            data_body: body,
            ..FlightData::default()
        })
    }
}
