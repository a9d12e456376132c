//! Walks the page headers of a column chunk, before a decoder trusts them.

use parquet::basic::Compression;

use crate::{
    grammar::PAGE_HEADER,
    inflate,
    thrift::{Field, Malformed, Walker},
};

/// What a column chunk holds, by its page headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Values in all data pages, nulls included.
    pub(crate) values: u64,
    /// Bytes of the dictionary, uncompressed.
    pub(crate) dictionary_bytes: u64,
    /// Bytes of the largest page whose values are prefixes of one another, uncompressed.
    pub(crate) prefix_bytes: u64,
}

/// Why a column chunk is not handed to the decoder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Malformed(Malformed),
    /// A page of so many uncompressed bytes.
    Large(u64),
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// What pages are held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) codec: Compression,
    /// Least bytes of a value in a dictionary.
    pub(crate) width: u64,
    /// Most uncompressed bytes of a page.
    pub(crate) max_page_bytes: u64,
    /// Most bytes that a page may turn out to have, whatever it says.
    pub(crate) max_block_bytes: u64,
}

const DATA: i64 = 0;
const INDEX: i64 = 1;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;

/// `PageHeader.data_page_header`, `dictionary_page_header` and `data_page_header_v2`.
const DATA_BODY: i16 = 5;
const DICTIONARY_BODY: i16 = 7;
const DATA_V2_BODY: i16 = 8;

const DELTA_BYTE_ARRAY: i64 = 7;

#[derive(Default)]
struct Header {
    kind: i64,
    uncompressed: u32,
    compressed: u32,
    /// Which body there is, and what it says.
    body: Option<i16>,
    values: u32,
    encoding: i64,
    /// Bytes of levels, which are not compressed.
    levels: u32,
}

/// Walks a whole column chunk.
pub(crate) fn walk(chunk: &[u8], limits: Limits) -> Result<Summary, Refusal> {
    let mut summary = Summary::default();
    let mut at = 0;
    while at < chunk.len() {
        let (header, length) = read_header(&chunk[at..])?;
        let malformed = |detail: String| Malformed { offset: at, detail };
        let rest = &chunk[at + length..];
        let Some(page) = rest.get(..header.compressed as usize) else {
            let detail = format!("a page of {} bytes where {} remain", header.compressed, rest.len());
            return Err(malformed(detail).into());
        };
        let size = u64::from(header.uncompressed);
        if size > limits.max_page_bytes {
            return Err(Refusal::Large(size));
        }
        let values = u64::from(header.values);
        match (header.kind, header.body) {
            (DATA, Some(DATA_BODY)) | (DATA_V2, Some(DATA_V2_BODY)) => {
                summary.values += values;
                if header.encoding == DELTA_BYTE_ARRAY {
                    summary.prefix_bytes = summary.prefix_bytes.max(size);
                }
            }
            (DICTIONARY, Some(DICTIONARY_BODY)) => {
                if values.saturating_mul(limits.width.max(1)) > size {
                    return Err(malformed(format!("a dictionary of {values} values in {size} bytes")).into());
                }
                summary.dictionary_bytes = summary.dictionary_bytes.max(size);
            }
            (INDEX, None) => {}
            (kind, _) => return Err(malformed(format!("a page of kind {kind} with another's header")).into()),
        }
        let (Some(values), Some(expected)) =
            (page.get(header.levels as usize..), size.checked_sub(header.levels.into()))
        else {
            return Err(malformed(format!("{} bytes of levels in a smaller page", header.levels)).into());
        };
        if !inflate::fits(limits.codec, values, expected, limits.max_block_bytes) {
            return Err(malformed(format!("a page of more bytes than the {size} that it says")).into());
        }
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
        2 => walker.size("an uncompressed page size").map(|size| header.uncompressed = size),
        3 => walker.size("a compressed page size").map(|size| header.compressed = size),
        body @ (DATA_BODY | DICTIONARY_BODY | DATA_V2_BODY) => {
            if header.body.replace(body).is_some() {
                return Err(walker.malformed("a page of two kinds"));
            }
            read_body(walker, &mut header, body)
        }
        _ => walker.skip(field.wire),
    })?;
    Ok((header, length))
}

/// The header of a page's own kind: the number of values is always first.
fn read_body(walker: &mut Walker<'_>, header: &mut Header, body: i16) -> Result<(), Malformed> {
    let mut levels = [0, 0];
    walker.fields(|walker, Field { id, wire }| match (body, id) {
        (_, 1) => walker.size("a number of values").map(|values| header.values = values),
        (DATA_BODY | DICTIONARY_BODY, 2) | (DATA_V2_BODY, 4) => {
            walker.int().map(|encoding| header.encoding = encoding)
        }
        (DATA_V2_BODY, 5) => walker.size("a size of levels").map(|size| levels[0] = size),
        (DATA_V2_BODY, 6) => walker.size("a size of levels").map(|size| levels[1] = size),
        _ => walker.skip(wire),
    })?;
    // Two sizes of 31 bits.
    header.levels = levels[0] + levels[1];
    Ok(())
}

#[cfg(test)]
mod tests;
