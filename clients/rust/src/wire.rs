//! Arrow Flight messages in gRPC framing: parsing of responses, encoding of requests.

mod encoded_rows;
mod message;
mod parser;
mod request_body;
mod response;

pub(crate) use encoded_rows::{EncodedRows, SentSchema};
pub(crate) use message::Message;
pub(crate) use request_body::{RequestBody, framed, framed_within};
pub(crate) use response::{Received, Response};
