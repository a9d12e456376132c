//! From a request to a view: what it may name, and where that lies in a row.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arrow_schema::{DataType, Field, FieldRef, Schema};
use forebay_proto::v1;
use forebay_sql::Expression;
use forebay_storage::Snapshot;
use xxhash_rust::xxh3::xxh3_128;

use super::{Items, Nulls, Part, Source, View, fixed_width, near};
use crate::{Error, compute, tensor};

/// Most columns and tensors of a view.
const MAX_COLUMNS: usize = 1 << 16;
/// Most expressions of a view.
const MAX_SELECTED: usize = 4096;
/// Most names and prefixes of a tensor's columns.
const MAX_PATTERNS: usize = 4096;

pub(super) struct Builder<'a> {
    snapshot: &'a Snapshot,
    /// Whether some rows may be left out.
    filtered: bool,
    /// What a request may name: first what it selects, then the columns of the snapshot.
    pub(super) known: Vec<Known>,
    /// The first of each name.
    by_name: HashMap<String, usize>,
    /// Where what is known lies among `columns`.
    inputs: HashMap<usize, usize>,
    delivered: HashSet<String>,
    fields: Vec<FieldRef>,
    parts: Vec<Part>,
    columns: Vec<Source>,
    made_of: Vec<FieldRef>,
    validity_bits: usize,
    variable_items: Vec<Items>,
    nested_count: usize,
}

/// A column that may be named.
pub(super) struct Known {
    field: FieldRef,
    source: Source,
    /// Its nulls, where the footers tell.
    nulls: Option<u64>,
}

/// What a request selects.
fn selected(snapshot: &Snapshot, select: &[String]) -> Result<Vec<Known>, Error> {
    if select.len() > MAX_SELECTED {
        let reason = format!("holds {} expressions, expected at most {MAX_SELECTED}", select.len());
        return Err(Error::invalid("select", reason));
    }
    let (mut names, mut known) = (HashSet::new(), Vec::with_capacity(select.len()));
    for (index, text) in select.iter().enumerate() {
        let place = format!("select[{index}]");
        let expression = Expression::column(text, snapshot.schema())
            .map_err(|error| of_expression(&place, error, snapshot.schema()))?;
        let field = Arc::clone(expression.field());
        if !names.insert(field.name().clone()) {
            return Err(Error::invalid(place, format!("there are two expressions named '{}'", field.name())));
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
                Known { field, source: Source::Computed(Arc::new(expression)), nulls }
            }
        });
    }
    Ok(known)
}

/// The filter of a request, if it has one.
pub(crate) fn filter(snapshot: &Snapshot, text: &str) -> Result<Option<Arc<Expression>>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    let filter = Expression::filter(text, snapshot.schema());
    filter
        .map(|filter| Some(Arc::new(filter)))
        .map_err(|error| of_expression("filter", error, snapshot.schema()))
}

fn of_expression(field: &str, error: forebay_sql::Error, schema: &Schema) -> Error {
    match error {
        forebay_sql::Error::UnknownColumn(name) => {
            let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            Error::invalid(field, unknown_column(&name, &known))
        }
        other => Error::invalid(field, other.to_string()),
    }
}

fn unknown_column(name: &str, known: &[&str]) -> String {
    let near = near(name, known.iter().copied());
    let hint = match near.is_empty() {
        true => format!("the dataset has {} columns", known.len()),
        false => format!("did you mean {}?", quoted(&near)),
    };
    format!("there is no column '{name}'; {hint}")
}

