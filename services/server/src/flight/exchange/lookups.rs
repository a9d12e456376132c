//! Lookups over DoExchange: receives keys and sends rows, in order.

use arrow_array::RecordBatch;
use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use forebay_inference::Lookup;
use forebay_proto::v1;
use futures::{StreamExt, stream};
use tokio::time::Instant;
use tonic::Status;

use super::stream::{Exchange, Messages, message, schema_message};
use crate::{Error, flight::batches::BatchReader, traces::number};

/// A stream of lookups.
struct Lookups {
    exchange: Exchange,
    wanted: v1::Lookup,
    lookup: Lookup,
    /// Schema of every answer.
    schema: SchemaRef,
    keys: BatchReader,
    max_keys: usize,
}

/// Streams an answer for each batch of keys; ends after the last key, or with the first error.
pub(super) async fn answers(exchange: Exchange, wanted: v1::Lookup) -> Result<Messages, Status> {
    let context = &exchange.context;
    context.check_access(&exchange.access, &wanted)?;
    let services = &context.services;
    let mut lookup = services.online.lookup(&services.datasets, &exchange.access, &wanted).await?;
    let schema = context.prepare(&mut lookup, &wanted).await?;
    let head = schema_message(&schema);
    let max_keys = context.services.online.max_keys();
    let keys = BatchReader::new("keys");
    let lookups = Lookups { exchange, wanted, lookup, schema, keys, max_keys };
    let answers = stream::try_unfold(lookups, |mut lookups| async move {
        let answer = lookups.next().await?;
        Ok::<_, Status>(answer.map(|answer| (answer, lookups)))
    });
    Ok(stream::iter([Ok(head)]).chain(answers).boxed())
}

impl Lookups {
    async fn next(&mut self) -> Result<Option<FlightData>, Status> {
        let Some(keys) = self.next_keys().await? else { return Ok(None) };
        let Exchange { context, access, trace, .. } = &self.exchange;
        let span = trace.as_ref().map(|trace| trace.child("lookup", Instant::now()));
        // A token may be revoked while the stream runs.
        context.check_access(access, &self.wanted)?;
        let count = keys.num_rows() as u64;
        let keys = context.encode(&mut self.lookup, &self.wanted, &keys).await?;
        // Before the answer takes memory.
        let bytes = keys.answer_bytes().min(context.services.online.max_answer_bytes());
        let mut charge = self.exchange.charge(bytes).await?;
        let Exchange { context, encoding, .. } = &self.exchange;
        let (schema, answer, about) = context.answer(&mut self.lookup, &self.wanted, keys).await?;
        if let Some(mut span) = span {
            span.set("forebay.rows", number(count));
            span.set("forebay.found", number(about.found));
        }
        if schema != self.schema {
            return Err(Error::precondition(format!(
                "dataset '{}': the columns have changed with snapshot {}; begin another exchange",
                self.wanted.dataset, about.snapshot
            ))
            .into());
        }
        let answer = message(answer, encoding.encode(&about));
        charge.resize(answer.data_body.len() as u64);
        // Only now, because a frame takes the charges that precede it.
        self.exchange.answers.charge_next(charge);
        Ok(Some(answer))
    }

    async fn next_keys(&mut self) -> Result<Option<RecordBatch>, Status> {
        let Exchange { context, messages, .. } = &mut self.exchange;
        loop {
            let message = context.services.drain.unless_drained(messages.next()).await?;
            let Some(message) = message.transpose()? else { return Ok(None) };
            if let Some(keys) = self.keys.read(&message, self.max_keys)? {
                return Ok(Some(keys));
            }
        }
    }
}
