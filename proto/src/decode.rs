//! Reading and writing a message in the form the caller chose.

use std::sync::LazyLock;

use prost::{
    Message,
    encoding::{DecodeContext, decode_key, decode_varint, skip_field},
};
use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};
use serde::{Serialize, de::DeserializeOwned};

/// The form in which a message travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Binary protobuf.
    Protobuf,
    /// The JSON form; its first byte is `{`.
    Json,
}

/// Bytes that are not the expected message. The text names the offending field where it is known.
#[derive(Debug, thiserror::Error)]
#[error("not a {message}: {reason}")]
pub struct DecodeError {
    /// Name of the message that was expected.
    pub message: &'static str,
    /// What was wrong.
    pub reason: String,
}

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(crate::DESCRIPTORS).expect("the descriptor set was compiled with this crate")
});

impl Encoding {
    /// The form of `bytes`: JSON exactly if the first byte is `{`.
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.first() == Some(&b'{') { Self::Json } else { Self::Protobuf }
    }

    /// Decodes message `name` of package `forebay.v1`, refusing unknown fields.
    ///
    /// # Errors
    /// When the bytes are not that message; the error names the unknown or malformed field.
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
                let descriptor = POOL
                    .get_message_by_name(&format!("forebay.v1.{name}"))
                    .ok_or_else(|| malformed("no such message in forebay.v1".into()))?;
                let message = M::decode(bytes).map_err(|error| malformed(error.to_string()))?;
                match unknown_field(&descriptor, bytes) {
                    Ok(None) => Ok(message),
                    Ok(Some(field)) => Err(malformed(field)),
                    Err(error) => Err(malformed(error.to_string())),
                }
            }
        }
    }

    /// Encodes `message` in this form.
    pub fn encode<M: Message + Serialize>(self, message: &M) -> Vec<u8> {
        match self {
            Self::Protobuf => message.encode_to_vec(),
            Self::Json => {
                serde_json::to_vec(message).expect("the messages have string keys and plain values")
            }
        }
    }
}

/// The first field in `bytes` that the message does not have. It looks at tags and lengths alone: a list of a million keys
/// costs no memory. The message was decoded before, which bounds how deep it is nested.
fn unknown_field(
    message: &MessageDescriptor,
    mut bytes: &[u8],
) -> Result<Option<String>, prost::DecodeError> {
    while !bytes.is_empty() {
        let (number, wire_type) = decode_key(&mut bytes)?;
        let Some(field) = message.get_field(number) else {
            return Ok(Some(format!("unknown field {number} in {}", message.name())));
        };
        let rest = bytes;
        skip_field(wire_type, number, &mut bytes, DecodeContext::default())?;
        if let Kind::Message(inner) = field.kind() {
            let mut value = &rest[..rest.len() - bytes.len()];
            decode_varint(&mut value)?;
            if let Some(found) = unknown_field(&inner, value)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
