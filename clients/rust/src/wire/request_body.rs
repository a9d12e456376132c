//! gRPC framing of messages, and the streaming body of a request.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::Frame;
use tokio::sync::mpsc;
use tonic::Status;

use crate::Error;

/// Encodes `message` with the gRPC message prefix.
///
/// # Errors
/// [`Error::Request`] if the message is longer than 4 GiB - 1.
pub(crate) fn framed(message: &impl prost::Message) -> Result<Bytes, Error> {
    let length = message.encoded_len();
    let prefix = u32::try_from(length)
        .map_err(|_| Error::Request(format!("a message has {length} bytes, expected less than 4 GiB")))?;
    let mut bytes = BytesMut::with_capacity(5 + length);
    bytes.put_u8(0);
    bytes.put_u32(prefix);
    message.encode(&mut bytes).expect("the buffer grows");
    Ok(bytes.freeze())
}

/// As [`framed`], for a message of rows to a server that receives at most `limit` bytes; `None` for no limit. `advice` ends the error.
///
/// # Errors
/// As [`framed`]; [`Error::Status`] with `RESOURCE_EXHAUSTED` for a message that is too long.
pub(crate) fn framed_within(
    message: &impl prost::Message,
    limit: Option<u64>,
    advice: &str,
) -> Result<Bytes, Error> {
    let bytes = message.encoded_len() as u64;
    if let Some(limit) = limit.filter(|limit| bytes > *limit) {
        return Err(Error::Status(Status::resource_exhausted(format!(
            "the message has {bytes} bytes, the limit of the server is {limit} (limits.max_exchange_bytes){advice}"
        ))));
    }
    framed(message)
}

/// The body of a streaming request: framed messages, until all senders are dropped.
pub(crate) struct RequestBody {
    messages: mpsc::Receiver<Bytes>,
}

impl RequestBody {
    /// Creates a body and its sender. The channel holds up to `capacity` messages that the connection has not read yet.
    pub(crate) fn new(capacity: usize) -> (mpsc::Sender<Bytes>, Self) {
        let (sender, messages) = mpsc::channel(capacity);
        (sender, Self { messages })
    }
}

impl http_body::Body for RequestBody {
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
