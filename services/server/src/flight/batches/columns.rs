//! Columns of a schema that are decoded, and the places of their buffers in each batch.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use arrow_ipc::{Endianness, MetadataVersion};
use arrow_schema::{DataType, Field, Schema, SchemaRef, UnionMode};

/// Maximum number of fields within one of the columns that a request names.
const MAX_NESTED: usize = 64;
/// Maximum number of names of other columns that an error about a missing column has.
const MAX_OTHERS: usize = 16;

/// Columns that are decoded.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// All columns.
    All,
    /// Columns with these names, each of which only one column may have. Other columns are neither copied nor decoded.
    Named(Vec<String>),
}

/// Number of parts of a message, as a position or as a size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// Nodes: one for each field.
    pub(super) nodes: usize,
    /// Buffers, except those with the bytes of views.
    pub(super) buffers: usize,
    /// Fields of views, each with any number of further buffers.
    pub(super) views: usize,
}

/// A column that is decoded.
#[derive(Debug)]
pub(super) struct Column {
    /// Where the parts of the column are.
    pub(super) nodes: Range<usize>,
    pub(super) buffers: Range<usize>,
    pub(super) views: Range<usize>,
}

/// The columns of a schema that are decoded.
#[derive(Debug)]
pub(crate) struct Columns {
    pub(super) columns: Vec<Column>,
    /// Schema of these columns.
    pub(super) schema: SchemaRef,
    /// Version of the format.
    pub(super) version: MetadataVersion,
    /// Reason why batches are rejected: a wanted column is missing, or two have its name.
    pub(super) missing: Option<String>,
    /// True if a column has values in dictionaries.
    pub(super) has_dictionaries: bool,
    /// True if a column has views.
    pub(super) has_views: bool,
}

impl Columns {
    /// Finds the columns of a schema.
    ///
    /// # Errors
    /// If the schema is big-endian or malformed, or a column has too many fields.
    pub(super) fn read(
        schema: arrow_ipc::Schema<'_>,
        version: MetadataVersion,
        wanted: &Wanted,
    ) -> Result<Self, String> {
        if schema.endianness() != Endianness::Little {
            let detail = "big-endian batches are not supported; send them in little-endian order";
            return Err(detail.to_owned());
        }
        let (mut columns, mut fields, mut others) = (Vec::new(), Vec::<Field>::new(), Vec::new());
        let mut end = Parts::default();
        let (mut has_dictionaries, mut repeated) = (false, None);
        let mut awaited: HashSet<&str> = match wanted {
            Wanted::All => HashSet::new(),
            Wanted::Named(names) => names.iter().map(String::as_str).collect(),
        };
        for field in schema.fields().ok_or("the schema has no fields")? {
            let mut field = Field::from(field);
            let start = end;
            end.add(field.data_type(), version);
            if let Wanted::Named(names) = wanted {
                if !awaited.remove(field.name().as_str()) {
                    if names.contains(field.name()) {
                        let name = field.name();
                        repeated.get_or_insert_with(|| {
                            format!("there are several columns '{name}', expected one")
                        });
                    }
                    if others.len() < MAX_OTHERS {
                        others.push(crate::error::clip(field.name()));
                    }
                    continue;
                }
                let found = end.nodes - start.nodes;
                if found > MAX_NESTED {
                    let name = field.name();
                    return Err(format!("column '{name}' has {found} fields, expected at most {MAX_NESTED}"));
                }
                field.set_metadata(HashMap::new());
            }
            has_dictionaries |= has_dictionary(field.data_type());
            columns.push(Column {
                nodes: start.nodes..end.nodes,
                buffers: start.buffers..end.buffers,
                views: start.views..end.views,
            });
            fields.push(field);
        }
        let metadata = match wanted {
            Wanted::All => schema.custom_metadata().into_iter().flatten(),
            Wanted::Named(_) => None.into_iter().flatten(),
        };
        let metadata = metadata.filter_map(|pair| Some((pair.key()?.to_owned(), pair.value()?.to_owned())));
        let missing = match wanted {
            Wanted::All => None,
            Wanted::Named(names) => names.iter().find(|name| awaited.contains(name.as_str())).map(|name| {
                let mut found: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
                found.extend(others.iter().map(String::as_str));
                format!("there is no column '{name}' among {found:?}")
            }),
        };
        let missing = missing.or(repeated);
        let has_views = columns.iter().any(|column| !column.views.is_empty());
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata.collect()));
        Ok(Self { columns, schema, version, missing, has_dictionaries, has_views })
    }
}

impl Parts {
    /// Adds the parts of a column of a type.
    fn add(&mut self, data_type: &DataType, version: MetadataVersion) {
        self.nodes += 1;
        self.buffers += buffers(data_type, version);
        self.views += usize::from(is_view(data_type));
        match data_type {
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::Map(item, _)
            | DataType::ListView(item)
            | DataType::LargeListView(item)
            | DataType::FixedSizeList(item, _) => self.add(item.data_type(), version),
            DataType::Struct(fields) => fields.iter().for_each(|field| self.add(field.data_type(), version)),
            DataType::Union(fields, _) => {
                fields.iter().for_each(|(_, field)| self.add(field.data_type(), version));
            }
            DataType::RunEndEncoded(ends, values) => {
                self.add(ends.data_type(), version);
                self.add(values.data_type(), version);
            }
            _ => {}
        }
    }
}

/// Number of buffers of a type, without those of its children and those with the bytes of views.
pub(super) fn buffers(data_type: &DataType, version: MetadataVersion) -> usize {
    match data_type {
        DataType::Null | DataType::RunEndEncoded(_, _) => 0,
        DataType::Struct(_) | DataType::FixedSizeList(_, _) => 1,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => 3,
        DataType::ListView(_) | DataType::LargeListView(_) => 3,
        // Up to version 4, unions have a bitmap of valid rows.
        DataType::Union(_, mode) => {
            1 + usize::from(*mode == UnionMode::Dense) + usize::from(version < MetadataVersion::V5)
        }
        _ => 2,
    }
}

/// True for types whose values refer to parts of any number of buffers.
pub(super) fn is_view(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8View | DataType::BinaryView)
}

fn has_dictionary(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, _) => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::Map(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => has_dictionary(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_dictionary(field.data_type())),
        DataType::Union(fields, _) => fields.iter().any(|(_, field)| has_dictionary(field.data_type())),
        DataType::RunEndEncoded(_, values) => has_dictionary(values.data_type()),
        _ => false,
    }
}
