//! Columns and tensors of a job, and the layout of a row in a frame.

mod builder;
mod compute;
pub(crate) mod expressions;
pub(crate) mod kept_range;
pub(crate) mod nulls;
mod resolve;
pub(crate) mod row_selection;
pub(crate) mod source;
pub(crate) mod tensor;

use std::sync::Arc;

use arrow_schema::{DataType, IntervalUnit, SchemaRef};
use forebay_sql::Expression;
use forebay_storage::Snapshot;

pub use builder::find_column;
pub(crate) use compute::{compute, kept, only, slices};
pub(crate) use resolve::resolve_row_selection;

use row_selection::RowSelection;
use source::Source;

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
    pub(crate) outputs: Vec<Output>,
    schema: SchemaRef,
    /// Input columns of the outputs, followed by the filter if there is one.
    columns: Vec<Source>,
    /// Names and types of `columns`.
    input_schema: SchemaRef,
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
    pub(crate) variable_items: Vec<HeapItems>,
    pub(crate) nested_count: usize,
    /// Indices in `columns` of the columns of `group_by`.
    pub(crate) group_keys: Vec<usize>,
    /// Columns of `group_by` as the request spells them.
    grouped_by: Vec<String>,
    key: u128,
}

/// Purpose of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ViewUse {
    /// Batches of one dataset.
    Stream,
    /// Batches of several datasets. Every plain column is nullable, so columns of equal types have equal layouts.
    Mixture,
    /// Rows looked up by key, some of which may be missing. As `Mixture`, with an additional `found` column.
    Lookup,
}

/// Delivered column or tensor. Ragged and de-duplicated tensors deliver two columns.
#[derive(Debug)]
pub(crate) enum Output {
    /// Column of fixed width.
    Fixed { input: usize, offset: usize, width: usize, bit: bool, nulls: Nulls },
    /// Strings, binary values, or lists of fixed-width items. If `wide`, offsets have 64 bits on the wire.
    Variable { input: usize, index: usize, items: HeapItems, wide: bool, nulls: Nulls },
    /// Column of any other type, processed by Arrow kernels.
    Nested { input: usize, index: usize },
    /// Tensor with `len` values per row.
    Tensor { source: TensorSource, offset: usize, len: usize, values: TensorValues },
    /// Tensor of list columns, stored in the heap as variable columns `first` and following. Delivered as all items and
    /// their lengths.
    Ragged { source: TensorSource, first: usize },
    /// Tensor with `len` values per row whose distinct rows are stored in a table of the frame. Delivered as the
    /// distinct rows of a batch and, for each row, the index of its distinct row.
    Distinct { source: TensorSource, len: usize, table: usize, keys: Vec<usize> },
    /// Marker of real rows: neither padding nor missing.
    Real,
}

impl Output {
    /// Value that replaces nulls in a tensor.
    fn fill(&self) -> Option<f64> {
        match self {
            Self::Tensor { source, .. } | Self::Ragged { source, .. } | Self::Distinct { source, .. } => {
                source.fill
            }
            Self::Fixed { .. } | Self::Variable { .. } | Self::Nested { .. } | Self::Real => None,
        }
    }
}

/// Input columns and element type of a tensor.
#[derive(Debug)]
pub(crate) struct TensorSource {
    pub(crate) inputs: Vec<usize>,
    /// Number of values per row of each input: the size of fixed-size lists, and otherwise 1. Lists of varying length count once.
    pub(crate) counts: Vec<usize>,
    pub(crate) dtype: DataType,
    /// Number of bytes per value.
    pub(crate) width: usize,
    pub(crate) fill: Option<f64>,
}

impl TensorSource {
    /// Number of values per row of all inputs, where lists of varying length count once.
    pub(crate) fn count(&self) -> usize {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Inputs, with the position of their first value in a row and their number of values per row.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let mut next = 0;
        self.inputs.iter().zip(&self.counts).map(move |(input, count)| {
            let first = next;
            next += count;
            (*input, first, *count)
        })
    }
}

/// Values that a tensor takes from each of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TensorValues {
    /// Value of the column, or all items of a fixed-size list.
    Value,
    /// Given number of items of a list, padded if the list is shorter.
    Items(usize),
    /// Mask of the given number of list items: 1 for items that exist, 0 for padding.
    Mask(usize),
}

impl TensorValues {
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
pub(crate) enum HeapItems {
    /// Bytes of a string or binary value.
    Bytes,
    /// Items of a list, with their width in bytes.
    OfWidth(usize),
}

impl HeapItems {
    /// Number of items of a value of `bytes` bytes; of bytes for strings and binary.
    #[inline]
    pub(crate) fn count(self, bytes: usize) -> usize {
        match self {
            Self::Bytes => bytes,
            Self::OfWidth(width) => bytes / width,
        }
    }
}

/// Index of a validity bit in a row; `None` if the footers show that the column has no nulls.
pub(crate) type Nulls = Option<usize>;

impl View {
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
    pub(crate) fn different_columns(&self, other: &Self) -> Option<(String, Vec<String>, Vec<String>)> {
        let columns = |view: &Self, output: &Output| match output {
            Output::Tensor { source, .. }
            | Output::Ragged { source, .. }
            | Output::Distinct { source, .. } => {
                let name = |input: &usize| view.input_schema.field(*input).name().clone();
                source.inputs.iter().map(name).collect()
            }
            Output::Fixed { .. } | Output::Variable { .. } | Output::Nested { .. } | Output::Real => {
                Vec::new()
            }
        };
        let pairs = self.outputs.iter().zip(&other.outputs);
        let mut pairs = pairs.map(|(output, others)| (columns(self, output), columns(other, others)));
        let at = pairs.position(|(found, expected)| found != expected)?;
        let fields = |output: &Output| {
            if matches!(output, Output::Ragged { .. } | Output::Distinct { .. }) { 2 } else { 1 }
        };
        let name = self.schema.field(self.outputs[..at].iter().map(fields).sum()).name().clone();
        Some((name, columns(self, &self.outputs[at]), columns(other, &other.outputs[at])))
    }

