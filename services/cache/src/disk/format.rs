//! File format: a header that lists the sections, then the sections.
//!
//! ```text
//!  0  magic "FOREBAYC"          8
//!  8  version                   u32      little-endian, as are all numbers
//! 12  sections                  u32
//! 16  entry                     u128
//! 32  bytes of the whole file   u64
//! 40  xxh3-64 of the header     u64      without these eight bytes
//! 48  load time in nanoseconds  u64      0 if unknown
//! 56  zeros                     8
//! 64  one record per section: name u128, offset u64, length u64, xxh3-64 u64
//! ```
//!
//! Each section begins at a multiple of 64 bytes. Gaps are filled with zeros. The file ends with its last section.

use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::io_errors::IoErrorKind;

/// Alignment of sections in the file and in memory, in bytes.
pub(crate) const ALIGNMENT: u64 = 64;
/// Maximum number of sections in a file.
pub(crate) const MAX_SECTIONS: usize = 1 << 16;
/// Size of the header before its records, in bytes.
pub(crate) const PREAMBLE_BYTES: usize = 64;
/// Version of the format. Any change of the format requires another version.
const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"FOREBAYC";
const RECORD_BYTES: usize = 40;
const CHECKSUM_AT: usize = 40;
const LOAD_TIME_AT: usize = 48;
const ZEROS: [u8; ALIGNMENT as usize] = [0; ALIGNMENT as usize];

/// Name and contents of a section. The contents are the concatenation of the parts.
pub(crate) type Parts = (u128, Vec<Bytes>);

/// Contents of the header of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) entry: u128,
    pub(crate) records: Box<[Record]>,
    pub(crate) file_bytes: u64,
    /// Time that loading the sections took; zero if unknown.
    pub(crate) load_time: Duration,
}

/// Header record of one section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) name: u128,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) checksum: u64,
}

/// Size in bytes of a file of these sections.
pub(crate) fn file_bytes(sections: &[Parts]) -> u64 {
    let end = |start: u64, (_, parts): &Parts| start.next_multiple_of(ALIGNMENT) + length(parts);
    sections.iter().fold(header_bytes(sections.len()) as u64, end)
}

/// Size in bytes of a header with `sections` records.
pub(crate) fn header_bytes(sections: usize) -> usize {
    PREAMBLE_BYTES + sections * RECORD_BYTES
}

/// Reads the number of sections from the first [`PREAMBLE_BYTES`] of a file.
pub(crate) fn announced_sections(preamble: &[u8]) -> Result<usize, IoErrorKind> {
    if preamble.get(..8) != Some(MAGIC) {
        return Err(IoErrorKind::Header);
    }
    if u32_at(preamble, 8)? != VERSION {
        return Err(IoErrorKind::Version);
    }
    let sections = u32_at(preamble, 12)? as usize;
    if sections > MAX_SECTIONS { Err(IoErrorKind::Header) } else { Ok(sections) }
}

impl Table {
    /// Lays out the sections and computes their checksums.
    pub(crate) fn new(entry: u128, sections: &[Parts], load_time: Duration) -> Self {
        let mut end = header_bytes(sections.len()) as u64;
        let mut records = Vec::with_capacity(sections.len());
        for (name, parts) in sections {
            let (offset, length) = (end.next_multiple_of(ALIGNMENT), length(parts));
            let mut hash = Xxh3::new();
            parts.iter().for_each(|part| hash.update(part));
            records.push(Record { name: *name, offset, length, checksum: hash.digest() });
            end = offset + length;
        }
        Self { entry, records: records.into(), file_bytes: end, load_time }
    }

    /// Serializes the header.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut header = vec![0; PREAMBLE_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&(self.records.len() as u32).to_le_bytes());
        header[16..32].copy_from_slice(&self.entry.to_le_bytes());
        header[32..40].copy_from_slice(&self.file_bytes.to_le_bytes());
        let nanoseconds = u64::try_from(self.load_time.as_nanos()).unwrap_or(u64::MAX);
        header[LOAD_TIME_AT..LOAD_TIME_AT + 8].copy_from_slice(&nanoseconds.to_le_bytes());
        for record in &self.records {
            header.extend_from_slice(&record.name.to_le_bytes());
            header.extend_from_slice(&record.offset.to_le_bytes());
            header.extend_from_slice(&record.length.to_le_bytes());
            header.extend_from_slice(&record.checksum.to_le_bytes());
        }
        let checksum = header_checksum(&header);
        header[CHECKSUM_AT..CHECKSUM_AT + 8].copy_from_slice(&checksum.to_le_bytes());
        header
    }

    /// Parts of the whole file, in order.
    pub(crate) fn file<'a>(&self, header: &'a [u8], sections: &'a [Parts]) -> Vec<&'a [u8]> {
        let mut parts = vec![header];
        let mut end = header.len() as u64;
        for (record, (_, bytes)) in self.records.iter().zip(sections) {
            parts.push(&ZEROS[..(record.offset - end) as usize]);
            parts.extend(bytes.iter().map(Bytes::as_ref));
            end = record.offset + record.length;
        }
        parts
    }

    /// Parses the complete header of a file of `file_bytes` bytes.
    pub(crate) fn parse(header: &[u8], file_bytes: u64) -> Result<Self, IoErrorKind> {
        let sections = announced_sections(header)?;
        let header = header.get(..header_bytes(sections)).ok_or(IoErrorKind::Length)?;
        if u64_at(header, CHECKSUM_AT)? != header_checksum(header) {
            return Err(IoErrorKind::Header);
        }
        if u64_at(header, 32)? != file_bytes {
            return Err(IoErrorKind::Length);
        }
        let mut records = Vec::with_capacity(sections);
        let mut end = header.len() as u64;
        for at in (PREAMBLE_BYTES..header.len()).step_by(RECORD_BYTES) {
            let record = Record {
                name: u128_at(header, at)?,
                offset: u64_at(header, at + 16)?,
                length: u64_at(header, at + 24)?,
                checksum: u64_at(header, at + 32)?,
            };
            if end.checked_next_multiple_of(ALIGNMENT) != Some(record.offset) {
                return Err(IoErrorKind::Header);
            }
            end = record.offset.checked_add(record.length).ok_or(IoErrorKind::Header)?;
            if end > file_bytes {
                return Err(IoErrorKind::Header);
            }
            records.push(record);
        }
        let load_time = Duration::from_nanos(u64_at(header, LOAD_TIME_AT)?);
        Ok(Self { entry: u128_at(header, 16)?, records: records.into(), file_bytes, load_time })
    }
}

fn length(parts: &[Bytes]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

fn header_checksum(header: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&header[..CHECKSUM_AT]);
    hash.update(&header[CHECKSUM_AT + 8..]);
    hash.digest()
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], IoErrorKind> {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().ok_or(IoErrorKind::Length)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, IoErrorKind> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, IoErrorKind> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

fn u128_at(bytes: &[u8], at: usize) -> Result<u128, IoErrorKind> {
    array_at(bytes, at).map(u128::from_le_bytes)
}

#[cfg(test)]
mod tests;
