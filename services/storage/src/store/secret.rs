//! A secret, which errors of a store must not contain.

use super::unescaped::Unescaped;

/// Minimum length of a value that is redacted, in characters. Shorter ones occur in texts by chance.
pub(super) const MIN_CHARS: usize = 4;
/// Minimum length of a value that is redacted also inside of other words, in characters. Shorter values occur there by chance.
const MIN_PART_CHARS: usize = 8;
/// Values that are not redacted: those of tests and emulators, and names of algorithms.
const WELL_KNOWN: &[&str] =
    &["AES256", "aws:kms", "aws:kms:dsse", "dummy", "fake", "minioadmin", "mock", "sse-c", "test", "testing"];

/// A secret of a variable, or of a request.
pub(super) struct Secret {
    /// Name of its variable, or place in the request.
    pub(super) name: String,
    pub(super) verbatim: Vec<u8>,
    /// The secret without escapes and white space.
    pub(super) unescaped: Vec<u8>,
    /// True if it is replaced only as a whole word.
    pub(super) is_word: bool,
}

impl Secret {
    pub(super) fn new(name: String, text: String) -> Self {
        let unescaped = Unescaped::of(&text).bytes;
        let shortest = text.chars().count().min(unescaped.len());
        Self { name, verbatim: text.into_bytes(), unescaped, is_word: shortest < MIN_PART_CHARS }
    }

    /// True for a text that is replaced in errors. Short and well-known texts occur there by chance.
    pub(super) fn is_redacted(text: &str) -> bool {
        text.chars().count() >= MIN_CHARS && !WELL_KNOWN.contains(&text)
    }

    /// True if this is the secret `text`.
    pub(super) fn is(&self, text: &str) -> bool {
        self.verbatim == text.as_bytes()
    }
}
