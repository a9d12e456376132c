//! Frames: row-major blocks of one view, ready to gather.

mod builder;
mod distinct;
mod fixed;
pub(crate) mod label;
mod nested;
mod select;
mod table;
mod variable;

use std::{ops::Range, sync::Arc, time::Duration};

use arrow_array::{Array, ArrayRef, new_null_array};
use forebay_cache::{Slab, Slabs, Weigh};

use crate::{
    Error, View,
    view::{Output, nulls::pushed_down_column},
};

pub use builder::FrameBuilder;
pub(crate) use distinct::Distinct;
pub(crate) use nested::gather_nested;
pub(crate) use variable::Tail;

use table::Table;

/// The rows of one block in the row layout of its [`View`].
#[derive(Debug)]
pub struct Frame {
    rows: usize,
    /// `rows` times the view's stride, in bytes.
    fixed: Slab,
    /// Strings, binary values and lists, with the values of all columns of a row together.
    heap: Vec<u8>,
    nested: Vec<ArrayRef>,
    /// Distinct rows of de-duplicated tensors.
    tables: Vec<Table>,
    /// Start of each group, followed by the end of the last one. Empty if rows are not grouped.
    groups: Vec<u32>,
    /// Time to fetch, decode and build the frame.
    load_time: Duration,
}

/// Key of a frame: one block of one view. A change of the file, the columns, a type or a fill value changes the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FrameKey {
    pub(crate) block: u128,
    pub(crate) view: u128,
    /// Hash of the rows in the frame if rows are grouped, otherwise 0. Some of these rows may be stored in later
    /// blocks.
    pub(crate) rows: u128,
}

/// Consecutive rows of a frame, shared without a copy.
pub(crate) struct SharedRows {
    frame: Arc<Frame>,
    bytes: Range<usize>,
}

impl AsRef<[u8]> for SharedRows {
    fn as_ref(&self) -> &[u8] {
        &self.frame.fixed[self.bytes.clone()]
    }
}

/// A row of a batch: index of a frame, and row of that frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRef {
    /// Index into the list of frames.
    pub frame: u32,
    /// Row of that frame.
    pub row: u32,
}

impl RowRef {
    /// Splits the rows into runs of consecutive rows of the same frame.
    pub(crate) fn runs(rows: &[Self]) -> impl Iterator<Item = &[Self]> {
        rows.chunk_by(|row, next| row.frame == next.frame && row.row + 1 == next.row)
    }
}

impl Weigh for Frame {
    fn weight(&self) -> u64 {
        let tables = self.tables.iter().map(Table::capacity).sum::<usize>();
        let groups = self.groups.capacity() * size_of::<u32>();
        (self.fixed.capacity() + self.heap.capacity() + tables + groups) as u64 + self.nested_bytes()
    }

    fn load_time(&self) -> Duration {
        self.load_time
    }
}

impl Frame {
    /// Sets the time that making the frame took.
    pub(crate) fn with_load_time(self, load_time: Duration) -> Self {
        Self { load_time, ..self }
    }

    /// Size of the values, in bytes, without spare capacity.
    pub(crate) fn value_bytes(&self) -> u64 {
        let tables = self.tables.iter().map(Table::len_bytes).sum::<usize>();
        let groups = size_of_val(&self.groups[..]);
        (self.fixed.len() + self.heap.len() + tables + groups) as u64 + self.nested_bytes()
    }

    fn nested_bytes(&self) -> u64 {
        self.nested.iter().map(|array| array.get_array_memory_size() as u64).sum()
    }

    /// Lower bound of the size of a body with all rows, in bytes. Depends only on the rows.
    pub(crate) fn min_body_bytes(&self, view: &View) -> u64 {
        // The validity of a list's items is padded to whole bytes in the heap, but not in a body.
        let values = self.heap.len().saturating_sub(self.rows * view.variable_items.len());
        (self.rows as u64).saturating_mul(view.min_row_bytes()).saturating_add(values as u64)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Range of the rows of a group.
    pub(crate) fn group(&self, group: u32) -> Range<u32> {
        self.groups[group as usize]..self.groups[group as usize + 1]
    }

    /// Number of groups that begin in the block.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len().saturating_sub(1)
    }

    /// Returns the rows of `run`, `stride` bytes each, without a copy. Returns `None` if their frame is larger than
    /// `max_held_bytes`.
    pub(crate) fn shared_rows(
        stride: usize,
        frames: &[Arc<Self>],
        run: &[RowRef],
        max_held_bytes: u64,
    ) -> Option<SharedRows> {
        let (first, last) = (run.first()?, run.last()?);
        let frame = &frames[first.frame as usize];
        let bytes = first.row as usize * stride..(last.row as usize + 1) * stride;
        (frame.weight() <= max_held_bytes).then(|| SharedRows { frame: Arc::clone(frame), bytes })
    }

    /// Builds a frame with one row of zeros without nulls. The view must not have nested columns.
    pub(crate) fn of_zeros(view: &View, slabs: &Slabs) -> Result<Self, Error> {
        let mut zeros = Self::of_nulls(view, slabs)?;
        zeros.fixed[view.validity..].fill(u8::MAX);
        Ok(zeros)
    }

    /// Builds a frame with one row of nulls, with zeros in columns that have no validity. The view must not have
    /// de-duplicated tensors.
    pub(crate) fn of_nulls(view: &View, slabs: &Slabs) -> Result<Self, Error> {
        let mut fixed = slabs.take(view.stride).map_err(Error::out_of_memory)?;
        fixed.fill(0);
        let nested = view.outputs.iter().filter_map(|output| match output {
            Output::Nested { input, .. } => {
                let field = view.input_schema().field(*input);
                let nullable = field.clone().with_nullable(true);
                Some(pushed_down_column(&new_null_array(field.data_type(), 1), &nullable))
            }
            _ => None,
        });
        let nested = nested.collect::<Result<_, _>>()?;
        Ok(Self {
            rows: 1,
            fixed,
            heap: Vec::new(),
            nested,
            tables: Vec::new(),
            groups: Vec::new(),
            load_time: Duration::ZERO,
        })
    }
}

/// Memory of several frames, looked up once per batch rather than once per row.
pub(crate) struct Rows<'a> {
    stride: usize,
    frames: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(view: &View, frames: &'a [Arc<Frame>]) -> Self {
        let memory = |frame: &'a Arc<Frame>| (&frame.fixed[..], &frame.heap[..]);
        Self { stride: view.stride, frames: frames.iter().map(memory).collect() }
    }

    /// Returns the bytes of a row.
    #[inline]
    pub(crate) fn row(&self, row: RowRef) -> &'a [u8] {
        &self.frames[row.frame as usize].0[row.row as usize * self.stride..][..self.stride]
    }

    /// Returns the values of a row in the heap. `tail` is the tail of that row.
    #[inline]
    pub(crate) fn heap_of(&self, view: &View, row: RowRef, tail: Tail<'_>) -> &'a [u8] {
        &self.frames[row.frame as usize].1[tail.start()..][..tail.len(view)]
    }
}
