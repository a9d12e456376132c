//! What a job wants of a row, and how that row lies in a frame.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arrow_schema::{DataType, Field, FieldRef, IntervalUnit, Schema, SchemaRef};
use forebay_proto::v1;
use forebay_sql::Expression;
use forebay_storage::Snapshot;
use xxhash_rust::xxh3::xxh3_128;

use crate::{Error, compute, tensor};

/// The columns and tensors of a job, resolved against a snapshot: the delivered schema and the layout
/// of a [`Frame`](crate::Frame).
///
/// A row of a frame has a fixed number of bytes, so that one read from memory brings all of it:
///
/// ```text
/// | tensors | plain columns of fixed width | start in the heap, length of each value there | validity bits |
/// |<------------------------------ stride --------------------------------------------------------------->|
///                                          |<----------------------- tail ----------------------------->|
/// ```
///
/// Strings, binary and lists of fixed-width items lie in the frame's *heap*, those of one row together. A
/// column that may have nulls has a bit in each row. What is nested deeper lies column by column.
#[derive(Debug)]
pub struct View {
    pub(crate) parts: Vec<Part>,
    schema: SchemaRef,
    /// What it is made of, and last, if there is a filter, which rows are kept.
    columns: Vec<Source>,
    /// Names and types of these.
    made_of: SchemaRef,
    /// The columns of the snapshot that have to be read for it, in the order in which it names them.
    projection: Vec<usize>,
    filter: Option<Arc<Expression>>,
    /// Bytes of a row.
    pub(crate) stride: usize,
    /// Where a row's tail begins.
    pub(crate) tail: usize,
    /// Where a row's validity bits begin.
    pub(crate) validity: usize,
    /// Of each column whose values lie in the heap, what they are made of.
    pub(crate) variable_items: Vec<Items>,
    pub(crate) nested_count: usize,
    key: u128,
}

/// Where the values of a column come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// The snapshot's column of this position.
    Stored(usize),
    /// What an expression makes of some of them.
    Computed(Arc<Expression>),
}

/// One delivered column.
#[derive(Debug)]
pub(crate) enum Part {
    /// A column of fixed width.
    Fixed { input: usize, offset: usize, width: usize, bit: bool, nulls: Nulls },
    /// Strings, binary, or lists of items of a fixed width; `wide` ones have 64-bit offsets on the wire.
    Variable { input: usize, index: usize, items: Items, wide: bool, nulls: Nulls },
    /// Everything else goes through Arrow's kernels.
    Nested { input: usize, index: usize },
    /// A tensor of `inputs.len()` columns.
    Tensor { inputs: Vec<usize>, offset: usize, width: usize, dtype: DataType, fill: Option<f64> },
}

/// What a value in the heap is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Items {
    /// Bytes of a string or binary.
    Bytes,
    /// Items of a list, each of this many bytes.
    OfWidth(usize),
}

/// Bit among a row's validity bits; `None` when the footers rule nulls out.
pub(crate) type Nulls = Option<usize>;

impl View {
    /// Resolves `select`, `filter`, `columns` and `tensors` of a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for names that are unknown (with the near ones) or double, types that make
    /// no tensor, nulls without a fill where the footers tell, and
    /// expressions that are none.
    pub fn resolve(snapshot: &Snapshot, train: &v1::Train) -> Result<Self, Error> {
        let v1::Train { select, columns, tensors, .. } = train;
        let filter = filter(snapshot, &train.filter)?;
        let mut builder = Builder::new(snapshot, select, filter.is_some())?;
        if columns.is_empty() && tensors.is_empty() {
            let all = if select.is_empty() { builder.known.len() } else { select.len() };
            for index in 0..all {
                builder.plain(index)?;
            }
        }
        for name in columns {
            let index = builder.find("columns", name)?;
            builder.plain(index)?;
        }
        for request in tensors {
            builder.tensor(request)?;
        }
        builder.build(filter)
    }

    /// The delivered schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// What decides which rows are kept, if not all are.
    pub fn filter(&self) -> Option<&Arc<Expression>> {
        self.filter.as_ref()
    }

