//! Builds a view from a request: resolves names and computes the row layout.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arrow_schema::{DataType, Field, FieldRef, Schema};
use forebay_proto::{DISTINCT, LAYOUT, RAGGED, v1};
use forebay_sql::{Expression, MAX_COMPLEXITY};
use forebay_storage::{Snapshot, cache_key};

use super::{
    HeapItems, Nulls, Output, TensorSource, TensorValues, View, closest_names,
    expressions::{Expressions, MAX_SELECTED},
    fixed_width, similar_names,
    source::{Reads, Source},
    tensor,
};
use crate::Error;

/// Maximum number of columns and tensors in a view.
const MAX_COLUMNS: usize = 1 << 16;
/// Maximum number of names and prefixes in the columns of a tensor.
const MAX_PATTERNS: usize = 4096;
/// Maximum number of columns of all tensors of a view. A column counts once for each tensor that contains it.
const MAX_TENSOR_COLUMNS: usize = 1 << 16;
/// Maximum number of key columns.
const MAX_KEYS: usize = 64;
/// Maximum `max_list_length` of a tensor.
const MAX_LEN: u64 = 1 << 20;
/// Maximum number of columns that the error about an unknown column lists, and of the bytes of their names.
const MAX_LISTED_COLUMNS: usize = 20;
const MAX_LISTED_BYTES: usize = 1024;
/// Column that marks real rows of padded batches.
const VALID: &str = "valid";

pub(super) struct Builder<'a> {
    snapshot: &'a Snapshot,
    select: &'a [String],
    /// True if a filter may drop rows.
    filtered: bool,
    /// True if every plain column is nullable, so that rows have the same layout as those of other datasets.
    alike: bool,
    /// Columns that a request may name: selected expressions first, then columns of the snapshot.
    pub(super) known: Vec<Known>,
    /// Index in `known` of the first column of each name.
    by_name: HashMap<String, usize>,
    /// Values of `by_name`, sorted by name.
    sorted: Vec<usize>,
    /// Index in `columns` of each used column of `known`.
    inputs: HashMap<usize, usize>,
    delivered: HashSet<String>,
    fields: Vec<FieldRef>,
    outputs: Vec<Output>,
    columns: Vec<Source>,
    input_schema: Vec<FieldRef>,
    validity_bits: usize,
    variable_items: Vec<HeapItems>,
    nested_count: usize,
    /// Number of columns of all tensors so far.
    tensor_columns: usize,
    tables: usize,
    group_keys: Vec<usize>,
    grouped_by: Vec<String>,
}

/// Column that a request may name.
pub(super) struct Known {
    field: FieldRef,
    source: Source,
    /// Number of nulls; `None` if unknown.
    nulls: Option<u64>,
}

/// Resolves the `select` expressions of a request.
fn selected(snapshot: &Snapshot, select: &[String], compiled: &Expressions) -> Result<Vec<Known>, Error> {
    if select.len() > MAX_SELECTED {
        let reason = format!("holds {} expressions, expected at most {MAX_SELECTED}", select.len());
        return Err(Error::invalid("select", reason));
    }
    let (mut names, mut known) = (HashSet::new(), Vec::with_capacity(select.len()));
    let mut complexity = 0;
    for (index, text) in select.iter().enumerate() {
        let place = format!("select[{index}]");
        let expression = compiled
            .column(text, snapshot)
            .map_err(|error| expression_error(&place, error, snapshot.schema()))?;
        complexity += expression.complexity();
        if complexity > MAX_COMPLEXITY {
            let reason = format!(
                "is too complex, together with the expressions before it: {complexity} of {MAX_COMPLEXITY}"
            );
            return Err(Error::invalid(place, reason));
        }
        let field = Arc::clone(expression.field());
        if !names.insert(field.name().clone()) {
            return Err(Error::invalid(place, format!("two expressions have the name '{}'", field.name())));
        }
        known.push(match expression.is_column() {
            Some(column) => Known { field, source: Source::Stored(column), nulls: snapshot.nulls(column) },
            None => {
                let has_nulls = |name: &str| match snapshot.schema().column_with_name(name) {
                    Some((column, field)) => field.is_nullable() && snapshot.nulls(column) != Some(0),
                    None => true,
                };
                let none = !field.is_nullable() || expression.is_never_null(has_nulls);
                let nulls = none.then_some(0);
                Known { field, source: Source::Computed(expression), nulls }
            }
        });
    }
    Ok(known)
}

