//! Time zones that the Parquet library leaves out. Parquet has no timestamps in seconds; a writer keeps them
//! in milliseconds, and says so in the Arrow schema that it embeds. For the others the library takes the
//! zone from there; for these it does not, since the units differ.

use std::sync::Arc;

use arrow_ipc::{convert::fb_to_schema, root_as_message};
use arrow_schema::{DataType, Field, FieldRef, Schema, TimeUnit};
use base64::{Engine, prelude::BASE64_STANDARD};
use parquet::file::metadata::FileMetaData;

/// The Arrow schema that the writer embedded, if there is one that can be read.
pub(crate) fn embedded_schema(metadata: &FileMetaData) -> Option<Schema> {
    let entries = metadata.key_value_metadata()?;
    let value = entries.iter().find(|entry| entry.key == "ARROW:schema")?.value.as_ref()?;
    let bytes = BASE64_STANDARD.decode(value).ok()?;
    // An encapsulated message has a mark and a length before it.
    let message = bytes.strip_prefix(&[0xff; 4]).and_then(|rest| rest.get(4..)).unwrap_or(&bytes);
    Some(fb_to_schema(root_as_message(message).ok()?.header_as_schema()?))
}

/// `field` as it was read, with the zones that `embedded` has for timestamps in seconds.
pub(crate) fn with_zones(field: &FieldRef, embedded: &Field) -> FieldRef {
    let data_type = zoned(field.data_type(), embedded.data_type());
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

fn zoned(read: &DataType, embedded: &DataType) -> DataType {
    match (read, embedded) {
        (
            DataType::Timestamp(TimeUnit::Millisecond, Some(_)),
            DataType::Timestamp(TimeUnit::Second, Some(zone)),
        ) => DataType::Timestamp(TimeUnit::Millisecond, Some(Arc::clone(zone))),
        (DataType::List(item), DataType::List(as_embedded)) => DataType::List(with_zones(item, as_embedded)),
        (DataType::LargeList(item), DataType::LargeList(as_embedded)) => {
            DataType::LargeList(with_zones(item, as_embedded))
        }
        (DataType::Struct(fields), DataType::Struct(as_embedded)) if fields.len() == as_embedded.len() => {
            let fields = fields.iter().zip(as_embedded);
            DataType::Struct(fields.map(|(field, as_embedded)| with_zones(field, as_embedded)).collect())
        }
        (read, _) => read.clone(),
    }
}
