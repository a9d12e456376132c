//! One block of one view, row-major, ready to gather.

mod builder;
mod distinct;
mod fixed;
mod variable;

use std::{ops::Range, sync::Arc, time::Duration};

use arrow_array::{Array, ArrayRef, UInt64Array, new_null_array};
use arrow_select::{interleave::interleave, take::take};
use forebay_cache::{Slab, Slabs, Weigh};

use crate::{Error, View, view::Part};

pub use builder::FrameBuilder;
pub(crate) use distinct::Distinct;
use distinct::Table;
pub(crate) use variable::{Item, Tail};

/// The rows of one block, laid out as its [`View`] says.
#[derive(Debug)]
pub struct Frame {
    rows: usize,
    /// `rows` times the view's stride.
    fixed: Slab,
    /// Strings, binary and lists: of each row those of all columns together.
    heap: Vec<u8>,
    nested: Vec<ArrayRef>,
    /// The distinct rows of tensors that are de-duplicated.
    tables: Vec<Table>,
    /// Where each group begins, and last where all end, if rows are grouped.
    groups: Vec<u32>,
    /// How long it took to fetch, decode and lay it.
    made_in: Duration,
}

/// Rows of a frame that lie one behind the other, as they lie.
pub(crate) struct Piece {
    frame: Arc<Frame>,
    bytes: Range<usize>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.frame.fixed[self.bytes.clone()]
    }
}

/// A row of a batch: which of the frames at hand, and which of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRef {
    /// Index into the frames at hand.
    pub frame: u32,
    /// Row of that frame.
    pub row: u32,
}

impl RowRef {
    /// The rows, cut where the next one does not follow in the same frame.
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

    fn made_in(&self) -> Duration {
        self.made_in
    }
}

impl Frame {
    /// The frame, which took so long to make.
    pub(crate) fn that_took(self, made_in: Duration) -> Self {
        Self { made_in, ..self }
    }

    /// Bytes of its values: less than the memory that they lie in.
    pub(crate) fn value_bytes(&self) -> u64 {
        let tables = self.tables.iter().map(Table::len_bytes).sum::<usize>();
        let groups = size_of_val(&self.groups[..]);
        (self.fixed.len() + self.heap.len() + tables + groups) as u64 + self.nested_bytes()
    }

    fn nested_bytes(&self) -> u64 {
        self.nested.iter().map(|array| array.get_array_memory_size() as u64).sum()
    }

    /// Bytes that a body of its rows has at least. Only the rows decide.
    pub(crate) fn least_body_bytes(&self, view: &View) -> u64 {
        // Which items of a list are there takes whole bytes here.
        let values = self.heap.len().saturating_sub(self.rows * view.variable_items.len());
        (self.rows as u64).saturating_mul(view.least_row_bytes()).saturating_add(values as u64)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The rows of a group.
    pub(crate) fn group(&self, group: u32) -> Range<u32> {
        self.groups[group as usize]..self.groups[group as usize + 1]
    }

    /// Groups that begin in it.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len().saturating_sub(1)
    }

    /// The rows of `run`, of `stride` bytes, without a copy; `None` if holding on to their frame is too much.
    pub(crate) fn piece(
        stride: usize,
        frames: &[Arc<Self>],
        run: &[RowRef],
        max_held_bytes: u64,
    ) -> Option<Piece> {
        let (first, last) = (run.first()?, run.last()?);
        let frame = &frames[first.frame as usize];
        let bytes = first.row as usize * stride..(last.row as usize + 1) * stride;
        (frame.weight() <= max_held_bytes).then(|| Piece { frame: Arc::clone(frame), bytes })
    }

