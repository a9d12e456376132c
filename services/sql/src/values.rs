//! Sets of values that a filter refers to by name, as in `id IN (:ids)`.
//!
//! ```text
//! encoded set --read--> ValueSet --of the type of the compared value--> TypedSet --search--> is it a member?
//!                                                                             \--prune--> can a block contain a member?
//! ```
//!
//! - [`ValueSet`]: the values as a client sends them, in their canonical form.
//! - `typed`: the values of one column type that are equal to one of them.
//! - `member`: the function that an expression with a set is compiled to.

pub(crate) mod member;
pub(crate) mod typed;

use std::{
    any::Any,
    fmt,
    fmt::Write,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use arrow_buffer::{Buffer, i256};
use arrow_schema::DataType;
use ring::digest::{SHA256, digest};

/// First bytes of an encoded set: the name of the format and its version.
const MAGIC: [u8; 4] = *b"FBV1";
/// Length of the header of an encoded set, in bytes.
const HEADER_BYTES: usize = 16;
/// Length of the prefix of a text, in bytes.
const PREFIX_BYTES: usize = 4;

/// Memory of a set that is in use.
pub trait SetMemory: Send + Sync {
    /// Charges `bytes` more, until the returned value is dropped.
    ///
    /// # Errors
    /// A description with both sizes, if there is less.
    fn take(&self, bytes: u64) -> Result<Box<dyn Any + Send + Sync>, String>;
}

/// A set of values in its canonical form: sorted, without duplicates and nulls.
///
/// Equal sets have equal bytes, whatever the types of the arrays from which they were made. The header consists of `FBV1`, the kind (1
/// byte), the scale (1 byte, signed), the width of a value in bytes (1 byte), a zero and the number of values (8 bytes). All numbers are
/// little-endian.
///
/// | kind | values | scale | width |
/// |---|---|---|---|
/// | 0 | none; a set without values has no other kind | 0 | 0 |
/// | 1 | numbers: signed integers, divided by ten to the power of the scale, which is as small as possible | 0 to 76 | 8, 16 or 32 |
/// | 2 | floats of 64 bits that are not NaN; 0 is positive | 0 | 8 |
/// | 3 | text: the length (4 bytes) and UTF-8 | 0 | 0 |
/// | 4 | bytes: the length (4 bytes) and the bytes | 0 | 0 |
/// | 5 | dates: days since 1970 | 0 | 8, 16 or 32 |
/// | 6 | timestamps without a time zone: nanoseconds since 1970 | 0 | 8, 16 or 32 |
/// | 7 | timestamps with a time zone: nanoseconds since 1970 in UTC | 0 | 8, 16 or 32 |
///
/// Integers have the smallest width of all of them together. Text is sorted by its bytes.
pub struct ValueSet {
    sha256: String,
    encoded: Buffer,
    content: Content,
    /// Number of values.
    len: usize,
    /// Memory that the set and its typed values are charged to. It ends with the set.
    memory: Option<Box<dyn SetMemory>>,
    /// The values of each type that are in use. Expressions share them.
    typed: Mutex<Vec<(DataType, WeakAny)>>,
}

impl fmt::Debug for ValueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sha256, len, .. } = self;
        f.debug_struct("ValueSet").field("sha256", sha256).field("len", len).finish_non_exhaustive()
    }
}

/// A reference to values of a type that does not hold them.
type WeakAny = Weak<dyn Any + Send + Sync>;

/// Kind of the values, with what is needed to find each of them in the encoded set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// No values.
    Empty,
    /// Integers of this width in bytes.
    Integers { what: What, scale: i8, width: usize },
    /// Floats of 64 bits.
    Floats,
    /// Text or bytes. A value begins at each of the positions, after its prefix.
    Bytes { is_text: bool, starts: Vec<u32> },
}

/// Meaning of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Numbers,
    Dates,
    LocalTimes,
    Instants,
}

