//! Delivered types, merging of the schemas of several files, and their serialized form.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray,
    cast::AsArray,
};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema};

use crate::dataset::{extensions, intervals, time_zones::is_same_zone};

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
    let mut metadata = field.metadata().clone();
    if !extensions::fits(&metadata, &data_type) {
        extensions::remove(&mut metadata);
    }
    // A new field, because a changed dictionary field would keep its dictionary id.
    Arc::new(Field::new(field.name(), data_type, field.is_nullable()).with_metadata(metadata))
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

/// Key of the metadata of a field that cannot be delivered. Its value is the reason.
const UNSUPPORTED: &str = "forebay.unsupported";

/// Returns the field of a column that cannot be delivered, because of `reason`. It has no values.
pub(crate) fn unsupported(name: &str, reason: &str) -> Field {
    let metadata = [(UNSUPPORTED.to_owned(), reason.to_owned())].into();
    Field::new(name, DataType::Null, true).with_metadata(metadata)
}

/// Returns the reason why a column cannot be delivered; `None` if it can.
pub(crate) fn unsupported_reason(field: &Field) -> Option<&str> {
    let reason = field.metadata().get(UNSUPPORTED).filter(|_| *field.data_type() == DataType::Null);
    reason.map(String::as_str)
}

/// Merges the fields of one column in two files like [`merge`]. Where only the hints of their writers differ, the type is the declared one.
/// A column that cannot be delivered from one of the files cannot be delivered, and neither can one whose hints give the same stored
/// numbers different meanings. `files` are the URLs of both files, for the reason.
///
/// `declared` are the types that the Parquet schemas of both files declare; the first is `None` if it is not known.
pub(crate) fn merge_hinted(
    first: &Field,
    second: &Field,
    declared: (Option<&DataType>, &DataType),
    files: (&str, &str),
) -> Option<Field> {
    if let Some(unsupported) = [first, second].into_iter().find(|field| unsupported_reason(field).is_some()) {
        return Some(unsupported.clone());
    }
    if let Some(merged) = merge(first, second) {
        return Some(merged);
    }
    let common = merge_types(declared.0?, declared.1)?;
    match without_differences(first.data_type(), second.data_type(), &common) {
        Ok(data_type) => Some(merged_field(first, second, data_type)),
        Err(Contradiction { first: a, second: b }) => {
            let what = match (&a, &b) {
                (DataType::Timestamp(..), DataType::Timestamp(..)) => "have other dates and hours",
                _ => "are other values",
            };
            let reason = format!("its values are {a} in {}, but {b} in {}, which {what}", files.0, files.1);
            Some(unsupported(first.name(), &reason))
        }
    }
}

/// Types of one column in two files that give the same stored numbers different meanings.
#[derive(Debug, PartialEq, Eq)]
struct Contradiction {
    first: DataType,
    second: DataType,
}

/// Type of a column in two files whose declared type is `declared`: what both types have in common, and otherwise the declared type, at any
/// depth.
///
/// # Errors
/// The first [`Contradiction`] between both types.
fn without_differences(
    first: &DataType,
    second: &DataType,
    declared: &DataType,
) -> Result<DataType, Contradiction> {
    if let Some(same) = merge_types(first, second) {
        return Ok(same);
    }
    let item =
        |first: &FieldRef, second: &FieldRef, declared: &FieldRef| -> Result<FieldRef, Contradiction> {
            let data_type = without_differences(first.data_type(), second.data_type(), declared.data_type())?;
            Ok(Arc::new(merged_field(first, second, data_type)))
        };
    if let (Some(a), Some(b), DataType::List(of_declared)) = (list_item(first), list_item(second), declared) {
        let item = item(a, b, of_declared)?;
        return Ok(match (first, second) {
            (DataType::LargeList(_), DataType::LargeList(_)) => DataType::LargeList(item),
            (DataType::FixedSizeList(_, n), DataType::FixedSizeList(_, m)) if n == m => {
                DataType::FixedSizeList(item, *n)
            }
            _ => DataType::List(item),
        });
    }
    match (first, second, declared) {
        (DataType::Struct(a), DataType::Struct(b), DataType::Struct(c))
            if a.len() == b.len() && b.len() == c.len() =>
        {
            let fields = a.iter().zip(b).zip(c);
            let fields = fields.map(|((a, b), c)| item(a, b, c)).collect::<Result<_, _>>()?;
            Ok(DataType::Struct(fields))
        }
        (DataType::Map(a, sorted), DataType::Map(b, _), DataType::Map(c, _)) => {
            Ok(DataType::Map(item(a, b, c)?, *sorted))
        }
        _ if changes_values(first, second, declared) => {
            Err(Contradiction { first: first.clone(), second: second.clone() })
        }
        // Both are in one zone, but in other units of INT96, or the names of the zone differ.
        (DataType::Timestamp(_, a), DataType::Timestamp(_, b), DataType::Timestamp(unit, _)) => {
            let zone = if a == b { a.clone() } else { Some("UTC".into()) };
            Ok(DataType::Timestamp(*unit, zone))
        }
        _ => Ok(declared.clone()),
    }
}

