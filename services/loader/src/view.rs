//! What a job wants of a row, and how that row lies in a frame.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arrow_schema::{DataType, Field, FieldRef, IntervalUnit, Schema, SchemaRef};
use forebay_proto::v1;
use forebay_storage::Snapshot;
use xxhash_rust::xxh3::xxh3_128;

use crate::{Error, tensor};

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
    projection: Vec<usize>,
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
    /// Resolves the `columns` and `tensors` of a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for names that are unknown (with the near ones) or double, types that make
    /// no tensor, and nulls without a fill where the footers tell.
    pub fn resolve(snapshot: &Snapshot, columns: &[String], tensors: &[v1::Tensor]) -> Result<Self, Error> {
        let mut builder = Builder::new(snapshot);
        if columns.is_empty() && tensors.is_empty() {
            for index in 0..snapshot.schema().fields().len() {
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
        builder.build()
    }

    /// The delivered schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
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

    /// Estimated bytes of the frame of one block.
    pub fn frame_bytes(&self, snapshot: &Snapshot, block: usize) -> u64 {
        let rows = u64::from(snapshot.blocks()[block].rows);
        let column_bytes = |input: usize| snapshot.column_bytes(block, self.projection[input]);
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
    /// Columns of the snapshot by name.
    columns: HashMap<&'a str, usize>,
    /// Where columns of the snapshot lie in the projection.
    inputs: HashMap<usize, usize>,
    delivered: HashSet<String>,
    fields: Vec<FieldRef>,
    parts: Vec<Part>,
    projection: Vec<usize>,
    validity_bits: usize,
    variable_items: Vec<Items>,
    nested_count: usize,
}

impl<'a> Builder<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let names = snapshot.schema().fields().iter().map(|field| field.name().as_str());
        Self {
            snapshot,
            columns: names.enumerate().map(|(index, name)| (name, index)).collect(),
            inputs: HashMap::new(),
            delivered: HashSet::new(),
            fields: Vec::new(),
            parts: Vec::new(),
            projection: Vec::new(),
            validity_bits: 0,
            variable_items: Vec::new(),
            nested_count: 0,
        }
    }

    fn find(&self, field: &str, name: &str) -> Result<usize, Error> {
        let schema = self.snapshot.schema();
        self.columns.get(name).copied().ok_or_else(|| {
            let near = near(name, schema.fields().iter().map(|f| f.name().as_str()));
            let hint = match near.is_empty() {
                true => format!("the dataset has {} columns", schema.fields().len()),
                false => format!("did you mean {}?", quoted(&near)),
            };
            Error::invalid(field, format!("there is no column '{name}'; {hint}"))
        })
    }

    fn input(&mut self, column: usize) -> usize {
        *self.inputs.entry(column).or_insert_with(|| {
            self.projection.push(column);
            self.projection.len() - 1
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
        let schema = Arc::clone(self.snapshot.schema());
        let field = &schema.fields()[column];
        self.deliver(Arc::clone(field))?;
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
        let possible =
            self.snapshot.schema().field(column).is_nullable() && self.snapshot.nulls(column) != Some(0);
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
        let schema = Arc::clone(self.snapshot.schema());
        let types: Vec<&DataType> = columns.iter().map(|column| schema.field(*column).data_type()).collect();
        let dtype = tensor::dtype(name, &request.dtype, &types)?;
        for column in &columns {
            let field = schema.field(*column);
            tensor::check_convertible(name, field, &dtype)?;
            if request.fill.is_none() && self.snapshot.nulls(*column).is_some_and(|nulls| nulls > 0) {
                let nulls = self.snapshot.nulls(*column).unwrap_or_default();
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
        let schema = self.snapshot.schema();
        if request.columns.is_empty() || request.columns.len() > MAX_PATTERNS {
            let reason = format!("names {} columns, expected 1 to {MAX_PATTERNS}", request.columns.len());
            return Err(Error::invalid(field, reason));
        }
        let (mut columns, mut seen) = (Vec::new(), HashSet::new());
        let mut add = |column: usize| {
            if !seen.insert(column) {
                let name = schema.field(column).name();
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
            for column in (0..schema.fields().len()).filter(|i| schema.field(*i).name().starts_with(prefix)) {
                add(column)?;
                found = true;
            }
            if !found {
                return Err(Error::invalid(&field, format!("no column begins with '{prefix}'")));
            }
        }
        Ok(columns)
    }

    fn build(mut self) -> Result<View, Error> {
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
        let inputs = self.projection.iter().map(|column| {
            let field = self.snapshot.schema().field(*column);
            (field.name(), field.data_type())
        });
        let key = xxh3_128(format!("{:?} {:?}", self.parts, inputs.collect::<Vec<_>>()).as_bytes());
        Ok(View {
            parts: self.parts,
            schema: Arc::new(schema),
            projection: self.projection,
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
