//! Keys in, rows out, in order.

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::SchemaRef;
use forebay_inference::Lookup;
use forebay_proto::v1;
use futures::{Stream, StreamExt, stream};
use tokio::time::Instant;
use tonic::Status;

use super::{Exchange, Messages, message, unless_drained};
use crate::{flight::batches::BatchReader, traces::number};

/// A running exchange.
struct Lookups {
    exchange: Exchange,
    wanted: v1::Lookup,
    lookup: Lookup,
    /// That of every answer.
    schema: SchemaRef,
    keys: BatchReader,
    max_keys: usize,
}

/// An answer for each batch of keys; ends with the keys, or with the first status.
pub(super) async fn answers(exchange: Exchange, wanted: v1::Lookup) -> Result<Messages, Status> {
    let context = &exchange.context;
    context.check_access(&exchange.access, &wanted)?;
    let mut lookup = context.online.lookup(&context.datasets, &exchange.access, &wanted).await?;
    let residents = unless_drained(&context.guard, lookup.residents()).await?;
    let failed = |error| context.datasets.stream_status(&wanted.dataset, &error);
    let schema = residents.and_then(|residents| lookup.schema(&residents)).map_err(failed)?;
    let head = FlightData::from(SchemaAsIpc::new(&schema, &IpcWriteOptions::default()));
    let max_keys = context.online.max_keys();
    let keys = BatchReader::new("keys");
    let lookups = Lookups { exchange, wanted, lookup, schema, keys, max_keys };
    Ok(stream::iter([Ok(head)]).chain(lookups.answers()).boxed())
}

impl Lookups {
    fn answers(self) -> impl Stream<Item = Result<FlightData, Status>> + Send {
        stream::unfold(Some(self), |lookups| async {
            let mut lookups = lookups?;
            match lookups.next().await {
                Ok(Some(answer)) => Some((Ok(answer), Some(lookups))),
                Ok(None) => None,
                Err(status) => Some((Err(status), None)),
            }
        })
    }

    async fn next(&mut self) -> Result<Option<FlightData>, Status> {
        let Some(keys) = self.next_keys().await? else { return Ok(None) };
        let Exchange { context, access, encoding, trace, .. } = &self.exchange;
        let span = trace.as_ref().map(|trace| trace.child("lookup", Instant::now()));
        // A token may be taken back while its exchange runs.
        context.check_access(access, &self.wanted)?;
        let (schema, answer, about) = context.answer(&mut self.lookup, &self.wanted, &keys).await?;
        if let Some(mut span) = span {
            span.set("forebay.rows", number(keys.num_rows() as u64));
            span.set("forebay.found", number(about.found));
        }
        if schema != self.schema {
            return Err(Status::failed_precondition(format!(
                "dataset '{}': the columns have changed with snapshot {}; begin another exchange",
                self.wanted.dataset, about.snapshot
            )));
        }
        Ok(Some(message(answer, encoding.encode(&about))))
    }

    async fn next_keys(&mut self) -> Result<Option<RecordBatch>, Status> {
        let Exchange { context, messages, .. } = &mut self.exchange;
        loop {
            let message = unless_drained(&context.guard, messages.next()).await?;
            let Some(message) = message.transpose()? else { return Ok(None) };
            if let Some(keys) = self.keys.read(&message, self.max_keys)? {
                return Ok(Some(keys));
            }
        }
    }
}