impl<'a> Builder<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, select: &[String], filtered: bool) -> Result<Self, Error> {
        let mut known = selected(snapshot, select)?;
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
        Ok(Self {
            snapshot,
            filtered,
            known,
            by_name,
            inputs: HashMap::new(),
            delivered: HashSet::new(),
            fields: Vec::new(),
            parts: Vec::new(),
            columns: Vec::new(),
            made_of: Vec::new(),
            validity_bits: 0,
            variable_items: Vec::new(),
            nested_count: 0,
        })
    }

    pub(super) fn find(&self, field: &str, name: &str) -> Result<usize, Error> {
        self.by_name.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.known.iter().map(|known| known.field.name().as_str()).collect();
            Error::invalid(field, unknown_column(name, &known))
        })
    }

    /// Where a known column lies in the chunks that frames are built from.
    fn input(&mut self, known: usize) -> usize {
        *self.inputs.entry(known).or_insert_with(|| {
            let Known { field, source, .. } = &self.known[known];
            self.columns.push(source.clone());
            self.made_of.push(Arc::clone(field));
            self.columns.len() - 1
        })
    }

    fn deliver(&mut self, field: FieldRef) -> Result<(), Error> {
        if !self.delivered.insert(field.name().clone()) {
            return Err(Error::invalid("columns", format!("'{}' is asked for twice", field.name())));
        }
        if self.fields.len() == MAX_COLUMNS {
            return Err(Error::invalid("columns", format!("more than {MAX_COLUMNS} columns and tensors")));
        }
        self.fields.push(field);
        Ok(())
    }

    pub(super) fn plain(&mut self, column: usize) -> Result<(), Error> {
        let field = Arc::clone(&self.known[column].field);
        self.deliver(Arc::clone(&field))?;
        let input = self.input(column);
        let data_type = field.data_type();
        let part = match (fixed_width(data_type), data_type) {
            (Some(width), _) => {
                let (bit, nulls) = (*data_type == DataType::Boolean, self.nulls(column));
                // The offset is set once it is known how wide the tensors are.
                Part::Fixed { input, offset: 0, width, bit, nulls }
            }
            (None, variable) if let Some((items, wide)) = items_of(variable) => {
                let index = self.variable_items.len();
                self.variable_items.push(items);
                Part::Variable { input, index, items, wide, nulls: self.nulls(column) }
            }
            (None, nested) if deliverable(nested) => {
                let index = self.nested_count;
                self.nested_count += 1;
                Part::Nested { input, index }
            }
            (None, other) => {
                let reason = format!("'{}' is of type {other}, which can't be delivered", field.name());
                return Err(Error::invalid("columns", reason));
            }
        };
        self.parts.push(part);
        Ok(())
    }

    fn nulls(&mut self, column: usize) -> Nulls {
        let Known { field, nulls, .. } = &self.known[column];
        let possible = field.is_nullable() && *nulls != Some(0);
        possible.then(|| {
            self.validity_bits += 1;
            self.validity_bits - 1
        })
    }

    pub(super) fn tensor(&mut self, request: &v1::Tensor) -> Result<(), Error> {
        let name = &request.name;
        if name.is_empty() {
            return Err(Error::invalid("tensors", "a tensor has no name"));
        }
        let columns = self.tensor_columns(request)?;
        let types: Vec<&DataType> =
            columns.iter().map(|column| self.known[*column].field.data_type()).collect();
        let dtype = tensor::dtype(name, &request.dtype, &types)?;
        for column in &columns {
            let Known { field, nulls, source } = &self.known[*column];
            tensor::check_convertible(name, field, &dtype)?;
            // A filter may leave none.
            let all_kept = !self.filtered && matches!(source, Source::Stored(_));
            if let (None, true, Some(nulls @ 1..)) = (request.fill, all_kept, nulls) {
                let reason = format!("column '{}' has {nulls} nulls; give the tensor a fill", field.name());
                return Err(Error::invalid(format!("tensors.{name}"), reason));
            }
        }
        if let Some(fill) = request.fill {
            tensor::check_fill(name, fill, &dtype)?;
        }
        let size = i32::try_from(columns.len())
            .map_err(|_| Error::invalid(format!("tensors.{name}"), "has too many columns"))?;
        let item = Arc::new(Field::new("item", dtype.clone(), false));
        self.deliver(Arc::new(Field::new(name, DataType::FixedSizeList(item, size), false)))?;
        let width = fixed_width(&dtype).ok_or_else(|| Error::Internal(format!("{dtype} has no width")))?;
        let inputs = columns.into_iter().map(|column| self.input(column)).collect();
        self.parts.push(Part::Tensor { inputs, offset: 0, width, dtype, fill: request.fill });
        Ok(())
    }

    fn tensor_columns(&self, request: &v1::Tensor) -> Result<Vec<usize>, Error> {
        let field = format!("tensors.{}", request.name);
        if request.columns.is_empty() || request.columns.len() > MAX_PATTERNS {
            let reason = format!("names {} columns, expected 1 to {MAX_PATTERNS}", request.columns.len());
            return Err(Error::invalid(field, reason));
        }
        let (mut columns, mut seen) = (Vec::new(), HashSet::new());
        let mut add = |column: usize| {
            if !seen.insert(column) {
                let name = self.known[column].field.name();
                return Err(Error::invalid(&field, format!("column '{name}' is asked for twice")));
            }
            columns.push(column);
            Ok(())
        };
        for pattern in &request.columns {
            let Some(prefix) = pattern.strip_suffix('*') else {
                add(self.find(&field, pattern)?)?;
                continue;
            };
            let mut found = false;
            for (column, known) in self.known.iter().enumerate() {
                let name = known.field.name();
                if name.starts_with(prefix) && self.by_name.get(name) == Some(&column) {
                    add(column)?;
                    found = true;
                }
            }
            if !found {
                return Err(Error::invalid(&field, format!("no column begins with '{prefix}'")));
            }
        }
        Ok(columns)
    }

    pub(super) fn build(mut self, filter: Option<Arc<Expression>>) -> Result<View, Error> {
        let mut stride = 0;
        for part in &mut self.parts {
            if let Part::Tensor { inputs, offset, width, .. } = part {
                *offset = stride;
                stride += inputs.len() * *width;
            }
        }
        for part in &mut self.parts {
            if let Part::Fixed { offset, width, .. } = part {
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
            self.made_of.push(Arc::clone(filter.field()));
        }
        let stored = self.snapshot.schema();
        let inputs = self.columns.iter().map(|source| match source {
            Source::Stored(column) => {
                format!("{:?} {:?}", stored.field(*column).name(), stored.field(*column).data_type())
            }
            Source::Computed(made) => format!("{:032x}", made.identity()),
        });
        let inputs: Vec<String> = inputs.collect();
        let key = xxh3_128(format!("{:?} {inputs:?} {}", self.parts, filter.is_some()).as_bytes());
        Ok(View {
            parts: self.parts,
            schema: Arc::new(schema),
            projection: compute::reads(&self.columns),
            columns: self.columns,
            made_of: Arc::new(Schema::new(self.made_of)),
            filter,
            stride,
            tail,
            validity,
            variable_items: self.variable_items,
            nested_count: self.nested_count,
            key,
        })
    }
}

/// What values of a type are made of that lie in the heap, and whether their offsets have 64 bits.
fn items_of(data_type: &DataType) -> Option<(Items, bool)> {
    let list = |field: &Field| match field.data_type() {
        // Bits don't begin at bytes.
        DataType::Boolean => None,
        item => fixed_width(item).map(Items::OfWidth),
    };
    match data_type {
        DataType::Utf8 | DataType::Binary => Some((Items::Bytes, false)),
        DataType::LargeUtf8 | DataType::LargeBinary => Some((Items::Bytes, true)),
        DataType::List(field) => list(field).map(|items| (items, false)),
        DataType::LargeList(field) => list(field).map(|items| (items, true)),
        _ => None,
    }
}

/// Whether the canonical encoder knows the type.
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
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(" or ")
}
