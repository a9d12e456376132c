//! Messages as JSON.

use forebay_client::{
    Error,
    proto::{Encoding, v1::Command},
};

/// Encodes a message as JSON.
pub(crate) fn json<M: prost::Message + serde::Serialize>(message: &M) -> String {
    String::from_utf8_lossy(&Encoding::Json.encode(message)).into_owned()
}

/// Decodes a command from JSON.
pub(crate) fn command(request: &str) -> Result<Command, Error> {
    let command = Encoding::Json.decode("Command", request.as_bytes());
    command.map_err(|error| Error::Request(error.to_string()))
}