impl ValueSet {
    /// Reads an encoded set.
    ///
    /// # Errors
    /// A description of the first difference from the canonical form.
    pub fn read(encoded: Buffer) -> Result<Self, String> {
        let (header, values) = encoded
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or_else(|| format!("it has {} bytes, expected a header of {HEADER_BYTES}", encoded.len()))?;
        let [a, b, c, d, kind, scale, width, zero, ref len @ ..] = *header;
        if [a, b, c, d] != MAGIC || zero != 0 {
            return Err("it does not begin with the header 'FBV1'".into());
        }
        let len = u64::from_le_bytes(*len);
        let (scale, width) = (scale.cast_signed(), usize::from(width));
        let too_long = || format!("it has {len} values in {} bytes", values.len());
        let len = usize::try_from(len).ok().filter(|len| *len <= values.len()).ok_or_else(too_long)?;
        if len == 0 && kind != 0 {
            return Err(format!("it is empty and of kind {kind}, expected 0"));
        }
        let content = match kind {
            0 => Content::Empty,
            1 => Content::Integers { what: What::Numbers, scale, width },
            2 => Content::Floats,
            3 | 4 => Content::Bytes { is_text: kind == 3, starts: starts(values, len)? },
            5 => Content::Integers { what: What::Dates, scale, width },
            6 => Content::Integers { what: What::LocalTimes, scale, width },
            7 => Content::Integers { what: What::Instants, scale, width },
            other => return Err(format!("it is of kind {other}, expected 0 to 7")),
        };
        let expected = match &content {
            Content::Integers { what: What::Numbers, .. } if (0..=76).contains(&scale) => (scale, width),
            Content::Integers { .. } => (0, width),
            Content::Floats => (0, 8),
            Content::Empty | Content::Bytes { .. } => (0, 0),
        };
        if (scale, width) != expected {
            return Err(format!("it has scale {scale} and width {width}, which kind {kind} does not have"));
        }
        let sha256 = hex(digest(&SHA256, &encoded).as_ref());
        let set = Self { sha256, content, len, encoded, memory: None, typed: Mutex::default() };
        set.check()?;
        Ok(set)
    }

    /// Returns the set, which holds `memory` as long as it exists. The set itself is charged already; values of further types are charged
    /// when an expression needs them.
    #[must_use]
    pub fn charged_to(self, memory: Box<dyn SetMemory>) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// Memory of an encoded set, at most, in bytes: the encoded form, and for text and bytes the positions of the values.
    pub fn memory_bytes(encoded: &[u8]) -> u64 {
        let bytes = encoded.len() as u64;
        let has_positions = matches!(encoded.get(MAGIC.len()), Some(3 | 4));
        let len = encoded.get(HEADER_BYTES - 8..).and_then(|rest| rest.first_chunk());
        let len = len.map_or(0, |len| u64::from_le_bytes(*len));
        // Each of these values has a prefix.
        let positions = if has_positions { len.min(bytes / PREFIX_BYTES as u64) } else { 0 };
        bytes + positions * size_of::<u32>() as u64
    }