    /// A frame of the given rows of several frames of one view, in that order.
    ///
    /// # Errors
    /// When the values of the rows in the heap exceed 4 GiB, or the system has no memory left.
    pub(crate) fn select(
        view: &View,
        frames: &[Arc<Frame>],
        rows: &[RowRef],
        slabs: &Slabs,
    ) -> Result<Self, Error> {
        let mut fixed = slabs.take(rows.len() * view.stride).map_err(Error::out_of_memory)?;
        let mut heap = Vec::new();
        if view.stride > 0 {
            let source = Rows::new(view, frames);
            for (row, copy) in rows.iter().zip(fixed.chunks_exact_mut(view.stride)) {
                copy.copy_from_slice(source.row(*row));
                if !view.variable_items.is_empty() {
                    let values = source.heap_of(view, *row, Tail::new(view, &copy[view.tail..]));
                    Tail::move_to(&mut copy[view.tail..], heap.len()).map_err(|_| {
                        Error::batch_too_large(rows.len() as u64, u64::from(u32::MAX), u64::from(u32::MAX))
                    })?;
                    heap.extend_from_slice(values);
                }
            }
        }
        let tables = view.parts.iter().filter_map(|part| match part {
            Part::Distinct { made, len, table, .. } => {
                Some(Distinct::new(frames, *table, len * made.width, rows).into_table())
            }
            _ => None,
        });
        let tables = tables.collect();
        let nested = (0..view.nested_count).map(|index| interleave_nested(frames, rows, index));
        let nested = nested.collect::<Result<_, _>>()?;
        Ok(Self {
            rows: rows.len(),
            fixed,
            heap,
            nested,
            tables,
            groups: Vec::new(),
            made_in: Duration::ZERO,
        })
    }

    /// One row of zeros, nothing of it null; not of views with nested columns.
    pub(crate) fn of_zeros(view: &View, slabs: &Slabs) -> Result<Self, Error> {
        let mut zeros = Self::of_nulls(view, slabs)?;
        zeros.fixed[view.validity..].fill(u8::MAX);
        Ok(zeros)
    }

    /// One row of nulls where the view has room for them, and zeros elsewhere; not of views with tensors that are
    /// de-duplicated.
    pub(crate) fn of_nulls(view: &View, slabs: &Slabs) -> Result<Self, Error> {
        let mut fixed = slabs.take(view.stride).map_err(Error::out_of_memory)?;
        fixed.fill(0);
        let nested = view.parts.iter().filter_map(|part| match part {
            Part::Nested { input, .. } => Some(new_null_array(view.made_of().field(*input).data_type(), 1)),
            _ => None,
        });
        let nested = nested.collect();
        Ok(Self {
            rows: 1,
            fixed,
            heap: Vec::new(),
            nested,
            tables: Vec::new(),
            groups: Vec::new(),
            made_in: Duration::ZERO,
        })
    }
}

/// The memory of several frames, looked up once a batch and not once a row.
pub(crate) struct Rows<'a> {
    stride: usize,
    frames: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(view: &View, frames: &'a [Arc<Frame>]) -> Self {
        let memory = |frame: &'a Arc<Frame>| (&frame.fixed[..], &frame.heap[..]);
        Self { stride: view.stride, frames: frames.iter().map(memory).collect() }
    }

    /// The bytes of a row.
    #[inline]
    pub(crate) fn row(&self, row: RowRef) -> &'a [u8] {
        &self.frames[row.frame as usize].0[row.row as usize * self.stride..][..self.stride]
    }

    /// The values of a row in the heap; `tail` is the row's own.
    #[inline]
    pub(crate) fn heap_of(&self, view: &View, row: RowRef, tail: Tail<'_>) -> &'a [u8] {
        &self.frames[row.frame as usize].1[tail.start()..][..tail.len(view)]
    }
}

/// The rows of nested column `index`, through Arrow's kernels.
pub(crate) fn interleave_nested(
    frames: &[Arc<Frame>],
    rows: &[RowRef],
    index: usize,
) -> Result<ArrayRef, Error> {
    let arrays: Vec<&dyn Array> = frames.iter().map(|frame| frame.nested[index].as_ref()).collect();
    let indices: Vec<(usize, usize)> =
        rows.iter().map(|row| (row.frame as usize, row.row as usize)).collect();
    let internal = |error: arrow_schema::ArrowError| Error::Internal(error.to_string());
    match arrays.as_slice() {
        [only] => {
            let rows: UInt64Array = indices.iter().map(|(_, row)| *row as u64).collect();
            take(*only, &rows, None).map_err(internal)
        }
        several => interleave(several, &indices).map_err(internal),
    }
}
