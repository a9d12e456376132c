//! Manifest: a snapshot serialized as JSON in an envelope. The schema is an Arrow IPC message in hexadecimal.

use std::sync::Arc;

use arrow_ipc::convert::{IpcSchemaEncoder, fb_to_schema};
use arrow_schema::Schema;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    Snapshot,
    dataset::snapshot::{File, Parts},
    store::envelope::Envelope,
};

const ENVELOPE: Envelope = Envelope { kind: "manifest", version: 1 };

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest<F> {
    folder: bool,
    schema: String,
    partition_columns: usize,
    nulls: Vec<Option<u64>>,
    files: F,
}

/// Serializes a snapshot.
pub(crate) fn write(snapshot: &Snapshot) -> Bytes {
    let manifest = Manifest {
        folder: snapshot.folder(),
        schema: hex::encode(IpcSchemaEncoder::new().schema_to_fb(snapshot.schema()).finished_data()),
        partition_columns: snapshot.partition_columns(),
        nulls: snapshot.file_nulls().to_vec(),
        files: snapshot.files(),
    };
    let json = serde_json::to_vec(&manifest).expect("a manifest has string keys and finite numbers");
    ENVELOPE.seal(&json)
}

/// Deserializes a snapshot.
///
/// # Errors
/// A description of the malformed part.
pub(crate) fn read(sealed: &Bytes) -> Result<Snapshot, String> {
    let json = ENVELOPE.open(sealed)?;
    let manifest: Manifest<Vec<File>> = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
    Snapshot::new(Parts {
        folder: manifest.folder,
        schema: Arc::new(read_schema(&manifest.schema)?),
        partition_columns: manifest.partition_columns,
        files: manifest.files,
        nulls: manifest.nulls,
    })
}

fn read_schema(text: &str) -> Result<Schema, String> {
    let bytes = hex::decode(text).map_err(|_| "the schema is not hexadecimal")?;
    let schema = arrow_ipc::root_as_schema(&bytes).map_err(|error| error.to_string())?;
    Ok(fb_to_schema(schema))
}
