//! The messages of one gRPC response.

use std::{sync::Arc, time::Duration};

use arrow_schema::SchemaRef;
use bytes::Bytes;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{Code, Status, body::Body};

use super::{message::Message, parser::Parser};
use crate::{Config, Error, memory::Slabs};

/// The messages of one gRPC response. Reads from the connection only while [`next`](Self::next) is awaited, so that HTTP/2
/// flow control limits the server.
pub(crate) struct Response {
    url: String,
    body: Body,
    parser: Parser,
    /// Rest of a data frame, after the end of a message.
    data: Option<Bytes>,
    /// Time of the last received frame.
    received_at: Received,
    /// Time without data after which reading fails; `None` for no limit.
    max_silence: Option<Duration>,
}

/// Time of the last data of a response, at first the time of the headers. Clones share it.
#[derive(Clone)]
pub(crate) struct Received(Arc<Mutex<Instant>>);

impl Received {
    fn now() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Returns the time.
    pub(crate) fn at(&self) -> Instant {
        *self.0.lock()
    }
}

impl Response {
    /// Creates a reader of `body`, a response from `url`. Message bodies are received into `slabs`.
    pub(crate) fn new(url: &str, body: Body, config: &Config, slabs: Slabs) -> Self {
        let parser = Parser::new(config, slabs);
        Self {
            url: url.to_owned(),
            body,
            parser,
            data: None,
            received_at: Received::now(),
            max_silence: None,
        }
    }

    /// Returns the URL of the server.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Limits the time for which [`next`](Self::next) waits without data to `limit`.
    pub(crate) fn limit_silence(&mut self, limit: Option<Duration>) {
        self.max_silence = limit;
    }

    /// Returns the time of the last received data.
    pub(crate) fn received(&self) -> &Received {
        &self.received_at
    }

    /// Reads the next message. Returns `None` at the end of a response with status `OK`. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Error> {
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
            let frame = match self.max_silence {
                Some(limit) => {
                    let frame = tokio::time::timeout(limit, self.body.frame()).await;
                    frame.map_err(|_| Error::silent(&self.url, limit))?
                }
                None => self.body.frame().await,
            };
            *self.received_at.0.lock() = Instant::now();
            let frame = frame.ok_or_else(without_status)?;
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

    /// Reads the first message, which must be a schema.
    pub(crate) async fn read_schema(&mut self) -> Result<SchemaRef, Error> {
        let Some(first) = self.next().await? else {
            return Err(Error::protocol("the stream ended before its schema"));
        };
        first.schema()?.ok_or_else(|| Error::protocol("the stream does not begin with a schema"))
    }
}
