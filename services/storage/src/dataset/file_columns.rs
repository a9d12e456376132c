//! Columns of one file: the types that its Parquet schema declares, refined by the Arrow schema that the writer embedded.
//!
//! The embedded schema is a hint. It selects among the Arrow types of one Parquet type, for example the time zone of a timestamp or the
//! width of the offsets of a list. Whatever does not fit the Parquet schema is ignored, for each column on its own.
//!
//! A column whose Parquet type has no Arrow type stays in the schema as an [unsupported](unsupported) one, so that the other columns
//! can be read.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use arrow_ipc::root_as_message;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use base64::{Engine, prelude::BASE64_STANDARD};
use forebay_cache::catch_expected_panic;
use parquet::{
    arrow::{ARROW_SCHEMA_META_KEY, encode_arrow_schema, parquet_to_arrow_schema},
    basic::{ConvertedType, Type as Physical},
    errors::ParquetError,
    file::metadata::{FileMetaData, KeyValue},
    schema::types::{SchemaDescriptor, Type, TypePtr},
};

use crate::{
    dataset::{
        intervals::{self, interval_units, with_intervals},
        schema::{delivered, undeliverable, unsupported},
        time_zones::with_zones,
    },
    validate::decoder_errors::panic_message,
};

/// A top-level column of a file.
#[derive(Clone, Debug)]
pub(crate) struct FileColumn {
    /// Delivered type without the hint of the writer.
    pub(crate) declared: DataType,
    /// Leaf columns, as positions among those of the file.
    pub(crate) leaves: Range<usize>,
    /// True if the column contains strings whose Parquet type is not UTF8. The decoder checks only UTF8. Other types become strings if
    /// they are JSON, or if the hint says so.
    pub(crate) has_unchecked_strings: bool,
    /// True if the writer stored the numbers of intervals with a sign, which Parquet does not have.
    pub(crate) has_signed_intervals: bool,
}

/// Reads the columns of a file. Returns their delivered fields, and what else is known of each. Never fails and never panics: a column that
/// cannot be delivered is [unsupported](unsupported).
pub(crate) fn file_columns(file: &FileMetaData) -> (Schema, Vec<FileColumn>) {
    let roots = file.schema_descr().root_schema().get_fields();
    let hint = Hint::of(file);
    let is_alone = !hint.is_whole || roots.iter().any(intervals::contains);
    let whole = if is_alone { None } else { all_at_once(file, &hint) };
    let types: Vec<(DataType, FieldRef)> =
        whole.unwrap_or_else(|| roots.iter().map(|root| one(root, hint.field(root.name()))).collect());

    let (mut fields, mut columns) = (Vec::with_capacity(roots.len()), Vec::with_capacity(roots.len()));
    let mut start = 0;
    for (root, (declared, field)) in roots.iter().zip(types) {
        let leaves = start..start + leaf_count(root);
        start = leaves.end;
        let is_other_text = |leaf: usize| {
            let leaf = file.schema_descr().column(leaf);
            leaf.physical_type() == Physical::BYTE_ARRAY && leaf.converted_type() != ConvertedType::UTF8
        };
        let has_unchecked_strings = has_strings(field.data_type()) && leaves.clone().any(is_other_text);
        let has_signed_intervals = intervals::contains(root)
            && hint.field(root.name()).is_some_and(|hint| intervals::is_signed(hint.data_type()));
        fields.push(field);
        columns.push(FileColumn { declared, leaves, has_unchecked_strings, has_signed_intervals });
    }
    separate_duplicates(&mut fields, &mut columns);
    (Schema::new(fields), columns)
}

