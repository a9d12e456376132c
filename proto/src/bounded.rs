//! gRPC codec of the Open Inference Protocol.

use std::marker::PhantomData;

use bytes::Buf;
use prost::{Message, Name};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::decode::inference_refusal;

/// Codec that refuses requests that would take much more memory than their bytes. `T` is sent, `U` is received.
#[derive(Debug)]
pub(crate) struct BoundedCodec<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + 'static, U: Message + Name + Default + 'static> Codec for BoundedCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<T: Message, U> Encoder for BoundedCodec<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, answer: T, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(answer.encoded_len());
        answer.encode(out).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<T, U: Message + Name + Default> Decoder for BoundedCodec<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = message.copy_to_bytes(message.remaining());
        if let Some(reason) = inference_refusal(U::NAME, &bytes) {
            return Err(Status::invalid_argument(format!("not a {}: {reason}", U::NAME)));
        }
        U::decode(bytes).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
