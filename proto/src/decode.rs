//! Reading and writing a message in the form the caller chose.

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage, Value};
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
                let dynamic = DynamicMessage::decode(descriptor, bytes)
                    .map_err(|error| malformed(error.to_string()))?;
                if let Some(field) = unknown_field(&dynamic) {
                    return Err(malformed(field));
                }
                M::decode(bytes).map_err(|error| malformed(error.to_string()))
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

fn unknown_field(message: &DynamicMessage) -> Option<String> {
    if let Some(field) = message.unknown_fields().next() {
        return Some(format!("unknown field {} in {}", field.number(), message.descriptor().name()));
    }
    message.fields().find_map(|(_, value)| unknown_field_in(value))
}

fn unknown_field_in(value: &Value) -> Option<String> {
    match value {
        Value::Message(message) => unknown_field(message),
        Value::List(values) => values.iter().find_map(unknown_field_in),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