/// Makes columns that share a name [unsupported](unsupported). All but the first of them get other names, because columns are found by
/// their names.
fn separate_duplicates(fields: &mut [FieldRef], columns: &mut [FileColumn]) {
    let mut sorted: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    sorted.sort_unstable();
    if sorted.windows(2).all(|pair| pair[0] != pair[1]) {
        return;
    }
    let mut named: HashMap<String, Vec<usize>> = HashMap::new();
    for (position, field) in fields.iter().enumerate() {
        named.entry(field.name().clone()).or_default().push(position);
    }
    let mut names: HashSet<String> = named.keys().cloned().collect();
    let mut repeated: Vec<_> = named.into_iter().filter(|(_, positions)| positions.len() > 1).collect();
    repeated.sort_unstable();
    for (name, positions) in repeated {
        let reason = format!("the file has {} columns of the name {name}", positions.len());
        for (number, position) in (1_usize..).zip(positions) {
            let mut own = if number == 1 { name.clone() } else { format!("{name} ({number})") };
            while number > 1 && !names.insert(own.clone()) {
                own.push('\'');
            }
            fields[position] = Arc::new(unsupported(&own, &reason));
            columns[position].declared = DataType::Null;
        }
    }
}

/// Returns the schema of a file that consists of one top-level column. Intervals have their stored form, 12 bytes.
///
/// # Errors
/// If the column cannot be a schema of its own.
pub(crate) fn single_column(root: &TypePtr) -> Result<SchemaDescriptor, ParquetError> {
    let fields = vec![intervals::stored_type(root)?];
    let schema = Type::group_type_builder("schema").with_fields(fields).build()?;
    Ok(SchemaDescriptor::new(Arc::new(schema)))
}

/// Number of leaf columns below a type.
fn leaf_count(root: &TypePtr) -> usize {
    if root.is_primitive() { 1 } else { root.get_fields().iter().map(leaf_count).sum() }
}

/// Declared types and delivered fields of all columns, if all of them have Arrow types and the hint fits each.
fn all_at_once(file: &FileMetaData, hint: &Hint) -> Option<Vec<(DataType, FieldRef)>> {
    let descriptor = file.schema_descr();
    let declared = convert(descriptor, None).ok()?;
    let hinted = match &hint.encoded {
        Some(encoded) => convert(descriptor, Some(encoded.clone())).ok()?,
        None => declared.clone(),
    };
    let columns = descriptor.root_schema().get_fields().len();
    if [declared.len(), hinted.len()] != [columns; 2] {
        return None;
    }
    let fields: Vec<FieldRef> = hinted.iter().map(|field| hint.refine(field)).collect();
    let is_changed =
        fields.iter().zip(&hinted).any(|(field, hinted)| field.data_type() != hinted.data_type());
    if is_changed {
        let decoded = convert(descriptor, Some(encode_arrow_schema(&Schema::new(fields.clone())))).ok()?;
        if decoded.iter().zip(&fields).any(|(decoded, field)| decoded.data_type() != field.data_type()) {
            return None;
        }
    }
    if fields.iter().any(|field| undeliverable(field.data_type()).is_some()) {
        return None;
    }
    Some(declared.iter().map(|field| delivered(field).data_type().clone()).zip(fields).collect())
}

/// Declared type and delivered field of one column.
fn one(root: &TypePtr, hint: Option<&Field>) -> (DataType, FieldRef) {
    let refused = |reason: String| (DataType::Null, Arc::new(unsupported(root.name(), &reason)));
    let single = match single_column(root) {
        Ok(single) => single,
        Err(error) => return refused(error.to_string()),
    };
    let convert_one = |hint: Option<&Field>| -> Result<FieldRef, String> {
        let hint = hint.map(|hint| encode_arrow_schema(&Schema::new(vec![hint.clone()])));
        let fields = convert(&single, hint)?;
        fields.first().cloned().ok_or_else(|| "a group without columns".to_owned())
    };
    let declared = match convert_one(None) {
        Ok(declared) => delivered(&declared),
        Err(reason) => return refused(reason),
    };
    if let Some(inner) = undeliverable(declared.data_type()) {
        return refused(format!("it holds {inner}"));
    }
    let refined = hint.and_then(|hint| {
        let refined = delivered(&with_zones(&convert_one(Some(hint)).ok()?, hint));
        let decoded = convert_one(Some(&refined)).ok()?;
        let fits = decoded.data_type() == refined.data_type() && undeliverable(refined.data_type()).is_none();
        fits.then_some(refined)
    });
    let field = refined.unwrap_or_else(|| Arc::clone(&declared));
    let stored = intervals::leaves(root);
    let of_hint = hint.map(|hint| interval_units(delivered(&Arc::new(hint.clone())).data_type()));
    let data_type = with_intervals(field.data_type(), &stored, of_hint.as_deref());
    let declared = with_intervals(declared.data_type(), &stored, None);
    (declared, Arc::new(field.as_ref().clone().with_data_type(data_type)))
}

