//! Verification of message headers. The header of a message is a flatbuffer, in which several parts can refer to the same bytes, so that
//! what is read from it can be far larger than the header.

use arrow_ipc::{Message, MetadataVersion, root_as_message_with_opts};
use flatbuffers::VerifierOptions;

/// Maximum size of a header, in bytes. A schema takes about 100 bytes for each column, a batch 64.
const MAX_HEADER_BYTES: usize = 4 << 20;
/// Maximum depth of tables. Each level of nesting of a type is one.
const MAX_DEPTH: usize = 64;
/// Bytes of a header for each of its tables, at least. A field without a name is two tables and has 36 bytes.
const TABLE_BYTES: usize = 16;
/// Largest ratio of what is read from a header to its size. Tables share descriptions of their layouts, so that it is 2 for short fields.
const MAX_RATIO: usize = 4;

/// Verifies a header: its size, and that what is read from it is in proportion to its size.
///
/// # Errors
/// Description of the fault of the header, with the expected form.
pub(super) fn verified(header: &[u8]) -> Result<Message<'_>, String> {
    if header.len() > MAX_HEADER_BYTES {
        let found = header.len();
        return Err(format!("the header has {found} bytes, expected at most {MAX_HEADER_BYTES}"));
    }
    let options = VerifierOptions {
        max_depth: MAX_DEPTH,
        max_tables: header.len() / TABLE_BYTES + 1,
        max_apparent_size: header.len() * MAX_RATIO + 64,
        ..VerifierOptions::default()
    };
    let message = root_as_message_with_opts(&options, header).map_err(|error| error.to_string())?;
    if !matches!(message.version(), MetadataVersion::V4 | MetadataVersion::V5) {
        return Err(format!("the format has version {:?}, expected V4 or V5", message.version()));
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use arrow_flight::{FlightData, SchemaAsIpc};
    use arrow_ipc::{convert::fb_to_schema, writer::IpcWriteOptions};
    use arrow_schema::{DataType, Field, Schema};

    use super::*;

    fn header(schema: &Schema) -> bytes::Bytes {
        FlightData::from(SchemaAsIpc::new(schema, &IpcWriteOptions::default())).data_header
    }

    #[test]
    fn schemas_of_short_fields_of_nested_fields_and_of_one_field_are_verified() {
        let nested = (0..50).fold(DataType::Null, |inner, _| DataType::new_list(inner, true));
        for fields in [
            vec![Field::new("", DataType::Null, true)],
            (0..5000).map(|_| Field::new("", DataType::Null, true)).collect(),
            (0..5000).map(|number| Field::new(number.to_string(), DataType::Int64, false)).collect(),
            vec![Field::new("deep", nested, true)],
        ] {
            let schema = Schema::new(fields);
            let header = header(&schema);
            let verified = verified(&header).unwrap();
            assert_eq!(fb_to_schema(verified.header_as_schema().unwrap()), schema);
        }
    }

    #[test]
    fn a_header_is_rejected_if_more_is_read_from_it_than_its_size_permits() {
        let hostile = super::super::hostile::aliased_names(15_000, 64 << 10);
        assert!(hostile.len() < 200 << 10);
        assert!(verified(&hostile).unwrap_err().contains("Apparent size"));
        let bomb = super::super::hostile::aliased_children(30);
        assert!(bomb.len() < 4 << 10);
        verified(&bomb).unwrap_err();
        assert!(verified(&vec![0; MAX_HEADER_BYTES + 1]).unwrap_err().contains("expected at most 4194304"));
    }
}
