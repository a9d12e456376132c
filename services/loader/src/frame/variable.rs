//! Values of variable width: strings, binary and lists of fixed-width items.
//!
//! The tail of a row holds the start of its values in the heap and the length of each, as little-endian `u32`s. The
//! values are stored consecutively. A list with null items has the highest bit of its length set, and its items are
//! followed by a validity bitmap. The bytes of a null item are zero.

use arrow_array::{Array, ArrayRef, OffsetSizeTrait, cast::AsArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, bit_mask::set_bits};
use arrow_schema::DataType;

use crate::{View, view::HeapItems};

const WORD: usize = size_of::<u32>();
const NULL_ITEMS: u32 = 1 << 31;

/// Length of one value, as stored in the tail of its row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item {
    word: u32,
}

impl Item {
    /// Size of the value in bytes, without the validity of its items.
    pub(crate) fn bytes(self) -> usize {
        (self.word & !NULL_ITEMS) as usize
    }

    /// True if the items are followed by their validity.
    pub(crate) fn has_null_items(self) -> bool {
        self.word & NULL_ITEMS != 0
    }

    /// Size of the items' validity in bytes.
    pub(crate) fn validity_bytes(self, items: HeapItems) -> usize {
        match items {
            HeapItems::OfWidth(width) if self.has_null_items() => (self.bytes() / width).div_ceil(8),
            _ => 0,
        }
    }
}

/// Tail of a row.
#[derive(Clone, Copy)]
pub(crate) struct Tail<'a> {
    words: &'a [u8],
}

impl<'a> Tail<'a> {
    /// Returns the tail at the beginning of `bytes`.
    #[inline]
    pub(crate) fn new(view: &View, bytes: &'a [u8]) -> Self {
        Self { words: &bytes[..view.validity - view.tail] }
    }

    #[inline]
    fn word(self, index: usize) -> u32 {
        let bytes = &self.words[index * WORD..][..WORD];
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    /// Offset of the row's values in the heap.
    #[inline]
    pub(crate) fn start(self) -> usize {
        self.word(0) as usize
    }

    /// Length of the value of variable column `index`.
    #[inline]
    pub(crate) fn item(self, index: usize) -> Item {
        Item { word: self.word(1 + index) }
    }

    /// Size of all values of the row in bytes.
    #[inline]
    pub(crate) fn len(self, view: &View) -> usize {
        view.variable_items
            .iter()
            .enumerate()
            .map(|(index, items)| {
                let item = self.item(index);
                item.bytes() + item.validity_bytes(*items)
            })
            .sum()
    }

    /// Sets the offset of the row's values in the tail in `bytes` to `start`.
    pub(crate) fn move_to(bytes: &mut [u8], start: usize) -> Result<(), String> {
        bytes[..WORD].copy_from_slice(&word_of(start, u32::MAX)?.to_le_bytes());
        Ok(())
    }
}

fn word_of(value: usize, most: u32) -> Result<u32, String> {
    let word = u32::try_from(value).ok().filter(|word| *word <= most);
    word.ok_or_else(|| format!("{value} bytes of values, the limit is {most}; write smaller row groups"))
}

/// One variable-width column of a chunk.
pub(super) struct Values {
    offsets: Offsets,
    bytes: Buffer,
    nulls: Option<NullBuffer>,
    /// Size of an item in bytes, and nulls among the items, if any.
    width: usize,
    item_nulls: Option<NullBuffer>,
}

enum Offsets {
    Small(OffsetBuffer<i32>),
    Large(OffsetBuffer<i64>),
}

impl Values {
    /// Wraps a column of strings, binary values or lists.
    ///
    /// # Errors
    /// A message that names the type if it is not supported.
    pub(super) fn new(array: &ArrayRef) -> Result<Self, String> {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        let (offsets, bytes, width, item_nulls) = match array.data_type() {
            DataType::Utf8 => bytes_of(array.as_string::<i32>().offsets(), array.as_string::<i32>().values()),
            DataType::LargeUtf8 => {
                bytes_of(array.as_string::<i64>().offsets(), array.as_string::<i64>().values())
            }
            DataType::Binary => {
                bytes_of(array.as_binary::<i32>().offsets(), array.as_binary::<i32>().values())
            }
            DataType::LargeBinary => {
                bytes_of(array.as_binary::<i64>().offsets(), array.as_binary::<i64>().values())
            }
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                items_of(list.offsets(), list.values())?
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                items_of(list.offsets(), list.values())?
            }
            other => return Err(format!("decoded as {other}, expected strings, binary or lists")),
        };
        Ok(Self { offsets, bytes, nulls, width, item_nulls })
    }

    /// Appends the value of `row` to `heap`. Returns the word for the tail of the row.
    pub(super) fn append(&self, row: usize, heap: &mut Vec<u8>) -> Result<u32, String> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return Ok(0);
        }
        let (start, end) = match &self.offsets {
            Offsets::Small(offsets) => (offsets[row] as usize, offsets[row + 1] as usize),
            Offsets::Large(offsets) => (offsets[row] as usize, offsets[row + 1] as usize),
        };
        let at = heap.len();
        heap.extend_from_slice(&self.bytes[start * self.width..end * self.width]);
        let word = word_of(heap.len() - at, NULL_ITEMS - 1)?;
        let Some(nulls) = &self.item_nulls else { return Ok(word) };
        let (items, bits) = (end - start, heap.len());
        heap.resize(bits + items.div_ceil(8), 0);
        let (values, validity) = heap.split_at_mut(bits);
        if set_bits(validity, nulls.validity(), 0, nulls.offset() + start, items) == 0 {
            heap.truncate(bits);
            return Ok(word);
        }
        for (item, value) in values[at..].chunks_exact_mut(self.width).enumerate() {
            if validity[item / 8] >> (item % 8) & 1 == 0 {
                value.fill(0);
            }
        }
        Ok(word | NULL_ITEMS)
    }
}

type Decoded = (Offsets, Buffer, usize, Option<NullBuffer>);

fn bytes_of<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, bytes: &Buffer) -> Decoded
where
    Offsets: From<OffsetBuffer<O>>,
{
    (offsets.clone().into(), bytes.clone(), 1, None)
}

fn items_of<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, items: &ArrayRef) -> Result<Decoded, String>
where
    Offsets: From<OffsetBuffer<O>>,
{
    let width = crate::view::fixed_width(items.data_type())
        .ok_or_else(|| format!("lists of {}, expected items of a fixed width", items.data_type()))?;
    let data = items.to_data();
    let bytes = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
    let nulls = items.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
    Ok((offsets.clone().into(), bytes, width, nulls))
}

impl From<OffsetBuffer<i32>> for Offsets {
    fn from(offsets: OffsetBuffer<i32>) -> Self {
        Self::Small(offsets)
    }
}

impl From<OffsetBuffer<i64>> for Offsets {
    fn from(offsets: OffsetBuffer<i64>) -> Self {
        Self::Large(offsets)
    }
}
