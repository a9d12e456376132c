//! The response to one ticket, read as it comes.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use http_body_util::BodyExt;
use tonic::{Code, Status, body::Body};

use crate::{
    Batch, Config, Error,
    batches::Source,
    parser::{Message, Parser},
    slabs::Slabs,
};

/// One response. Reading stops when nobody asks for the next batch.
pub(crate) struct Stream {
    url: String,
    schema: SchemaRef,
    body: Body,
    parser: Parser,
    /// What is left of a frame that held the end of a message.
    data: Option<bytes::Bytes>,
}

impl Stream {
    /// Reads the schema.
    pub(crate) async fn open(url: &str, body: Body, config: &Config, slabs: Slabs) -> Result<Self, Error> {
        let parser = Parser::new(config, slabs);
        let schema = Arc::new(Schema::empty());
        let mut stream = Self { url: url.to_owned(), schema, body, parser, data: None };
        let Some(first) = stream.message().await? else {
            return Err(Error::protocol("the stream ended before its schema"));
        };
        stream.schema = schema_of(&first)?;
        Ok(stream)
    }

    /// The schema of every batch.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The next message; `None` at the end of a stream that succeeded. Cancel-safe.
    async fn message(&mut self) -> Result<Option<Message>, Error> {
        loop {
            if let Some(mut data) = self.data.take() {
                let message = self.parser.push(&mut data)?;
                if !data.is_empty() {
                    self.data = Some(data);
                }
                if message.is_some() {
                    return Ok(message);
                }
                continue;
            }
            let without_status = || Error::lost(&self.url, "the stream ended without a status");
            let frame = self.body.frame().await.ok_or_else(without_status)?;
            match frame.map_err(|error| Error::lost(&self.url, error))?.into_data() {
                Ok(data) => self.data = Some(data).filter(|data| !data.is_empty()),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let status = Status::from_header_map(&trailers).ok_or_else(without_status)?;
                    return match status.code() {
                        Code::Ok if self.parser.at_boundary() => Ok(None),
                        Code::Ok => Err(Error::protocol("the stream ended within a message")),
                        _ => Err(status.into()),
                    };
                }
            }
        }
    }
}

impl Source for Stream {
    type Item = Batch;

    async fn next(&mut self) -> Result<Option<Batch>, Error> {
        let message = self.message().await?;
        message.map(|message| Batch::new(message, SchemaRef::clone(&self.schema))).transpose()
    }
}

fn schema_of(message: &Message) -> Result<SchemaRef, Error> {
    let malformed = |error: &dyn std::fmt::Display| Error::protocol(format!("malformed schema: {error}"));
    let root = arrow_ipc::root_as_message(&message.header).map_err(|error| malformed(&error))?;
    let schema = root.header_as_schema();
    let schema = schema.ok_or_else(|| Error::protocol("the stream does not begin with its schema"))?;
    let schema: Schema = arrow_ipc::convert::fb_to_schema(schema);
    Ok(Arc::new(schema))
}
