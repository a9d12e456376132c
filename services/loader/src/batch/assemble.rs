//! Gathering of rows from frames directly into the body of an Arrow IPC message, without an intermediate batch.

mod write;

use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use bytes::Bytes;
use forebay_cache::Slabs;

use crate::{
    Error, Frame, RowRef, View, WireBatch,
    batch::{
        canonical::Encoded,
        wire::{ALIGNMENT, Body, Layout},
    },
    cpu::prefetch::{AHEAD_BYTES, prefetch},
    frame::{self, Distinct, Item, Rows, Tail},
    view::{HeapItems, Nulls, Output},
};

use write::{Ends, transpose, write_bits, write_distinct, write_ends, write_first_list};

/// Number of rows gathered together. A tile stays in the L1 cache while each column is copied from it. It is a multiple
/// of 8, because bits are packed one tile at a time.
const TILE_ROWS: usize = 64;
/// Prefetch distance for strings and lists, in rows.
const HEAP_AHEAD_ROWS: usize = 16;
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
    if rows.len() < options.min_rows {
        let mut frames = frames.to_vec();
        let zeros = RowRef { frame: frames.len() as u32, row: 0 };
        frames.push(Arc::new(Frame::of_zeros(view, slabs)?));
        let mut padded = rows.to_vec();
        padded.resize(options.min_rows, zeros);
        return assemble_with_absent(view, &frames, &padded, zeros.frame, options, slabs);
    }
    assemble_with_absent(view, frames, rows, NONE, options, slabs)
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
    let plan = BodyPlan::new(view, frames, rows, absent, options.max_bytes)?;
    let body = match plan.shared_body(frames, options.max_held_bytes) {
        Some(body) => body,
        None => {
            let mut body = slabs.take(plan.layout.len()).map_err(Error::out_of_memory)?;
            plan.write(&mut body);
            Body::new([Bytes::from_owner(body)])
        }
    };
    Ok(WireBatch {
        rows: rows.iter().filter(|row| row.frame != absent).count() as u64,
        group_offsets: Vec::new(),
        header: plan.layout.header(rows.len()),
        hash: options.hash.then(|| body.hash()),
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
    /// Tails of the rows, concatenated.
    tails: Vec<u8>,
    /// Columns with a null in these rows: bit in the row, start of the validity buffer.
    validities: Vec<(usize, usize)>,
}

/// Position of one output of the view in the body. Numbers are offsets of buffers, in bytes.
enum Place<'a> {
    Fixed {
        values: usize,
    },
    Variable {
        ends: usize,
        values: usize,
        item_validity: Option<usize>,
    },
    Nested {
        encoded: Encoded,
        buffers: Vec<usize>,
    },
    /// Lists of the items and of their lengths, and the offset of each column's items.
    Ragged {
        items: Ends,
        lengths: Ends,
        columns: Vec<usize>,
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
    fn new(
        view: &'a View,
        frames: &'a [Arc<Frame>],
        rows: &'a [RowRef],
        absent: u32,
        max_bytes: u64,
    ) -> Result<Self, Error> {
        let source = Rows::new(view, frames);
        let mut plan = Self {
            tails: gather_tails(view, &source, rows),
            view,
            rows,
            absent,
            source,
            layout: Layout::default(),
            places: Vec::with_capacity(view.outputs.len()),
            validities: Vec::new(),
        };
        for output in &view.outputs {
            let place = plan.place(output, frames, max_bytes)?;
            plan.places.push(place);
            let needed = plan.layout.len() as u64;
            if needed > max_bytes {
                return Err(Error::batch_too_large(rows.len() as u64, needed, max_bytes));
            }
        }
        Ok(plan)
    }

    fn place(
        &mut self,
        output: &Output,
        frames: &'a [Arc<Frame>],
        max_bytes: u64,
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
                let (count, mut bytes) = (source.inputs.len(), vec![0; source.inputs.len()]);
                for tail in self.tails() {
                    for (column, bytes) in bytes.iter_mut().enumerate() {
                        *bytes += tail.item(first + column).bytes();
                    }
                }
                let all: usize = bytes.iter().sum();
                let items = self.place_lists(all / source.width, source.width, max_bytes)?;
                let lengths = self.place_lists(rows * count, size_of::<i32>(), max_bytes)?;
                let begin = |at: &mut usize, bytes: usize| {
                    let begin = *at;
                    *at += bytes;
                    Some(begin)
                };
                let columns = bytes.into_iter().scan(items.values, begin).collect();
                Ok(Place::Ragged { items, lengths, columns })
            }
            Output::Distinct { source, len, table, .. } => {
                let distinct = Distinct::new(frames, *table, len * source.width, self.rows);
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
                let lengths = self.tails().map(|tail| tail.item(*index));
                let bytes = lengths.map(Item::bytes).sum();
                let ends = self.layout.buffer((rows + 1) * if *wide { 8 } else { 4 });
                let item_validity = match items {
                    HeapItems::Bytes => None,
                    HeapItems::OfWidth(width) => self.place_items(*index, bytes / width),
                };
                Ok(Place::Variable { ends, values: self.layout.buffer(bytes), item_validity })
            }
            Output::Nested { index, input } => {
                let array = match self.rows {
                    [] => arrow_array::new_empty_array(self.view.input_schema().field(*input).data_type()),
                    rows => gather_nested(frames, rows, *index, max_bytes)?,
                };
                let encoded = Encoded::column(&array).map_err(|error| Error::Internal(error.to_string()))?;
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

    /// Places a node with one value per row and its validity buffer, which is empty if there is no null.
    fn place_validity(&mut self, bit: Nulls) {
        let rows = self.rows.len();
        let nulls = bit.map_or(0, |bit| rows - self.validity_bits(bit).filter(|valid| *valid).count());
        self.layout.node(rows, nulls);
        let start = self.layout.buffer(if nulls > 0 { rows.div_ceil(8) } else { 0 });
        if let Some(bit) = bit
            && nulls > 0
        {
            self.validities.push((bit, start));
        }
    }

    /// Places the node of the `count` items of lists, and their validity buffer. Returns the start of the buffer if an
    /// item is null.
    fn place_items(&mut self, index: usize, count: usize) -> Option<usize> {
        let mut nulls = 0;
        for (row, tail) in self.rows.iter().zip(self.tails()) {
            if tail.item(index).has_null_items() {
                let (_, validity) = self.value(*row, tail, index);
                let items = Bits { bytes: validity, len: self.items(tail, index) };
                nulls += items.iter().filter(|valid| !valid).count();
            }
        }
        self.layout.node(count, nulls);
        let start = self.layout.buffer(if nulls > 0 { count.div_ceil(8) } else { 0 });
        (nulls > 0).then_some(start)
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

    /// Writes every byte of `body`; previous contents do not matter.
    fn write(&self, body: &mut [u8]) {
        self.layout.clear_padding(body);
        for (bit, start) in &self.validities {
            let out = &mut body[*start..*start + self.rows.len().div_ceil(8)];
            write_bits(out, self.validity_bits(*bit));
        }
        if self.view.tail > 0 {
            self.write_fixed(body);
        }
        if !self.view.variable_items.is_empty() {
            self.write_variable(body);
        }
        for place in &self.places {
            match place {
                Place::Nested { encoded, buffers } => encoded.write(buffers, body),
                Place::Distinct { ends, values, rows, index } => {
                    write_distinct(rows, [*ends, *values, *index], body);
                }
                Place::Real { values } => {
                    let out = &mut body[*values..][..self.rows.len()];
                    out.iter_mut()
                        .zip(self.rows)
                        .for_each(|(out, row)| *out = u8::from(row.frame != self.absent));
                }
                Place::Fixed { .. } | Place::Variable { .. } | Place::Ragged { .. } => {}
            }
        }
    }

    /// Copies the fixed-width values one tile at a time: the tensors of each row, then each plain column of all rows.
    /// The next tile and its place in the body are prefetched (bench: assemble; with a buffer for the tile it takes
    /// twice as long).
    fn write_fixed(&self, body: &mut [u8]) {
        let view = self.view;
        let fixed: Vec<(&Output, usize)> = view
            .outputs
            .iter()
            .zip(&self.places)
            .filter_map(|(output, place)| match place {
                Place::Fixed { values } => Some((output, *values)),
                _ => None,
            })
            .collect();
        if fixed.is_empty() {
            return;
        }
        let has_plain = fixed.iter().any(|(output, _)| matches!(output, Output::Fixed { .. }));
        let ahead = if has_plain { TILE_ROWS } else { (AHEAD_BYTES / view.tail).clamp(1, TILE_ROWS) };
        let values_of = |row: &RowRef| &self.source.row(*row)[..view.tail];
        self.rows.iter().take(ahead).for_each(|row| prefetch(values_of(row)));
        let mut sources: Vec<&[u8]> = Vec::with_capacity(TILE_ROWS);
        for (number, tile) in self.rows.chunks(TILE_ROWS).enumerate() {
            let first = number * TILE_ROWS;
            sources.clear();
            for (position, row) in tile.iter().enumerate() {
                if let Some(next) = self.rows.get(first + position + ahead) {
                    prefetch(values_of(next));
                }
                let row = values_of(row);
                sources.push(row);
                for (output, values) in &fixed {
                    if let Output::Tensor { source, offset, len, .. } = output {
                        let len = len * source.width;
                        let at = values + (first + position) * len;
                        body[at..at + len].copy_from_slice(&row[*offset..*offset + len]);
                    }
                }
            }
            for (output, values) in &fixed {
                let Output::Fixed { offset, width, bit, .. } = output else { continue };
                if *bit {
                    let out = &mut body[values + first / 8..][..sources.len().div_ceil(8)];
                    write_bits(out, sources.iter().map(|row| row[*offset] != 0));
                } else {
                    let out = &mut body[values + first * width..values + self.rows.len() * width];
                    let (out, next) = out.split_at_mut(tile.len() * width);
                    prefetch(&next[..next.len().min(TILE_ROWS * width)]);
                    transpose(&sources, *offset, *width, out);
                }
            }
        }
    }

    /// Copies strings, binary values and lists, row by row, because the values of one row are stored together.
    fn write_variable(&self, body: &mut [u8]) {
        let mut columns: Vec<VariableColumn> = Vec::with_capacity(self.view.variable_items.len());
        for (output, place) in self.view.outputs.iter().zip(&self.places) {
            if let (Output::Ragged { source, first }, Place::Ragged { items, lengths, columns: begins }) =
                (output, place)
            {
                write_first_list(items, self.rows.len(), body);
                write_first_list(lengths, self.rows.len(), body);
                let out = body[lengths.values..][..lengths.count * size_of::<i32>()].as_chunks_mut().0;
                let all = (0..source.inputs.len()).flat_map(|column| {
                    self.tails().map(move |tail| tail.item(first + column).bytes() / source.width)
                });
                all.zip(out).for_each(|(length, out)| *out = (length as u32).to_le_bytes());
                let each = begins.iter().enumerate();
                columns.extend(each.map(|(column, at)| VariableColumn {
                    index: first + column,
                    items: HeapItems::OfWidth(source.width),
                    at: *at,
                }));
            }
            let Output::Variable { index, items, wide, .. } = output else { continue };
            let Place::Variable { ends, values, item_validity } = place else { continue };
            let lengths = self.tails().map(|tail| self.items(tail, *index));
            write_ends(lengths, *wide, &mut body[*ends..]);
            if let Some(start) = item_validity {
                let count: usize = self.tails().map(|tail| self.items(tail, *index)).sum();
                write_bits(&mut body[*start..*start + count.div_ceil(8)], self.item_validity(*index));
            }
            columns.push(VariableColumn { index: *index, items: *items, at: *values });
        }
        for (position, (row, tail)) in self.rows.iter().zip(self.tails()).enumerate() {
            if let Some(next) = self.rows.get(position + HEAP_AHEAD_ROWS) {
                prefetch(self.source.heap_of(self.view, *next, self.tail(position + HEAP_AHEAD_ROWS)));
            }
            let mut values = self.source.heap_of(self.view, *row, tail);
            for column in &mut columns {
                let item = tail.item(column.index);
                let (value, rest) = values.split_at(item.bytes());
                body[column.at..column.at + value.len()].copy_from_slice(value);
                column.at += value.len();
                values = &rest[item.validity_bytes(column.items)..];
            }
        }
    }

    /// Returns for each row whether its value is valid.
    fn validity_bits(&self, bit: usize) -> impl Iterator<Item = bool> {
        let (width, at) = (self.tail_width(), self.view.validity - self.view.tail + bit / 8);
        self.tails.chunks_exact(width).map(move |tail| tail[at] >> (bit % 8) & 1 == 1)
    }

    /// Returns whether each item in the lists of variable column `index` is valid.
    fn item_validity(&self, index: usize) -> impl Iterator<Item = bool> {
        self.rows.iter().zip(self.tails()).flat_map(move |(row, tail)| {
            let (_, bytes) = self.value(*row, tail, index);
            Bits { bytes, len: self.items(tail, index) }.iter()
        })
    }

    /// Number of items of a value, or of bytes for strings and binary.
    fn items(&self, tail: Tail<'_>, index: usize) -> usize {
        let bytes = tail.item(index).bytes();
        match self.view.variable_items[index] {
            HeapItems::Bytes => bytes,
            HeapItems::OfWidth(width) => bytes / width,
        }
    }

    /// Returns the bytes of one value, and the validity of its items if one is null.
    fn value(&self, row: RowRef, tail: Tail<'_>, index: usize) -> (&[u8], &[u8]) {
        let mut values = self.source.heap_of(self.view, row, tail);
        for (before, items) in self.view.variable_items[..index].iter().enumerate() {
            let item = tail.item(before);
            values = &values[item.bytes() + item.validity_bytes(*items)..];
        }
        let item = tail.item(index);
        let (value, rest) = values.split_at(item.bytes());
        (value, &rest[..item.validity_bytes(self.view.variable_items[index])])
    }

    fn tail_width(&self) -> usize {
        self.view.stride - self.view.tail
    }

    fn tail(&self, position: usize) -> Tail<'_> {
        Tail::new(self.view, &self.tails[position * self.tail_width()..])
    }

    fn tails(&self) -> impl Iterator<Item = Tail<'_>> {
        (0..self.rows.len()).map(|position| self.tail(position))
    }
}

/// Position in the body of the next value of a variable column.
struct VariableColumn {
    index: usize,
    items: HeapItems,
    at: usize,
}

/// The first `len` bits of `bytes`; all set if `bytes` is empty.
#[derive(Clone, Copy)]
struct Bits<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Bits<'a> {
    fn iter(self) -> impl Iterator<Item = bool> + 'a {
        (0..self.len).map(move |bit| self.bytes.is_empty() || self.bytes[bit / 8] >> (bit % 8) & 1 == 1)
    }
}

