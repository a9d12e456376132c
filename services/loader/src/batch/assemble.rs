//! Gathering of rows from frames directly into the body of an Arrow IPC message, without an intermediate batch.
//!
//! The work is linear in rows, columns and values: the rows are read tile by tile, and the values of a row one after the other. It is
//! done in turns, which end between tiles.

mod fixed;
mod tails;
mod validity;
mod variable;
mod write;

use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use bytes::Bytes;
use forebay_cache::Slabs;
use futures::FutureExt;

use crate::{
    Error, Frame, RowRef, TurnClock, View, WireBatch,
    batch::{
        canonical::Encoded,
        wire::{ALIGNMENT, Body, Layout},
    },
    frame::{self, Distinct, Rows},
    view::{HeapItems, Nulls, Output},
};

use fixed::FixedRows;
use tails::Tails;
use validity::NullableColumn;
use variable::{ColumnSize, ItemValidity, Lengths, VariableColumn};
use write::{Ends, write_distinct, write_first_list};

/// Minimum mean size of a run of consecutive rows, in bytes, to send the runs from their frames without a copy. With
/// shorter runs, many small HTTP/2 frames cost more than the copy.
const MIN_SHARED_RUN_BYTES: usize = 64 << 10;
/// Maximum memory of arrays beyond their values, in bytes: spare capacity, headers and validity.
const NESTED_SLACK_BYTES: u64 = 64 << 20;

/// Options and limits for assembling a batch.
#[derive(Debug, Clone, Copy)]
pub struct AssembleOptions {
    /// Computes the content hash of the body.
    pub hash: bool,
    /// Maximum size of the body, in bytes.
    pub max_bytes: u64,
    /// Maximum size of a frame, in bytes, that a body may share instead of copying rows. The batch keeps such a frame
    /// in memory.
    pub max_held_bytes: u64,
    /// Minimum number of rows. Shorter batches are padded with rows of zeros.
    pub min_rows: usize,
}

/// Assembles `rows` of `frames`, all of `view`, into one batch. The body is allocated from `slabs`, or shares the
/// memory of the frames if their rows already form it.
///
/// # Errors
/// - [`Error::TooLarge`] if the body would exceed its limit.
/// - [`Error::Unavailable`] if the system is out of memory.
pub fn assemble(
    view: &View,
    frames: &[Arc<Frame>],
    rows: &[RowRef],
    options: AssembleOptions,
    slabs: &Slabs,
) -> Result<WireBatch, Error> {
    at_once(assemble_in_turns(view, frames, rows, options, slabs, &mut TurnClock::stopped()))
}

/// As [`assemble`], in turns.
pub(crate) async fn assemble_in_turns(
    view: &View,
    frames: &[Arc<Frame>],
    rows: &[RowRef],
    options: AssembleOptions,
    slabs: &Slabs,
    turn: &mut TurnClock,
) -> Result<WireBatch, Error> {
    if rows.len() < options.min_rows {
        let mut frames = frames.to_vec();
        let zeros = RowRef { frame: frames.len() as u32, row: 0 };
        frames.push(Arc::new(Frame::of_zeros(view, slabs)?));
        let mut padded = rows.to_vec();
        padded.resize(options.min_rows, zeros);
        return gather((view, &frames, zeros.frame), &padded, options, slabs, turn).await;
    }
    gather((view, frames, NONE), rows, options, slabs, turn).await
}

/// Frame number that no row refers to.
const NONE: u32 = u32::MAX;

/// Assembles a batch in which the rows of frame `absent` are padding or missing, and are not counted.
pub(crate) fn assemble_with_absent(
    view: &View,
    frames: &[Arc<Frame>],
    rows: &[RowRef],
    absent: u32,
    options: AssembleOptions,
    slabs: &Slabs,
) -> Result<WireBatch, Error> {
    at_once(gather((view, frames, absent), rows, options, slabs, &mut TurnClock::stopped()))
}

/// Returns the result of `work`, whose turns do not end.
fn at_once(work: impl Future<Output = Result<WireBatch, Error>>) -> Result<WireBatch, Error> {
    work.now_or_never().unwrap_or_else(|| Err(Error::Internal("a turn of a stopped clock has ended".into())))
}