pub(super) fn expression_error(field: &str, error: forebay_sql::Error, schema: &Schema) -> Error {
    match error {
        forebay_sql::Error::UnknownColumn(name) => {
            let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            let mut reason = unknown_column(&name, &known);
            if similar_names(&name, known.iter().copied()).is_empty() {
                // Many databases accept text in double quotes.
                reason.push_str(
                    "; text is written in single quotes, a name in double quotes is that of a column",
                );
            }
            Error::invalid(field, reason)
        }
        forebay_sql::Error::Memory(reason) => Error::Unavailable(format!("{field}: {reason}")),
        other => Error::invalid(field, other.to_string()),
    }
}

/// Returns the position of the column `name` in `schema`. `requested` is the request field, used in the error.
///
/// # Errors
/// Returns [`Error::Invalid`] with similar names if there is no such column.
pub fn find_column(requested: &str, name: &str, schema: &Schema) -> Result<usize, Error> {
    schema.index_of(name).map_err(|_| {
        let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        Error::invalid(requested, unknown_column(name, &known))
    })
}

fn unknown_column(name: &str, known: &[&str]) -> String {
    let similar = similar_names(name, known.iter().copied());
    let bytes: usize = known.iter().map(|name| name.len()).sum();
    let hint = match known.len() {
        _ if !similar.is_empty() => format!("did you mean {}?", quoted(&similar)),
        0 => "the dataset has no columns".to_owned(),
        count if count <= MAX_LISTED_COLUMNS && bytes <= MAX_LISTED_BYTES => {
            format!("the dataset has the columns {}", listed(known))
        }
        count => {
            let closest = closest_names(name, known);
            let names = match closest.is_empty() {
                true => String::new(),
                false => format!(", the closest are {}", listed(&closest)),
            };
            format!("the dataset has {count} columns{names}")
        }
    };
    format!("there is no column '{name}'; {hint}")
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        snapshot: &'a Snapshot,
        (select, compiled): (&'a [String], &Expressions),
        filtered: bool,
        alike: bool,
    ) -> Result<Self, Error> {
        let mut known = selected(snapshot, select, compiled)?;
        let stored = snapshot.schema().fields().iter().enumerate().map(|(column, field)| Known {
            field: Arc::clone(field),
            source: Source::Stored(column),
            nulls: snapshot.nulls(column),
        });
        known.extend(stored);
        let mut by_name = HashMap::with_capacity(known.len());
        for (index, column) in known.iter().enumerate() {
            by_name.entry(column.field.name().clone()).or_insert(index);
        }
        let is_first = |index: &usize| by_name.get(known[*index].field.name()) == Some(index);
        let mut sorted: Vec<usize> = (0..known.len()).filter(is_first).collect();
        sorted.sort_unstable_by(|a, b| known[*a].field.name().cmp(known[*b].field.name()));
        Ok(Self {
            snapshot,
            select,
            filtered,
            alike,
            known,
            by_name,
            sorted,
            inputs: HashMap::new(),
            delivered: HashSet::new(),
            fields: Vec::new(),
            outputs: Vec::new(),
            columns: Vec::new(),
            input_schema: Vec::new(),
            validity_bits: 0,
            variable_items: Vec::new(),
            nested_count: 0,
            tensor_columns: 0,
            tables: 0,
            group_keys: Vec::new(),
            grouped_by: Vec::new(),
        })
    }

    pub(super) fn find(&self, field: &str, name: &str) -> Result<usize, Error> {
        self.by_name.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.known.iter().map(|known| known.field.name().as_str()).collect();
            Error::invalid(field, unknown_column(name, &known))
        })
    }

    /// Returns the index in `columns` of a known column, adding the column on first use.
    fn input(&mut self, known: usize) -> usize {
        *self.inputs.entry(known).or_insert_with(|| {
            let Known { field, source, .. } = &self.known[known];
            self.columns.push(source.clone());
            self.input_schema.push(Arc::clone(field));
            self.columns.len() - 1
        })
    }

    /// Adds a delivered column. `requested` is the request field that creates it, used in errors.
    fn deliver(&mut self, requested: &str, field: FieldRef) -> Result<(), Error> {
        if !self.delivered.insert(field.name().clone()) {
            let name = field.name();
            let reason = match requested {
                "columns" => format!("'{name}' is requested twice"),
                _ => format!("it delivers a column '{name}', which another field delivers as well"),
            };
            return Err(Error::invalid(requested, reason));
        }
        if self.fields.len() == MAX_COLUMNS {
            return Err(Error::invalid("columns", format!("more than {MAX_COLUMNS} columns and tensors")));
        }
        self.fields.push(field);
        Ok(())
    }

    pub(super) fn plain(&mut self, column: usize) -> Result<(), Error> {
        let mut field = Arc::clone(&self.known[column].field);
        if self.alike {
            field = Arc::new(Field::new(field.name(), field.data_type().clone(), true));
        }
        self.deliver("columns", Arc::clone(&field))?;
        let input = self.input(column);
        let data_type = field.data_type();
        let output = match (fixed_width(data_type), data_type) {
            (Some(width), _) => {
                let (bit, nulls) = (*data_type == DataType::Boolean, self.nulls(column));
                // The offset is set in `build`, when the width of all tensors is known.
                Output::Fixed { input, offset: 0, width, bit, nulls }
            }
            (None, variable) if let Some((items, wide)) = items_of(variable) => {
                let index = self.variable_items.len();
                self.variable_items.push(items);
                Output::Variable { input, index, items, wide, nulls: self.nulls(column) }
            }
            (None, nested) if deliverable(nested) => {
                let index = self.nested_count;
                self.nested_count += 1;
                Output::Nested { input, index }
            }
            (None, other) => {
                let reason = format!("'{}' is of type {other}, which is not supported", field.name());
                return Err(Error::invalid("columns", reason));
            }
        };
        self.outputs.push(output);
        Ok(())
    }

    fn nulls(&mut self, column: usize) -> Nulls {
        let Known { field, nulls, .. } = &self.known[column];
        let possible = self.alike || (field.is_nullable() && *nulls != Some(0));
        possible.then(|| {
            self.validity_bits += 1;
            self.validity_bits - 1
        })
    }

    pub(super) fn tensor(&mut self, request: &v1::Tensor) -> Result<(), Error> {
        let v1::Tensor { name, columns, dtype, null_value: fill, max_list_length, ragged } = request;
        let field = format!("tensors.{name}");
        let values = match (max_list_length, ragged) {
            (Some(_), true) => {
                let reason = "max_list_length and ragged exclude each other: one pads lists, the other keeps their lengths";
                return Err(Error::invalid(field, reason));
            }
            (Some(len), false) if (1..=MAX_LEN).contains(len) => Some(TensorValues::Items(*len as usize)),
            (Some(len), false) => {
                let reason = format!("is {len}, expected 1 to {MAX_LEN}");
                return Err(Error::invalid(format!("{field}.max_list_length"), reason));
            }
            (None, true) => None,
            (None, false) => Some(TensorValues::Value),
        };
        let source =
            self.tensor_source(&field, name, columns, dtype, *fill, values == Some(TensorValues::Value))?;
        let Some(values) = values else { return self.ragged(&field, name, source) };
        let len = source.count().saturating_mul(values.len());
        let masked =
            matches!(values, TensorValues::Items(_)).then(|| (source.inputs.clone(), source.counts.clone()));
        self.deliver(&field, rows_of(&field, name, &source.dtype, len)?)?;
        self.outputs.push(Output::Tensor { source, offset: 0, len, values });
        let Some((inputs, counts)) = masked else { return Ok(()) };
        self.deliver(&field, rows_of(&field, &format!("{name}_mask"), &DataType::UInt8, len)?)?;
        let source = TensorSource { inputs, counts, dtype: DataType::UInt8, width: 1, fill: None };
        self.outputs.push(Output::Tensor {
            source,
            offset: 0,
            len,
            values: TensorValues::Mask(values.len()),
        });
        Ok(())
    }

    fn ragged(&mut self, field: &str, name: &str, source: TensorSource) -> Result<(), Error> {
        self.deliver(field, list_of(name, source.dtype.clone(), RAGGED))?;
        self.deliver(field, list_of(&format!("{name}_lengths"), DataType::Int32, RAGGED))?;
        let first = self.variable_items.len();
        self.variable_items.extend(source.inputs.iter().map(|_| HeapItems::OfWidth(source.width)));
        self.outputs.push(Output::Ragged { source, first });
        Ok(())
    }

    pub(super) fn dedupe(&mut self, request: &v1::Dedupe) -> Result<(), Error> {
        let v1::Dedupe { key, tensor: name, columns, dtype, null_value: fill } = request;
        let field = format!("dedupe.{name}");
        let keys = self.keys(&format!("{field}.key"), key)?;
        let source = self.tensor_source(&field, name, columns, dtype, *fill, true)?;
        let len = source.count();
        let row = rows_of(&field, name, &source.dtype, len)?;
        self.deliver(&field, list_of(name, row.data_type().clone(), DISTINCT))?;
        self.deliver(&field, Arc::new(Field::new(format!("{name}_index"), DataType::Int32, false)))?;
        self.outputs.push(Output::Distinct { source, len, table: self.tables, keys });
        self.tables += 1;
        Ok(())
    }

    /// Resolves the columns of `group_by`.
    pub(super) fn group_by(&mut self, names: &[String]) -> Result<(), Error> {
        self.group_keys = self.keys("group_by", names)?;
        for name in names {
            let known = self.find("group_by", name)?;
            self.grouped_by.push(self.select.get(known).unwrap_or(name).clone());
        }
        Ok(())
    }

    /// Resolves key columns. Returns an error for duplicate names and nested types.
    fn keys(&mut self, field: &str, names: &[String]) -> Result<Vec<usize>, Error> {
        if names.is_empty() || names.len() > MAX_KEYS {
            let reason = format!("names {} columns, expected 1 to {MAX_KEYS}", names.len());
            return Err(Error::invalid(field, reason));
        }
        let (mut keys, mut seen) = (Vec::with_capacity(names.len()), HashSet::new());
        for name in names {
            let known = self.find(field, name)?;
            let Known { field: of, source, .. } = &self.known[known];
            if of.data_type().is_nested() {
                let reason = format!("column '{name}' is of type {}, which cannot be a key", of.data_type());
                return Err(Error::invalid(field, reason));
            }
            if !seen.insert(source.identity(self.snapshot)) {
                return Err(Error::invalid(field, format!("'{name}' occurs twice")));
            }
            keys.push(self.input(known));
        }
        Ok(keys)
    }

    pub(super) fn valid(&mut self, packed: bool) -> Result<(), Error> {
        let bounded = packed || self.group_keys.is_empty();
        if self.nested_count > 0 || self.tables > 0 || !bounded {
            let reason = "PAD requires batches of one size, which group_by (without max_pack_rows), dedupe and columns of \
                          nested type do not have";
            return Err(Error::invalid("remainder", reason));
        }
        self.real(VALID)
    }

    /// Adds a column that marks real rows.
    pub(super) fn real(&mut self, name: &str) -> Result<(), Error> {
        let requested = if name == VALID { "remainder" } else { "lookup" };
        self.deliver(requested, Arc::new(Field::new(name, DataType::UInt8, false)))?;
        self.outputs.push(Output::Real);
        Ok(())
    }

    /// Resolves the input columns and the element type of a tensor. If `plain`, each column has one value or a fixed-size list per row,
    /// otherwise a list of any length.
    fn tensor_source(
        &mut self,
        field: &str,
        name: &str,
        columns: &[String],
        dtype: &str,
        fill: Option<f64>,
        plain: bool,
    ) -> Result<TensorSource, Error> {
        if name.is_empty() {
            let kind = field.split('.').next().unwrap_or(field);
            return Err(Error::invalid(kind, "a tensor has no name"));
        }
        let columns = self.tensor_columns(field, columns)?;
        self.tensor_columns += columns.len();
        let (mut types, mut counts) = (Vec::with_capacity(columns.len()), Vec::with_capacity(columns.len()));
        for column in &columns {
            let Known { field: found, source, .. } = &self.known[*column];
            if let Source::Stored(column) = source {
                self.snapshot.check_supported(*column, "the request")?;
            }
            let invalid = |expected: &str| {
                let reason = format!("column '{}' is of type {}{expected}", found.name(), found.data_type());
                Err(Error::invalid(field, reason))
            };
            let (item, count) = match (found.data_type(), plain) {
                (DataType::List(item) | DataType::LargeList(item), false) => (item.data_type(), 1),
                (DataType::FixedSizeList(..), false) => {
                    return invalid(
                        "; leave out max_list_length and ragged for its lists, which have one length",
                    );
                }
                (_, false) => return invalid(", expected lists"),
                (DataType::List(_) | DataType::LargeList(_), true) => {
                    return invalid("; set max_list_length or ragged for its lists");
                }
                (DataType::FixedSizeList(item, len), true) => {
                    let len = u64::try_from(*len).unwrap_or(0);
                    if !(1..=MAX_LEN).contains(&len) {
                        return invalid(&format!(", expected 1 to {MAX_LEN} items"));
                    }
                    (item.data_type(), len as usize)
                }
                (other, true) => (other, 1),
            };
            types.push(item);
            counts.push(count);
        }
        let dtype = tensor::dtype(field, dtype, &types)?;
        for (column, from) in columns.iter().zip(types) {
            let Known { field: of, nulls, source } = &self.known[*column];
            tensor::check_convertible(field, of.name(), from, &dtype)?;
            // The filter may drop all rows with nulls.
            let all_kept = !self.filtered && plain && matches!(source, Source::Stored(_));
            if let (None, true, Some(nulls @ 1..)) = (fill, all_kept, nulls) {
                let reason =
                    format!("column '{}' has {nulls} nulls; set null_value for the tensor", of.name());
                return Err(Error::invalid(field, reason));
            }
        }
        if let Some(fill) = fill {
            tensor::check_fill(field, fill, &dtype)?;
        }
        let width = fixed_width(&dtype).ok_or_else(|| Error::Internal(format!("{dtype} has no width")))?;
        let inputs = columns.into_iter().map(|column| self.input(column)).collect();
        Ok(TensorSource { inputs, counts, dtype, width, fill })
    }

    /// Resolves the names and prefixes of the columns of a tensor. A prefix stands for its columns in the order of `known`.
    fn tensor_columns(&self, field: &str, patterns: &[String]) -> Result<Vec<usize>, Error> {
        if patterns.is_empty() || patterns.len() > MAX_PATTERNS {
            let reason = format!("names {} columns, expected 1 to {MAX_PATTERNS}", patterns.len());
            return Err(Error::invalid(field, reason));
        }
        let (mut columns, mut seen) = (Vec::new(), HashSet::new());
        for pattern in patterns {
            let named;
            let found = match pattern.strip_suffix('*') {
                Some(prefix) => self.with_prefix(field, prefix)?,
                None => {
                    named = [self.find(field, pattern)?];
                    &named[..]
                }
            };
            // The total is checked before the columns are added, because a short prefix may stand for many columns.
            let first = columns.len();
            let total = self.tensor_columns + first + found.len();
            if total > MAX_TENSOR_COLUMNS {
                let reason = format!(
                    "has, together with the tensors before it, {total} columns or more, expected at most {MAX_TENSOR_COLUMNS}"
                );
                return Err(Error::invalid(field, reason));
            }
            columns.extend_from_slice(found);
            columns[first..].sort_unstable();
            if let Some(twice) = columns[first..].iter().find(|column| !seen.insert(**column)) {
                let name = self.known[*twice].field.name();
                return Err(Error::invalid(field, format!("column '{name}' is requested twice")));
            }
        }
        Ok(columns)
    }

    /// Returns the columns whose names begin with `prefix`, in the order of their names.
    fn with_prefix(&self, field: &str, prefix: &str) -> Result<&[usize], Error> {
        let name = |column: usize| self.known[column].field.name().as_str();
        let start = self.sorted.partition_point(|column| name(*column) < prefix);
        let rest = &self.sorted[start..];
        let found = &rest[..rest.partition_point(|column| name(*column).starts_with(prefix))];
        if found.is_empty() {
            return Err(Error::invalid(field, format!("no column begins with '{prefix}'")));
        }
        Ok(found)
    }

    /// Source columns added so far.
    pub(super) fn into_columns(self) -> Vec<Source> {
        self.columns
    }

    pub(super) fn build(mut self, filter: Option<Arc<Expression>>) -> Result<View, Error> {
        let mut stride = 0;
        for output in &mut self.outputs {
            if let Output::Tensor { source, offset, len, .. } = output {
                *offset = stride;
                stride += *len * source.width;
            }
        }
        for output in &mut self.outputs {
            if let Output::Fixed { offset, width, .. } = output {
                *offset = stride;
                stride += *width;
            }
        }
        let tail = stride;
        if !self.variable_items.is_empty() {
            stride += size_of::<u32>() * (1 + self.variable_items.len());
        }
        let validity = stride;
        stride += self.validity_bits.div_ceil(8);
        let schema = Schema::new(self.fields);
        if let Some(filter) = &filter {
            self.columns.push(Source::Computed(Arc::clone(filter)));
            self.input_schema.push(Arc::clone(filter.field()));
        }
        let projection = Reads::of(&self.columns).to_vec();
        for column in &projection {
            self.snapshot.check_supported(*column, "the request")?;
        }
        let inputs: Vec<u128> = self.columns.iter().map(|source| source.identity(self.snapshot)).collect();
        // NaNs with different bits have the same debug representation, so the bits are hashed, too.
        let fills: Vec<u64> =
            self.outputs.iter().filter_map(|output| output.fill().map(f64::to_bits)).collect();
        let key = (&self.outputs, inputs, filter.is_some(), &self.group_keys, fills);
        let key = cache_key(format!("{key:?}").as_bytes());
        Ok(View {
            outputs: self.outputs,
            schema: Arc::new(schema),
            projection,
            columns: self.columns,
            input_schema: Arc::new(Schema::new(self.input_schema)),
            filter,
            stride,
            tail,
            validity,
            variable_items: self.variable_items,
            nested_count: self.nested_count,
            group_keys: self.group_keys,
            grouped_by: self.grouped_by,
            key,
        })
    }
}

