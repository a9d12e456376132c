//! Encoding and decoding of messages.

use std::{collections::HashMap, sync::LazyLock};

use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_types::{
    DescriptorProto, EnumValueDescriptorProto, FileDescriptorSet, field_descriptor_proto::Type,
};
use serde::{Serialize, de::DeserializeOwned};

/// Maximum memory of a decoded message, in bytes. It is estimated before the message is decoded, because an empty part of a message takes
/// two bytes and hundreds of bytes of memory.
const MAX_DECODED_BYTES: usize = 48 << 20;
/// Estimated memory of a nested message without its parts.
const MESSAGE_BYTES: usize = 512;
/// Estimated memory of a text or a sequence of bytes without its contents.
const TEXT_BYTES: usize = 32;
/// Estimated memory of a number.
const NUMBER_BYTES: usize = 8;
/// Maximum depth of nested messages.
const MAX_DEPTH: usize = 100;

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

/// Type of a field.
enum Kind {
    /// A message, by its full name.
    Message(String),
    /// An enum, by its full name.
    Enum(String),
    /// A text or a sequence of bytes.
    Text,
    /// A number, or several.
    Numbers,
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
    for file in descriptors().file.iter().chain(&inference_descriptors().file) {
        add_messages(&mut messages, &file.message_type, &format!(".{}", file.package()));
    }
    messages
});

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(crate::DESCRIPTORS).expect("the set was compiled with this crate")
}

fn inference_descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(crate::INFERENCE_DESCRIPTORS).expect("the set was compiled with this crate")
}

fn add_messages(messages: &mut HashMap<String, Fields>, described: &[DescriptorProto], parent: &str) {
    for message in described {
        let name = format!("{parent}.{}", message.name());
        let fields = message.field.iter().map(|field| {
            let kind = match field.r#type() {
                Type::Message => Kind::Message(field.type_name().to_owned()),
                Type::Enum => Kind::Enum(field.type_name().to_owned()),
                Type::String | Type::Bytes => Kind::Text,
                _ => Kind::Numbers,
            };
            (field.number(), kind)
        });
        messages.insert(name.clone(), fields.collect());
        add_messages(messages, &message.nested_type, &name);
    }
}

/// Current and earlier names of fields.
const ALIASES: [(&str, &str); 11] = include!(concat!(env!("OUT_DIR"), "/aliases.rs"));

/// Removes the earlier names from an error about an unknown field, which lists them next to the current ones.
fn with_current_names(mut reason: String) -> String {
    if reason.starts_with("unknown field") {
        for (name, alias) in ALIASES {
            for both in [format!("`{alias}`, `{name}`"), format!("`{name}`, `{alias}`")] {
                reason = reason.replace(&both, &format!("`{name}`"));
            }
        }
    }
    reason
}

