//! Checksummed envelope of stored documents: a header line
//! `forebay-<kind> <version> <xxh3 in hexadecimal> <length in bytes>`, then the payload.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

/// Kind and format version of a stored document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) kind: &'static str,
    pub(crate) version: u32,
}

impl Envelope {
    /// Maximum length of the header line, in bytes.
    pub(crate) const MAX_LINE: u64 = 128;

    /// Returns the header line followed by `payload`.
    pub(crate) fn seal(self, payload: &[u8]) -> Bytes {
        let mut sealed = self.line(payload).into_bytes();
        sealed.extend_from_slice(payload);
        sealed.into()
    }

    /// As [`seal`](Self::seal), in the memory of `payload` if it has [`MAX_LINE`](Self::MAX_LINE) more bytes.
    pub(crate) fn seal_in_place(self, mut payload: Vec<u8>) -> Bytes {
        let line = self.line(&payload);
        payload.splice(0..0, line.into_bytes());
        payload.into()
    }

    /// Verifies the header line and returns the payload.
    ///
    /// # Errors
    /// A description of the mismatch.
    pub(crate) fn open(self, sealed: &Bytes) -> Result<Bytes, String> {
        let newline = sealed.iter().take(Self::MAX_LINE as usize).position(|byte| *byte == b'\n');
        let Some(newline) = newline else {
            return Err(format!("expected a forebay-{} header line", self.kind));
        };
        let payload = sealed.slice(newline + 1..);
        let (expected, found) = (self.line(&payload), sealed.slice(..=newline));
        if found == expected.as_bytes() {
            return Ok(payload);
        }
        let found = String::from_utf8_lossy(&found);
        Err(format!("header line is {:?}, expected {:?}", found.trim_end(), expected.trim_end()))
    }

    fn line(self, payload: &[u8]) -> String {
        let (kind, version) = (self.kind, self.version);
        format!("forebay-{kind} {version} {:016x} {}\n", xxh3_64(payload), payload.len())
    }
}
