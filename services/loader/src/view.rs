//! Columns and tensors of a job, and the layout of a row in a frame.

mod builder;

use std::sync::Arc;

use arrow_schema::{DataType, IntervalUnit, SchemaRef};
use forebay_proto::v1;
use forebay_sql::{Expression, Identity};
use forebay_storage::Snapshot;

pub use builder::find_column;
pub(crate) use builder::question;

use crate::{Error, counts::Question};
use builder::{Builder, filter};

/// Columns and tensors of a job, resolved against a snapshot: the delivered schema and the layout of a
/// [`Frame`](crate::Frame).
///
/// A row of a frame has a fixed number of bytes, stored contiguously, so that one random memory access reads the whole
/// row:
///
/// ```text
/// | tensors | plain columns of fixed width | start in the heap, length of each value there | validity bits |
/// |<------------------------------ stride --------------------------------------------------------------->|
///                                          |<----------------------- tail ----------------------------->|
/// ```
///
/// Strings, binary values and lists of fixed-width items are stored in the *heap* of the frame, with the values of a
/// row adjacent. Each nullable column has a validity bit in the row. The distinct rows of a de-duplicated tensor are
/// stored in a *table*, together with the index of the distinct row for each row. Columns of deeper nested types are
/// stored column by column.
#[derive(Debug)]
pub struct View {
    pub(crate) parts: Vec<Part>,
    schema: SchemaRef,
    /// Input columns of the parts, followed by the filter if there is one.
    columns: Vec<Source>,
    /// Names and types of `columns`.
    made_of: SchemaRef,
    /// Columns of the snapshot to read, in the order in which the view first uses them.
    projection: Vec<usize>,
    filter: Option<Arc<Expression>>,
    /// Number of bytes per row.
    pub(crate) stride: usize,
    /// Offset of the tail in a row, in bytes.
    pub(crate) tail: usize,
    /// Offset of the validity bits in a row, in bytes.
    pub(crate) validity: usize,
    /// Item types of the columns whose values are stored in the heap.
    pub(crate) variable_items: Vec<Items>,
    pub(crate) nested_count: usize,
    /// Indices in `columns` of the columns of `group_by`.
    pub(crate) group_keys: Vec<usize>,
    /// Columns of `group_by` as the request spells them.
    grouped_by: Vec<String>,
    key: u128,
}

/// Purpose of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Batches of one dataset.
    Stream,
    /// Batches of several datasets. Every plain column is nullable, so columns of equal types have equal layouts.
    Mixture,
    /// Rows looked up by key, some of which may be missing. As `Mixture`, with an additional `found` column.
    Lookup,
}

/// Column of a lookup that marks the rows that exist.
const FOUND: &str = "found";

/// Source of the values of a column.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Column of the snapshot, by position.
    Stored(usize),
    /// Expression over columns of the snapshot.
    Computed(Arc<Expression>),
}

impl Source {
    /// Identity of the column's values, independent of the files that store them.
    pub(crate) fn identity(&self, snapshot: &Snapshot) -> u128 {
        match self {
            Self::Stored(column) => {
                let field = snapshot.schema().field(*column);
                Identity::new("stored column", 1).text(field.name()).data_type(field.data_type()).hash()
            }
            Self::Computed(expression) => expression.identity(),
        }
    }
}

/// Delivered column or tensor. Ragged and de-duplicated tensors deliver two columns.
#[derive(Debug)]
pub(crate) enum Part {
    /// Column of fixed width.
    Fixed { input: usize, offset: usize, width: usize, bit: bool, nulls: Nulls },
    /// Strings, binary values, or lists of fixed-width items. If `wide`, offsets have 64 bits on the wire.
    Variable { input: usize, index: usize, items: Items, wide: bool, nulls: Nulls },
    /// Column of any other type, processed by Arrow kernels.
    Nested { input: usize, index: usize },
    /// Tensor with `len` values per row.
    Tensor { made: Made, offset: usize, len: usize, each: Each },
    /// Tensor of list columns, stored in the heap as variable columns `first` and following. Delivered as all items and
    /// their lengths.
    Ragged { made: Made, first: usize },
    /// Tensor with `len` values per row whose distinct rows are stored in a table of the frame. Delivered as the
    /// distinct rows of a batch and, for each row, the index of its distinct row.
    Distinct { made: Made, len: usize, table: usize, keys: Vec<usize> },
    /// Marker of real rows: neither padding nor missing.
    Real,
}

