//! An incremental parser of gRPC responses with Flight messages. It copies each byte of a body once.
//!
//! A gRPC message is a zero byte, its length as a big-endian `u32`, and the message. The message is a `FlightData`, of
//! which the parser reads `data_header` (field 2), `app_metadata` (3) and `data_body` (1000).

use bytes::{Buf, Bytes};
use prost::encoding::decode_varint;

use super::message::Message;
use crate::{Config, Error, memory::Slabs};

/// An incremental parser of one response.
pub(super) struct Parser {
    slabs: Slabs,
    max_body_bytes: u64,
    max_header_bytes: u64,
    state: State,
    /// Received bytes of an incomplete message prefix or field head.
    scratch: Vec<u8>,
    message: Message,
    /// Bytes of the message that are not parsed yet.
    message_left: u64,
}

enum State {
    /// Message prefix of gRPC.
    Prefix,
    /// Tag and length of a field.
    Head,
    /// Content of a field, of which `filled` bytes are parsed.
    Content { field: u64, length: usize, filled: usize },
}

const DATA_HEADER: u64 = 2;
const APP_METADATA: u64 = 3;
const DATA_BODY: u64 = 1000;
const PREFIX_BYTES: usize = 5;
/// Length of two varints of ten bytes each.
const MAX_HEAD_BYTES: usize = 20;
const LENGTH_DELIMITED: u64 = 2;

impl Parser {
    pub(super) fn new(config: &Config, slabs: Slabs) -> Self {
        Self {
            slabs,
            max_body_bytes: config.max_batch_bytes,
            max_header_bytes: config.max_header_bytes,
            state: State::Prefix,
            scratch: Vec::new(),
            message: Message::default(),
            message_left: 0,
        }
    }

    /// Consumes bytes of `data` until a message is complete or `data` is empty. Returns `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the bytes are not a gRPC stream of `FlightData`, or exceed a limit. The parser is unusable after
    /// an error.
    pub(super) fn push(&mut self, data: &mut Bytes) -> Result<Option<Message>, Error> {
        loop {
            match self.state {
                State::Prefix => {
                    if !self.fill_scratch(data, PREFIX_BYTES) {
                        return Ok(None);
                    }
                    if self.scratch[0] != 0 {
                        return Err(Error::protocol(
                            "received a compressed message, but compression was not requested",
                        ));
                    }
                    let length = self.scratch[1..].try_into().map_or(0, u32::from_be_bytes);
                    self.message_left = u64::from(length);
                    self.scratch.clear();
                    self.state = State::Head;
                }
                State::Head if self.message_left == 0 => {
                    if !self.scratch.is_empty() {
                        return Err(Error::protocol("a message ends within a field"));
                    }
                    self.state = State::Prefix;
                    return Ok(Some(std::mem::take(&mut self.message)));
                }
                State::Head => {
                    if data.is_empty() {
                        return Ok(None);
                    }
                    self.scratch.push(data.get_u8());
                    self.message_left -= 1;
                    if let Some((field, length)) = self.head()? {
                        self.begin(field, length)?;
                    }
                }
                State::Content { field, length, filled } => {
                    let taken = data.len().min(length - filled);
                    let bytes = data.split_to(taken);
                    match field {
                        DATA_HEADER => self.message.header.extend_from_slice(&bytes),
                        APP_METADATA => self.message.app_metadata.extend_from_slice(&bytes),
                        DATA_BODY => {
                            let body =
                                self.message.body.as_mut().expect("allocated at the start of the field");
                            body[filled..filled + taken].copy_from_slice(&bytes);
                        }
                        _ => {}
                    }
                    self.message_left -= taken as u64;
                    if filled + taken < length {
                        self.state = State::Content { field, length, filled: filled + taken };
                        return Ok(None);
                    }
                    self.state = State::Head;
                }
            }
        }
    }

    /// Returns true if the bytes end with a complete message.
    pub(super) fn at_boundary(&self) -> bool {
        matches!(self.state, State::Prefix) && self.scratch.is_empty()
    }

    fn fill_scratch(&mut self, data: &mut Bytes, length: usize) -> bool {
        let taken = data.len().min(length - self.scratch.len());
        self.scratch.extend_from_slice(&data.split_to(taken));
        self.scratch.len() == length
    }

    /// Parses the number and length of a field; `None` if bytes are missing.
    fn head(&self) -> Result<Option<(u64, u64)>, Error> {
        let mut bytes = self.scratch.as_slice();
        let (Ok(tag), false) = (decode_varint(&mut bytes), self.scratch.len() > MAX_HEAD_BYTES) else {
            return self.incomplete("a field's tag");
        };
        if tag & 7 != LENGTH_DELIMITED {
            return Err(Error::protocol(format!(
                "field {} of a message is not a field of FlightData",
                tag >> 3
            )));
        }
        match decode_varint(&mut bytes) {
            Ok(length) => Ok(Some((tag >> 3, length))),
            Err(_) => self.incomplete("a field's length"),
        }
    }

    fn incomplete(&self, what: &str) -> Result<Option<(u64, u64)>, Error> {
        if self.scratch.len() < MAX_HEAD_BYTES {
            return Ok(None);
        }
        Err(Error::protocol(format!("{what} has no end")))
    }

    fn begin(&mut self, field: u64, length: u64) -> Result<(), Error> {
        if length > self.message_left {
            return Err(Error::protocol("a field is longer than its message"));
        }
        let limit = if field == DATA_BODY { self.max_body_bytes } else { self.max_header_bytes };
        if length > limit {
            return Err(Error::protocol(format!("{length} bytes in field {field}, the limit is {limit}")));
        }
        let length =
            usize::try_from(length).map_err(|_| Error::protocol("a field exceeds the address space"))?;
        if field == DATA_BODY {
            let slab = self.slabs.take(length);
            self.message.body =
                Some(slab.map_err(|error| {
                    Error::protocol(format!("can't allocate memory for a body: {error}"))
                })?);
        }
        self.scratch.clear();
        self.state = State::Content { field, length, filled: 0 };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
