//! Names of values that outlive a process: what a value is computed from, as tagged bytes of a form that is defined here.
//!
//! The bytes are not the output of any formatter, so that an upgrade of Arrow, DataFusion or Rust does not change a name by
//! accident. Golden tests pin them.

use arrow_schema::{DataType, Field, Fields, IntervalUnit, TimeUnit, UnionMode};
use ring::digest::{SHA256, digest};

/// The parts of an identity, each with a tag, and each of variable length with its length, so that no two lists of parts
/// have the same bytes.
#[derive(Debug, Clone)]
pub struct Identity {
    bytes: Vec<u8>,
}

const TEXT: u8 = 1;
const NUMBER: u8 = 2;
const BYTES: u8 = 3;
const HASH: u8 = 4;
const TYPE: u8 = 5;
const LIST: u8 = 6;

impl Identity {
    /// An identity of this kind, such as `"column"`. Identities of different kinds or versions are never equal.
    pub fn new(kind: &str, version: u32) -> Self {
        Self { bytes: Vec::new() }.text(kind).number(version.into())
    }

    /// Adds a text.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        self.tagged(TEXT, text.as_bytes())
    }

    /// Adds bytes.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.tagged(BYTES, bytes)
    }

    /// Adds a number.
    #[must_use]
    pub fn number(mut self, number: u64) -> Self {
        self.bytes.push(NUMBER);
        self.bytes.extend(number.to_le_bytes());
        self
    }

    /// Adds another identity.
    #[must_use]
    pub fn part(mut self, hash: u128) -> Self {
        self.bytes.push(HASH);
        self.bytes.extend(hash.to_le_bytes());
        self
    }

    /// Adds the number of parts that follow and belong together.
    #[must_use]
    pub fn list(mut self, parts: usize) -> Self {
        self.bytes.push(LIST);
        self.bytes.extend((parts as u64).to_le_bytes());
        self
    }

    /// Adds a type, without metadata, which does not affect values.
    #[must_use]
    pub fn data_type(mut self, data_type: &DataType) -> Self {
        self.bytes.push(TYPE);
        self.append_type(data_type);
        self
    }

    /// The first 128 bits of the SHA-256 of all parts. Callers choose some of the parts, such as the literals of an expression, and
    /// could construct others with the same XXH3. A cache would return their values to other callers.
    pub fn hash(&self) -> u128 {
        let hash = digest(&SHA256, &self.bytes);
        let (first, _) = hash.as_ref().split_first_chunk::<16>().expect("SHA-256 has 32 bytes");
        u128::from_le_bytes(*first)
    }

    fn tagged(mut self, tag: u8, bytes: &[u8]) -> Self {
        self.bytes.push(tag);
        self.append(bytes);
        self
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend((bytes.len() as u64).to_le_bytes());
        self.bytes.extend(bytes);
    }

    fn append_type(&mut self, data_type: &DataType) {
        let code = |code: u8, identity: &mut Self| identity.bytes.push(code);
        match data_type {
            DataType::Null => code(0, self),
            DataType::Boolean => code(1, self),
            DataType::Int8 => code(2, self),
            DataType::Int16 => code(3, self),
            DataType::Int32 => code(4, self),
            DataType::Int64 => code(5, self),
            DataType::UInt8 => code(6, self),
            DataType::UInt16 => code(7, self),
            DataType::UInt32 => code(8, self),
            DataType::UInt64 => code(9, self),
            DataType::Float16 => code(10, self),
            DataType::Float32 => code(11, self),
            DataType::Float64 => code(12, self),
            DataType::Timestamp(unit, zone) => {
                self.bytes.extend([13, unit_code(*unit), u8::from(zone.is_some())]);
                self.append(zone.as_deref().unwrap_or_default().as_bytes());
            }
            DataType::Date32 => code(14, self),
            DataType::Date64 => code(15, self),
            DataType::Time32(unit) => self.bytes.extend([16, unit_code(*unit)]),
            DataType::Time64(unit) => self.bytes.extend([17, unit_code(*unit)]),
            DataType::Duration(unit) => self.bytes.extend([18, unit_code(*unit)]),
            DataType::Interval(unit) => {
                let unit = match unit {
                    IntervalUnit::YearMonth => 0,
                    IntervalUnit::DayTime => 1,
                    IntervalUnit::MonthDayNano => 2,
                };
                self.bytes.extend([19, unit]);
            }
            DataType::Binary => code(20, self),
            DataType::FixedSizeBinary(width) => self.sized(21, i64::from(*width)),
            DataType::LargeBinary => code(22, self),
            DataType::BinaryView => code(23, self),
            DataType::Utf8 => code(24, self),
            DataType::LargeUtf8 => code(25, self),
            DataType::Utf8View => code(26, self),
            DataType::List(item) => self.nested(27, item),
            DataType::ListView(item) => self.nested(28, item),
            DataType::FixedSizeList(item, length) => {
                self.sized(29, i64::from(*length));
                self.append_field(item);
            }
            DataType::LargeList(item) => self.nested(30, item),
            DataType::LargeListView(item) => self.nested(31, item),
            DataType::Struct(fields) => {
                code(32, self);
                self.append_fields(fields);
            }
            DataType::Union(fields, mode) => {
                self.bytes.extend([33, u8::from(*mode == UnionMode::Dense)]);
                self.bytes.extend((fields.len() as u64).to_le_bytes());
                for (id, field) in fields.iter() {
                    self.bytes.extend(id.to_le_bytes());
                    self.append_field(field);
                }
            }
            DataType::Dictionary(key, value) => {
                code(34, self);
                self.append_type(key);
                self.append_type(value);
            }
            DataType::Decimal32(precision, scale) => self.decimal(35, *precision, *scale),
            DataType::Decimal64(precision, scale) => self.decimal(36, *precision, *scale),
            DataType::Decimal128(precision, scale) => self.decimal(37, *precision, *scale),
            DataType::Decimal256(precision, scale) => self.decimal(38, *precision, *scale),
            DataType::Map(entries, sorted) => {
                self.bytes.extend([39, u8::from(*sorted)]);
                self.append_field(entries);
            }
            DataType::RunEndEncoded(ends, values) => {
                code(40, self);
                self.append_field(ends);
                self.append_field(values);
            }
        }
    }

    fn sized(&mut self, code: u8, size: i64) {
        self.bytes.push(code);
        self.bytes.extend(size.to_le_bytes());
    }

    fn decimal(&mut self, code: u8, precision: u8, scale: i8) {
        self.bytes.extend([code, precision, scale.to_le_bytes()[0]]);
    }

    fn nested(&mut self, code: u8, item: &Field) {
        self.bytes.push(code);
        self.append_field(item);
    }

    fn append_fields(&mut self, fields: &Fields) {
        self.bytes.extend((fields.len() as u64).to_le_bytes());
        for field in fields {
            self.append_field(field);
        }
    }

    fn append_field(&mut self, field: &Field) {
        self.append(field.name().as_bytes());
        self.bytes.push(u8::from(field.is_nullable()));
        self.append_type(field.data_type());
    }
}

fn unit_code(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_128;

    use super::*;

    /// An identity with chosen bytes. XXH3 adds the product of the two halves of each word after an exclusive or with a public
    /// constant. With a half of 0, the other half only counts in a sum over all stripes of 64 bytes.
    fn chosen(halves: [u32; 2]) -> Identity {
        let empty = Identity::new("collision", 1).bytes(&[]).bytes.len();
        let mut bytes = vec![0; 400];
        for (stripe, constant, half) in
            [(64, [0x7c, 0x01, 0x81, 0x2c], halves[0]), (128, [0xde, 0xd4, 0x6d, 0xe9], halves[1])]
        {
            bytes[stripe - empty..][..4].copy_from_slice(&constant);
            bytes[stripe - empty + 4..][..4].copy_from_slice(&half.to_le_bytes());
        }
        Identity::new("collision", 1).bytes(&bytes)
    }

    #[test]
    fn identities_with_equal_xxh3_differ() {
        let (one, other) = (chosen([7, 9]), chosen([8, 8]));
        assert_ne!(one.bytes, other.bytes);
        assert_eq!(xxh3_128(&one.bytes), xxh3_128(&other.bytes), "the bytes no longer show the collision");
        assert_ne!(one.hash(), other.hash());
    }
}
