//! gRPC codec of `Online.Lookup`.

use bytes::Buf;
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::{
    Encoding,
    v1::{Lookup, LookupAnswer},
};

/// Codec that refuses unknown fields, like [`Encoding::decode`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LookupCodec;

impl Codec for LookupCodec {
    type Encode = LookupAnswer;
    type Decode = Lookup;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for LookupCodec {
    type Item = LookupAnswer;
    type Error = Status;

    fn encode(&mut self, answer: LookupAnswer, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // Reserving avoids repeated growth: answers can have megabytes.
        out.reserve(answer.encoded_len());
        answer.encode(out).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for LookupCodec {
    type Item = Lookup;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Lookup>, Status> {
        let bytes = message.copy_to_bytes(message.remaining());
        let lookup = Encoding::Protobuf.decode("Lookup", &bytes);
        lookup.map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}
