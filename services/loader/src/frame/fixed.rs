//! Fixed-width columns on their way into rows.

use arrow_array::{Array, ArrayRef, cast::AsArray};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_schema::DataType;

use crate::prefetch::prefetch;

/// Rows of a tile when columns are laid into rows (measured: 16 and 64 are slower).
pub(super) const TILE_ROWS: usize = 32;
/// Columns that are laid into rows together when they lie side by side there.
const GROUP: usize = 8;

/// One fixed-width column of a chunk on its way into the rows.
pub(super) struct Input {
    values: Values,
    offset: usize,
    width: usize,
    /// Nulls of the chunk, and what to write there (zero for plain columns).
    nulls: Option<NullBuffer>,
    fill: Vec<u8>,
}

enum Values {
    Bytes(Buffer),
    Bits(BooleanBuffer),
}

impl Input {
    pub(super) fn new(array: &ArrayRef, offset: usize, width: usize, fill: Option<Vec<u8>>) -> Self {
        let values = match array.data_type() {
            DataType::Boolean => Values::Bits(array.as_boolean().values().clone()),
            _ => {
                let data = array.to_data();
                Values::Bytes(data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width))
            }
        };
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        Self { values, offset, width, nulls, fill: fill.unwrap_or_else(|| vec![0; width]) }
    }

    /// Values of `width` bytes each, as they are.
    pub(super) fn of_bytes(bytes: Vec<u8>, offset: usize, width: usize) -> Self {
        Self { values: Values::Bytes(Buffer::from(bytes)), offset, width, nulls: None, fill: Vec::new() }
    }

    /// Writes rows `first..first + rows` of the column into `tile`, the same rows of `stride` bytes.
    fn scatter(&self, first: usize, rows: usize, tile: &mut [u8], stride: usize) {
        match &self.values {
            Values::Bits(bits) => {
                for (row, out) in tile.chunks_exact_mut(stride).enumerate() {
                    out[self.offset] = u8::from(bits.value(first + row));
                }
            }
            Values::Bytes(bytes) => {
                let values = &bytes[first * self.width..(first + rows) * self.width];
                match self.width {
                    1 => scatter::<1>(values, tile, stride, self.offset),
                    2 => scatter::<2>(values, tile, stride, self.offset),
                    4 => scatter::<4>(values, tile, stride, self.offset),
                    8 => scatter::<8>(values, tile, stride, self.offset),
                    16 => scatter::<16>(values, tile, stride, self.offset),
                    width => {
                        for (value, out) in values.chunks_exact(width).zip(tile.chunks_exact_mut(stride)) {
                            out[self.offset..self.offset + width].copy_from_slice(value);
                        }
                    }
                }
            }
        }
    }

    /// Writes the fill over the values under nulls.
    fn fill_nulls(&self, first: usize, tile: &mut [u8], stride: usize) {
        let Some(nulls) = &self.nulls else { return };
        for (row, out) in tile.chunks_exact_mut(stride).enumerate() {
            if nulls.is_null(first + row) {
                out[self.offset..self.offset + self.width].copy_from_slice(&self.fill);
            }
        }
    }

    fn bytes_of_width(&self, width: usize) -> Option<&[u8]> {
        match &self.values {
            Values::Bytes(bytes) if self.width == width => Some(bytes),
            _ => None,
        }
    }
}

/// Lays `rows` rows of all `inputs` into `out`, rows of `stride` bytes, and zeros their ends from `end` on. Tiles keep
/// the rows being written in the first-level cache, while the next ones are on their way; neighbours of
/// one width are written together (bench: frame).
pub(super) fn scatter_all(inputs: &[Input], rows: usize, out: &mut [u8], stride: usize, end: usize) {
    let groups = groups(inputs);
    for first in (0..rows).step_by(TILE_ROWS) {
        let rows = TILE_ROWS.min(rows - first);
        let (tile, ahead) = out[first * stride..].split_at_mut(rows * stride);
        prefetch(&ahead[..(TILE_ROWS * stride).min(ahead.len())]);
        for group in &groups {
            match group {
                Group::Four(columns, offset) => scatter_group::<4>(columns, first, tile, stride, *offset),
                Group::Eight(columns, offset) => scatter_group::<8>(columns, first, tile, stride, *offset),
                Group::One(input) => input.scatter(first, rows, tile, stride),
            }
        }
        for input in inputs {
            input.fill_nulls(first, tile, stride);
        }
        if end < stride {
            tile.chunks_exact_mut(stride).for_each(|row| row[end..].fill(0));
        }
    }
}

/// Columns that are written together, and where in the row the first of them lies.
enum Group<'a> {
    Four([&'a [u8]; GROUP], usize),
    Eight([&'a [u8]; GROUP], usize),
    One(&'a Input),
}

fn groups(inputs: &[Input]) -> Vec<Group<'_>> {
    let (mut groups, mut rest) = (Vec::new(), inputs);
    while let Some(first) = rest.first() {
        if let Some(columns) = neighbours(rest, 4) {
            groups.push(Group::Four(columns, first.offset));
            rest = &rest[GROUP..];
        } else if let Some(columns) = neighbours(rest, 8) {
            groups.push(Group::Eight(columns, first.offset));
            rest = &rest[GROUP..];
        } else {
            groups.push(Group::One(first));
            rest = &rest[1..];
        }
    }
    groups
}

/// The first columns, if they are of `width` and lie side by side in the row.
fn neighbours(inputs: &[Input], width: usize) -> Option<[&[u8]; GROUP]> {
    let inputs = inputs.get(..GROUP)?;
    let mut columns = [&[][..]; GROUP];
    for (position, input) in inputs.iter().enumerate() {
        if input.offset != inputs[0].offset + position * width {
            return None;
        }
        columns[position] = input.bytes_of_width(width)?;
    }
    Some(columns)
}

/// Writes `GROUP` columns of `W` bytes side by side at `offset` of the rows of `tile`.
fn scatter_group<const W: usize>(
    columns: &[&[u8]; GROUP],
    first: usize,
    tile: &mut [u8],
    stride: usize,
    offset: usize,
) {
    let rows = tile.len() / stride;
    let columns = columns.map(|column| &column[first * W..(first + rows) * W].as_chunks::<W>().0[..rows]);
    for (row, out) in tile.chunks_exact_mut(stride).enumerate() {
        let (out, _) = out[offset..offset + GROUP * W].as_chunks_mut::<W>();
        for (column, out) in columns.iter().zip(out) {
            *out = column[row];
        }
    }
}

/// Writes `values` of `W` bytes each at `offset` of consecutive rows of `stride` bytes.
fn scatter<const W: usize>(values: &[u8], rows: &mut [u8], stride: usize, offset: usize) {
    for (value, row) in values.chunks_exact(W).zip(rows.chunks_exact_mut(stride)) {
        row[offset..offset + W].copy_from_slice(value);
    }
}