/// True if two hints about numbers of the type `declared` differ in the values, not just in their representation.
///
/// For integers, only the hint tells that they are times or durations, and in which unit. For timestamps, it tells the zone, which
/// determines the dates and hours. Other hints, such as the width of offsets, change no value.
fn changes_values(first: &DataType, second: &DataType, declared: &DataType) -> bool {
    match (declared, first, second) {
        (DataType::Int32 | DataType::Int64, _, _) => true,
        (DataType::Timestamp(..), DataType::Timestamp(_, a), DataType::Timestamp(_, b)) => {
            !is_same_zone(a.as_deref(), b.as_deref())
        }
        _ => false,
    }
}

/// Merges the fields of one column in two files, whose merged type is `data_type`. The result has the name and metadata of the first, but
/// no extension type that the second does not have.
fn merged_field(first: &Field, second: &Field, data_type: DataType) -> Field {
    let mut metadata = first.metadata().clone();
    if !extensions::are_equal(&metadata, second.metadata()) || !extensions::fits(&metadata, &data_type) {
        extensions::remove(&mut metadata);
    }
    let nullable = first.is_nullable() || second.is_nullable();
    Field::new(first.name(), data_type, nullable).with_metadata(metadata)
}

/// Item of a list of any kind.
fn list_item(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => Some(item),
        _ => None,
    }
}

/// Merges the fields of one column in two files. The result equals `first`, but is nullable wherever either field is.
/// Names of list items may differ. An extension type that only one of them has is left out. Returns `None` if the types differ.
pub(crate) fn merge(first: &Field, second: &Field) -> Option<Field> {
    let data_type = merge_types(first.data_type(), second.data_type())?;
    Some(merged_field(first, second, data_type))
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

/// Casts a decoded array to a type that [`merge_hinted`] derived from its own. Names, metadata and nullability of nested fields change,
/// and intervals are converted from their stored form; `signed_intervals` is true if the writer stored them with a sign. Other values are
/// not copied.
///
/// # Errors
/// [`ArrowError::NotYetImplemented`] for an interval without an exact form, and other errors for other types.
pub(crate) fn relabel(
    array: &ArrayRef,
    data_type: &DataType,
    signed_intervals: bool,
) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    let relabel = |array: &ArrayRef, data_type: &DataType| relabel(array, data_type, signed_intervals);
    Ok(match (data_type, array.data_type()) {
        (DataType::List(item), DataType::List(_)) => {
            let list = array.as_list::<i32>();
            Arc::new(relabeled_list(list, item, relabel(list.values(), item.data_type())?)?)
        }
        (DataType::LargeList(item), DataType::LargeList(_)) => {
            let list = array.as_list::<i64>();
            Arc::new(relabeled_list(list, item, relabel(list.values(), item.data_type())?)?)
        }
        (DataType::FixedSizeList(item, size), DataType::FixedSizeList(..)) => {
            let list = array.as_fixed_size_list();
            let values = relabel(list.values(), item.data_type())?;
            let nulls = list.nulls().cloned();
            Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *size, values, nulls)?)
        }
        (DataType::Map(entries, sorted), DataType::Map(..)) => {
            let map = array.as_map();
            let inner: ArrayRef = Arc::new(map.entries().clone());
            let inner = relabel(&inner, entries.data_type())?.as_struct().clone();
            let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
            Arc::new(MapArray::try_new(Arc::clone(entries), offsets, inner, nulls, *sorted)?)
        }
        (DataType::Struct(fields), DataType::Struct(_)) => {
            let array = array.as_struct();
            let columns = array.columns().iter().zip(fields);
            let columns = columns.map(|(column, field)| relabel(column, field.data_type()));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            let nulls = array.nulls().cloned();
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, array.len())?)
        }
        (DataType::Interval(unit), DataType::FixedSizeBinary(_)) => {
            intervals::convert(array.as_fixed_size_binary(), *unit, signed_intervals)?
        }
        (expected, found) => {
            return Err(ArrowError::SchemaError(format!("decoded {found}, expected {expected}")));
        }
    })
}

fn relabeled_list<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    item: &FieldRef,
    values: ArrayRef,
) -> Result<GenericListArray<O>, ArrowError> {
    GenericListArray::try_new(Arc::clone(item), list.offsets().clone(), values, list.nulls().cloned())
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
