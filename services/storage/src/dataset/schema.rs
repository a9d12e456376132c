//! Delivered types, merging of the schemas of several files, and their serialized form.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray,
    cast::AsArray,
};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema};

/// Returns the delivered form of a type: dictionaries become their values and views become plain strings or binary
/// values, at any depth.
pub(crate) fn delivered_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => delivered_type(values),
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) | DataType::ListView(item) => DataType::List(delivered(item)),
        DataType::LargeList(item) | DataType::LargeListView(item) => DataType::LargeList(delivered(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(delivered(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(delivered(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(delivered).collect()),
        other => other.clone(),
    }
}

/// Returns a field with its delivered type.
pub(crate) fn delivered(field: &FieldRef) -> FieldRef {
    let data_type = delivered_type(field.data_type());
    // A new field, because a changed dictionary field would keep its dictionary id.
    let field =
        Field::new(field.name(), data_type, field.is_nullable()).with_metadata(field.metadata().clone());
    Arc::new(field)
}

/// Returns the first unsupported type, which may be nested; `None` if the whole type is supported.
pub(crate) fn undeliverable(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::Union(..) | DataType::RunEndEncoded(..) => Some(data_type),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => undeliverable(item.data_type()),
        DataType::Struct(fields) => fields.iter().find_map(|field| undeliverable(field.data_type())),
        _ => None,
    }
}

/// Merges the fields of one column in two files. The result equals `first`, but is nullable wherever either field is.
/// Names of list items may differ. Returns `None` if the types differ.
pub(crate) fn merge(first: &Field, second: &Field) -> Option<Field> {
    let data_type = merge_types(first.data_type(), second.data_type())?;
    let nullable = first.is_nullable() || second.is_nullable();
    Some(Field::new(first.name(), data_type, nullable).with_metadata(first.metadata().clone()))
}

fn merge_types(first: &DataType, second: &DataType) -> Option<DataType> {
    let item = |first: &Field, second: &Field| merge(first, second).map(Arc::new);
    match (first, second) {
        (DataType::List(a), DataType::List(b)) => Some(DataType::List(item(a, b)?)),
        (DataType::LargeList(a), DataType::LargeList(b)) => Some(DataType::LargeList(item(a, b)?)),
        (DataType::FixedSizeList(a, n), DataType::FixedSizeList(b, m)) if n == m => {
            Some(DataType::FixedSizeList(item(a, b)?, *n))
        }
        (DataType::Map(a, sorted), DataType::Map(b, _)) => {
            let (DataType::Struct(from), DataType::Struct(to)) = (a.data_type(), b.data_type()) else {
                return None;
            };
            let fields: Option<Fields> = from.iter().zip(to).map(|(a, b)| item(a, b)).collect();
            let entries = Field::new(a.name(), DataType::Struct(fields?), a.is_nullable());
            Some(DataType::Map(Arc::new(entries.with_metadata(a.metadata().clone())), *sorted))
        }
        (DataType::Struct(a), DataType::Struct(b)) => {
            let same = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.name() == b.name());
            let fields = || a.iter().zip(b).map(|(a, b)| item(a, b)).collect::<Option<Fields>>();
            if same { fields().map(DataType::Struct) } else { None }
        }
        (first, second) => (first == second).then(|| first.clone()),
    }
}

/// Casts an array to a type that [`merge`] derived from its own. Only names, metadata and nullability of nested fields
/// change; no values are copied.
pub(crate) fn relabel(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    Ok(match data_type {
        DataType::List(item) => Arc::new(relabel_list(array.as_list::<i32>(), item)?),
        DataType::LargeList(item) => Arc::new(relabel_list(array.as_list::<i64>(), item)?),
        DataType::FixedSizeList(item, size) => {
            let array = array.as_fixed_size_list();
            let values = relabel(array.values(), item.data_type())?;
            let nulls = array.nulls().cloned();
            Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *size, values, nulls)?)
        }
        DataType::Map(entries, sorted) => {
            let array = array.as_map();
            let DataType::Struct(fields) = entries.data_type() else {
                return Err(ArrowError::SchemaError(format!("expected a map of structs, found {entries}")));
            };
            let inner = relabel_struct(array.entries(), fields)?;
            let (offsets, nulls) = (array.offsets().clone(), array.nulls().cloned());
            Arc::new(MapArray::try_new(Arc::clone(entries), offsets, inner, nulls, *sorted)?)
        }
        DataType::Struct(fields) => Arc::new(relabel_struct(array.as_struct(), fields)?),
        other => {
            let found = array.data_type();
            return Err(ArrowError::SchemaError(format!("decoded {found}, expected {other}")));
        }
    })
}

fn relabel_list<O: OffsetSizeTrait>(
    array: &GenericListArray<O>,
    item: &FieldRef,
) -> Result<GenericListArray<O>, ArrowError> {
    let values = relabel(array.values(), item.data_type())?;
    GenericListArray::try_new(Arc::clone(item), array.offsets().clone(), values, array.nulls().cloned())
}

fn relabel_struct(array: &StructArray, fields: &Fields) -> Result<StructArray, ArrowError> {
    let columns = array.columns().iter().zip(fields);
    let columns = columns.map(|(column, field)| relabel(column, field.data_type()));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    StructArray::try_new_with_length(fields.clone(), columns, array.nulls().cloned(), array.len())
}

/// Position of the column `name` in a schema. `likely` is checked first; it is the column's position in the first file.
pub(crate) fn column_position(schema: &Schema, likely: usize, name: &str) -> Option<usize> {
    let fields = schema.fields();
    if fields.get(likely).is_some_and(|field| field.name() == name) {
        return Some(likely);
    }
    fields.iter().position(|field| field.name() == name)
}

/// Serialized form of a schema: an Arrow IPC message in hexadecimal.
pub(crate) mod hex_message {
    use std::sync::Arc;

    use arrow_ipc::convert::{IpcSchemaEncoder, fb_to_schema};
    use arrow_schema::SchemaRef;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(schema: &SchemaRef, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(IpcSchemaEncoder::new().schema_to_fb(schema).finished_data()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SchemaRef, D::Error> {
        let bytes = hex::decode(String::deserialize(deserializer)?);
        let bytes = bytes.map_err(|_| D::Error::custom("the schema is not hexadecimal"))?;
        Ok(Arc::new(fb_to_schema(arrow_ipc::root_as_schema(&bytes).map_err(D::Error::custom)?)))
    }
}

#[cfg(test)]
mod tests;
