//! From the bytes of a gRPC response to Flight messages, each byte of a body copied once.
//!
//! A gRPC message is a zero byte, its length as a big-endian `u32`, and the message: here `FlightData`, of
//! which `data_header` (field 2), `app_metadata` (3) and `data_body` (1000) are of interest.

use bytes::{Buf, Bytes};
use prost::encoding::decode_varint;

use crate::{
    Config, Error,
    slabs::{Slab, Slabs},
};

/// One `FlightData`.
#[derive(Default)]
pub(crate) struct Message {
    pub(crate) header: Vec<u8>,
    pub(crate) app_metadata: Vec<u8>,
    pub(crate) body: Option<Slab>,
}

/// Takes the bytes as they come.
pub(crate) struct Parser {
    slabs: Slabs,
    max_body_bytes: u64,
    max_header_bytes: u64,
    state: State,
    /// The bytes of a prefix or of a field's head that have come so far.
    scratch: Vec<u8>,
    message: Message,
    /// Bytes of the message that have not been taken yet.
    message_left: u64,
}

enum State {
    Prefix,
    /// Tag and length of a field.
    Head,
    /// The content of a field, of which `filled` bytes have come.
    Content {
        field: u64,
        length: usize,
        filled: usize,
    },
}

const DATA_HEADER: u64 = 2;
const APP_METADATA: u64 = 3;
const DATA_BODY: u64 = 1000;
const PREFIX_BYTES: usize = 5;
/// Two varints of ten bytes.
const MAX_HEAD_BYTES: usize = 20;
const LENGTH_DELIMITED: u64 = 2;

impl Parser {
    pub(crate) fn new(config: &Config, slabs: Slabs) -> Self {
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

    /// Takes bytes from `data` until a message is complete or no byte is left. `None`: more bytes are needed.
    ///
    /// # Errors
    /// What is no gRPC stream of `FlightData`, or exceeds the limits; nothing can be taken after that.
    pub(crate) fn push(&mut self, data: &mut Bytes) -> Result<Option<Message>, Error> {
        loop {
            match self.state {
                State::Prefix => {
                    if !self.fill_scratch(data, PREFIX_BYTES) {
                        return Ok(None);
                    }
                    if self.scratch[0] != 0 {
                        return Err(Error::protocol("the server compresses messages; none was asked for"));
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
                            let body = self.message.body.as_mut().expect("made when the field began");
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

    /// Whether the bytes so far end with a whole message.
    pub(crate) fn at_boundary(&self) -> bool {
        matches!(self.state, State::Prefix) && self.scratch.is_empty()
    }

    fn fill_scratch(&mut self, data: &mut Bytes, length: usize) -> bool {
        let taken = data.len().min(length - self.scratch.len());
        self.scratch.extend_from_slice(&data.split_to(taken));
        self.scratch.len() == length
    }

    /// The field whose head has come, and its length; `None` while bytes of it are missing.
    fn head(&self) -> Result<Option<(u64, u64)>, Error> {
        let mut bytes = self.scratch.as_slice();
        let (Ok(tag), false) = (decode_varint(&mut bytes), self.scratch.len() > MAX_HEAD_BYTES) else {
            return self.more("a field's tag");
        };
        if tag & 7 != LENGTH_DELIMITED {
            return Err(Error::protocol(format!("field {} of a message is no FlightData's", tag >> 3)));
        }
        match decode_varint(&mut bytes) {
            Ok(length) => Ok(Some((tag >> 3, length))),
            Err(_) => self.more("a field's length"),
        }
    }

    fn more(&self, what: &str) -> Result<Option<(u64, u64)>, Error> {
        if self.scratch.len() < MAX_HEAD_BYTES {
            return Ok(None);
        }
        Err(Error::protocol(format!("{what} does not end")))
    }

    fn begin(&mut self, field: u64, length: u64) -> Result<(), Error> {
        if length > self.message_left {
            return Err(Error::protocol("a field is longer than its message"));
        }
        let limit = if field == DATA_BODY { self.max_body_bytes } else { self.max_header_bytes };
        if length > limit {
            return Err(Error::protocol(format!("{length} bytes in field {field}, the limit is {limit}")));
        }
        let length = usize::try_from(length).map_err(|_| Error::protocol("a field exceeds the memory"))?;
        if field == DATA_BODY {
            let slab = self.slabs.take(length);
            self.message.body = Some(slab.map_err(|error| Error::protocol(format!("no memory: {error}")))?);
        }
        self.scratch.clear();
        self.state = State::Content { field, length, filled: 0 };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
