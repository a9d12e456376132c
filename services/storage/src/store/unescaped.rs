//! Texts without escapes, in which a secret is found in whichever form a store has written it.

use std::ops::Range;

/// Longest entity of HTML that is decoded, in bytes, such as `&#x00002F;`.
const MAX_ENTITY: usize = 12;
/// Longest escape of the form `\u{...}`, in bytes.
const MAX_BRACED: usize = 10;
/// Named entities of HTML that encode characters of secrets.
const ENTITIES: [(&str, u8); 10] = [
    ("amp", b'&'),
    ("apos", b'\''),
    ("bsol", b'\\'),
    ("equals", b'='),
    ("gt", b'>'),
    ("lt", b'<'),
    ("percnt", b'%'),
    ("plus", b'+'),
    ("quot", b'"'),
    ("sol", b'/'),
];

/// Bytes of a text, each with its place in the original text.
pub(super) struct Unescaped {
    pub(super) bytes: Vec<u8>,
    places: Vec<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    /// Bytes of the text that encode this byte.
    start: usize,
    end: usize,
    /// True if white space before this byte was removed.
    is_after_gap: bool,
}

impl Unescaped {
    /// The bytes of a text as they are.
    pub(super) fn verbatim(text: &str) -> Self {
        let places = (0..text.len()).map(|start| Place { start, end: start + 1, is_after_gap: false });
        Self { bytes: text.as_bytes().to_vec(), places: places.collect() }
    }

    /// The bytes of a text whose escapes are decoded, also repeated ones, and whose white space is removed: escapes of URLs (`%2F`), JSON
    /// (`\/`, `\u002f`), Rust (`\u{2f}`) and HTML (`&#47;`, `&#x2F;`, `&sol;`). Takes time in proportion to the text.
    pub(super) fn of(text: &str) -> Self {
        let mut found =
            Self { bytes: Vec::with_capacity(text.len()), places: Vec::with_capacity(text.len()) };
        let mut is_after_gap = false;
        for (start, byte) in text.bytes().enumerate() {
            if is_blank(byte) {
                is_after_gap = true;
                continue;
            }
            found.push(byte, Place { start, end: start + 1, is_after_gap });
            is_after_gap = false;
            // A decoded byte can be the end of another escape. Each escape removes a byte at least.
            while let Some((length, decoded)) = found.escape() {
                let begin = found.bytes.len() - length;
                let place = Place { end: start + 1, ..found.places[begin] };
                found.bytes.truncate(begin);
                found.places.truncate(begin);
                match decoded {
                    Decoded::Byte(byte) if is_blank(byte) => is_after_gap = true,
                    Decoded::Byte(byte) => found.push(byte, place),
                    Decoded::Char(char) => {
                        for (at, byte) in char.encode_utf8(&mut [0; 4]).bytes().enumerate() {
                            found.push(byte, Place { is_after_gap: place.is_after_gap && at == 0, ..place });
                        }
                    }
                }
            }
        }
        found
    }

    /// Returns the place in the original text of the bytes from `begin` to `end`.
    pub(super) fn place(&self, begin: usize, end: usize) -> Range<usize> {
        self.places[begin].start..self.places[end - 1].end
    }

    /// True if the bytes from `begin` to `end` are a word: no letter, digit, `-` or `_` is next to them, and no white space was removed
    /// inside of them.
    pub(super) fn is_word(&self, begin: usize, end: usize) -> bool {
        let is_border = |at: usize| {
            at == 0
                || at == self.bytes.len()
                || self.places[at].is_after_gap
                || !(is_of_word(self.bytes[at - 1]) && is_of_word(self.bytes[at]))
        };
        is_border(begin)
            && is_border(end)
            && !self.places[begin + 1..end].iter().any(|place| place.is_after_gap)
    }

    fn push(&mut self, byte: u8, place: Place) {
        self.bytes.push(byte);
        self.places.push(place);
    }