/// Gathers the rows. Those of frame `absent` are padding or missing, and are not counted.
async fn gather(
    (view, frames, absent): (&View, &[Arc<Frame>], u32),
    rows: &[RowRef],
    options: AssembleOptions,
    slabs: &Slabs,
    turn: &mut TurnClock,
) -> Result<WireBatch, Error> {
    let mut plan = BodyPlan::new((view, frames, absent), rows, options.max_bytes, turn).await?;
    let body = match plan.shared_body(frames, options.max_held_bytes) {
        Some(body) => body,
        None => {
            let mut body = slabs.take(plan.layout.len()).map_err(Error::out_of_memory)?;
            plan.write(&mut body, turn).await;
            Body::new([Bytes::from_owner(body)])
        }
    };
    let hash = if options.hash { Some(body.hash_in_turns(turn).await) } else { None };
    Ok(WireBatch {
        rows: rows.iter().filter(|row| row.frame != absent).count() as u64,
        group_offsets: Vec::new(),
        header: plan.layout.header(rows.len()),
        hash,
        body,
    })
}

/// Positions of all buffers in the body, computed in a first pass over the tails of the rows.
struct BodyPlan<'a> {
    view: &'a View,
    rows: &'a [RowRef],
    /// Frame of the rows that are padding or missing.
    absent: u32,
    source: Rows<'a>,
    layout: Layout,
    places: Vec<Place<'a>>,
    tails: Tails<'a>,
    /// Validity bits that are set in all rows.
    always_valid: Vec<u8>,
    /// Sizes of the variable columns in all rows.
    sizes: Vec<ColumnSize>,
    /// Columns with a null in these rows.
    nullable: Vec<NullableColumn>,
    /// Variable columns, in the order of their values in a row.
    variable: Vec<VariableColumn>,
}

/// Position of one output of the view in the body, except for the values of variable columns. Numbers are offsets of buffers, in bytes.
enum Place<'a> {
    Fixed {
        values: usize,
    },
    Variable,
    Nested {
        encoded: Encoded,
        buffers: Vec<usize>,
    },
    /// Lists of the items and of their lengths.
    Ragged {
        items: Ends,
        lengths: Ends,
    },
    /// List of each row, values of the distinct rows, and index of each row's distinct row.
    Distinct {
        ends: usize,
        values: usize,
        rows: Distinct<'a>,
        index: usize,
    },
    Real {
        values: usize,
    },
}

impl<'a> BodyPlan<'a> {
    async fn new(
        (view, frames, absent): (&'a View, &'a [Arc<Frame>], u32),
        rows: &'a [RowRef],
        max_bytes: u64,
        turn: &mut TurnClock,
    ) -> Result<Self, Error> {
        let source = Rows::new(view, frames);
        let tails = Tails::gather(view, &source, rows, turn).await;
        let mut plan = Self {
            view,
            rows,
            absent,
            source,
            layout: Layout::default(),
            places: Vec::with_capacity(view.outputs.len()),
            always_valid: validity::valid_in_all(&tails, turn).await,
            sizes: variable::sizes(&tails, turn).await,
            tails,
            nullable: Vec::new(),
            variable: Vec::with_capacity(view.variable_items.len()),
        };
        for output in &view.outputs {
            let place = plan.place(output, frames, max_bytes, turn).await?;
            plan.places.push(place);
            let needed = plan.layout.len() as u64;
            if needed > max_bytes {
                return Err(Error::batch_too_large(rows.len() as u64, needed, max_bytes));
            }
        }
        Ok(plan)
    }

