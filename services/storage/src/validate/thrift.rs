//! Validating walker over Thrift's compact protocol.
//!
//! A decoder that trusts length fields can be made to allocate any amount of memory. The walker allocates nothing and
//! takes linear time. It rejects a collection or binary that is longer than the remaining bytes and nesting deeper than
//! [`MAX_DEPTH`]. Given a [`Shape`], it also rejects known fields of an unexpected wire type, so that the decoder later
//! interprets the bytes in the same way as the walker.
//!
//! <https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>

/// Maximum nesting of structs and collections. Parquet's own metadata needs 9.
pub(crate) const MAX_DEPTH: u32 = 32;

/// Position and description of malformed Thrift data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail} at byte {offset} of the metadata")]
pub(crate) struct Malformed {
    pub(crate) offset: usize,
    pub(crate) detail: String,
}

/// Wire type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Bool,
    Byte,
    Int,
    Double,
    Binary,
    List,
    Map,
    Struct,
    Uuid,
}

impl Wire {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 | 2 => Self::Bool,
            3 => Self::Byte,
            4..=6 => Self::Int,
            7 => Self::Double,
            8 => Self::Binary,
            9 | 10 => Self::List,
            11 => Self::Map,
            12 => Self::Struct,
            13 => Self::Uuid,
            _ => return None,
        })
    }
}

/// Expected structure of a value.
pub(crate) enum Shape {
    /// A value of any wire type with any content.
    Any,
    /// A value of this wire type with any content.
    Plain(Wire),
    /// A list or set of elements of this shape.
    List(&'static Shape),
    /// A struct with these fields, whose ids are 1, 2 and so on. Other fields may have any content.
    Struct(&'static [Shape]),
}

pub(crate) const BOOL: Shape = Shape::Plain(Wire::Bool);
pub(crate) const BYTE: Shape = Shape::Plain(Wire::Byte);
pub(crate) const INT: Shape = Shape::Plain(Wire::Int);
pub(crate) const DOUBLE: Shape = Shape::Plain(Wire::Double);
pub(crate) const BINARY: Shape = Shape::Plain(Wire::Binary);
/// A struct with any fields.
pub(crate) const EMPTY: Shape = Shape::Struct(&[]);

/// Header of a struct field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) id: i16,
    pub(crate) wire: Wire,
    /// Value of a boolean, which the header contains; false for other types.
    pub(crate) is_true: bool,
}

/// Cursor over a sequence of Thrift values.
pub(crate) struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Walker<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// Number of bytes walked so far.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// Returns an error at the current position.
    pub(crate) fn malformed(&self, detail: impl Into<String>) -> Malformed {
        Malformed { offset: self.at, detail: detail.into() }
    }

