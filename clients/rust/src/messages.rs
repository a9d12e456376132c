//! The messages of a gRPC call, as they are sent and as they come.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tonic::{Code, Status, body::Body};

use crate::{
    Config, Error,
    parser::{Message, Parser},
    slabs::Slabs,
};

/// The messages of one response. Reading stops when nobody asks for the next one.
pub(crate) struct Messages {
    url: String,
    body: Body,
    parser: Parser,
    /// What is left of a frame that held the end of a message.
    data: Option<Bytes>,
}

impl Messages {
    pub(crate) fn new(url: &str, body: Body, config: &Config, slabs: Slabs) -> Self {
        Self { url: url.to_owned(), body, parser: Parser::new(config, slabs), data: None }
    }

    /// Where they come from.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The next message; `None` at the end of a response that succeeded. Cancel-safe.
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

/// `message` as gRPC frames it.
///
/// # Errors
/// [`Error::Request`] when it is longer than a frame can be.
pub(crate) fn framed(message: &impl prost::Message) -> Result<Bytes, Error> {
    let length = message.encoded_len();
    let prefix = u32::try_from(length)
        .map_err(|_| Error::Request(format!("a message of {length} bytes, expected less than 4 GiB")))?;
    let mut bytes = BytesMut::with_capacity(5 + length);
    bytes.put_u8(0);
    bytes.put_u32(prefix);
    message.encode(&mut bytes).expect("the buffer grows");
    Ok(bytes.freeze())
}

/// The body of a request that goes on while it is answered: framed messages, until nobody holds their sender.
pub(crate) struct Outgoing {
    messages: mpsc::Receiver<Bytes>,
}

impl Outgoing {
    /// A body, and its sender, with room for `capacity` messages that the connection has not taken yet.
    pub(crate) fn new(capacity: usize) -> (mpsc::Sender<Bytes>, Self) {
        let (sender, messages) = mpsc::channel(capacity);
        (sender, Self { messages })
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let polled = self.get_mut().messages.poll_recv(context);
        polled.map(|message| message.map(|message| Ok(Frame::data(message))))
    }
}
