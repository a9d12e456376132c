//! The batches of one ticket.

use std::time::Duration;

use arrow_schema::SchemaRef;
use bytes::Bytes;
use forebay_proto::{
    Encoding,
    v1::{Command, Train},
};

use crate::{
    Batch, Error,
    batches::Source,
    memory::Slabs,
    route::{StreamSender, Transport},
    wire::Response,
};

/// The batches of one ticket, in the order of the server. Ends with an error if the connection is lost.
pub(crate) struct TicketStream {
    /// Schema of every batch.
    pub(crate) schema: SchemaRef,
    response: Response,
}

impl TicketStream {
    /// Requests `ticket` and reads the schema. Bodies are received into `slabs`. Fails if no data is received for `limit`, now or
    /// later.
    pub(crate) async fn open(
        transport: &Transport,
        ticket: Bytes,
        sender: StreamSender,
        slabs: Slabs,
        limit: Option<Duration>,
    ) -> Result<Self, Error> {
        let response = transport.get(ticket, sender, slabs);
        let mut response = match limit {
            Some(limit) => {
                let response = tokio::time::timeout(limit, response).await;
                response.map_err(|_| Error::silent(transport.url(), limit))??
            }
            None => response.await?,
        };
        response.limit_silence(limit);
        let schema = response.read_schema().await?;
        Ok(Self { schema, response })
    }
}

impl Source for TicketStream {
    type Item = Batch;

    async fn next(&mut self) -> Result<Option<Batch>, Error> {
        let message = self.response.next().await?;
        message.map(|message| Batch::with_metadata(message, SchemaRef::clone(&self.schema))).transpose()
    }
}

/// Encodes the ticket that requests `train`.
pub(crate) fn ticket(train: &Train) -> Bytes {
    Encoding::Protobuf.encode(&Command::from(train.clone())).into()
}
