//! Decoded sizes: bytes that a column occupies in Arrow layout.

use arrow_schema::DataType;
use parquet::file::metadata::ColumnChunkMetaData;

/// Returns the leaf types of a column in Parquet's leaf order.
pub(crate) fn leaf_types(data_type: &DataType) -> Vec<&DataType> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => leaf_types(item.data_type()),
        DataType::Struct(fields) => fields.iter().flat_map(|field| leaf_types(field.data_type())).collect(),
        leaf => vec![leaf],
    }
}

/// Size in bytes of `values` values of a leaf type, without the data of variable-width values.
pub(crate) fn fixed_bytes(leaf: &DataType, values: u64) -> u64 {
    match leaf {
        DataType::Null => 0,
        DataType::Boolean => values.div_ceil(8),
        DataType::FixedSizeBinary(width) => values.saturating_mul(u64::from(width.unsigned_abs())),
        DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_) => {
            values.saturating_add(1).saturating_mul(8)
        }
        leaf => match leaf.primitive_width() {
            Some(width) => values.saturating_mul(width as u64),
            None => values.saturating_add(1).saturating_mul(4),
        },
    }
}

/// Size in bytes of one null. Values of a fixed size take their full memory when null. A list or map counts as if it had one item,
/// which is null.
pub(crate) fn null_bytes(data_type: &DataType) -> u64 {
    nulls_bytes(data_type, 1)
}

fn nulls_bytes(data_type: &DataType, nulls: u64) -> u64 {
    match data_type {
        DataType::FixedSizeList(item, length) => {
            let items = nulls.saturating_mul(u64::from(length.unsigned_abs()));
            nulls_bytes(item.data_type(), items).saturating_add(items.div_ceil(8))
        }
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => {
            let own = fixed_bytes(data_type, nulls).saturating_add(nulls.div_ceil(8));
            own.saturating_add(nulls_bytes(item.data_type(), nulls))
        }
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|field| nulls_bytes(field.data_type(), nulls));
            fields.fold(nulls.div_ceil(8), u64::saturating_add)
        }
        other => fixed_bytes(other, nulls),
    }
}

/// True if the leaf type has variable-width values.
pub(crate) fn is_variable(leaf: &DataType) -> bool {
    matches!(leaf, DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary)
}

/// Estimates the decoded size in bytes of a column chunk of `rows` rows. Exact for fixed-width types, and otherwise
/// based on the sizes in the footer.
pub(crate) fn chunk_bytes(leaf: &DataType, chunk: &ColumnChunkMetaData, rows: u64) -> u64 {
    let unsigned = |count: i64| u64::try_from(count).unwrap_or(0);
    let values = unsigned(chunk.num_values());
    let descriptor = chunk.column_descr();

    let mut bytes = fixed_bytes(leaf, values);
    if is_variable(leaf) {
        let exact = chunk.unencoded_byte_array_data_bytes();
        bytes = bytes.saturating_add(unsigned(exact.unwrap_or(chunk.uncompressed_size())));
    }
    if descriptor.max_def_level() > 0 {
        bytes = bytes.saturating_add(values.div_ceil(8));
    }
    let list_offsets = rows.saturating_mul(4).saturating_mul(unsigned(descriptor.max_rep_level().into()));
    bytes.saturating_add(list_offsets)
}
