//! Gather is encode: rows of frames straight into the body of their Arrow IPC message.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_select::concat::concat;
use bytes::Bytes;
use forebay_cache::Slabs;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Error, Frame, RowRef, View, WireBatch,
    canonical::Encoded,
    frame::interleave_nested,
    view::{Nulls, Part},
    wire::Layout,
};

/// Rows that are gathered together: few enough to stay in the first-level cache while each column is taken
/// from them, and a multiple of 8, because bits are packed a tile at a time.
const TILE_ROWS: usize = 64;
/// Rows of nested columns that are gathered at once.
const NESTED_ROWS: usize = 4096;
/// What arrays in memory may take beyond their values, in bytes: capacity, headers, validity.
const NESTED_SLACK_BYTES: u64 = 64 << 20;

/// Assembles the given rows of `frames`, all of `view`, into one batch, whose body is one of `slabs`.
/// `hash`: also hash the body.
///
/// # Errors
/// [`Error::TooLarge`] when the body would exceed `max_bytes`.
pub fn assemble(
    view: &View,
    frames: &[Arc<Frame>],
    rows: &[RowRef],
    hash: bool,
    max_bytes: u64,
    slabs: &Slabs,
) -> Result<WireBatch, Error> {
    let plan = BodyPlan::new(view, frames, rows, max_bytes)?;
    let mut body = slabs.take(plan.layout.len());
    plan.write(view, frames, rows, &mut body);
    Ok(WireBatch {
        rows: rows.len() as u64,
        header: plan.layout.header(rows.len()),
        hash: hash.then(|| xxh3_64(&body)),
        body: Bytes::from_owner(body),
    })
}

/// What a first pass over the validity prefixes and the lengths tells: where each buffer will lie.
struct BodyPlan {
    layout: Layout,
    outputs: Vec<Output>,
    /// The validity prefixes of the rows.
    prefixes: Vec<u8>,
    /// Columns that have a null among the rows: bit of the prefix, start of the validity buffer.
    validities: Vec<(usize, usize)>,
}

/// One part of the view on its way into the body; the numbers are starts of buffers.
enum Output {
    Fixed { values: usize },
    Variable { ends: usize, bytes: usize, lengths: Vec<u32> },
    Nested { encoded: Encoded, places: Vec<usize> },
}

impl BodyPlan {
    fn new(view: &View, frames: &[Arc<Frame>], rows: &[RowRef], max_bytes: u64) -> Result<Self, Error> {
        let mut plan = Self {
            layout: Layout::default(),
            outputs: Vec::with_capacity(view.parts.len()),
            prefixes: gather_prefixes(view.validity_width, frames, rows),
            validities: Vec::new(),
        };
        for part in &view.parts {
            let output = plan.place(view, part, frames, rows, max_bytes)?;
            plan.outputs.push(output);
            let needed = plan.layout.len() as u64;
            if needed > max_bytes {
                return Err(Error::batch_too_large(rows.len() as u64, needed, max_bytes));
            }
        }
        Ok(plan)
    }

    fn place(
        &mut self,
        view: &View,
        part: &Part,
        frames: &[Arc<Frame>],
        rows: &[RowRef],
        max_bytes: u64,
    ) -> Result<Output, Error> {
        match part {
            Part::Fixed { width, bit, nulls, .. } => {
                self.place_validity(view.validity_width, *nulls, rows.len());
                let len = if *bit { rows.len().div_ceil(8) } else { rows.len() * width };
                Ok(Output::Fixed { values: self.layout.buffer(len) })
            }
            Part::Tensor { inputs, width, .. } => {
                self.place_validity(0, None, rows.len());
                self.place_validity(0, None, rows.len() * inputs.len());
                Ok(Output::Fixed { values: self.layout.buffer(rows.len() * inputs.len() * width) })
            }
            Part::Variable { index, wide, nulls, .. } => {
                self.place_validity(view.validity_width, *nulls, rows.len());
                let lengths: Vec<u32> = rows
                    .iter()
                    .map(|row| frames[row.frame as usize].variable[*index].len(row.row as usize))
                    .collect();
                let total: usize = lengths.iter().map(|len| *len as usize).sum();
                let ends = self.layout.buffer((rows.len() + 1) * if *wide { 8 } else { 4 });
                Ok(Output::Variable { ends, bytes: self.layout.buffer(total), lengths })
            }
            Part::Nested { index, .. } => {
                let array = match rows.is_empty() {
                    true => arrow_array::new_empty_array(view.schema().field(self.outputs.len()).data_type()),
                    false => gather_nested(frames, rows, *index, max_bytes)?,
                };
                let encoded = Encoded::column(&array).map_err(|error| Error::Internal(error.to_string()))?;
                let places = encoded.place(&mut self.layout);
                Ok(Output::Nested { encoded, places })
            }
        }
    }

