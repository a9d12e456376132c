//! What a job wants of a row, and how that row lies in a frame.

mod builder;

use std::sync::Arc;

use arrow_schema::{DataType, IntervalUnit, SchemaRef};
use forebay_proto::v1;
use forebay_sql::Expression;
use forebay_storage::Snapshot;

pub use builder::find_column;
pub(crate) use builder::question;

use crate::{Error, counts::Question};
use builder::{Builder, filter};

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
/// column that may have nulls has a bit in each row. The distinct
/// rows of a tensor that is de-duplicated lie in a *table*, which has the number of each row's own. What is nested deeper lies column by column.
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
    /// Which of `columns` the rows of a group share.
    pub(crate) group_keys: Vec<usize>,
    /// How these are spelled in the request.
    grouped_by: Vec<String>,
    key: u128,
}

/// What a view is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Batches of one dataset.
    Stream,
    /// ... of several, whose rows lie alike if they have columns of these types: any of them may be null.
    Mixture,
    /// Rows that are asked for by their keys, not all of which are there: as in a mixture, and a column that says so.
    Lookup,
}

/// The column of a lookup that says which rows are there.
const FOUND: &str = "found";

/// Where the values of a column come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// The snapshot's column of this position.
    Stored(usize),
    /// What an expression makes of some of them.
    Computed(Arc<Expression>),
}

impl Source {
    /// What decides its values, besides the files.
    pub(crate) fn spelled(&self, snapshot: &Snapshot) -> String {
        match self {
            Self::Stored(column) => {
                let field = snapshot.schema().field(*column);
                format!("{:?} {:?}", field.name(), field.data_type())
            }
            Self::Computed(made) => format!("{:032x}", made.identity()),
        }
    }
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
    /// A tensor, `len` values a row.
    Tensor { made: Made, offset: usize, len: usize, each: Each },
    /// Columns of lists, each a variable one from `first` on; delivered as all items and as their lengths.
    Ragged { made: Made, first: usize },
    /// A tensor of `len` values a row whose distinct rows lie in a table of the frame; delivered as the distinct rows of a
    /// batch, and for each row the number of its own.
    Distinct { made: Made, len: usize, table: usize, keys: Vec<usize> },
    /// Which rows are real: not padding, and found.
    Real,
}

impl Part {
    /// What stands for a null in a tensor.
    fn fill(&self) -> Option<f64> {
        match self {
            Self::Tensor { made, .. } | Self::Ragged { made, .. } | Self::Distinct { made, .. } => made.fill,
            Self::Fixed { .. } | Self::Variable { .. } | Self::Nested { .. } | Self::Real => None,
        }
    }
}

/// What the values of a tensor are made of.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) inputs: Vec<usize>,
    pub(crate) dtype: DataType,
    /// Bytes of a value.
    pub(crate) width: usize,
    pub(crate) fill: Option<f64>,
}

/// What a tensor takes of each of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Each {
    /// Its value.
    Value,
    /// So many items of its list.
    Items(usize),
    /// For so many items of its list, whether they are there.
    Mask(usize),
}

impl Each {
    /// Values of a row, for each column.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Value => 1,
            Self::Items(len) | Self::Mask(len) => len,
        }
    }
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
    /// Resolves `select`, `filter`, `columns`, `tensors` and `dedupe` of a request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for names that are unknown (with the near ones) or double, types that make
    /// no tensor, nulls without a fill where the footers tell, and
    /// expressions that are none.
    pub fn resolve(snapshot: &Snapshot, train: &v1::Train) -> Result<Self, Error> {
        Self::resolve_for(Use::Stream, snapshot, train)
    }

    /// ... for this use.
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
            builder.valid(train.batch_rows > 0)?;
        }
        if used == Use::Lookup {
            builder.real(FOUND)?;
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

    /// The columns whose values the rows of a group share, as the request spells them.
    pub(crate) fn grouped_by(&self) -> &[String] {
        &self.grouped_by
    }

    /// A tensor that is not made of the same columns as in `other`, a view of the same request over another dataset: its name,
    /// and the columns of both.
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

    /// Whether rows lie in frames as those of `other` do.
    pub(crate) fn lies_as(&self, other: &Self) -> bool {
        let measures =
            |view: &Self| (view.stride, view.tail, view.validity, view.nested_count, view.parts.len());
        measures(self) == measures(other) && self.variable_items == other.variable_items
    }

    /// What is asked of every row before it can be ordered.
    pub(crate) fn question(&self) -> Question {
        let keys = self.group_keys.iter().map(|key| self.columns[*key].clone()).collect();
        Question { filter: self.filter.clone(), keys, lengths: false }
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
            Part::Real => 1,
            // A number and an offset.
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
            // About what it is made from.
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
            // As if all of them were distinct.
            Part::Distinct { made, len, .. } => {
                rows.saturating_mul((len * made.width + DISTINCT_BYTES) as u64)
            }
            Part::Fixed { .. } | Part::Tensor { .. } | Part::Real => 0,
        });
        let by_row = rows.saturating_mul(self.stride as u64);
        by_column.fold(by_row, u64::saturating_add)
    }
}

/// Bytes of the number of a distinct row, of the hash by which it is found, and of its place in a map while they are made.
const DISTINCT_BYTES: usize = size_of::<u32>() + 3 * size_of::<u128>();

/// Bits of an item of a list.
fn item_bits(list: &DataType) -> u64 {
    match list {
        DataType::List(item) | DataType::LargeList(item) if item.data_type() == &DataType::Boolean => 1,
        DataType::List(item) | DataType::LargeList(item) => {
            8 * fixed_width(item.data_type()).unwrap_or(1) as u64
        }
        _ => 8,
    }
}

/// Names longer than this, in bytes, are near to none.
const MAX_NEAR_BYTES: usize = 256;

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
