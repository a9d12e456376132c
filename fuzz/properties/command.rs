//! Property of messages: every message that is accepted in one encoding is the same message in both.

use std::fmt::Debug;

use forebay_proto::{Encoding, v1};
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};

/// Decodes `data` as each message that a client can send, in JSON or protobuf.
pub(crate) fn check(data: &[u8]) {
    round_trip::<v1::Command>("Command", data);
    round_trip::<v1::RefreshRequest>("RefreshRequest", data);
    round_trip::<v1::DropCacheRequest>("DropCacheRequest", data);
    round_trip::<v1::ReportRequest>("ReportRequest", data);
    round_trip::<v1::InferRequest>("InferRequest", data);
    round_trip::<v1::BatchReply>("BatchReply", data);
}

fn round_trip<M: Message + Default + Serialize + DeserializeOwned + Debug>(name: &'static str, data: &[u8]) {
    let Ok(message) = Encoding::of(data).decode::<M>(name, data) else { return };
    // The bytes of protobuf compare NaNs and zeros exactly.
    let expected = message.encode_to_vec();
    for encoding in [Encoding::Protobuf, Encoding::Json] {
        let bytes = encoding.encode(&message);
        assert!(
            bytes.is_empty() || Encoding::of(&bytes) == encoding,
            "{name}: {encoding:?} is not recognized"
        );
        match encoding.decode::<M>(name, &bytes) {
            // NaNs with other bits are one value in JSON.
            Ok(decoded) if encoding == Encoding::Json && holds_nan(&bytes) => {
                assert_eq!(encoding.encode(&decoded), bytes);
            }
            Ok(decoded) => {
                assert_eq!(decoded.encode_to_vec(), expected, "{encoding:?}: {message:?} is now {decoded:?}");
            }
            Err(error) => panic!("{encoding:?}: {message:?} is not decoded again: {error}"),
        }
    }
}

fn holds_nan(json: &[u8]) -> bool {
    json.windows(5).any(|word| word == br#""NaN""#)
}
