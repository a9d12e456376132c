//! Canonical encoding of Arrow arrays. It fixes everything that Arrow IPC leaves open, so that equal values give equal
//! bytes.
//!
//! - Values under nulls and unused bits are zero.
//! - A validity buffer is present only if there is a null.
//! - Offsets start at 0, without gaps.

use arrow_array::{
    Array, ArrayRef, BooleanArray, GenericListArray, OffsetSizeTrait, UInt64Array, cast::AsArray,
    types::ByteArrayType,
};
use arrow_buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType};
use arrow_select::take::take;

use crate::batch::wire::Layout;

/// Nodes and buffers of one column, in the order of Arrow IPC (depth first).
#[derive(Default)]
pub(crate) struct Encoded {
    nodes: Vec<(usize, usize)>,
    buffers: Vec<Vec<u8>>,
}

impl Encoded {
    /// Encodes one column.
    pub(crate) fn column(array: &ArrayRef) -> Result<Self, ArrowError> {
        let mut encoded = Self::default();
        encoded.array(array)?;
        Ok(encoded)
    }

    /// Places the column in `layout`. Returns the start of each buffer.
    pub(crate) fn place(&self, layout: &mut Layout) -> Vec<usize> {
        for (rows, nulls) in &self.nodes {
            layout.node(*rows, *nulls);
        }
        self.buffers.iter().map(|buffer| layout.buffer(buffer.len())).collect()
    }

    /// Copies the buffers to the positions that [`Self::place`] returned.
    pub(crate) fn write(&self, places: &[usize], body: &mut [u8]) {
        for (buffer, start) in self.buffers.iter().zip(places) {
            body[*start..*start + buffer.len()].copy_from_slice(buffer);
        }
    }

    fn array(&mut self, array: &ArrayRef) -> Result<(), ArrowError> {
        let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        self.nodes.push((array.len(), nulls.as_ref().map_or(0, NullBuffer::null_count)));
        if array.data_type() == &DataType::Null {
            return Ok(());
        }
        self.buffers.push(nulls.as_ref().map_or_else(Vec::new, |nulls| bits(nulls.inner())));
        match array.data_type() {
            DataType::Boolean => self.buffers.push(boolean(array.as_boolean())),
            DataType::Utf8 => self.bytes(array.as_string::<i32>()),
            DataType::LargeUtf8 => self.bytes(array.as_string::<i64>()),
            DataType::Binary => self.bytes(array.as_binary::<i32>()),
            DataType::LargeBinary => self.bytes(array.as_binary::<i64>()),
            DataType::List(_) => self.list(array.as_list::<i32>())?,
            DataType::LargeList(_) => self.list(array.as_list::<i64>())?,
            DataType::Map(_, _) => {
                let map = array.as_map();
                let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
                self.offsets_and_items(map.offsets(), map.nulls(), &entries)?;
            }
            DataType::FixedSizeList(_, _) => {
                let list = array.as_fixed_size_list();
                let width = list.value_length() as usize;
                let start = list.value_offset(0) as usize;
                self.array(&list.values().slice(start, list.len() * width))?;
            }
            DataType::Struct(_) => {
                for column in array.as_struct().columns() {
                    self.array(column)?;
                }
            }
            other => {
                let width = match other {
                    DataType::FixedSizeBinary(width) => *width as usize,
                    _ => other
                        .primitive_width()
                        .ok_or_else(|| ArrowError::NotYetImplemented(format!("encoding of {other}")))?,
                };
                self.buffers.push(fixed(array, width, nulls.as_ref()));
            }
        }
        Ok(())
    }

    fn bytes<T: ByteArrayType>(&mut self, array: &arrow_array::GenericByteArray<T>) {
        let mut offsets = Offsets::<T::Offset>::new(array.len());
        let mut bytes = Vec::new();
        for value in array {
            let value: &[u8] = value.map_or(&[], AsRef::as_ref);
            bytes.extend_from_slice(value);
            offsets.push(value.len());
        }
        self.buffers.push(offsets.bytes);
        self.buffers.push(bytes);
    }

    fn list<O: OffsetSizeTrait>(&mut self, list: &GenericListArray<O>) -> Result<(), ArrowError> {
        self.offsets_and_items(list.offsets(), list.nulls(), list.values())
    }

    fn offsets_and_items<O: OffsetSizeTrait>(
        &mut self,
        offsets: &OffsetBuffer<O>,
        nulls: Option<&NullBuffer>,
        items: &ArrayRef,
    ) -> Result<(), ArrowError> {
        let mut rebased = Offsets::<O>::new(offsets.len() - 1);
        let mut hidden = false;
        for (row, ends) in offsets.windows(2).enumerate() {
            let len = (ends[1] - ends[0]).as_usize();
            let is_null = nulls.is_some_and(|nulls| nulls.is_null(row));
            hidden |= is_null && len > 0;
            rebased.push(if is_null { 0 } else { len });
        }
        self.buffers.push(rebased.bytes);
        let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
        if !hidden {
            return self.array(&items.slice(first, last - first));
        }
        let seen =
            offsets.windows(2).enumerate().filter(|(row, _)| nulls.is_none_or(|nulls| nulls.is_valid(*row)));
        let seen: UInt64Array =
            seen.flat_map(|(_, ends)| ends[0].as_usize() as u64..ends[1].as_usize() as u64).collect();
        self.array(&take(items, &seen, None)?)
    }
}

/// Offsets that start at 0, little-endian.
struct Offsets<O> {
    end: usize,
    bytes: Vec<u8>,
    width: std::marker::PhantomData<O>,
}

impl<O: OffsetSizeTrait> Offsets<O> {
    fn new(rows: usize) -> Self {
        let mut offsets = Self {
            end: 0,
            bytes: Vec::with_capacity((rows + 1) * size_of::<O>()),
            width: std::marker::PhantomData,
        };
        offsets.push(0);
        offsets
    }

    fn push(&mut self, len: usize) {
        self.end += len;
        self.bytes.extend_from_slice(&(self.end as u64).to_le_bytes()[..size_of::<O>()]);
    }
}

fn fixed(array: &ArrayRef, width: usize, nulls: Option<&NullBuffer>) -> Vec<u8> {
    let data = array.to_data();
    let mut bytes = data.buffers()[0].as_slice()[data.offset() * width..][..data.len() * width].to_vec();
    if let Some(nulls) = nulls
        && width > 0
    {
        for (row, value) in bytes.chunks_exact_mut(width).enumerate() {
            if nulls.is_null(row) {
                value.fill(0);
            }
        }
    }
    bytes
}

fn boolean(array: &BooleanArray) -> Vec<u8> {
    match array.nulls() {
        Some(nulls) => bits(&(array.values() & nulls.inner())),
        None => bits(array.values()),
    }
}

/// Packs bits from bit 0 on; unused bits are zero.
fn bits(buffer: &BooleanBuffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len().div_ceil(8)];
    for index in buffer.set_indices() {
        bytes[index / 8] |= 1 << (index % 8);
    }
    bytes
}

#[cfg(test)]
mod tests;