    /// The values that `data_type` has, which all expressions share. They are made if no expression uses them.
    ///
    /// # Errors
    /// The error of `make`.
    fn shared<T: Any + Send + Sync, E>(
        &self,
        data_type: &DataType,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut known = self.typed.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(other, _)| other == data_type);
        let found = found.and_then(|(_, values)| values.upgrade()?.downcast().ok());
        if let Some(values) = found {
            return Ok(values);
        }
        known.retain(|(_, values)| values.strong_count() > 0);
        let values = Arc::new(make()?);
        let weak: WeakAny = Arc::<T>::downgrade(&values);
        known.push((data_type.clone(), weak));
        Ok(values)
    }

    /// Charges `bytes` for values of a type.
    ///
    /// # Errors
    /// A description with both sizes, if there is less.
    fn take(&self, bytes: u64) -> Result<Option<Box<dyn Any + Send + Sync>>, String> {
        self.memory.as_ref().map(|memory| memory.take(bytes)).transpose()
    }

    /// SHA-256 of the encoded set, as 64 hexadecimal digits.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size of the encoded set, in bytes.
    pub fn encoded_bytes(&self) -> usize {
        self.encoded.len()
    }

    /// Name of the values in error messages.
    pub(crate) fn what(&self) -> &'static str {
        match &self.content {
            Content::Empty => "no values",
            Content::Integers { what: What::Numbers, scale: 0, .. } => "integers",
            Content::Integers { what: What::Numbers, .. } => "decimals",
            Content::Integers { what: What::Dates, .. } => "dates",
            Content::Integers { what: What::LocalTimes, .. } => "timestamps without a time zone",
            Content::Integers { what: What::Instants, .. } => "timestamps with a time zone",
            Content::Floats => "floats",
            Content::Bytes { is_text: true, .. } => "text",
            Content::Bytes { is_text: false, .. } => "bytes",
        }
    }

    pub(crate) fn content(&self) -> &Content {
        &self.content
    }

    fn values(&self) -> &[u8] {
        &self.encoded[HEADER_BYTES..]
    }

    /// Integer number `index` of a set of integers of this width.
    pub(crate) fn integer(&self, width: usize, index: usize) -> i256 {
        let value = &self.values()[index * width..(index + 1) * width];
        let fill = if value.last().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
        let mut bytes = [fill; 32];
        bytes[..width].copy_from_slice(value);
        i256::from_le_bytes(bytes)
    }

    /// Float number `index` of a set of floats.
    pub(crate) fn float(&self, index: usize) -> f64 {
        let value = self.values()[index * 8..].first_chunk().expect("the length was checked");
        f64::from_le_bytes(*value)
    }

    /// The value that begins at `start`, one of those of [`Content::Bytes`].
    pub(crate) fn bytes_at(&self, start: u32) -> &[u8] {
        let start = start as usize;
        let prefix = self.values()[start - PREFIX_BYTES..].first_chunk().expect("the prefix was read before");
        &self.values()[start..start + u32::from_le_bytes(*prefix) as usize]
    }

    /// Checks the length, the order, and the width and scale, which are the smallest possible ones.
    fn check(&self) -> Result<(), String> {
        let unsorted = |index: usize| {
            Err(format!(
                "value number {} is not greater than the one before; expected ascending values, each once",
                index + 1
            ))
        };
        let has_length = |bytes: usize| {
            let (found, expected) = (self.values().len(), self.len.checked_mul(bytes));
            let error = || format!("its {} values of {bytes} bytes take {found} bytes", self.len);
            (Some(found) == expected).then_some(()).ok_or_else(error)
        };
        match &self.content {
            Content::Empty => has_length(0),
            Content::Integers { scale, width, .. } => {
                if !matches!(width, 8 | 16 | 32) {
                    return Err(format!("it has integers of {width} bytes, expected 8, 16 or 32"));
                }
                has_length(*width)?;
                let (mut before, mut is_scaled, mut least_width) = (None, *scale == 0, 8);
                for index in 0..self.len {
                    let value = self.integer(*width, index);
                    if before.is_some_and(|before| before >= value) {
                        return unsorted(index);
                    }
                    before = Some(value);
                    is_scaled = is_scaled || value.wrapping_rem(i256::from(10)) != i256::ZERO;
                    least_width = least_width.max(width_of(value));
                }
                match is_scaled && least_width == *width {
                    true => Ok(()),
                    false => Err(format!(
                        "it has integers of {width} bytes and scale {scale}, which is not their shortest form"
                    )),
                }
            }
            Content::Floats => {
                has_length(8)?;
                for index in 0..self.len {
                    let value = self.float(index);
                    if value.is_nan() || value == 0.0 && value.is_sign_negative() {
                        return Err(format!("value number {} is NaN or -0", index + 1));
                    }
                    if index > 0 && self.float(index - 1) >= value {
                        return unsorted(index);
                    }
                }
                Ok(())
            }
            Content::Bytes { is_text, starts } => {
                for (index, start) in starts.iter().enumerate() {
                    let value = self.bytes_at(*start);
                    if *is_text && std::str::from_utf8(value).is_err() {
                        return Err(format!("value number {} is not UTF-8", index + 1));
                    }
                    if index > 0 && self.bytes_at(starts[index - 1]) >= value {
                        return unsorted(index);
                    }
                }
                Ok(())
            }
        }
    }
}

/// Smallest width of an integer, in bytes.
fn width_of(value: i256) -> usize {
    match value.to_i128() {
        Some(value) if i64::try_from(value).is_ok() => 8,
        Some(_) => 16,
        None => 32,
    }
}

/// Returns the positions at which the `len` values in `values` begin, each after its prefix.
///
/// # Errors
/// A value that is cut off, or bytes after the last one.
fn starts(values: &[u8], len: usize) -> Result<Vec<u32>, String> {
    // Each value has a prefix.
    let mut starts = Vec::with_capacity(len.min(values.len() / PREFIX_BYTES));
    let mut at = 0_usize;
    for index in 0..len {
        let cut = || format!("value number {} is cut off", index + 1);
        let prefix = values[at..].first_chunk::<PREFIX_BYTES>().ok_or_else(cut)?;
        let start = at + PREFIX_BYTES;
        starts.push(u32::try_from(start).map_err(|_| cut())?);
        at = start.saturating_add(u32::from_le_bytes(*prefix) as usize);
        if at > values.len() {
            return Err(cut());
        }
    }
    match values.len() - at {
        0 => Ok(starts),
        rest => Err(format!("it has {rest} bytes after its last value")),
    }
}

/// Hexadecimal digits of bytes.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}

#[cfg(test)]
mod tests;
