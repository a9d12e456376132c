//! Manifest: a snapshot serialized as JSON in an envelope. The schema is an Arrow IPC message in hexadecimal.

use bytes::Bytes;

use crate::{Snapshot, store::envelope::Envelope};

const ENVELOPE: Envelope = Envelope { kind: "manifest", version: 1 };

/// Serializes a snapshot.
pub(crate) fn write(snapshot: &Snapshot) -> Bytes {
    let json = serde_json::to_vec(snapshot.parts()).expect("a manifest has string keys and finite numbers");
    ENVELOPE.seal(&json)
}

/// Deserializes a snapshot.
///
/// # Errors
/// A description of the malformed part.
pub(crate) fn read(sealed: &Bytes) -> Result<Snapshot, String> {
    let json = ENVELOPE.open(sealed)?;
    Snapshot::new(serde_json::from_slice(&json).map_err(|error| error.to_string())?)
}