/// Arrow fields of a Parquet schema. `hint` is an encoded Arrow schema.
fn convert(schema: &SchemaDescriptor, hint: Option<String>) -> Result<Fields, String> {
    let entries = hint.map(|hint| vec![KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), hint)]);
    // The conversion of an embedded schema panics for types that it does not know.
    let converted = catch_expected_panic(|| parquet_to_arrow_schema(schema, entries.as_ref()));
    match converted {
        Ok(converted) => converted.map(|schema| schema.fields).map_err(|error| error.to_string()),
        Err(panic) => Err(panic_message(&*panic).to_owned()),
    }
}

/// Arrow schema that the writer embedded.
struct Hint {
    encoded: Option<String>,
    fields: HashMap<String, Field>,
    /// False if fields are left out. The decoder panics for them.
    is_whole: bool,
}

impl Hint {
    /// Reads the hint of a file. Fields that cannot be read are left out.
    fn of(file: &FileMetaData) -> Self {
        let entries = file.key_value_metadata().map_or(&[][..], Vec::as_slice);
        let entry = entries.iter().find(|entry| entry.key == ARROW_SCHEMA_META_KEY);
        let encoded = entry.and_then(|entry| entry.value.clone());
        let embedded = encoded.as_deref().and_then(embedded_fields);
        let (fields, is_whole) = embedded.unwrap_or((HashMap::new(), true));
        Self { encoded, fields, is_whole }
    }

    fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(name)
    }

    /// Delivered form of a field to which the decoder has applied the hint.
    fn refine(&self, field: &FieldRef) -> FieldRef {
        match self.field(field.name()) {
            Some(hint) => delivered(&with_zones(field, hint)),
            None => delivered(field),
        }
    }
}

/// Fields of an encoded schema that can be read, and true if these are all.
fn embedded_fields(encoded: &str) -> Option<(HashMap<String, Field>, bool)> {
    let bytes = BASE64_STANDARD.decode(encoded).ok()?;
    // An encapsulated message begins with a continuation marker and a length.
    let message = bytes.strip_prefix(&[0xff; 4]).and_then(|rest| rest.get(4..)).unwrap_or(&bytes);
    let encoded = root_as_message(message).ok()?.header_as_schema()?.fields()?;
    let known = encoded.iter().filter(|field| is_known(*field));
    // The conversion panics for some other types that it does not know.
    let known = known.filter_map(|field| catch_expected_panic(|| Field::from(field)).ok());
    let known: Vec<Field> = known.collect();
    let is_whole = known.len() == encoded.len();
    Some((known.into_iter().map(|field| (field.name().clone(), field)).collect(), is_whole))
}

/// False for types of writers that Arrow for Rust does not have, such as the integers of 128 bits of Polars. Its conversion panics for
/// them.
fn is_known(field: arrow_ipc::Field<'_>) -> bool {
    let has_width = |int: arrow_ipc::Int<'_>| matches!(int.bitWidth(), 8 | 16 | 32 | 64);
    let index = field.dictionary().map(|dictionary| dictionary.indexType());
    let is_known_type = match field.type_type() {
        arrow_ipc::Type::Int => field.type_as_int().is_some_and(has_width),
        arrow_ipc::Type::Decimal => {
            field.type_as_decimal().is_some_and(|decimal| matches!(decimal.bitWidth(), 32 | 64 | 128 | 256))
        }
        arrow_ipc::Type::NONE => false,
        other => other.variant_name().is_some(),
    };
    is_known_type
        && index.is_none_or(|index| index.is_some_and(has_width))
        && field.children().is_none_or(|children| children.iter().all(is_known))
}

fn has_strings(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => has_strings(values),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => has_strings(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_strings(field.data_type())),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
