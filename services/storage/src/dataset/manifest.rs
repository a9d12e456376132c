//! Manifest: a snapshot serialized as JSON in an envelope. The schema is an Arrow IPC message in hexadecimal.

use bytes::Bytes;

use crate::{File, RowGroup, Snapshot, store::envelope::Envelope};

const ENVELOPE: Envelope = Envelope { kind: "manifest", version: 1 };

/// Serializes a snapshot.
pub(crate) fn write(snapshot: &Snapshot) -> Bytes {
    let mut json = Vec::with_capacity(usize::try_from(expected_bytes(snapshot)).unwrap_or(0));
    serde_json::to_writer(&mut json, snapshot.parts())
        .expect("a manifest has string keys and finite numbers");
    ENVELOPE.seal_in_place(json)
}

/// Deserializes a snapshot.
///
/// # Errors
/// A description of the malformed part.
pub(crate) fn read(sealed: &Bytes) -> Result<Snapshot, String> {
    let json = ENVELOPE.open(sealed)?;
    Snapshot::new(serde_json::from_slice(&json).map_err(|error| error.to_string())?)
}

/// True if the bytes are those of a manifest that was written.
pub(crate) fn is_intact(sealed: &Bytes) -> bool {
    ENVELOPE.open(sealed).is_ok()
}

/// Expected size of the manifest in bytes, which is rarely exceeded. Names that JSON has to escape are longer.
pub(crate) fn expected_bytes(snapshot: &Snapshot) -> u64 {
    const DIGITS: usize = 20;
    let number = |number: &u64| number.checked_ilog10().unwrap_or(0) as usize + 2;
    let group = |group: &RowGroup| 64 + group.columns.iter().map(number).sum::<usize>();
    let file = |file: &File| {
        let names = file.path.len() + file.etag().map_or(0, str::len) + file.version.to_string().len();
        let partitions = file.path.len() + file.partitions.len() * DIGITS;
        128 + names + partitions + file.row_groups.iter().map(group).sum::<usize>()
    };
    let names = snapshot.schema().fields().iter().map(|field| field.name().len());
    let schema = names.map(|name| 512 + 2 * name).sum::<usize>();
    (Envelope::MAX_LINE as usize + 256 + schema + snapshot.files().iter().map(file).sum::<usize>()) as u64
}
