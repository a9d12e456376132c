//! Encoding of a column of a block as a section on disk: a header and the buffers of its arrays. Writing copies only
//! sliced arrays, and the arrays that are read share the memory of the section.
//!
//! ```text
//! | u64 words: number of words, number of chunks, shape of each chunk | buffer | buffer | ...
//! ```
//!
//! Each buffer starts at a multiple of 64 bytes.

use arrow_array::{Array, ArrayRef, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::{ArrayData, transform::MutableArrayData};
use arrow_schema::DataType;
use bytes::Bytes;

const ALIGNMENT: usize = 64;
const WORD: usize = size_of::<u64>();
/// Length that marks an absent buffer.
const ABSENT: u64 = u64::MAX;

/// Encodes `chunks`, arrays of one type, as the parts of a section.
pub(super) fn encode(chunks: &[ArrayRef]) -> Vec<Bytes> {
    let mut encoder = Encoder { words: vec![0, chunks.len() as u64], parts: vec![Bytes::new()] };
    for chunk in chunks {
        encoder.array(&chunk.to_data());
    }
    let Encoder { mut words, mut parts } = encoder;
    words[0] = words.len() as u64;
    let mut head: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
    parts[0] = head.into();
    parts
}

struct Encoder {
    words: Vec<u64>,
    parts: Vec<Bytes>,
}

impl Encoder {
    fn array(&mut self, data: &ArrayData) {
        if data.offset() != 0 {
            let mut copy = MutableArrayData::new(vec![data], false, data.len());
            copy.try_extend(0, 0, data.len()).expect("a copy is no larger than what it copies");
            return self.array(&copy.freeze());
        }
        self.words.push(data.len() as u64);
        match data.nulls() {
            Some(nulls) => self.buffer(nulls.inner().sliced()),
            None => self.words.push(ABSENT),
        }
        self.words.push(data.buffers().len() as u64);
        for buffer in data.buffers() {
            self.buffer(buffer.clone());
        }
        self.words.push(data.child_data().len() as u64);
        for child in data.child_data() {
            self.array(child);
        }
    }

    fn buffer(&mut self, buffer: Buffer) {
        const PADDING: [u8; ALIGNMENT] = [0; ALIGNMENT];
        let length = buffer.len();
        self.words.push(length as u64);
        self.parts.push(Bytes::from_owner(Owner(buffer)));
        let padding = length.next_multiple_of(ALIGNMENT) - length;
        self.parts.push(Bytes::from_static(&PADDING[..padding]));
    }
}

struct Owner(Buffer);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Decodes the arrays of `data_type` from a section. Returns `None` if the section is damaged or holds another type.
pub(super) fn decode(section: &Buffer, data_type: &DataType) -> Option<Vec<ArrayRef>> {
    let (words, _) = section.as_chunks::<WORD>();
    let count = usize::try_from(u64::from_le_bytes(*words.first()?)).ok()?;
    let end = count.checked_mul(WORD)?.checked_next_multiple_of(ALIGNMENT)?;
    let mut decoder = Decoder { words: words.get(1..count)?.iter(), section, end };
    let chunks = decoder.word()?;
    (0..chunks).map(|_| decoder.array(data_type).map(make_array)).collect()
}

struct Decoder<'a> {
    words: std::slice::Iter<'a, [u8; WORD]>,
    section: &'a Buffer,
    /// Position of the next buffer, in bytes.
    end: usize,
}

impl Decoder<'_> {
    fn word(&mut self) -> Option<u64> {
        self.words.next().map(|word| u64::from_le_bytes(*word))
    }

    fn array(&mut self, data_type: &DataType) -> Option<ArrayData> {
        let length = usize::try_from(self.word()?).ok()?;
        let validity = self.buffer()?;
        let nulls = match validity {
            Some(bits) if bits.len() >= length.div_ceil(8) => {
                Some(NullBuffer::new(BooleanBuffer::new(bits, 0, length)))
            }
            Some(_) => return None,
            None => None,
        };
        let buffers = self.word()?;
        let buffers = (0..buffers).map(|_| self.buffer()?).collect::<Option<Vec<Buffer>>>()?;
        if !buffers.first().is_none_or(|offsets| offsets.len().is_multiple_of(offset_width(data_type))) {
            return None;
        }
        let children = self.word()?;
        let types = child_types(data_type);
        if children != types.len() as u64 {
            return None;
        }
        let children = types.into_iter().map(|child| self.array(child)).collect::<Option<Vec<_>>>()?;
        let array = ArrayData::builder(data_type.clone()).len(length).nulls(nulls);
        array.buffers(buffers).child_data(children).build().ok()
    }

    /// Returns the next buffer: outer `None` if the section is too short, inner `None` if the buffer is absent.
    fn buffer(&mut self) -> Option<Option<Buffer>> {
        let length = self.word()?;
        if length == ABSENT {
            return Some(None);
        }
        let start = self.end;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        if end > self.section.len() {
            return None;
        }
        self.end = end.next_multiple_of(ALIGNMENT);
        Some(Some(self.section.slice_with_length(start, end - start)))
    }
}

/// Size of an offset in bytes if the first buffer holds offsets; otherwise 1.
fn offset_width(data_type: &DataType) -> usize {
    match data_type {
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(_, _) => 4,
        DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_) => 8,
        _ => 1,
    }
}

fn child_types(data_type: &DataType) -> Vec<&DataType> {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => vec![field.data_type()],
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
