//! Property of messages: every message that is accepted in one encoding is the same message in both.

use std::fmt::Debug;

use forebay_proto::{Encoding, v1};
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};

/// Defines `check` and `MESSAGES` for a list of messages.
macro_rules! messages {
    ($($message:ident),+ $(,)?) => {
        /// Names of the messages.
        #[allow(dead_code, reason = "used by the test that replays the corpus")]
        pub(crate) const MESSAGES: &[&str] = &[$(stringify!($message)),+];

        /// Decodes `data` as each message, in JSON or protobuf.
        pub(crate) fn check(data: &[u8]) {
            $(round_trip::<v1::$message>(stringify!($message), data);)+
        }
    };
}

// The messages that a server, a client or a worker receives. The bodies of the actions warm, count-rows, pin and unpin are a Command.
messages!(
    Command,
    RefreshRequest,
    DropCacheRequest,
    OpenRequest,
    PinLookupsRequest,
    HelloRequest,
    ReportRequest,
    InferRequest,
    BatchRequest,
    BatchReply,
);

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