    /// Places a node of `rows` values and its validity buffer, which is empty unless there is a null.
    fn place_validity(&mut self, width: usize, bit: Nulls, rows: usize) {
        let is_valid =
            |bit: usize| self.prefixes.chunks_exact(width).filter(move |prefix| is_set(prefix, bit));
        let nulls = bit.map_or(0, |bit| rows - is_valid(bit).count());
        self.layout.node(rows, nulls);
        let start = self.layout.buffer(if nulls > 0 { rows.div_ceil(8) } else { 0 });
        if let Some(bit) = bit
            && nulls > 0
        {
            self.validities.push((bit, start));
        }
    }

    /// Writes every byte of `body`, whatever it held before.
    fn write(&self, view: &View, frames: &[Arc<Frame>], rows: &[RowRef], body: &mut [u8]) {
        self.layout.clear_padding(body);
        for (bit, start) in &self.validities {
            body[*start..*start + rows.len().div_ceil(8)].fill(0);
            let prefixes = self.prefixes.chunks_exact(view.validity_width);
            for (row, prefix) in prefixes.enumerate() {
                body[start + row / 8] |= u8::from(is_set(prefix, *bit)) << (row % 8);
            }
        }
        self.write_fixed(view, frames, rows, body);
        for (part, output) in view.parts.iter().zip(&self.outputs) {
            match (part, output) {
                (Part::Variable { index, wide, .. }, Output::Variable { ends, bytes, lengths }) => {
                    write_ends(lengths, *wide, &mut body[*ends..]);
                    let mut at = *bytes;
                    let mut values: Vec<&[u8]> = Vec::with_capacity(TILE_ROWS);
                    for rows in rows.chunks(TILE_ROWS) {
                        let value_of =
                            |row: &RowRef| frames[row.frame as usize].variable[*index].get(row.row as usize);
                        values.clear();
                        values.extend(rows.iter().map(value_of));
                        touch(&values);
                        for value in &values {
                            body[at..at + value.len()].copy_from_slice(value);
                            at += value.len();
                        }
                    }
                }
                (_, Output::Nested { encoded, places }) => encoded.write(places, body),
                _ => {}
            }
        }
    }

    /// Copies the fixed-width values a tile at a time: of each row the tensors, then of all its rows each plain
    /// column (bench: assemble; by way of a buffer for the tile it takes twice as long).
    fn write_fixed(&self, view: &View, frames: &[Arc<Frame>], rows: &[RowRef], body: &mut [u8]) {
        let fixed: Vec<(&Part, usize)> = view
            .parts
            .iter()
            .zip(&self.outputs)
            .filter_map(|(part, output)| match output {
                Output::Fixed { values } => Some((part, *values)),
                _ => None,
            })
            .collect();
        let mut sources: Vec<&[u8]> = Vec::with_capacity(TILE_ROWS);
        for (number, tile_rows) in rows.chunks(TILE_ROWS).enumerate() {
            let first = number * TILE_ROWS;
            sources.clear();
            sources.extend(tile_rows.iter().map(|row| {
                &frames[row.frame as usize].fixed[row.row as usize * view.stride..][..view.stride]
            }));
            touch(&sources);
            for (position, source) in sources.iter().enumerate() {
                for (part, values) in &fixed {
                    if let Part::Tensor { inputs, offset, width, .. } = part {
                        let len = inputs.len() * width;
                        let at = values + (first + position) * len;
                        body[at..at + len].copy_from_slice(&source[*offset..*offset + len]);
                    }
                }
            }
            for (part, values) in &fixed {
                let Part::Fixed { offset, width, bit, .. } = part else { continue };
                if *bit {
                    pack_bits(&sources, *offset, &mut body[values + first / 8..]);
                } else {
                    let out = &mut body[values + first * width..][..tile_rows.len() * width];
                    transpose(&sources, *offset, *width, out);
                }
            }
        }
    }
}