    async fn place(
        &mut self,
        output: &Output,
        frames: &'a [Arc<Frame>],
        max_bytes: u64,
        turn: &mut TurnClock,
    ) -> Result<Place<'a>, Error> {
        let rows = self.rows.len();
        match output {
            Output::Fixed { width, bit, nulls, .. } => {
                self.place_validity(*nulls);
                let len = if *bit { rows.div_ceil(8) } else { rows * width };
                Ok(Place::Fixed { values: self.layout.buffer(len) })
            }
            Output::Tensor { source, len, .. } => {
                self.place_validity(None);
                self.layout.node(rows * len, 0);
                self.layout.buffer(0);
                Ok(Place::Fixed { values: self.layout.buffer(rows * len * source.width) })
            }
            Output::Ragged { source, first } => {
                let columns = *first..first + source.inputs.len();
                let all: usize = self.sizes[columns.clone()].iter().map(|size| size.bytes).sum();
                let items = self.place_lists(all / source.width, source.width, max_bytes)?;
                let lengths = self.place_lists(rows * columns.len(), size_of::<i32>(), max_bytes)?;
                let mut values = items.values;
                for (number, column) in columns.enumerate() {
                    let at = lengths.values + number * rows * size_of::<i32>();
                    let items = HeapItems::OfWidth(source.width);
                    let lengths = Lengths::Items { at };
                    self.variable.push(VariableColumn { items, lengths, values, validity: None });
                    values += self.sizes[column].bytes;
                }
                Ok(Place::Ragged { items, lengths })
            }
            Output::Distinct { source, len, table, .. } => {
                let distinct = Distinct::new(frames, *table, len * source.width, self.rows, turn).await;
                self.place_validity(None);
                let ends = self.layout.buffer((rows + 1) * size_of::<i32>());
                self.layout.node(distinct.len(), 0);
                self.layout.buffer(0);
                self.layout.node(distinct.len() * len, 0);
                self.layout.buffer(0);
                let values = self.layout.buffer(distinct.len() * len * source.width);
                self.place_validity(None);
                let index = self.layout.buffer(rows * size_of::<i32>());
                Ok(Place::Distinct { ends, values, rows: distinct, index })
            }
            Output::Real => {
                self.place_validity(None);
                Ok(Place::Real { values: self.layout.buffer(rows) })
            }
            Output::Variable { index, items, wide, nulls, .. } => {
                self.place_validity(*nulls);
                let size = self.sizes[*index];
                let at = self.layout.buffer((rows + 1) * if *wide { 8 } else { 4 });
                let validity = match items {
                    HeapItems::Bytes => None,
                    HeapItems::OfWidth(width) => self.place_items(size, *width),
                };
                let lengths = Lengths::Ends { at, wide: *wide, end: 0 };
                let values = self.layout.buffer(size.bytes);
                self.variable.push(VariableColumn { items: *items, lengths, values, validity });
                Ok(Place::Variable)
            }
            Output::Nested { index, input } => {
                let array = match self.rows {
                    [] => arrow_array::new_empty_array(self.view.input_schema().field(*input).data_type()),
                    rows => gather_nested(frames, rows, *index, max_bytes, turn).await?,
                };
                let encoded = Encoded::column(&array).map_err(|error| Error::Internal(error.to_string()))?;
                turn.step().await;
                let buffers = encoded.place(&mut self.layout);
                Ok(Place::Nested { encoded, buffers })
            }
        }
    }

    /// Places a list column, one list per row, whose first list has all `count` items of `width` bytes each.
    fn place_lists(&mut self, count: usize, width: usize, max_bytes: u64) -> Result<Ends, Error> {
        if i32::try_from(count).is_err() {
            let bytes = (count * width) as u64;
            return Err(Error::batch_too_large(self.rows.len() as u64, bytes, max_bytes));
        }
        self.place_validity(None);
        let ends = self.layout.buffer((self.rows.len() + 1) * size_of::<i32>());
        self.layout.node(count, 0);
        self.layout.buffer(0);
        Ok(Ends { ends, values: self.layout.buffer(count * width), count })
    }

    /// Places a node with one value per row and its validity buffer, which is empty if there is no null. The nulls are counted when the
    /// buffer is written.
    fn place_validity(&mut self, bit: Nulls) {
        let rows = self.rows.len();
        let bit = bit.filter(|bit| rows > 0 && self.always_valid[bit / 8] >> (bit % 8) & 1 == 0);
        let node = self.layout.node(rows, 0);
        let start = self.layout.buffer(if bit.is_some() { rows.div_ceil(8) } else { 0 });
        self.nullable.extend(bit.map(|bit| NullableColumn { bit, node, start, nulls: 0 }));
    }

    /// Places the node of the items of lists, `width` bytes each, and their validity buffer. The nulls are counted when the buffer is
    /// written.
    fn place_items(&mut self, size: ColumnSize, width: usize) -> Option<ItemValidity> {
        let count = size.bytes / width;
        let node = self.layout.node(count, 0);
        let bytes = if size.has_null_items { count.div_ceil(8) } else { 0 };
        let start = self.layout.buffer(bytes);
        size.has_null_items.then_some(ItemValidity { node, start, bytes, items: 0, nulls: 0 })
    }

    /// Returns a body that shares the memory of the frames, if the view is a single tensor and the rows are consecutive
    /// enough. Otherwise returns `None`.
    fn shared_body(&self, frames: &[Arc<Frame>], max_held_bytes: u64) -> Option<Body> {
        static ZEROS: [u8; ALIGNMENT] = [0; ALIGNMENT];
        let [Output::Tensor { source, len, .. }] = self.view.outputs.as_slice() else { return None };
        let stride = self.view.stride;
        debug_assert_eq!(stride, len * source.width, "a row is the tensor's and nothing else");
        let most = (self.layout.len() / MIN_SHARED_RUN_BYTES).max(1);
        if RowRef::runs(self.rows).take(most + 1).count() > most {
            return None;
        }
        let piece = |run| Frame::shared_rows(stride, frames, run, max_held_bytes).map(Bytes::from_owner);
        let mut pieces: Vec<Bytes> = RowRef::runs(self.rows).map(piece).collect::<Option<_>>()?;
        pieces.push(Bytes::from_static(&ZEROS[..self.layout.len() - self.rows.len() * stride]));
        Some(Body::new(pieces))
    }

    /// Writes every byte of `body`; previous contents do not matter. Also sets the numbers of nulls in the layout.
    async fn write(&mut self, body: &mut [u8], turn: &mut TurnClock) {
        self.layout.clear_padding(body);
        validity::write(&mut self.nullable, &self.tails, body, turn).await;
        self.nullable.iter().for_each(|column| self.layout.set_nulls(column.node, column.nulls));
        let fixed = self.view.outputs.iter().zip(&self.places).filter_map(|(output, place)| match place {
            Place::Fixed { values } => Some((output, *values)),
            _ => None,
        });
        let fixed: Vec<(&Output, usize)> = fixed.collect();
        if self.view.tail > 0 && !fixed.is_empty() {
            let rows = FixedRows { source: &self.source, rows: self.rows, width: self.view.tail };
            rows.write(&fixed, body, turn).await;
        }
        let heap_of = |row: usize| self.source.heap_of(self.view, self.rows[row], self.tails.of(row));
        variable::write(&mut self.variable, &self.tails, heap_of, body, turn).await;
        let of_items = self.variable.iter().filter_map(|column| column.validity.as_ref());
        of_items.for_each(|items| self.layout.set_nulls(items.node, items.nulls));
        for place in &self.places {
            match place {
                Place::Nested { encoded, buffers } => encoded.write(buffers, body),
                Place::Ragged { items, lengths } => {
                    write_first_list(items, self.rows.len(), body);
                    write_first_list(lengths, self.rows.len(), body);
                }
                Place::Distinct { ends, values, rows, index } => {
                    write_distinct(rows, [*ends, *values, *index], body);
                }
                Place::Real { values } => {
                    let out = &mut body[*values..][..self.rows.len()];
                    out.iter_mut()
                        .zip(self.rows)
                        .for_each(|(out, row)| *out = u8::from(row.frame != self.absent));
                }
                Place::Fixed { .. } | Place::Variable => continue,
            }
            turn.step().await;
        }
    }
}

/// Gathers the rows of nested column `index` in chunks, so that a batch that is too large is rejected early.
async fn gather_nested(
    frames: &[Arc<Frame>],
    rows: &[RowRef],
    index: usize,
    max_bytes: u64,
    turn: &mut TurnClock,
) -> Result<ArrayRef, Error> {
    let mut bytes = 0;
    let check = |piece: &ArrayRef| {
        bytes += piece.get_array_memory_size() as u64;
        match bytes > max_bytes.saturating_add(NESTED_SLACK_BYTES) {
            true => Err(Error::batch_too_large(rows.len() as u64, bytes, max_bytes)),
            false => Ok(()),
        }
    };
    frame::gather_nested(frames, rows, index, check, turn).await
}

#[cfg(test)]
mod tests;