impl Encoding {
    /// Detects the encoding of `bytes`: JSON if the first byte is `{`, else protobuf.
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.first() == Some(&b'{') { Self::Json } else { Self::Protobuf }
    }

    /// Decodes message `name` of package `forebay.v1`.
    ///
    /// # Errors
    /// [`DecodeError`] for malformed bytes, for unknown fields and for unknown values of an enum, and for a message that would take more
    /// than 48 MiB of memory.
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
            Self::Json => {
                if json_bytes(bytes) > MAX_DECODED_BYTES {
                    return Err(DecodeError { message: name, reason: too_large() });
                }
                serde_json::from_slice(bytes).map_err(|error| DecodeError {
                    message: name,
                    reason: with_current_names(error.to_string()),
                })
            }
            Self::Protobuf => {
                let malformed = |reason: String| DecodeError { message: name, reason };
                let full_name = format!(".forebay.v1.{name}");
                if !MESSAGES.contains_key(&full_name) {
                    return Err(malformed("no such message in forebay.v1".into()));
                }
                match (Walk { is_strict: true, room: MAX_DECODED_BYTES }).refusal(&full_name, bytes, 0) {
                    Ok(Some(part)) => Err(malformed(part)),
                    // The error of the decoder names the field.
                    Ok(None) | Err(_) => M::decode(bytes).map_err(|error| malformed(error.to_string())),
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

/// Returns why message `name` of package `inference` is not decoded: it would take more than 48 MiB of memory. Malformed messages are left
/// to the decoder, and unknown fields are permitted.
pub(crate) fn inference_refusal(name: &str, bytes: &[u8]) -> Option<String> {
    let full_name = format!(".inference.{name}");
    MESSAGES.contains_key(&full_name).then_some(())?;
    Walk { is_strict: false, room: MAX_DECODED_BYTES }.refusal(&full_name, bytes, 0).unwrap_or(None)
}

fn too_large() -> String {
    format!("it takes more than {MAX_DECODED_BYTES} bytes of memory; send less at once")
}

/// Estimated memory of a message in JSON.
fn json_bytes(bytes: &[u8]) -> usize {
    let (mut memory, mut in_text, mut is_escaped) = (bytes.len(), false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => {
                memory += if in_text { 0 } else { TEXT_BYTES };
                in_text = !in_text;
            }
            b'{' if !in_text => memory += MESSAGE_BYTES,
            b',' if !in_text => memory += NUMBER_BYTES,
            _ => {}
        }
    }
    memory
}

/// A walk over the fields of a message, before the message is decoded. Reads only tags and lengths, and allocates nothing per value.
struct Walk {
    /// True if unknown fields and unknown values of enums are refused.
    is_strict: bool,
    /// Memory that the rest of the message may take, in bytes.
    room: usize,
}

impl Walk {
    /// Returns why message `message`, a key of [`MESSAGES`], is refused: it would take too much memory, or is nested too deeply, or it has a
    /// field that is not known, or an enum has a value that is not known.
    ///
    /// # Errors
    /// If the message is malformed. Its decoder fails at the same byte.
    fn refusal(
        &mut self,
        message: &str,
        mut bytes: &[u8],
        depth: usize,
    ) -> Result<Option<String>, prost::DecodeError> {
        let fields = &MESSAGES[message];
        let short_name = || message.rsplit('.').next().unwrap_or(message);
        if depth > MAX_DEPTH {
            return Ok(Some(format!("more than {MAX_DEPTH} messages are nested")));
        }
        while !bytes.is_empty() {
            let (number, wire_type) = decode_key(&mut bytes)?;
            let kind = i32::try_from(number).ok().and_then(|number| fields.get(&number));
            if kind.is_none() && self.is_strict {
                return Ok(Some(format!("unknown field {number} in {}", short_name())));
            }
            let rest = bytes;
            skip_field(wire_type, number, &mut bytes, DecodeContext::default())?;
            let mut value = &rest[..rest.len() - bytes.len()];
            let memory = match (kind, wire_type) {
                (None, _) => 0,
                (Some(Kind::Message(_)), _) => MESSAGE_BYTES,
                // Each byte of packed numbers can be one.
                (Some(Kind::Numbers), WireType::LengthDelimited) => NUMBER_BYTES * value.len(),
                (Some(Kind::Text), _) => TEXT_BYTES + value.len(),
                (Some(_), _) => NUMBER_BYTES,
            };
            let Some(room) = self.room.checked_sub(memory) else { return Ok(Some(too_large())) };
            self.room = room;
            match kind {
                Some(Kind::Message(inner)) => {
                    decode_varint(&mut value)?;
                    if let Some(found) = self.refusal(inner, value, depth + 1)? {
                        return Ok(Some(found));
                    }
                }
                Some(Kind::Enum(inner)) if self.is_strict => {
                    // As in the decoded message, an enum has 32 bits.
                    let found = decode_varint(&mut value)? as i32;
                    if !ENUMS.get(inner).is_some_and(|known| known.contains(&found)) {
                        let name = short_name();
                        return Ok(Some(format!("unknown value {found} of field {number} in {name}")));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
