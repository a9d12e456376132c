//! The digest of a stream of batches, as docs/reference/protocol.md defines it: over values, not over buffers, so
//! that it depends neither on how the rows were cut into batches nor on who encoded them.

use arrow_array::{
    Array, ArrayRef, OffsetSizeTrait, RecordBatch, cast::AsArray, make_array, types::ByteArrayType,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::DataType;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The digest of the batches seen so far. Feed it the global batches in order.
#[derive(Default)]
pub struct Digest {
    columns: Vec<Node>,
}

/// A column, or what is nested in one: three streams over all of its values, and its children.
#[derive(Default)]
struct Node {
    /// 1 for a value, 0 for a null, a byte each.
    validity: Xxh3,
    /// For strings, binary, lists and maps: the length of each value, 64-bit little-endian; 0 for a null.
    lengths: Xxh3,
    /// The values, little-endian, a bool as a byte; a null of fixed width is zeros.
    values: Xxh3,
    children: Vec<Node>,
}

impl Digest {
    /// Adds a batch. All batches of a stream have one schema.
    ///
    /// # Panics
    /// On a type that Forebay does not deliver (dictionaries, views, unions).
    pub fn update(&mut self, batch: &RecordBatch) {
        self.columns.resize_with(batch.num_columns(), Node::default);
        for (node, column) in self.columns.iter_mut().zip(batch.columns()) {
            node.update(column);
        }
    }

    /// The digest: XXH3-64 of the 24 bytes that each node's three hashes make, depth first; 16 hex digits.
    pub fn finish(&self) -> String {
        let mut hashes = Vec::new();
        for column in &self.columns {
            column.finish(&mut hashes);
        }
        format!("{:016x}", xxh3_64(&hashes))
    }
}

impl Node {
    fn update(&mut self, array: &ArrayRef) {
        let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        match &nulls {
            None => self.validity.update(&vec![1; array.len()]),
            Some(nulls) => self.validity.update(&nulls.iter().map(u8::from).collect::<Vec<_>>()),
        }
        let is_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        match array.data_type() {
            DataType::Null => {}
            DataType::Boolean => {
                let values = array.as_boolean();
                let bytes = (0..array.len()).map(|row| u8::from(!is_null(row) && values.value(row)));
                self.values.update(&bytes.collect::<Vec<_>>());
            }
            DataType::Utf8 => self.bytes(array.as_string::<i32>()),
            DataType::LargeUtf8 => self.bytes(array.as_string::<i64>()),
            DataType::Binary => self.bytes(array.as_binary::<i32>()),
            DataType::LargeBinary => self.bytes(array.as_binary::<i64>()),
            DataType::List(_) => {
                self.list(array.as_list::<i32>().offsets(), array.as_list::<i32>().values(), is_null);
            }
            DataType::LargeList(_) => {
                self.list(array.as_list::<i64>().offsets(), array.as_list::<i64>().values(), is_null);
            }
            DataType::Map(_, _) => {
                let entries: ArrayRef = std::sync::Arc::new(array.as_map().entries().clone());
                self.list(array.as_map().offsets(), &entries, is_null);
            }
            DataType::FixedSizeList(_, width) => {
                let list = array.as_fixed_size_list();
                let ends = (0..=list.len()).map(|row| (list.offset() + row) as i64 * i64::from(*width));
                self.list(&OffsetBuffer::new(ends.collect()), list.values(), is_null);
            }
            DataType::Struct(_) => {
                for (index, column) in array.as_struct().columns().iter().enumerate() {
                    // A null struct's fields are null.
                    let nulls = NullBuffer::union(nulls.as_ref(), column.logical_nulls().as_ref());
                    let masked = column.to_data().into_builder().nulls(nulls);
                    let masked =
                        masked.build().expect("the struct has as many nulls as the field has values");
                    self.child(index).update(&make_array(masked));
                }
            }
            fixed => {
                let width = match fixed {
                    DataType::FixedSizeBinary(width) => *width as usize,
                    other => other.primitive_width().expect("every other delivered type has one width"),
                };
                let data = array.to_data();
                let values = &data.buffers()[0].as_slice()[data.offset() * width..][..data.len() * width];
                if nulls.is_none() {
                    self.values.update(values);
                    return;
                }
                let zeros = vec![0; width];
                for (row, value) in values.chunks_exact(width.max(1)).enumerate() {
                    self.values.update(if is_null(row) { &zeros } else { value });
                }
            }
        }
    }

    fn bytes<T: ByteArrayType>(&mut self, array: &arrow_array::GenericByteArray<T>) {
        for value in array {
            let value: &[u8] = value.map_or(&[], AsRef::as_ref);
            self.lengths.update(&(value.len() as u64).to_le_bytes());
            self.values.update(value);
        }
    }

    fn list<O: OffsetSizeTrait>(
        &mut self,
        offsets: &OffsetBuffer<O>,
        items: &ArrayRef,
        is_null: impl Fn(usize) -> bool,
    ) {
        let row_of = |row: usize| {
            let (start, end) = (offsets[row].as_usize(), offsets[row + 1].as_usize());
            (start, if is_null(row) { start } else { end })
        };
        // Items that lie side by side are hashed together.
        let (mut run_start, mut run_end) = (0, 0);
        for row in 0..offsets.len() - 1 {
            let (start, end) = row_of(row);
            self.lengths.update(&((end - start) as u64).to_le_bytes());
            if start != run_end {
                self.child(0).update(&items.slice(run_start, run_end - run_start));
                run_start = start;
            }
            run_end = end;
        }
        self.child(0).update(&items.slice(run_start, run_end - run_start));
    }

    fn child(&mut self, index: usize) -> &mut Node {
        if self.children.len() <= index {
            self.children.resize_with(index + 1, Node::default);
        }
        &mut self.children[index]
    }

    fn finish(&self, hashes: &mut Vec<u8>) {
        for stream in [&self.validity, &self.lengths, &self.values] {
            hashes.extend_from_slice(&stream.digest().to_le_bytes());
        }
        for child in &self.children {
            child.finish(hashes);
        }
    }
}

#[cfg(test)]
mod tests;
