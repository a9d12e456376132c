//! Extension types: the metadata of a field that give its values a meaning for other programs.

use std::collections::HashMap;

use arrow_schema::{
    DataType,
    extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY},
};

const KEYS: [&str; 2] = [EXTENSION_TYPE_NAME_KEY, EXTENSION_TYPE_METADATA_KEY];

/// True if two fields have the same extension type, or none.
pub(crate) fn are_equal(first: &HashMap<String, String>, second: &HashMap<String, String>) -> bool {
    KEYS.iter().all(|key| first.get(*key) == second.get(*key))
}

/// Removes the extension type of a field.
pub(crate) fn remove(metadata: &mut HashMap<String, String>) {
    for key in KEYS {
        metadata.remove(key);
    }
}

/// True unless the metadata name a canonical extension type of Arrow that has no values of the type `data_type`. Other programs fail to
/// read such a column.
pub(crate) fn fits(metadata: &HashMap<String, String>, data_type: &DataType) -> bool {
    match metadata.get(EXTENSION_TYPE_NAME_KEY).map(String::as_str) {
        Some("arrow.uuid") => matches!(data_type, DataType::FixedSizeBinary(16)),
        Some("arrow.bool8") => matches!(data_type, DataType::Int8),
        Some("arrow.json") => data_type.is_string(),
        Some("arrow.fixed_shape_tensor") => matches!(data_type, DataType::FixedSizeList(..)),
        Some("arrow.variable_shape_tensor") => matches!(data_type, DataType::Struct(_)),
        Some(_) | None => true,
    }
}