impl Part {
    /// Value that replaces nulls in a tensor.
    fn fill(&self) -> Option<f64> {
        match self {
            Self::Tensor { made, .. } | Self::Ragged { made, .. } | Self::Distinct { made, .. } => made.fill,
            Self::Fixed { .. } | Self::Variable { .. } | Self::Nested { .. } | Self::Real => None,
        }
    }
}

/// Input columns and element type of a tensor.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) inputs: Vec<usize>,
    pub(crate) dtype: DataType,
    /// Number of bytes per value.
    pub(crate) width: usize,
    pub(crate) fill: Option<f64>,
}

/// Values that a tensor takes from each of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Each {
    /// Value of the column.
    Value,
    /// Given number of items of a list, padded if the list is shorter.
    Items(usize),
    /// Mask of the given number of list items: 1 for items that exist, 0 for padding.
    Mask(usize),
}

impl Each {
    /// Number of values per row and column.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Value => 1,
            Self::Items(len) | Self::Mask(len) => len,
        }
    }
}

/// Items of a value in the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Items {
    /// Bytes of a string or binary value.
    Bytes,
    /// Items of a list, with their width in bytes.
    OfWidth(usize),
}

/// Index of a validity bit in a row; `None` if the footers show that the column has no nulls.
pub(crate) type Nulls = Option<usize>;

impl View {
    /// Resolves `select`, `filter`, `columns`, `tensors`, `dedupe`, `group_by` and `remainder` of a request.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] for duplicate names, unknown names (with similar ones), types that cannot form a
    /// tensor, invalid expressions, and nulls without a null value if the footers show them.
    pub fn resolve(snapshot: &Snapshot, train: &v1::Train) -> Result<Self, Error> {
        Self::resolve_for(Use::Stream, snapshot, train)
    }

