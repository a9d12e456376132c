//! Check of the page headers of a column chunk, before a decoder trusts them.

use parquet::basic::Compression;

use crate::validate::{
    decompressed_size,
    parquet_shapes::PAGE_HEADER,
    thrift::{Field, Malformed, Walker},
};

/// Contents of a column chunk according to its page headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Number of values in all data pages, including nulls.
    pub(crate) values: u64,
    /// Size of the dictionary in bytes.
    pub(crate) dictionary_bytes: u64,
    /// Number of values in dictionary-encoded pages, including nulls.
    pub(crate) dictionary_values: u64,
    /// Size in bytes of the largest page with `DELTA_BYTE_ARRAY` encoding, whose values share prefixes.
    pub(crate) prefix_bytes: u64,
    /// Number of values in pages with `DELTA_BYTE_ARRAY` encoding, including nulls.
    pub(crate) prefix_values: u64,
    /// Size in bytes of the byte arrays that data pages store themselves, instead of in a dictionary. A lower bound,
    /// which assumes that the page has no nulls and a length of 4 bytes before each value.
    pub(crate) stored_bytes: u64,
    /// Size of the largest data page in bytes.
    pub(crate) page_bytes: u64,
    /// Data pages that store values themselves, in order.
    pub(crate) stored_pages: Vec<StoredPage>,
}

/// Data page that stores values itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredPage {
    /// Number of values, including nulls.
    pub(crate) values: u64,
    /// Upper bound of the size of the values in bytes.
    pub(crate) bytes: u64,
}

impl Summary {
    /// Upper bound of the decoded size in bytes of values that share stored bytes, if the longest value of the dictionary has `longest` bytes.
    pub(crate) fn shared_bytes(&self, longest: u64) -> u64 {
        let prefixed = self.prefix_values.saturating_mul(self.prefix_bytes);
        self.dictionary_values.saturating_mul(longest).saturating_add(prefixed)
    }

    /// Counts a data page that occupies `memory` bytes.
    fn add_data(&mut self, header: &Header, memory: u64) {
        let values = u64::from(header.values);
        self.values += values;
        self.page_bytes = self.page_bytes.max(memory);
        if matches!(header.encoding, PLAIN_DICTIONARY | RLE_DICTIONARY) {
            self.dictionary_values += values;
            return;
        }
        if header.encoding == DELTA_BYTE_ARRAY {
            self.prefix_values += values;
            self.prefix_bytes = self.prefix_bytes.max(memory);
        }
        self.stored_pages.push(StoredPage { values, bytes: memory });
        self.stored_bytes += memory.saturating_sub(u64::from(header.levels) + values * LENGTH_BYTES);
    }
}

/// Reason why a column chunk is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    Malformed(Malformed),
    /// A page exceeds `max_page_bytes`. Contains its uncompressed size in bytes.
    TooLarge(u64),
}

impl From<Malformed> for Rejection {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// Limits and codec of a column chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) codec: Compression,
    /// Minimum size of a dictionary value in bytes.
    pub(crate) min_value_bytes: u64,
    /// Maximum uncompressed size of a page in bytes.
    pub(crate) max_page_bytes: u64,
}

const DATA: i64 = 0;
const INDEX: i64 = 1;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;

/// `PageHeader.data_page_header`, `dictionary_page_header` and `data_page_header_v2`.
const DATA_BODY: i16 = 5;
const DICTIONARY_BODY: i16 = 7;
const DATA_V2_BODY: i16 = 8;

const PLAIN_DICTIONARY: i64 = 2;
const DELTA_BYTE_ARRAY: i64 = 7;
const RLE_DICTIONARY: i64 = 8;

/// Size in bytes of the length before a plain-encoded byte array.
const LENGTH_BYTES: u64 = 4;

#[derive(Default)]
struct Header {
    kind: i64,
    uncompressed: u32,
    compressed: u32,
    /// Field id of the type-specific header.
    body: Option<i16>,
    values: u32,
    encoding: i64,
    /// Size in bytes of the levels, which are not compressed.
    levels: u32,
    /// True if the values of a V2 page are not compressed, whatever the codec of the chunk.
    is_plain: bool,
}