/// Field of a tensor with `len` values per row.
fn rows_of(field: &str, name: &str, dtype: &DataType, len: usize) -> Result<FieldRef, Error> {
    let size = i32::try_from(len).map_err(|_| Error::invalid(field, "has too many values per row"))?;
    let item = Arc::new(Field::new("item", dtype.clone(), false));
    Ok(Arc::new(Field::new(name, DataType::FixedSizeList(item, size), false)))
}

/// Field of a list column whose length differs from the number of rows. Clients detect it by the `layout` metadata.
fn list_of(name: &str, item: DataType, layout: &str) -> FieldRef {
    let item = Arc::new(Field::new("item", item, false));
    let field = Field::new(name, DataType::List(item), false);
    Arc::new(field.with_metadata(HashMap::from([(LAYOUT.to_owned(), layout.to_owned())])))
}

/// Returns the item type of values that are stored in the heap, and true if their offsets have 64 bits.
fn items_of(data_type: &DataType) -> Option<(HeapItems, bool)> {
    let list = |field: &Field| match field.data_type() {
        // Boolean lists are bit-packed and may not start at a byte boundary.
        DataType::Boolean => None,
        item => fixed_width(item).map(HeapItems::OfWidth),
    };
    match data_type {
        DataType::Utf8 | DataType::Binary => Some((HeapItems::Bytes, false)),
        DataType::LargeUtf8 | DataType::LargeBinary => Some((HeapItems::Bytes, true)),
        DataType::List(field) => list(field).map(|items| (items, false)),
        DataType::LargeList(field) => list(field).map(|items| (items, true)),
        _ => None,
    }
}

/// Returns true if the canonical encoder supports the type.
fn deliverable(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null | DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => {
            true
        }
        DataType::FixedSizeBinary(_) => true,
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            deliverable(field.data_type())
        }
        DataType::Map(field, _) => deliverable(field.data_type()),
        DataType::Struct(fields) => fields.iter().all(|field| deliverable(field.data_type())),
        other => fixed_width(other).is_some(),
    }
}

fn quoted(names: &[&str]) -> String {
    joined(names, " or ")
}

fn listed(names: &[&str]) -> String {
    joined(names, ", ")
}

fn joined(names: &[&str], separator: &str) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(separator)
}
