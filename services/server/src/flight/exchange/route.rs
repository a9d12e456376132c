//! Route of DoExchange, which reads messages of clients without the code that tonic generates: that code would accept any number of fields
//! and paths in a message, each of which takes more memory than bytes of the message.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll},
};

use arrow_flight::{FlightData, FlightDescriptor};
use bytes::{Buf, Bytes};
use futures::future::BoxFuture;
use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{Grpc, StreamingService},
};

use super::Begun;
use crate::{
    Error,
    flight::{
        call_layer,
        methods::{Methods, Reply},
    },
    settings::Limits,
};

/// Header of the response with the maximum size of a message that the server receives, in bytes. The client can therefore reject a larger
/// one before it sends it, which would end the stream.
const MAX_MESSAGE_HEADER: &str = "forebay-max-message-bytes";
/// Maximum number of fields of a message. `FlightData` has four.
const MAX_FIELDS: usize = 64;
/// Maximum size of the metadata of a message, in bytes.
const MAX_METADATA_BYTES: usize = 256 << 10;

/// Route of DoExchange.
#[derive(Clone)]
pub(crate) struct ExchangeRoute {
    methods: Arc<dyn Methods>,
    max_message_bytes: usize,
    max_descriptor_bytes: usize,
}

impl ExchangeRoute {
    pub(crate) fn new(methods: Arc<dyn Methods>, limits: &Limits) -> Self {
        let Limits { max_exchange_bytes, max_request_bytes, .. } = *limits;
        Self { methods, max_message_bytes: max_exchange_bytes, max_descriptor_bytes: max_request_bytes }
    }
}

impl tower::Service<http::Request<axum::body::Body>> for ExchangeRoute {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<axum::body::Body>) -> Self::Future {
        let codec = FlightCodec { max_descriptor_bytes: self.max_descriptor_bytes };
        // Replies of workers are larger than requests, so DoExchange has its own message limit.
        let mut grpc = Grpc::new(codec).max_decoding_message_size(self.max_message_bytes);
        let methods = Arc::clone(&self.methods);
        let limit = http::HeaderValue::from(self.max_message_bytes);
        Box::pin(async move {
            let mut response = grpc.streaming(Exchanges { methods }, request).await;
            response.headers_mut().insert(MAX_MESSAGE_HEADER, limit);
            Ok(response)
        })
    }
}

/// The method DoExchange.
struct Exchanges {
    methods: Arc<dyn Methods>,
}

impl StreamingService<FlightData> for Exchanges {
    type Response = FlightData;
    type ResponseStream = Reply<FlightData>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, mut request: Request<Streaming<FlightData>>) -> Self::Future {
        let methods = Arc::clone(&self.methods);
        Box::pin(async move {
            let access = call_layer::access(request.extensions())?;
            let trace = call_layer::trace(request.extensions());
            let call = call_layer::charge(request.extensions_mut());
            let charging = request.extensions_mut().remove().unwrap_or_default();
            methods.exchange(Begun { access, trace, call, charging }, request.into_inner()).await
        })
    }
}

/// Codec of the messages of both directions.
#[derive(Clone, Copy)]
struct FlightCodec {
    max_descriptor_bytes: usize,
}

impl Codec for FlightCodec {
    type Encode = FlightData;
    type Decode = FlightData;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for FlightCodec {
    type Item = FlightData;
    type Error = Status;

    fn encode(&mut self, message: FlightData, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(message.encoded_len());
        message.encode(out).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for FlightCodec {
    type Item = FlightData;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<FlightData>, Status> {
        let bytes = message.copy_to_bytes(message.remaining());
        Ok(Some(decode(bytes, self.max_descriptor_bytes)?))
    }
}

/// Decodes a message. Its parts share the memory of `bytes`.
///
/// # Errors
/// Invalid if the message is malformed; a limit error if it has too many fields, or a part is too long.
fn decode(mut bytes: Bytes, max_descriptor_bytes: usize) -> Result<FlightData, Error> {
    let malformed = |error: prost::DecodeError| Error::invalid(format!("not a FlightData message: {error}"));
    let mut data = FlightData::default();
    for _ in 0..MAX_FIELDS {
        if bytes.is_empty() {
            return Ok(data);
        }
        let (number, wire_type) = decode_key(&mut bytes).map_err(malformed)?;
        if wire_type != WireType::LengthDelimited {
            skip_field(wire_type, number, &mut bytes, DecodeContext::default()).map_err(malformed)?;
            continue;
        }
        let length = decode_varint(&mut bytes).map_err(malformed)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len());
        let length =
            length.ok_or_else(|| Error::invalid("not a FlightData message: it ends within a field"))?;
        let part = bytes.split_to(length);
        match number {
            1 => {
                if length > max_descriptor_bytes {
                    return Err(Error::limit(format!(
                        "the descriptor is longer than {max_descriptor_bytes} bytes (limits.max_request_bytes)"
                    )));
                }
                data.flight_descriptor = Some(FlightDescriptor::decode(part).map_err(malformed)?);
            }
            2 => data.data_header = part,
            3 => {
                if length > MAX_METADATA_BYTES {
                    return Err(Error::limit(format!(
                        "app_metadata has {length} bytes, expected at most {MAX_METADATA_BYTES}"
                    )));
                }
                data.app_metadata = part;
            }
            1000 => data.data_body = part,
            // Fields of newer versions.
            _ => {}
        }
    }
    if bytes.is_empty() {
        return Ok(data);
    }
    Err(Error::limit(format!("the message has more than {MAX_FIELDS} fields")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_decoded_without_a_copy_and_fields_of_newer_versions_are_ignored() {
        let message = FlightData {
            flight_descriptor: Some(FlightDescriptor::new_cmd(b"{}".to_vec())),
            data_header: Bytes::from_static(b"header"),
            app_metadata: Bytes::from_static(b"metadata"),
            data_body: Bytes::from_static(b"body"),
        };
        let bytes = Bytes::from(message.encode_to_vec());
        let decoded = decode(bytes.clone(), 100).unwrap();
        assert_eq!(decoded, message);
        assert!(bytes.as_ptr_range().contains(&decoded.data_body.as_ptr()));
        // Field 9: a varint; field 10: bytes; field 11: 32 bits.
        let newer = [&bytes[..], &[0x48, 7, 0x52, 1, 7, 0x5d, 1, 2, 3, 4]].concat();
        assert_eq!(decode(newer.into(), 100).unwrap(), message);
        assert_eq!(decode(Bytes::new(), 100).unwrap(), FlightData::default());
    }

    #[test]
    fn parts_and_their_number_are_limited() {
        let error = |bytes: &[u8]| decode(Bytes::copy_from_slice(bytes), 100).unwrap_err();
        let path = FlightDescriptor::new_path(vec![String::new(); 51]);
        let paths = FlightData { flight_descriptor: Some(path), ..FlightData::default() }.encode_to_vec();
        assert!(error(&paths).message().contains("the descriptor is longer than 100 bytes"));
        let metadata = FlightData::new().with_app_metadata(vec![0; MAX_METADATA_BYTES + 1]);
        assert!(error(&metadata.encode_to_vec()).message().contains("expected at most 262144"));
        decode(Bytes::from([0x12, 0].repeat(MAX_FIELDS)), 100).unwrap();
        assert!(error(&[0x12, 0].repeat(MAX_FIELDS + 1)).message().contains("more than 64 fields"));
        assert!(error(&[0x12, 5, 0]).message().contains("ends within a field"));
        error(&[0x12]);
    }
}