/// The rows of nested column `index`, gathered piece by piece, so that too many bytes are noticed early.
fn gather_nested(
    frames: &[Arc<Frame>],
    rows: &[RowRef],
    index: usize,
    max_bytes: u64,
) -> Result<ArrayRef, Error> {
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    for piece in rows.chunks(NESTED_ROWS) {
        let piece = interleave_nested(frames, piece, index)?;
        bytes += piece.get_array_memory_size() as u64;
        if bytes > max_bytes.saturating_add(NESTED_SLACK_BYTES) {
            return Err(Error::batch_too_large(rows.len() as u64, bytes, max_bytes));
        }
        pieces.push(piece);
    }
    if let [only] = pieces.as_slice() {
        return Ok(Arc::clone(only));
    }
    let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
    concat(&pieces).map_err(|error| Error::Internal(error.to_string()))
}

/// Brings scattered values into the cache: nothing here depends on anything, so the processor waits for many
/// of them at once, where the copies that follow would wait for one after the other (bench: assemble).
fn touch(values: &[&[u8]]) {
    const CACHE_LINE: usize = 64;
    let mut seen = 0;
    for value in values {
        for line in value.chunks(CACHE_LINE) {
            seen ^= line[line.len() - 1];
        }
    }
    std::hint::black_box(seen);
}

fn gather_prefixes(width: usize, frames: &[Arc<Frame>], rows: &[RowRef]) -> Vec<u8> {
    let mut prefixes = Vec::with_capacity(rows.len() * width);
    if width > 0 {
        for row in rows {
            let validity = &frames[row.frame as usize].validity;
            prefixes.extend_from_slice(&validity[row.row as usize * width..][..width]);
        }
    }
    prefixes
}

fn is_set(prefix: &[u8], bit: usize) -> bool {
    prefix[bit / 8] >> (bit % 8) & 1 == 1
}

/// Writes 0 and the running sums of `lengths`, little-endian, 64-bit if `wide`.
fn write_ends(lengths: &[u32], wide: bool, out: &mut [u8]) {
    let width = if wide { 8 } else { 4 };
    let mut end = 0u64;
    out[..width].fill(0);
    for (len, out) in lengths.iter().zip(out[width..].chunks_exact_mut(width)) {
        end += u64::from(*len);
        out.copy_from_slice(&end.to_le_bytes()[..width]);
    }
}

/// Copies the `width` bytes at `offset` of each row to consecutive places in `out`.
fn transpose(rows: &[&[u8]], offset: usize, width: usize, out: &mut [u8]) {
    match width {
        1 => transpose_by::<1>(rows, offset, out),
        2 => transpose_by::<2>(rows, offset, out),
        4 => transpose_by::<4>(rows, offset, out),
        8 => transpose_by::<8>(rows, offset, out),
        16 => transpose_by::<16>(rows, offset, out),
        width => {
            for (row, value) in rows.iter().zip(out.chunks_exact_mut(width)) {
                value.copy_from_slice(&row[offset..offset + width]);
            }
        }
    }
}

fn transpose_by<const W: usize>(rows: &[&[u8]], offset: usize, out: &mut [u8]) {
    for (row, value) in rows.iter().zip(out.chunks_exact_mut(W)) {
        value.copy_from_slice(&row[offset..offset + W]);
    }
}

/// Packs the bytes (0 or 1) at `offset` of each row into bits.
fn pack_bits(rows: &[&[u8]], offset: usize, out: &mut [u8]) {
    out[..rows.len().div_ceil(8)].fill(0);
    for (position, row) in rows.iter().enumerate() {
        out[position / 8] |= row[offset] << (position % 8);
    }
}