/// Copies the tails of the rows, so that each row is read only once for all lengths and nulls.
fn gather_tails(view: &View, source: &Rows<'_>, rows: &[RowRef]) -> Vec<u8> {
    const AHEAD_ROWS: usize = 32;
    let mut tails = Vec::with_capacity(rows.len() * (view.stride - view.tail));
    if view.tail == view.stride {
        return tails;
    }
    for (position, row) in rows.iter().enumerate() {
        if let Some(next) = rows.get(position + AHEAD_ROWS) {
            prefetch(&source.row(*next)[view.tail..]);
        }
        tails.extend_from_slice(&source.row(*row)[view.tail..]);
    }
    tails
}

/// Gathers the rows of nested column `index` in chunks, so that a batch that is too large is rejected early.
fn gather_nested(
    frames: &[Arc<Frame>],
    rows: &[RowRef],
    index: usize,
    max_bytes: u64,
) -> Result<ArrayRef, Error> {
    let mut bytes = 0;
    frame::gather_nested(frames, rows, index, |piece| {
        bytes += piece.get_array_memory_size() as u64;
        match bytes > max_bytes.saturating_add(NESTED_SLACK_BYTES) {
            true => Err(Error::batch_too_large(rows.len() as u64, bytes, max_bytes)),
            false => Ok(()),
        }
    })
}
