//! The response to one ticket, read as it comes.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};

use crate::{Batch, Error, batches::Source, messages::Messages, parser::Message};

/// One response. Reading stops when nobody asks for the next batch.
pub(crate) struct Stream {
    schema: SchemaRef,
    messages: Messages,
}

impl Stream {
    /// Reads the schema.
    pub(crate) async fn open(mut messages: Messages) -> Result<Self, Error> {
        let schema = first_schema(&mut messages).await?;
        Ok(Self { schema, messages })
    }

    /// The schema of every batch.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }
}

impl Source for Stream {
    type Item = Batch;

    async fn next(&mut self) -> Result<Option<Batch>, Error> {
        let message = self.messages.next().await?;
        message.map(|message| Batch::new(message, SchemaRef::clone(&self.schema))).transpose()
    }
}

/// The schema that a response begins with.
pub(crate) async fn first_schema(messages: &mut Messages) -> Result<SchemaRef, Error> {
    let Some(first) = messages.next().await? else {
        return Err(Error::protocol("the stream ended before its schema"));
    };
    let schema = schema_of(&first)?;
    schema.ok_or_else(|| Error::protocol("the stream does not begin with its schema"))
}

/// The schema in `message`, if it is one.
pub(crate) fn schema_of(message: &Message) -> Result<Option<SchemaRef>, Error> {
    let malformed = |error: &dyn std::fmt::Display| Error::protocol(format!("malformed message: {error}"));
    let root = arrow_ipc::root_as_message(&message.header).map_err(|error| malformed(&error))?;
    let schema: Option<Schema> = root.header_as_schema().map(arrow_ipc::convert::fb_to_schema);
    Ok(schema.map(Arc::new))
}
