//! Lookups over DoExchange: receives keys and sends rows, in order.

use arrow_flight::FlightData;
use arrow_schema::SchemaRef;
use forebay_inference::Lookup;
use forebay_proto::{
    Encoding,
    v1::{self, KeysMetadata, LookupMetadata},
};
use futures::{StreamExt, stream};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::stream::{Exchange, Messages, from_error, message, schema_message};
use crate::{
    Error,
    callers::{Account, Charge, Resource},
    flight::batches::{BatchReader, Received, Rows},
    traces::number,
};

/// Maximum size of what a stream keeps of its request without a charge, in bytes. Most requests are smaller. By default, all streams
/// together keep at most 16 MiB without a charge.
const SMALL_REQUEST_BYTES: u64 = 16 << 10;

/// A stream of lookups.
struct Lookups {
    exchange: Exchange,
    /// Datasets of the lookup, and their `max_age_seconds`.
    wanted: v1::Lookup,
    lookup: Lookup,
    /// Charge for what `lookup` keeps of the request, if that is large.
    _request: Option<Charge>,
    /// Schema of every answer.
    schema: SchemaRef,
    keys: BatchReader,
}

/// A batch of keys that was received.
struct Keys {
    keys: Result<Rows, Error>,
    continue_on_error: bool,
}

/// An answer that is ready to be sent.
struct Answered {
    schema: SchemaRef,
    snapshot: String,
    message: FlightData,
    /// Bytes of the answer. A frame takes the charges that precede it.
    charge: Charge,
}

/// Streams an answer for each batch of keys; ends after the last key. A rejected batch ends the stream, unless the caller asks for
/// its error instead of an answer.
pub(super) async fn answers(exchange: Exchange, wanted: v1::Lookup) -> Result<Messages, Status> {
    let context = &exchange.context;
    context.check_access(&exchange.access, &wanted)?;
    let services = &context.services;
    let mut lookup = services.online.lookup(&services.datasets, &exchange.access, &wanted).await?;
    let wanted = without_selection(wanted);
    let bytes = lookup.request_bytes();
    let charge = || services.callers.take(&exchange.access.caller(), Resource::UnsentBytes, bytes);
    let request = (bytes > SMALL_REQUEST_BYTES).then(charge).transpose()?;
    let schema = context.prepare(&mut lookup, &wanted).await?;
    let head = schema_message(&schema);
    let account = Account::new(&services.callers, exchange.access.caller());
    let keys = BatchReader::of_requests(lookup.request_names(), services.online.max_keys(), account);
    let lookups = Lookups { exchange, wanted, lookup, _request: request, schema, keys };
    let answers = stream::try_unfold(lookups, |mut lookups| async move {
        let answer = lookups.next().await?;
        Ok::<_, Status>(answer.map(|answer| (answer, lookups)))
    });
    Ok(stream::iter([Ok(head)]).chain(answers).boxed())
}

impl Lookups {
    async fn next(&mut self) -> Result<Option<FlightData>, Status> {
        let Some(Keys { keys, continue_on_error }) = self.next_keys().await? else { return Ok(None) };
        let answer = match keys {
            Ok(keys) => self.answer(keys).await,
            Err(error) => Err(error),
        };
        match answer {
            Err(error) if continue_on_error && concerns_keys(&error) => Ok(Some(self.rejection(&error))),
            answer => {
                let answer = answer?;
                // The exchange has one schema. The caller begins another one for the other columns.
                self.check_schema(&answer)?;
                self.exchange.answers.charge_next(answer.charge);
                Ok(Some(answer.message))
            }
        }
    }

