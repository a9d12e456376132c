//! Encoding and decoding of messages.

use std::{collections::HashMap, sync::LazyLock};

use prost::{
    Message,
    encoding::{DecodeContext, decode_key, decode_varint, skip_field},
};
use prost_types::{
    DescriptorProto, EnumValueDescriptorProto, FileDescriptorSet, field_descriptor_proto::Type,
};
use serde::{Serialize, de::DeserializeOwned};

/// Encoding of a message.
///
/// # Examples
/// A command in JSON, as in a `FlightDescriptor`:
/// ```
/// use forebay_proto::{Encoding, v1::Command};
///
/// let bytes = br#"{"train": {"dataset": "flights", "batch_size": 4096, "seed": 7}}"#;
/// let encoding = Encoding::of(bytes);
/// assert_eq!(encoding, Encoding::Json);
///
/// let command: Command = encoding.decode("Command", bytes)?;
/// let train = command.train.expect("the command has a train request");
/// assert_eq!((train.dataset.as_str(), train.batch_size), ("flights", 4096));
/// # Ok::<(), forebay_proto::DecodeError>(())
/// ```
///
/// Both encodings carry the same messages:
/// ```
/// use forebay_proto::{Encoding, v1};
///
/// let command = v1::Command::from(v1::Train { dataset: "flights".into(), batch_size: 4096, ..Default::default() });
/// for encoding in [Encoding::Protobuf, Encoding::Json] {
///     let bytes = encoding.encode(&command);
///     assert_eq!(Encoding::of(&bytes), encoding);
///     assert_eq!(encoding.decode::<v1::Command>("Command", &bytes)?, command);
/// }
/// # Ok::<(), forebay_proto::DecodeError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Binary protobuf.
    Protobuf,
    /// JSON. The first byte is `{`.
    Json,
}

/// Error for bytes that are not the expected message. Names the invalid field where it is known.
#[derive(Debug, thiserror::Error)]
#[error("not a {message}: {reason}")]
pub struct DecodeError {
    /// Name of the message that was expected.
    pub message: &'static str,
    /// Description of the error.
    pub reason: String,
}

/// Fields of a message by number.
type Fields = HashMap<i32, Kind>;

/// Type of a field, as far as its value can have unknown parts.
enum Kind {
    /// A message, by its full name.
    Message(String),
    /// An enum, by its full name.
    Enum(String),
    Other,
}

/// Numbers of the values of all enums, by the full name of the enum.
static ENUMS: LazyLock<HashMap<String, Vec<i32>>> = LazyLock::new(|| {
    let mut enums = HashMap::new();
    for file in &descriptors().file {
        // Messages of this package have no enums of their own.
        for described in &file.enum_type {
            let numbers = described.value.iter().map(EnumValueDescriptorProto::number).collect();
            enums.insert(format!(".{}.{}", file.package(), described.name()), numbers);
        }
    }
    enums
});

/// Fields of all messages, by the full name of the message.
static MESSAGES: LazyLock<HashMap<String, Fields>> = LazyLock::new(|| {
    let mut messages = HashMap::new();
    for file in &descriptors().file {
        add_messages(&mut messages, &file.message_type, &format!(".{}", file.package()));
    }
    messages
});

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(crate::DESCRIPTORS).expect("the set was compiled with this crate")
}

fn add_messages(messages: &mut HashMap<String, Fields>, described: &[DescriptorProto], parent: &str) {
    for message in described {
        let name = format!("{parent}.{}", message.name());
        let fields = message.field.iter().map(|field| {
            let kind = match field.r#type() {
                Type::Message => Kind::Message(field.type_name().to_owned()),
                Type::Enum => Kind::Enum(field.type_name().to_owned()),
                _ => Kind::Other,
            };
            (field.number(), kind)
        });
        messages.insert(name.clone(), fields.collect());
        add_messages(messages, &message.nested_type, &name);
    }
}

impl Encoding {
    /// Detects the encoding of `bytes`: JSON if the first byte is `{`, else protobuf.
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.first() == Some(&b'{') { Self::Json } else { Self::Protobuf }
    }

    /// Decodes message `name` of package `forebay.v1`.
    ///
    /// # Errors
    /// [`DecodeError`] for malformed bytes, for unknown fields and for unknown values of an enum.
    ///
    /// # Examples
    /// ```
    /// use forebay_proto::{Encoding, v1::Command};
    ///
    /// let error = Encoding::Json.decode::<Command>("Command", br#"{"train": {"batchsize": 3}}"#).unwrap_err();
    /// assert!(error.to_string().contains("unknown field `batchsize`"));
    /// ```
    pub fn decode<M: Message + Default + DeserializeOwned>(
        self,
        name: &'static str,
        bytes: &[u8],
    ) -> Result<M, DecodeError> {
        match self {
            Self::Json => serde_json::from_slice(bytes)
                .map_err(|error| DecodeError { message: name, reason: error.to_string() }),
            Self::Protobuf => {
                let malformed = |reason: String| DecodeError { message: name, reason };
                let full_name = format!(".forebay.v1.{name}");
                if !MESSAGES.contains_key(&full_name) {
                    return Err(malformed("no such message in forebay.v1".into()));
                }
                let message = M::decode(bytes).map_err(|error| malformed(error.to_string()))?;
                match unknown_part(&full_name, bytes) {
                    Ok(None) => Ok(message),
                    Ok(Some(part)) => Err(malformed(part)),
                    Err(error) => Err(malformed(error.to_string())),
                }
            }
        }
    }

    /// Encodes `message`.
    pub fn encode<M: Message + Serialize>(self, message: &M) -> Vec<u8> {
        match self {
            Self::Protobuf => message.encode_to_vec(),
            Self::Json => {
                serde_json::to_vec(message).expect("the messages have string keys and plain values")
            }
        }
    }
}

/// Describes the first field in `bytes` that message `message`, a key of [`MESSAGES`], does not have, or whose value its enum
/// does not have. Reads only tags and lengths, and allocates nothing per value. The bytes were decoded before, which limits
/// their nesting.
fn unknown_part(message: &str, mut bytes: &[u8]) -> Result<Option<String>, prost::DecodeError> {
    let fields = &MESSAGES[message];
    let short_name = || message.rsplit('.').next().unwrap_or(message);
    while !bytes.is_empty() {
        let (number, wire_type) = decode_key(&mut bytes)?;
        let Some(kind) = i32::try_from(number).ok().and_then(|number| fields.get(&number)) else {
            return Ok(Some(format!("unknown field {number} in {}", short_name())));
        };
        let rest = bytes;
        skip_field(wire_type, number, &mut bytes, DecodeContext::default())?;
        let mut value = &rest[..rest.len() - bytes.len()];
        match kind {
            Kind::Other => {}
            Kind::Message(inner) => {
                decode_varint(&mut value)?;
                if let Some(found) = unknown_part(inner, value)? {
                    return Ok(Some(found));
                }
            }
            Kind::Enum(inner) => {
                // As in the decoded message, an enum has 32 bits.
                let found = decode_varint(&mut value)? as i32;
                if !ENUMS.get(inner).is_some_and(|known| known.contains(&found)) {
                    return Ok(Some(format!("unknown value {found} of field {number} in {}", short_name())));
                }
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
