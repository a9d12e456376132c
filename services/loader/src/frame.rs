//! One block of one view, row-major, ready to gather.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, UInt64Array, cast::AsArray};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::DataType;
use arrow_select::{concat::concat, interleave::interleave, take::take};
use forebay_cache::{Slab, Slabs, Weigh};

use crate::{
    Error, View, tensor,
    view::{Nulls, Part},
};

/// The rows of one block, laid out as its [`View`] says.
#[derive(Debug)]
pub struct Frame {
    pub(crate) rows: usize,
    /// `rows` times the view's stride: the fixed-width values of each row.
    pub(crate) fixed: Slab,
    /// `rows` times the view's validity width: one bit a column that may have nulls, 1 for a value.
    pub(crate) validity: Vec<u8>,
    pub(crate) variable: Vec<Variable>,
    pub(crate) nested: Vec<ArrayRef>,
}

/// Strings or binary: row `i` is `bytes[ends[i - 1]..ends[i]]`; a null is empty.
#[derive(Debug)]
pub(crate) struct Variable {
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

/// A row of a batch: which of the frames at hand, and which of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRef {
    /// Index into the frames at hand.
    pub frame: u32,
    /// Row of that frame.
    pub row: u32,
}

impl Variable {
    fn with_rows(rows: usize) -> Self {
        Self { ends: Vec::with_capacity(rows), bytes: Vec::new() }
    }

    pub(crate) fn get(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.bytes[start as usize..self.ends[row] as usize]
    }

    pub(crate) fn len(&self, row: usize) -> u32 {
        self.ends[row] - if row == 0 { 0 } else { self.ends[row - 1] }
    }

    fn push(&mut self, value: &[u8]) -> Result<(), String> {
        self.bytes.extend_from_slice(value);
        let end = u32::try_from(self.bytes.len())
            .map_err(|_| "more than 4 GiB of values in one block; write smaller row groups")?;
        self.ends.push(end);
        Ok(())
    }

    fn extend<'a>(&mut self, values: impl Iterator<Item = Option<&'a [u8]>>) -> Result<(), String> {
        values.into_iter().try_for_each(|value| self.push(value.unwrap_or_default()))
    }
}

impl Weigh for Frame {
    fn weight(&self) -> u64 {
        let variable: usize = self.variable.iter().map(|v| v.ends.capacity() * 4 + v.bytes.capacity()).sum();
        let nested: usize = self.nested.iter().map(Array::get_array_memory_size).sum();
        (self.fixed.capacity() + self.validity.capacity() + variable + nested) as u64
    }
}