    /// What the view is made of, and last, if there is a filter, which rows are kept.
    pub(crate) fn columns(&self) -> &[Source] {
        &self.columns
    }

    /// Names and types of [`columns`](Self::columns).
    pub(crate) fn made_of(&self) -> &SchemaRef {
        &self.made_of
    }

    /// The columns of the snapshot that this view reads, in the order in which they are decoded.
    pub fn projection(&self) -> &[usize] {
        &self.projection
    }

    /// Names the view: equal exactly for equal layouts and conversions.
    pub fn key(&self) -> u128 {
        self.key
    }

    /// Bytes that a row takes on the wire at least: its fixed-width values and offsets, bits not counted.
    pub(crate) fn least_row_bytes(&self) -> u64 {
        let bytes = self.parts.iter().map(|part| match part {
            Part::Fixed { bit: true, .. } | Part::Nested { .. } => 0,
            Part::Fixed { width, .. } => *width,
            Part::Variable { wide, .. } => {
                if *wide {
                    8
                } else {
                    4
                }
            }
            Part::Tensor { inputs, width, .. } => inputs.len() * width,
        });
        bytes.sum::<usize>() as u64
    }

    /// Estimated bytes of the frame of one block, of which `kept` rows are kept.
    pub fn frame_bytes(&self, snapshot: &Snapshot, block: usize, kept: u32) -> u64 {
        let (all, rows) = (u64::from(snapshot.blocks()[block].rows), u64::from(kept));
        let share = |bytes: u64| (u128::from(bytes) * u128::from(rows) / u128::from(all.max(1))) as u64;
        let column_bytes = |input: usize| match &self.columns[input] {
            Source::Stored(column) => share(snapshot.column_bytes(block, *column)),
            // About what it is made from.
            Source::Computed(made) => {
                let inputs = made.inputs().iter().map(|column| share(snapshot.column_bytes(block, *column)));
                inputs.fold(8 * rows, u64::saturating_add)
            }
        };
        let by_column = self.parts.iter().map(|part| match part {
            Part::Variable { input, .. } | Part::Nested { input, .. } => column_bytes(*input),
            Part::Fixed { .. } | Part::Tensor { .. } => 0,
        });
        let by_row = rows.saturating_mul(self.stride as u64);
        by_column.fold(by_row, u64::saturating_add)
    }
}

/// Names longer than this, in bytes, are near to none.
const MAX_NEAR_BYTES: usize = 256;
/// Most columns and tensors of a view.
const MAX_COLUMNS: usize = 1 << 16;
/// Most expressions of a view.
const MAX_SELECTED: usize = 4096;
/// Most names and prefixes of a tensor's columns.
const MAX_PATTERNS: usize = 4096;

/// Names in `known` that `name` may have meant, nearest first.
pub fn near<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    if name.len() > MAX_NEAR_BYTES {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &str)> = known
        .into_iter()
        .map(|other| (strsim::jaro_winkler(&name.to_lowercase(), &other.to_lowercase()), other))
        .filter(|(score, _)| *score > 0.75)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.into_iter().take(3).map(|(_, other)| other).collect()
}

/// Width in bytes of a type whose values all have one, as it lies in a frame (a bool takes a byte).
pub(crate) fn fixed_width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok().filter(|width| *width > 0),
        DataType::Interval(IntervalUnit::MonthDayNano) => Some(16),
        other => other.primitive_width(),
    }
}

struct Builder<'a> {
    snapshot: &'a Snapshot,
    /// Whether some rows may be left out.
    filtered: bool,
    /// What a request may name: first what it selects, then the columns of the snapshot.
    known: Vec<Known>,
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
struct Known {
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
    fn new(snapshot: &'a Snapshot, select: &[String], filtered: bool) -> Result<Self, Error> {
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

    fn find(&self, field: &str, name: &str) -> Result<usize, Error> {
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

    fn plain(&mut self, column: usize) -> Result<(), Error> {
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

    fn tensor(&mut self, request: &v1::Tensor) -> Result<(), Error> {
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

    fn build(mut self, filter: Option<Arc<Expression>>) -> Result<View, Error> {
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