    /// Resolves the view of a request for the given use. See [`Self::resolve`].
    pub(crate) fn resolve_for(used: Use, snapshot: &Snapshot, train: &v1::Train) -> Result<Self, Error> {
        let v1::Train { select, columns, tensors, dedupe, .. } = train;
        let filter = filter(snapshot, &train.filter)?;
        let mut builder = Builder::new(snapshot, select, filter.is_some(), used != Use::Stream)?;
        if !train.group_by.is_empty() {
            builder.group_by(&train.group_by)?;
        }
        if columns.is_empty() && tensors.is_empty() && dedupe.is_empty() {
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
        for request in dedupe {
            builder.dedupe(request)?;
        }
        if train.remainder() == v1::Remainder::Pad {
            builder.valid(train.max_pack_rows > 0)?;
        }
        if used == Use::Lookup {
            builder.real(FOUND)?;
        }
        builder.build(filter)
    }

    /// Delivered schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Filter expression; `None` if all rows are kept.
    pub fn filter(&self) -> Option<&Arc<Expression>> {
        self.filter.as_ref()
    }

    /// Columns of `group_by` as the request spells them.
    pub(crate) fn grouped_by(&self) -> &[String] {
        &self.grouped_by
    }

    /// Compares the columns of each tensor with those in `other`, a view of the same request over another dataset.
    /// Returns the name of the first tensor that differs, and its columns in both views.
    pub(crate) fn other_columns(&self, other: &Self) -> Option<(String, Vec<String>, Vec<String>)> {
        let made = |view: &Self, part: &Part| match part {
            Part::Tensor { made, .. } | Part::Ragged { made, .. } | Part::Distinct { made, .. } => {
                let name = |input: &usize| view.made_of.field(*input).name().clone();
                made.inputs.iter().map(name).collect()
            }
            Part::Fixed { .. } | Part::Variable { .. } | Part::Nested { .. } | Part::Real => Vec::new(),
        };
        let pairs = self.parts.iter().zip(&other.parts);
        let mut pairs = pairs.map(|(part, others)| (made(self, part), made(other, others)));
        let at = pairs.position(|(found, expected)| found != expected)?;
        let fields =
            |part: &Part| if matches!(part, Part::Ragged { .. } | Part::Distinct { .. }) { 2 } else { 1 };
        let name = self.schema.field(self.parts[..at].iter().map(fields).sum()).name().clone();
        Some((name, made(self, &self.parts[at]), made(other, &other.parts[at])))
    }

    /// Returns true if rows have the same layout in frames as those of `other`.
    pub(crate) fn lies_as(&self, other: &Self) -> bool {
        let measures =
            |view: &Self| (view.stride, view.tail, view.validity, view.nested_count, view.parts.len());
        measures(self) == measures(other) && self.variable_items == other.variable_items
    }

    /// Filter and keys to evaluate on every row before rows can be ordered.
    pub(crate) fn question(&self) -> Question {
        let keys = self.group_keys.iter().map(|key| self.columns[*key].clone()).collect();
        Question { filter: self.filter.clone(), keys, lengths: false }
    }

    /// Input columns of the view, followed by the filter if there is one.
    pub(crate) fn columns(&self) -> &[Source] {
        &self.columns
    }

    /// Names and types of [`columns`](Self::columns).
    pub(crate) fn made_of(&self) -> &SchemaRef {
        &self.made_of
    }

    /// Columns of the snapshot that this view reads, in decode order.
    pub fn projection(&self) -> &[usize] {
        &self.projection
    }

    /// Hash of the view, equal exactly for equal layouts and conversions.
    pub fn key(&self) -> u128 {
        self.key
    }

    /// Minimum number of bytes per row on the wire: fixed-width values and offsets, without bits.
    pub(crate) fn least_row_bytes(&self) -> u64 {
        let bytes = self.parts.iter().map(|part| match part {
            Part::Fixed { bit: true, .. } | Part::Nested { .. } => 0,
            Part::Real => 1,
            // An index and an offset, 4 bytes each.
            Part::Distinct { .. } => 8,
            Part::Ragged { made, .. } => 4 * (2 + made.inputs.len()),
            Part::Fixed { width, .. } => *width,
            Part::Variable { wide, .. } => {
                if *wide {
                    8
                } else {
                    4
                }
            }
            Part::Tensor { made, len, .. } => len * made.width,
        });
        bytes.sum::<usize>() as u64
    }

    /// Estimated bytes of the frame of one block, of which `kept` rows are kept.
    pub fn frame_bytes(&self, snapshot: &Snapshot, block: usize, kept: u32) -> u64 {
        let (all, rows) = (u64::from(snapshot.blocks()[block].rows), u64::from(kept));
        let share = |bytes: u64| (u128::from(bytes) * u128::from(rows) / u128::from(all.max(1))) as u64;
        let column_bytes = |input: usize| match &self.columns[input] {
            Source::Stored(column) => share(snapshot.column_bytes(block, *column)),
            // Estimates a computed column as the size of its inputs plus 8 bytes per row.
            Source::Computed(made) => {
                let inputs = made.inputs().iter().map(|column| share(snapshot.column_bytes(block, *column)));
                inputs.fold(8 * rows, u64::saturating_add)
            }
        };
        let by_column = self.parts.iter().map(|part| match part {
            Part::Variable { input, .. } | Part::Nested { input, .. } => column_bytes(*input),
            Part::Ragged { made, .. } => {
                let bytes = made.inputs.iter().map(|input| {
                    let bits = item_bits(self.made_of.field(*input).data_type()).max(1);
                    column_bytes(*input).saturating_mul(8 * made.width as u64) / bits
                });
                bytes.fold(0, u64::saturating_add)
            }
            // Assumes that all rows are distinct.
            Part::Distinct { made, len, .. } => {
                rows.saturating_mul((len * made.width + DISTINCT_BYTES) as u64)
            }
            Part::Fixed { .. } | Part::Tensor { .. } | Part::Real => 0,
        });
        let by_row = rows.saturating_mul(self.stride as u64);
        by_column.fold(by_row, u64::saturating_add)
    }
}

/// Bytes per distinct row, besides its values: its index, its hash, and its map entry while the frame is built.
const DISTINCT_BYTES: usize = size_of::<u32>() + 3 * size_of::<u128>();

/// Number of bits per item of a list.
fn item_bits(list: &DataType) -> u64 {
    match list {
        DataType::List(item) | DataType::LargeList(item) if item.data_type() == &DataType::Boolean => 1,
        DataType::List(item) | DataType::LargeList(item) => {
            8 * fixed_width(item.data_type()).unwrap_or(1) as u64
        }
        _ => 8,
    }
}

/// Maximum length in bytes of a name for which similar names are searched.
const MAX_NEAR_BYTES: usize = 256;

/// Returns up to three names of `known` that are similar to `name`, most similar first.
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

/// Width in bytes of a value in a frame, for types of fixed width. A bool takes one byte.
pub(crate) fn fixed_width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok().filter(|width| *width > 0),
        DataType::Interval(IntervalUnit::MonthDayNano) => Some(16),
        other => other.primitive_width(),
    }
}
