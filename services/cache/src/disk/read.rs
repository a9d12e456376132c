//! From files to memory.

use std::{io, ops::Range};

use arrow_buffer::{Buffer, MutableBuffer};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Section, Shared,
    files::FileRange,
    format::{ALIGNMENT, Record},
    index::{Place, Stored},
    trouble::Trouble,
};

/// Sections with at most so much between them are read together.
const NEAR_BYTES: u64 = 64 << 10;
/// Unless that makes more than this, since one of them keeps the memory of all.
const MAX_JOINED_BYTES: u64 = 8 << 20;
/// The process, or the machine, has too many files open. The same on Linux, macOS and the BSDs.
const TOO_MANY_OPEN: [i32; 2] = [23, 24];

/// Sections that are read at once.
struct Joined<'a> {
    bytes: Range<u64>,
    places: Vec<(&'a Place, Record)>,
}

impl Shared {
    /// The sections at `places`, each with its position in what was wanted. None of them when the file is
    /// not what was written, which is then gone.
    pub(super) fn read(&self, stored: &Stored, places: &[Place]) -> Vec<(usize, Section)> {
        let joined = join(stored, places);
        let mut buffers: Vec<MutableBuffer> =
            joined.iter().map(|joined| MutableBuffer::from_len_zeroed(bytes_of(&joined.bytes))).collect();
        let mut ranges: Vec<FileRange<'_>> = joined
            .iter()
            .zip(&mut buffers)
            .map(|(joined, buffer)| FileRange { offset: joined.bytes.start, bytes: buffer.as_slice_mut() })
            .collect();
        if let Err(error) = self.files.read(&self.folder.join(stored.key.path()), &mut ranges) {
            self.unreadable(stored, &error);
            return Vec::new();
        }

        let mut sections = Vec::with_capacity(places.len());
        for (joined, buffer) in joined.into_iter().zip(buffers) {
            let buffer = Buffer::from(buffer);
            for (place, record) in joined.places {
                let offset = (record.offset - joined.bytes.start) as usize;
                let section = buffer.slice_with_length(offset, record.length as usize);
                if xxh3_64(&section) != record.checksum {
                    self.discard(stored, Trouble::Checksum, &"a section isn't what was written");
                    return Vec::new();
                }
                sections.push((place.wanted, section));
            }
        }
        sections
    }

    fn unreadable(&self, stored: &Stored, error: &io::Error) {
        if error.kind() == io::ErrorKind::NotFound {
            // Evicted meanwhile, or deleted by somebody else.
            self.forget(stored.key);
            return;
        }
        if error.raw_os_error().is_some_and(|code| TOO_MANY_OPEN.contains(&code)) {
            let path = self.folder.join(stored.key.path());
            self.troubles.note(Trouble::Read, &path, error);
            return;
        }
        let cut = error.kind() == io::ErrorKind::UnexpectedEof;
        self.discard(stored, if cut { Trouble::Length } else { Trouble::Read }, error);
    }
}

/// Joins sections that lie near each other.
fn join<'a>(stored: &Stored, places: &'a [Place]) -> Vec<Joined<'a>> {
    let mut places: Vec<(&Place, Record)> =
        places.iter().map(|place| (place, stored.table.records[place.record])).collect();
    places.sort_unstable_by_key(|(_, record)| record.offset);
    let mut joined: Vec<Joined<'_>> = Vec::new();
    for (place, record) in places {
        let end = record.offset + record.length;
        if let Some(last) = joined.last_mut() {
            let near = record.offset <= last.bytes.end.saturating_add(NEAR_BYTES);
            if near && end.max(last.bytes.end) - last.bytes.start <= MAX_JOINED_BYTES {
                last.bytes.end = end.max(last.bytes.end);
                last.places.push((place, record));
                continue;
            }
        }
        debug_assert_eq!(record.offset % ALIGNMENT, 0, "every section is aligned in the file");
        joined.push(Joined { bytes: record.offset..end, places: vec![(place, record)] });
    }
    joined
}

fn bytes_of(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}