    /// Walks the fields of a struct. `visit` must walk each value, at least by [`Walker::skip`].
    pub(crate) fn fields(
        &mut self,
        mut visit: impl FnMut(&mut Self, Field) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.descend()?;
        let mut last = 0;
        while let Some(field) = self.field(last)? {
            last = field.id;
            visit(self, field)?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Walks the elements of a list. `visit` must walk each element.
    pub(crate) fn elements(
        &mut self,
        mut visit: impl FnMut(&mut Self, Wire) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        self.descend()?;
        let (wire, count) = self.list()?;
        for _ in 0..count {
            visit(self, wire)?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Walks an integer of any width.
    pub(crate) fn int(&mut self) -> Result<i64, Malformed> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Walks a binary and returns its bytes.
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.length("a binary")?;
        let start = self.at;
        self.advance(length)?;
        Ok(&self.bytes[start..self.at])
    }

    /// Walks an integer that must be a count or size of at most 31 bits.
    pub(crate) fn size(&mut self, what: &str) -> Result<u32, Malformed> {
        let value = self.int()?;
        let size = i32::try_from(value).ok().and_then(|value| u32::try_from(value).ok());
        size.ok_or_else(|| self.malformed(format!("{what} is {value}")))
    }

    /// Walks a value of any content.
    pub(crate) fn skip(&mut self, wire: Wire) -> Result<(), Malformed> {
        match wire {
            // The header of a field contains its value. In a collection a boolean is a byte, which `list` rejects.
            Wire::Bool => Ok(()),
            Wire::Byte => self.advance(1),
            Wire::Int => self.varint().map(drop),
            Wire::Double => self.advance(8),
            Wire::Uuid => self.advance(16),
            Wire::Binary => self.binary().map(drop),
            Wire::List => self.elements(Self::skip),
            Wire::Map => self.map(),
            Wire::Struct => self.fields(|walker, field| walker.skip(field.wire)),
        }
    }

    /// Walks a struct and checks its shape.
    pub(crate) fn conform(&mut self, shape: &Shape) -> Result<(), Malformed> {
        self.value(shape, Wire::Struct, "the metadata")
    }

    /// Walks a value of the type `wire` and checks its shape. `what` describes the value in errors.
    fn value(&mut self, shape: &Shape, wire: Wire, what: &str) -> Result<(), Malformed> {
        let expected = match shape {
            Shape::Any => wire,
            Shape::Plain(expected) => *expected,
            Shape::List(_) => Wire::List,
            Shape::Struct(_) => Wire::Struct,
        };
        self.expect_wire(expected, wire, what)?;
        match shape {
            Shape::Any | Shape::Plain(_) => self.skip(wire),
            Shape::List(Shape::Plain(Wire::Bool)) => self.booleans(),
            Shape::List(element) => {
                self.elements(|walker, wire| walker.value(element, wire, "a list element"))
            }
            Shape::Struct(known) => self.fields(|walker, field| {
                let place = usize::try_from(field.id).ok().and_then(|id| id.checked_sub(1));
                let shape = place.and_then(|place| known.get(place)).unwrap_or(&Shape::Any);
                walker.value(shape, field.wire, "a field")
            }),
        }
    }

    fn expect_wire(&self, expected: Wire, found: Wire, what: &str) -> Result<(), Malformed> {
        if expected == found {
            return Ok(());
        }
        Err(self.malformed(format!("{what} is {found:?}, expected {expected:?}")))
    }

    fn field(&mut self, last: i16) -> Result<Option<Field>, Malformed> {
        let header = self.byte()?;
        if header & 0x0f == 0 {
            return Ok(None);
        }
        let wire = self.wire(header & 0x0f)?;
        let delta = i16::from(header >> 4);
        let id = if delta == 0 {
            i16::try_from(self.int()?).map_err(|_| self.malformed("a field id is out of range"))?
        } else {
            last.checked_add(delta).ok_or_else(|| self.malformed("a field id is out of range"))?
        };
        Ok(Some(Field { id, wire, is_true: header & 0x0f == 1 }))
    }

    fn list(&mut self) -> Result<(Wire, usize), Malformed> {
        let (wire, count) = self.list_header()?;
        // Footers and page headers contain none, and decoders disagree about their length when they skip one.
        if wire == Wire::Bool {
            return Err(self.malformed("a list of booleans"));
        }
        Ok((wire, count))
    }

    /// Walks a list of booleans of one byte each.
    fn booleans(&mut self) -> Result<(), Malformed> {
        let (wire, count) = self.list_header()?;
        if count > 0 {
            self.expect_wire(Wire::Bool, wire, "a list element")?;
        }
        self.advance(count)
    }

    fn list_header(&mut self) -> Result<(Wire, usize), Malformed> {
        let header = self.byte()?;
        if header == 0 {
            return Ok((Wire::Byte, 0));
        }
        let wire = self.wire(header & 0x0f)?;
        let count = match header >> 4 {
            15 => self.length("a list")?,
            short => self.within(u64::from(short), "a list")?,
        };
        Ok((wire, count))
    }

    fn map(&mut self) -> Result<(), Malformed> {
        self.descend()?;
        let count = self.length("a map")?;
        if count > 0 {
            let kinds = self.byte()?;
            let (key, value) = (self.wire(kinds >> 4)?, self.wire(kinds & 0x0f)?);
            if key == Wire::Bool || value == Wire::Bool {
                return Err(self.malformed("a map of booleans"));
            }
            for _ in 0..count {
                self.skip(key)?;
                self.skip(value)?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn descend(&mut self) -> Result<(), Malformed> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.malformed(format!("nesting deeper than {MAX_DEPTH}")));
        }
        Ok(())
    }

    fn wire(&self, code: u8) -> Result<Wire, Malformed> {
        Wire::from_code(code).ok_or_else(|| self.malformed(format!("unknown wire type {code}")))
    }

    /// Walks the length of a value whose elements take at least one byte each.
    fn length(&mut self, what: &str) -> Result<usize, Malformed> {
        let length = self.varint()?;
        self.within(length, what)
    }

    fn within(&self, length: u64, what: &str) -> Result<usize, Malformed> {
        let remaining = self.bytes.len() - self.at;
        match usize::try_from(length) {
            Ok(length) if length <= remaining => Ok(length),
            _ => Err(self.malformed(format!("{what} of length {length}, but {remaining} bytes remain"))),
        }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.malformed("an integer longer than 64 bits"))
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = self.bytes.get(self.at).copied().ok_or_else(|| self.malformed("unexpected end"))?;
        self.at += 1;
        Ok(byte)
    }

    fn advance(&mut self, count: usize) -> Result<(), Malformed> {
        if count > self.bytes.len() - self.at {
            return Err(self.malformed("unexpected end"));
        }
        self.at += count;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