    /// Returns the length of the escape that ends with the last byte, and what it encodes; `None` if no escape ends there.
    fn escape(&self) -> Option<(usize, Decoded)> {
        let bytes = self.bytes.as_slice();
        match bytes {
            [.., b'%', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                Some((3, Decoded::Byte(u8::try_from(number(&bytes[bytes.len() - 2..], 16)?).ok()?)))
            }
            [.., b'\\', b'x', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                Some((4, Decoded::of(number(&bytes[bytes.len() - 2..], 16)?)?))
            }
            [.., b'\\', b'u', _, _, _, digit] if digit.is_ascii_hexdigit() => {
                Some((6, Decoded::of(number(&bytes[bytes.len() - 4..], 16)?)?))
            }
            [.., b'}'] => {
                let begin = last(bytes, MAX_BRACED, b'\\')?;
                let digits = bytes[begin..bytes.len() - 1].strip_prefix(b"\\u{")?;
                Some((bytes.len() - begin, Decoded::of(number(digits, 16)?)?))
            }
            [.., b';'] => {
                let begin = last(bytes, MAX_ENTITY, b'&')?;
                let name = &bytes[begin + 1..bytes.len() - 1];
                let decoded = match name {
                    [b'#', b'x' | b'X', digits @ ..] => Decoded::of(number(digits, 16)?)?,
                    [b'#', digits @ ..] => Decoded::of(number(digits, 10)?)?,
                    name => {
                        let is_named = |(known, _): &&(&str, u8)| known.as_bytes().eq_ignore_ascii_case(name);
                        Decoded::Byte(ENTITIES.iter().find(is_named)?.1)
                    }
                };
                Some((bytes.len() - begin, decoded))
            }
            [.., b'\\', byte @ (b'/' | b'"' | b'\'' | b'\\')] => Some((2, Decoded::Byte(*byte))),
            [.., b'\\', b'n' | b'r' | b't'] => Some((2, Decoded::Byte(b' '))),
            _ => None,
        }
    }
}

/// Byte or character that an escape encodes.
enum Decoded {
    Byte(u8),
    Char(char),
}

impl Decoded {
    /// The character with a number; `None` for other numbers.
    fn of(number: u32) -> Option<Self> {
        let byte = u8::try_from(number).ok().filter(u8::is_ascii);
        byte.map(Self::Byte).or_else(|| char::from_u32(number).map(Self::Char))
    }
}

/// Parses digits as a number; `None` if there are none, or if one byte is not a hexadecimal digit.
fn number(digits: &[u8], radix: u32) -> Option<u32> {
    let is_digits = digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_digits)?;
    u32::from_str_radix(text, radix).ok()
}

/// Returns the index of the last `byte` among the last `most` bytes.
fn last(bytes: &[u8], most: usize, byte: u8) -> Option<usize> {
    let first = bytes.len().saturating_sub(most);
    bytes[first..].iter().rposition(|other| *other == byte).map(|at| first + at)
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte.is_ascii_control()
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unescaped(text: &str) -> String {
        String::from_utf8(Unescaped::of(text).bytes).unwrap()
    }

    #[test]
    fn all_escapes_of_a_text_are_decoded() {
        for text in [
            "a/b+c=",
            "a\\/b+c=",
            "a\\\\/b+c=",
            "a\\u002fb\\u002Bc\\u003d",
            "a\\u{2f}b\\x2bc=",
            "a&#x2F;b&#43;c&#0061;",
            "a&sol;b&PLUS;c&equals;",
            "a%2fb%2Bc%3D",
            "a%252Fb%25252bc=",
            "a&amp;#47;b+c=",
            "a/b\n +\tc=",
            "a/b\\n+\\r\\nc=",
            "a%2\nFb+c=",
        ] {
            assert_eq!(unescaped(text), "a/b+c=", "{text}");
        }
        assert_eq!(unescaped("\\u00f6 %C3%B6 &#246; \u{f6}"), "\u{f6}\u{f6}\u{f6}\u{f6}");
        for text in ["100%", "%zz", "&unknown;", "\\q", "\\u00g0", "&#;", "}", ";", "&#99999999;", "\\ud800"]
        {
            assert_eq!(unescaped(text), text);
        }
    }

    #[test]
    fn each_byte_has_its_place_in_the_text() {
        let text = "x %252F\u{f6} y";
        let found = Unescaped::of(text);
        assert_eq!(found.bytes, "x/\u{f6}y".as_bytes());
        assert_eq!(&text[found.place(1, 2)], "%252F");
        assert_eq!(&text[found.place(1, 4)], "%252F\u{f6}");
        assert_eq!(&text[found.place(0, 5)], text);
        let found = Unescaped::verbatim(text);
        assert_eq!(&text[found.place(2, 5)], "%25");
    }

    #[test]
    fn a_long_chain_of_escapes_takes_linear_time() {
        let chain = format!("%{}", "25".repeat(1 << 20));
        assert_eq!(unescaped(&chain), "%");
        assert_eq!(unescaped(&"&".repeat(1 << 20)).len(), 1 << 20);
        assert_eq!(unescaped(&"\\".repeat(1 << 20)), "\\");
    }

    #[test]
    fn a_word_ends_at_signs_and_white_space() {
        let is_word = |text: &str| {
            let found = Unescaped::of(text);
            let begin = found.bytes.windows(4).position(|bytes| bytes == b"test").unwrap();
            found.is_word(begin, begin + 4)
        };
        for text in
            ["test", "a test b", "'test'", "/test/", "%2Ftest%2F", "a\\ntest\\nb", "test.", "k=test&a"]
        {
            assert!(is_word(text), "{text}");
        }
        for text in ["test-data", "latest", "tests", "a_test", "te st", "a\u{f6}test"] {
            assert!(!is_word(text), "{text}");
        }
    }
}