/// Walks all pages of a column chunk.
///
/// # Errors
/// If a header is malformed or inconsistent with the chunk, or a page exceeds a limit.
pub(crate) fn walk_pages(chunk: &[u8], limits: Limits) -> Result<Summary, Rejection> {
    let mut summary = Summary::default();
    let mut has_pages = false;
    let mut at = 0;
    while at < chunk.len() {
        let (header, length) = read_header(&chunk[at..])?;
        let malformed = |detail: String| Malformed { offset: at, detail };
        let rest = &chunk[at + length..];
        let Some(page) = rest.get(..header.compressed as usize) else {
            let detail = format!("a page of {} bytes, but {} bytes remain", header.compressed, rest.len());
            return Err(malformed(detail).into());
        };
        let size = u64::from(header.uncompressed);
        // A page that is not compressed is as long as its bytes, whatever its header claims.
        let memory = size.max(header.compressed.into());
        if memory > limits.max_page_bytes {
            return Err(Rejection::TooLarge(memory));
        }
        let values = u64::from(header.values);
        match (header.kind, header.body) {
            (DATA, Some(DATA_BODY)) | (DATA_V2, Some(DATA_V2_BODY)) => summary.add_data(&header, memory),
            (DICTIONARY, Some(DICTIONARY_BODY)) => {
                if has_pages {
                    return Err(malformed("a dictionary after another page".to_owned()).into());
                }
                if values.saturating_mul(limits.min_value_bytes.max(1)) > size {
                    return Err(malformed(format!("a dictionary of {values} values in {size} bytes")).into());
                }
                summary.dictionary_bytes = memory;
            }
            (INDEX, None) => {}
            (kind, _) => {
                return Err(
                    malformed(format!("a page of type {kind} with the header of another type")).into()
                );
            }
        }
        let (Some(values), Some(expected)) =
            (page.get(header.levels as usize..), size.checked_sub(header.levels.into()))
        else {
            return Err(malformed(format!("{} bytes of levels exceed the page", header.levels)).into());
        };
        let codec = if header.is_plain { Compression::UNCOMPRESSED } else { limits.codec };
        if decompressed_size::has_large_window(codec, values) {
            return Err(malformed("a brotli page has a window of more than 16 MiB".to_owned()).into());
        }
        if !decompressed_size::fits(codec, values, expected, limits.max_page_bytes) {
            return Err(malformed(format!(
                "a page decompresses to more than the {size} bytes in its header"
            ))
            .into());
        }
        has_pages |= header.kind != INDEX;
        at += length + page.len();
    }
    Ok(summary)
}

fn read_header(bytes: &[u8]) -> Result<(Header, usize), Malformed> {
    let mut walker = Walker::new(bytes);
    walker.conform(&PAGE_HEADER)?;
    let length = walker.offset();

    let mut header = Header { kind: -1, ..Header::default() };
    Walker::new(&bytes[..length]).fields(|walker, field| match field.id {
        1 => walker.int().map(|kind| header.kind = kind),
        2 => walker.size("uncompressed page size").map(|size| header.uncompressed = size),
        3 => walker.size("compressed page size").map(|size| header.compressed = size),
        body @ (DATA_BODY | DICTIONARY_BODY | DATA_V2_BODY) => {
            if header.body.replace(body).is_some() {
                return Err(walker.malformed("a page with two type-specific headers"));
            }
            read_body(walker, &mut header, body)
        }
        _ => walker.skip(field.wire),
    })?;
    Ok((header, length))
}

/// Reads the type-specific header of a page. Its first field is always the number of values.
fn read_body(walker: &mut Walker<'_>, header: &mut Header, body: i16) -> Result<(), Malformed> {
    let mut levels = [0, 0];
    walker.fields(|walker, Field { id, wire, is_true }| match (body, id) {
        (_, 1) => walker.size("number of values").map(|values| header.values = values),
        (DATA_BODY | DICTIONARY_BODY, 2) | (DATA_V2_BODY, 4) => {
            walker.int().map(|encoding| header.encoding = encoding)
        }
        (DATA_V2_BODY, 5) => walker.size("size of levels").map(|size| levels[0] = size),
        (DATA_V2_BODY, 6) => walker.size("size of levels").map(|size| levels[1] = size),
        (DATA_V2_BODY, 7) => {
            header.is_plain = !is_true;
            walker.skip(wire)
        }
        _ => walker.skip(wire),
    })?;
    // Both sizes have at most 31 bits.
    header.levels = levels[0] + levels[1];
    Ok(())
}

#[cfg(test)]
mod tests;