    async fn answer(&mut self, keys: Rows) -> Result<Answered, Error> {
        let Exchange { context, access, trace, .. } = &self.exchange;
        let span = trace.as_ref().map(|trace| trace.child("lookup", Instant::now()));
        // A token may be revoked while the stream runs.
        context.check_access(access, &self.wanted)?;
        let count = keys.rows.num_rows() as u64;
        let encoded = context.encode(&mut self.lookup, &self.wanted, &keys.rows).await?;
        drop(keys);
        let keys = encoded;
        // Before the answer takes memory.
        let bytes = keys.answer_bytes().min(context.services.online.max_answer_bytes());
        let mut charge = self.exchange.charge(bytes).await?;
        let Exchange { context, encoding, .. } = &self.exchange;
        let (schema, answer, about) = context.answer(&mut self.lookup, &self.wanted, keys).await?;
        if let Some(mut span) = span {
            span.set("forebay.rows", number(count));
            span.set("forebay.found", number(about.found));
        }
        let message = message(answer, encoding.encode(&about));
        charge.resize(message.data_body.len() as u64);
        Ok(Answered { schema, snapshot: about.snapshot, message, charge })
    }

    fn check_schema(&self, answer: &Answered) -> Result<(), Error> {
        if answer.schema == self.schema {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "dataset '{}': the columns have changed with snapshot {}; begin another exchange",
            self.wanted.dataset, answer.snapshot
        )))
    }

    /// The answer to a batch of keys that is rejected.
    fn rejection(&self, error: &Error) -> FlightData {
        let metadata = LookupMetadata { error: Some(from_error(error)), ..LookupMetadata::default() };
        FlightData { app_metadata: self.exchange.encoding.encode(&metadata).into(), ..FlightData::default() }
    }

    async fn next_keys(&mut self) -> Result<Option<Keys>, Status> {
        let Exchange { context, access, messages, .. } = &mut self.exchange;
        loop {
            let message = context.services.drain.unless_drained(messages.next()).await?;
            let Some(message) = message.transpose()? else { return Ok(None) };
            let (metadata, has_header) = (message.app_metadata.clone(), !message.data_header.is_empty());
            let received = self.keys.read(&context.services.online, access, message).await?;
            if matches!(received, Received::Nothing) && (has_header || metadata.is_empty()) {
                continue;
            }
            let metadata: KeysMetadata = match metadata.as_ref() {
                [] => KeysMetadata::default(),
                bytes => Encoding::of(bytes).decode("KeysMetadata", bytes).map_err(Error::from)?,
            };
            let keys = match received {
                Received::Batch(keys) => keys,
                Received::Nothing => Err(Error::invalid("the message has metadata, but no batch of keys")),
            };
            return Ok(Some(Keys { keys, continue_on_error: metadata.continue_on_error }));
        }
    }
}

/// Returns the part of a lookup that its answers need. [`Lookup`] has the rest.
fn without_selection(wanted: v1::Lookup) -> v1::Lookup {
    let v1::Lookup { dataset, max_age_seconds, joins, .. } = wanted;
    let joins = joins.into_iter().map(without_selection).collect();
    v1::Lookup { dataset, max_age_seconds, joins, ..v1::Lookup::default() }
}

/// True if an error is about one batch of keys, so that the next one may be answered. Other errors are about the caller or the server.
fn concerns_keys(error: &Error) -> bool {
    matches!(
        error.grpc_code(),
        Code::InvalidArgument | Code::FailedPrecondition | Code::ResourceExhausted | Code::DataLoss
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_the_datasets_and_the_ages_of_its_request_besides_the_lookup() {
        let kept = |dataset: &str| v1::Lookup {
            dataset: dataset.to_owned(),
            max_age_seconds: 2.0,
            ..v1::Lookup::default()
        };
        let wanted = |dataset: &str| v1::Lookup {
            columns: vec!["name".to_owned()],
            select: vec!["age + 1 AS next".to_owned()],
            filter: "age > 1".repeat(1000),
            key: vec!["id".to_owned()],
            ..kept(dataset)
        };
        let joined = v1::Lookup { joins: vec![wanted("items")], ..wanted("users") };
        assert_eq!(without_selection(joined), v1::Lookup { joins: vec![kept("items")], ..kept("users") });
    }
}