impl Frame {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A frame of the given rows of several frames of one view, in that order.
    ///
    /// # Errors
    /// When the variable-width values of the rows exceed 4 GiB a column.
    pub(crate) fn select(
        view: &View,
        frames: &[Arc<Frame>],
        rows: &[RowRef],
        slabs: &Slabs,
    ) -> Result<Self, Error> {
        let mut selected = Self {
            rows: rows.len(),
            fixed: slabs.take(rows.len() * view.stride),
            validity: Vec::with_capacity(rows.len() * view.validity_width),
            variable: Vec::new(),
            nested: Vec::new(),
        };
        for (at, row) in rows.iter().enumerate() {
            let (frame, row) = (&frames[row.frame as usize], row.row as usize);
            let from = &frame.fixed[row * view.stride..][..view.stride];
            selected.fixed[at * view.stride..][..view.stride].copy_from_slice(from);
            selected
                .validity
                .extend_from_slice(&frame.validity[row * view.validity_width..][..view.validity_width]);
        }
        for index in 0..view.variable_count {
            let mut column = Variable::with_rows(rows.len());
            for row in rows {
                let value = frames[row.frame as usize].variable[index].get(row.row as usize);
                let pushed = column.push(value);
                let most = u64::from(u32::MAX);
                pushed.map_err(|_| Error::batch_too_large(rows.len() as u64, most, most))?;
            }
            selected.variable.push(column);
        }
        for index in 0..view.nested_count {
            selected.nested.push(interleave_nested(frames, rows, index)?);
        }
        Ok(selected)
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

/// Builds a [`Frame`] from decoded chunks of a block.
pub struct FrameBuilder {
    view: Arc<View>,
    place: String,
    frame: Frame,
    nested: Vec<Vec<ArrayRef>>,
}

impl FrameBuilder {
    /// A builder for `rows` rows, which will lie in one of `slabs`. `place` names the block in errors.
    pub fn new(view: Arc<View>, rows: usize, place: String, slabs: &Slabs) -> Self {
        let frame = Frame {
            rows: 0,
            fixed: slabs.take(rows * view.stride),
            validity: vec![0; rows * view.validity_width],
            variable: (0..view.variable_count).map(|_| Variable::with_rows(rows)).collect(),
            nested: Vec::new(),
        };
        let nested = vec![Vec::new(); view.nested_count];
        Self { view, place, frame, nested }
    }

    /// Appends a chunk whose columns are the view's projection.
    ///
    /// # Errors
    /// [`Error::Value`] for a value that a tensor can't hold, and for a null where the footers promised
    /// none; [`Error::Internal`] for more rows than announced.
    pub fn append(&mut self, chunk: &RecordBatch) -> Result<(), Error> {
        let start = self.frame.rows;
        let end = start + chunk.num_rows();
        if end * self.view.stride > self.frame.fixed.len()
            || end * self.view.validity_width > self.frame.validity.len()
        {
            return Err(Error::Internal(format!("{}: more rows than the block has", self.place)));
        }
        let view = Arc::clone(&self.view);
        let mut parts = ChunkParts::default();
        for part in &view.parts {
            self.part(part, chunk, &mut parts)?;
        }
        let fixed = &mut self.frame.fixed[start * view.stride..end * view.stride];
        // Tiles keep the rows being written in the first-level cache (bench: frame).
        for tile in (0..chunk.num_rows()).step_by(TILE_ROWS) {
            let rows = TILE_ROWS.min(chunk.num_rows() - tile);
            let tile_bytes = &mut fixed[tile * view.stride..(tile + rows) * view.stride];
            for input in &parts.inputs {
                input.scatter(tile, rows, tile_bytes, view.stride);
            }
        }
        let validity = &mut self.frame.validity[start * view.validity_width..end * view.validity_width];
        for (bit, nulls) in &parts.validities {
            mark_valid(validity, view.validity_width, *bit, nulls.as_ref());
        }
        self.frame.rows = end;
        Ok(())
    }

    /// The finished frame.
    ///
    /// # Errors
    /// [`Error::Internal`] when rows are missing.
    pub fn finish(mut self) -> Result<Frame, Error> {
        let frame = &mut self.frame;
        let short = frame.rows * self.view.stride != frame.fixed.len();
        if short || frame.rows * self.view.validity_width != frame.validity.len() {
            return Err(Error::Internal(format!("{}: fewer rows than the block has", self.place)));
        }
        for chunks in &self.nested {
            let chunks: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
            frame.nested.push(concat(&chunks).map_err(|error| Error::Internal(error.to_string()))?);
        }
        for column in &mut frame.variable {
            column.bytes.shrink_to_fit();
        }
        Ok(self.frame)
    }

    fn part(&mut self, part: &Part, chunk: &RecordBatch, parts: &mut ChunkParts) -> Result<(), Error> {
        match part {
            Part::Fixed { input, offset, width, nulls, .. } => {
                parts.validities.extend(self.validity(chunk, *input, *nulls)?);
                parts.inputs.push(Input::new(chunk.column(*input), *offset, *width, None));
            }
            Part::Tensor { inputs, offset, width, dtype, fill } => {
                for (position, input) in inputs.iter().enumerate() {
                    let array = tensor::convert(chunk.column(*input), dtype)
                        .map_err(|reason| self.value_error(chunk, *input, reason))?;
                    if fill.is_none() && array.null_count() > 0 {
                        let reason = "a null; give the tensor a fill".to_owned();
                        return Err(self.value_error(chunk, *input, reason));
                    }
                    let fill = fill.map(|fill| tensor::fill_bytes(fill, dtype));
                    parts.inputs.push(Input::new(&array, offset + position * width, *width, fill));
                }
            }
            Part::Variable { input, index, nulls, .. } => {
                parts.validities.extend(self.validity(chunk, *input, *nulls)?);
                append_variable(&mut self.frame.variable[*index], chunk.column(*input))
                    .map_err(|reason| self.value_error(chunk, *input, reason))?;
            }
            Part::Nested { input, index } => self.nested[*index].push(Arc::clone(chunk.column(*input))),
        }
        Ok(())
    }

    /// The bit of a column and its nulls in this chunk; an error if it has nulls and no bit.
    fn validity(&self, chunk: &RecordBatch, input: usize, bit: Nulls) -> Result<Option<Validity>, Error> {
        let array = chunk.column(input);
        match bit {
            Some(bit) => Ok(Some((bit, array.nulls().filter(|nulls| nulls.null_count() > 0).cloned()))),
            None if array.null_count() == 0 => Ok(None),
            None => Err(self.value_error(chunk, input, "a null where the footer promises none".to_owned())),
        }
    }

    fn value_error(&self, chunk: &RecordBatch, input: usize, reason: String) -> Error {
        let column = chunk.schema_ref().field(input).name().clone();
        Error::Value { column, place: self.place.clone(), reason }
    }
}

/// The columns of one chunk, ready to be laid into rows.
#[derive(Default)]
struct ChunkParts {
    inputs: Vec<Input>,
    validities: Vec<Validity>,
}

/// Bit of the validity prefix, and the nulls of a chunk if it has any.
type Validity = (usize, Option<NullBuffer>);

/// Rows of a tile when columns are laid into rows (measured: 16 and 64 are slower).
const TILE_ROWS: usize = 32;

/// One fixed-width column of a chunk on its way into the rows.
struct Input {
    values: Values,
    offset: usize,
    width: usize,
    /// Nulls of the chunk, and what to write there (zero for plain columns).
    nulls: Option<NullBuffer>,
    fill: Vec<u8>,
}

enum Values {
    Bytes(arrow_buffer::Buffer),
    Bits(BooleanBuffer),
}

impl Input {
    fn new(array: &ArrayRef, offset: usize, width: usize, fill: Option<Vec<u8>>) -> Self {
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
        let Some(nulls) = &self.nulls else { return };
        for (row, out) in tile.chunks_exact_mut(stride).enumerate() {
            if nulls.is_null(first + row) {
                out[self.offset..self.offset + self.width].copy_from_slice(&self.fill);
            }
        }
    }
}

/// Writes `values` of `W` bytes each at `offset` of consecutive rows of `stride` bytes.
fn scatter<const W: usize>(values: &[u8], rows: &mut [u8], stride: usize, offset: usize) {
    for (value, row) in values.chunks_exact(W).zip(rows.chunks_exact_mut(stride)) {
        row[offset..offset + W].copy_from_slice(value);
    }
}

/// Sets `bit` in the prefix of each row that is not null.
fn mark_valid(validity: &mut [u8], width: usize, bit: usize, nulls: Option<&NullBuffer>) {
    for (row, prefix) in validity.chunks_exact_mut(width).enumerate() {
        let valid = nulls.is_none_or(|nulls| nulls.is_valid(row));
        prefix[bit / 8] |= u8::from(valid) << (bit % 8);
    }
}

fn append_variable(column: &mut Variable, array: &ArrayRef) -> Result<(), String> {
    match array.data_type() {
        DataType::Utf8 => column.extend(array.as_string::<i32>().iter().map(|v| v.map(str::as_bytes))),
        DataType::LargeUtf8 => column.extend(array.as_string::<i64>().iter().map(|v| v.map(str::as_bytes))),
        DataType::Binary => column.extend(array.as_binary::<i32>().iter()),
        DataType::LargeBinary => column.extend(array.as_binary::<i64>().iter()),
        other => Err(format!("decoded as {other}, expected strings or binary")),
    }
}