    /// Returns true if rows have the same layout in frames as those of `other`.
    pub(crate) fn has_layout_of(&self, other: &Self) -> bool {
        let measures =
            |view: &Self| (view.stride, view.tail, view.validity, view.nested_count, view.outputs.len());
        measures(self) == measures(other) && self.variable_items == other.variable_items
    }

    /// Filter and keys to evaluate on every row before rows can be ordered.
    pub(crate) fn row_selection(&self) -> RowSelection {
        let keys = self.group_keys.iter().map(|key| self.columns[*key].clone()).collect();
        RowSelection { filter: self.filter.clone(), keys, lengths: false }
    }

    /// Input columns of the view, followed by the filter if there is one.
    pub(crate) fn columns(&self) -> &[Source] {
        &self.columns
    }

    /// Names and types of [`columns`](Self::columns).
    pub(crate) fn input_schema(&self) -> &SchemaRef {
        &self.input_schema
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
    pub(crate) fn min_row_bytes(&self) -> u64 {
        let bytes = self.outputs.iter().map(|output| match output {
            Output::Fixed { bit: true, .. } | Output::Nested { .. } => 0,
            Output::Real => 1,
            // An index and an offset, 4 bytes each.
            Output::Distinct { .. } => 8,
            Output::Ragged { source, .. } => 4 * (2 + source.inputs.len()),
            Output::Fixed { width, .. } => *width,
            Output::Variable { wide, .. } => {
                if *wide {
                    8
                } else {
                    4
                }
            }
            Output::Tensor { source, len, .. } => len * source.width,
        });
        bytes.sum::<usize>() as u64
    }

    /// Estimated bytes of the frame of one block, of which `kept` rows are kept.
    pub fn frame_bytes(&self, snapshot: &Snapshot, block: usize, kept: u32) -> u64 {
        let (all, rows) = (u64::from(snapshot.blocks()[block].rows), u64::from(kept));
        let share = |bytes: u64| (u128::from(bytes) * u128::from(rows) / u128::from(all.max(1))) as u64;
        let column_bytes = |input: usize| match &self.columns[input] {
            Source::Stored(column) => share(snapshot.column_bytes(block, *column)),
            Source::Computed(expression) => {
                expression.expected_bytes(rows, |column| share(snapshot.column_bytes(block, column)))
            }
        };
        let by_column = self.outputs.iter().map(|output| match output {
            Output::Variable { input, .. } | Output::Nested { input, .. } => column_bytes(*input),
            Output::Ragged { source, .. } => {
                let bytes = source.inputs.iter().map(|input| {
                    let bits = item_bits(self.input_schema.field(*input).data_type()).max(1);
                    column_bytes(*input).saturating_mul(8 * source.width as u64) / bits
                });
                bytes.fold(0, u64::saturating_add)
            }
            // Assumes that all rows are distinct.
            Output::Distinct { source, len, .. } => {
                rows.saturating_mul((len * source.width + DISTINCT_BYTES) as u64)
            }
            Output::Fixed { .. } | Output::Tensor { .. } | Output::Real => 0,
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
const MAX_SIMILAR_BYTES: usize = 256;
/// Maximum number of names that an error suggests.
const MAX_SIMILAR_NAMES: usize = 3;

/// Returns up to three names of `known` that are similar to `name`, most similar first.
pub fn similar_names<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    if name.len() > MAX_SIMILAR_BYTES {
        return Vec::new();
    }
    let scored = scored(name, known).into_iter().filter(|(score, _)| *score > 0.75);
    scored.take(MAX_SIMILAR_NAMES).map(|(_, other)| other).collect()
}

/// Returns the names among `known` that are the most similar to `name`, also if they are less similar than those of [`similar_names`].
pub(crate) fn closest_names<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let start = &name[..name.floor_char_boundary(MAX_SIMILAR_BYTES)];
    let short = known.iter().copied().filter(|known| known.len() <= MAX_SIMILAR_BYTES);
    scored(start, short)
        .into_iter()
        .filter(|(score, _)| *score > 0.0)
        .take(MAX_SIMILAR_NAMES)
        .map(|(_, other)| other)
        .collect()
}

/// Returns names with their similarity to `name`, the most similar one first.
fn scored<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<(f64, &'a str)> {
    let lower = name.to_lowercase();
    let score = |other: &str| strsim::jaro_winkler(&lower, &other.to_lowercase());
    let mut scored: Vec<(f64, &str)> = known.into_iter().map(|other| (score(other), other)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored
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
