//! Writing of fixed-width columns into rows.

use arrow_array::{Array, ArrayRef, cast::AsArray};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_schema::DataType;

use crate::cpu::prefetch::prefetch;

/// Number of rows of a tile (measured: 16 and 64 are slower).
pub(super) const TILE_ROWS: usize = 32;
/// Number of adjacent columns of a row that are written together.
const GROUP: usize = 8;

/// One fixed-width column of a chunk.
pub(super) struct Input {
    values: Values,
    offset: usize,
    width: usize,
    /// Nulls of the chunk, and the value to write in their place (zero for plain columns).
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

    /// Wraps values of `width` bytes each, without nulls.
    pub(super) fn of_bytes(bytes: Vec<u8>, offset: usize, width: usize) -> Self {
        Self { values: Values::Bytes(Buffer::from(bytes)), offset, width, nulls: None, fill: Vec::new() }
    }

    /// Writes `fill` in place of the values of null rows.
    pub(super) fn with_nulls(self, nulls: Option<NullBuffer>, fill: Vec<u8>) -> Self {
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        Self { nulls, fill, ..self }
    }

    /// Writes rows `first..first + rows` of the column into `tile`, which holds the same rows, `stride` bytes each.
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

    /// Overwrites the values of null rows with the fill value.
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

/// Writes `rows` rows of all `inputs` into `out`, rows of `stride` bytes, and zeroes each row from `end` on. A tile of
/// rows stays in the L1 cache while it is written, and the next tile is prefetched. Adjacent columns of one width are
/// written together (bench: frame).
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

/// Columns that are written together, and the offset of the first one in the row.
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

/// Returns the first columns if they have this width and are adjacent in the row.
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

/// Writes `GROUP` adjacent columns of `W` bytes at `offset` of the rows of `tile`.
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
