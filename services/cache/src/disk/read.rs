//! Read path: coalesced reads of sections, verified by checksum.

use std::{io, ops::Range};

use arrow_buffer::{Buffer, MutableBuffer};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    files::FileRange,
    format::{ALIGNMENT, Record},
    index::{Place, Stored},
    io_errors::IoErrorKind,
    state::State,
};

/// Section of an entry, aligned to 64 bytes. Sections that were read together share their memory.
pub type Section = Buffer;

/// Maximum gap between sections that are read together.
const NEAR_BYTES: u64 = 64 << 10;
/// Maximum size of a coalesced read. Bounded because each of its sections keeps the memory of all of them alive.
const MAX_COALESCED_BYTES: u64 = 8 << 20;
/// `ENFILE` and `EMFILE` on Linux, macOS and the BSDs: too many open files.
const TOO_MANY_OPEN: [i32; 2] = [23, 24];

/// Sections that are read together.
struct Coalesced<'a> {
    bytes: Range<u64>,
    places: Vec<(&'a Place, Record)>,
}

impl State {
    /// Reads the sections at `places`. Returns each with its position in the request. If the file is damaged, it is
    /// deleted and the result is empty.
    pub(super) fn read(&self, stored: &Stored, places: &[Place]) -> Vec<(usize, Section)> {
        let coalesced = coalesce(stored, places);
        let mut buffers: Vec<MutableBuffer> =
            coalesced.iter().map(|group| MutableBuffer::from_len_zeroed(length(&group.bytes))).collect();
        let mut ranges: Vec<FileRange<'_>> = coalesced
            .iter()
            .zip(&mut buffers)
            .map(|(group, buffer)| FileRange { offset: group.bytes.start, bytes: buffer.as_slice_mut() })
            .collect();
        if let Err(error) = self.files.read(&self.folder.join(stored.key.path()), &mut ranges) {
            self.unreadable(stored, &error);
            return Vec::new();
        }

        let mut sections = Vec::with_capacity(places.len());
        for (group, buffer) in coalesced.into_iter().zip(buffers) {
            let buffer = Buffer::from(buffer);
            for (place, record) in group.places {
                let offset = (record.offset - group.bytes.start) as usize;
                let section = buffer.slice_with_length(offset, record.length as usize);
                if xxh3_64(&section) != record.checksum {
                    self.discard(stored, IoErrorKind::Checksum, &"checksum of a section does not match");
                    return Vec::new();
                }
                sections.push((place.requested, section));
            }
        }
        sections
    }

    fn unreadable(&self, stored: &Stored, error: &io::Error) {
        if error.kind() == io::ErrorKind::NotFound {
            // The file was evicted during the read, or deleted by another program.
            self.forget(stored.key);
            return;
        }
        if error.raw_os_error().is_some_and(|code| TOO_MANY_OPEN.contains(&code)) {
            let path = self.folder.join(stored.key.path());
            self.io_errors.report(IoErrorKind::Read, &path, error);
            return;
        }
        let truncated = error.kind() == io::ErrorKind::UnexpectedEof;
        self.discard(stored, if truncated { IoErrorKind::Length } else { IoErrorKind::Read }, error);
    }
}

/// Groups sections that are close to each other.
fn coalesce<'a>(stored: &Stored, places: &'a [Place]) -> Vec<Coalesced<'a>> {
    let mut places: Vec<(&Place, Record)> =
        places.iter().map(|place| (place, stored.table.records[place.record])).collect();
    places.sort_unstable_by_key(|(_, record)| record.offset);
    let mut groups: Vec<Coalesced<'_>> = Vec::new();
    for (place, record) in places {
        let end = record.offset + record.length;
        if let Some(last) = groups.last_mut() {
            let near = record.offset <= last.bytes.end.saturating_add(NEAR_BYTES);
            if near && end.max(last.bytes.end) - last.bytes.start <= MAX_COALESCED_BYTES {
                last.bytes.end = end.max(last.bytes.end);
                last.places.push((place, record));
                continue;
            }
        }
        debug_assert_eq!(record.offset % ALIGNMENT, 0, "every section is aligned in the file");
        groups.push(Coalesced { bytes: record.offset..end, places: vec![(place, record)] });
    }
    groups
}

/// Length of a range.
fn length(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
