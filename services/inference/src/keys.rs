//! Keys as bytes, equal exactly for equal keys.

mod conversion;

use arrow_array::{Array, ArrayRef, BinaryArray, LargeBinaryArray, RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Schema};
use forebay_loader::{Error, find_column};

use conversion::{converted, kind, width};

/// Names and types of the columns of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyType {
    columns: Vec<(String, DataType)>,
    /// Bytes per key, if all keys have the same width.
    width: Option<usize>,
}

/// A sequence of encoded keys.
#[derive(Debug, Clone)]
pub struct EncodedKeys {
    width: Option<usize>,
    bytes: Vec<u8>,
    /// Without a fixed width: the end of each key.
    ends: Vec<usize>,
    /// False for each key with a null column; such a key matches no row.
    present: Vec<bool>,
}

impl KeyType {
    /// Resolves the key columns `names` in the schema of a dataset.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown column or one of an unsupported type.
    pub fn new(names: &[String], schema: &Schema) -> Result<Self, Error> {
        let column = |name: &String| {
            let field = schema.field(find_column("key", name, schema)?);
            if kind(field.data_type()).is_none() {
                let expected = "integers, decimals, strings, binary, booleans, dates or timestamps";
                let reason = format!("column '{name}' is of type {}, expected {expected}", field.data_type());
                return Err(Error::invalid("key", reason));
            }
            Ok((name.clone(), field.data_type().clone()))
        };
        let columns = names.iter().map(column).collect::<Result<Vec<_>, _>>()?;
        if columns.is_empty() {
            return Err(Error::invalid("key", "names no column, expected at least one"));
        }
        let width = columns.iter().map(|(_, data_type)| width(data_type)).sum();
        Ok(Self { columns, width })
    }

    /// Names and types of the columns.
    pub fn columns(&self) -> &[(String, DataType)] {
        &self.columns
    }

    /// Bytes per key, if all keys have the same width.
    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    /// Encodes the columns of `batch` that have the names of the key columns; other columns are ignored.
    ///
    /// Keys of another type of the same kind are equal by value: numbers of any width, precision and scale, text and binary in any
    /// layout, times of any unit, and instants of any time zone. A value that the dataset's type cannot hold matches no row.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a column that is missing or of another kind.
    pub fn encode(&self, batch: &RecordBatch) -> Result<EncodedKeys, Error> {
        let column = |(name, expected): &(String, DataType)| {
            converted(column_named(batch, name)?, expected)
                .map_err(|reason| Error::invalid("keys", format!("column '{name}' {reason}")))
        };
        let columns = self.columns.iter().map(column).collect::<Result<Vec<_>, _>>()?;
        Ok(self.encode_columns(&columns, batch.num_rows()))
    }

    /// Encodes columns that have exactly the types of the key.
    pub(crate) fn encode_columns(&self, columns: &[ArrayRef], rows: usize) -> EncodedKeys {
        let mut present = vec![true; rows];
        for nulls in columns.iter().filter_map(|column| column.nulls()) {
            present.iter_mut().zip(nulls).for_each(|(present, is_valid)| *present &= is_valid);
        }
        let mut keys = EncodedKeys { present, ..EncodedKeys::empty(self) };
        if let (Some(_), [column]) = (self.width, columns) {
            keys.bytes = fixed(column);
            return keys;
        }
        let values: Vec<(Option<usize>, Values)> =
            columns.iter().map(|column| (width(column.data_type()), Values::new(column))).collect();
        for row in 0..rows {
            for (width, column) in &values {
                let value = column.get(row, *width);
                if width.is_none() && values.len() > 1 {
                    keys.bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
                }
                keys.bytes.extend_from_slice(value);
            }
            if self.width.is_none() {
                keys.ends.push(keys.bytes.len());
            }
        }
        keys
    }
}

impl EncodedKeys {
    /// Creates an empty sequence.
    pub(crate) fn empty(key: &KeyType) -> Self {
        Self { width: key.width, bytes: Vec::new(), ends: Vec::new(), present: Vec::new() }
    }

    /// Appends keys of the same type.
    pub(crate) fn append(&mut self, others: &Self) {
        let start = self.bytes.len();
        self.ends.extend(others.ends.iter().map(|end| start + end));
        self.bytes.extend_from_slice(&others.bytes);
        self.present.extend_from_slice(&others.present);
    }

    /// Appends an encoded key.
    pub(crate) fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        if self.width.is_none() {
            self.ends.push(self.bytes.len());
        }
        self.present.push(true);
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// Memory of the keys, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (self.bytes.len() + size_of_val(&self.ends[..]) + self.present.len()) as u64
    }

    /// Returns the key at `row`; `None` if it has a null column.
    pub(crate) fn get(&self, row: usize) -> Option<&[u8]> {
        self.present[row].then(|| self.bytes_at(row))
    }

    /// False if the key at `row` has a null column.
    pub(crate) fn is_present(&self, row: usize) -> bool {
        self.present[row]
    }

    fn bytes_at(&self, row: usize) -> &[u8] {
        match self.width {
            Some(width) => &self.bytes[row * width..(row + 1) * width],
            None => &self.bytes[row.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[row]],
        }
    }

    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Without a fixed width: the bytes of each key.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        self.ends.iter().zip(starts).map(|(end, start)| end - start)
    }
}

/// Returns the column `name` of a batch of keys.
///
/// # Errors
/// [`Error::Invalid`] if there is no such column.
pub(crate) fn column_named<'a>(keys: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, Error> {
    keys.column_by_name(name).ok_or_else(|| {
        let schema = keys.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        Error::invalid("keys", format!("there is no column '{name}' among {names:?}"))
    })
}

/// Returns the values of a column of fixed width, little-endian.
fn fixed(column: &ArrayRef) -> Vec<u8> {
    if let Some(booleans) = column.as_boolean_opt() {
        return booleans.values().iter().map(u8::from).collect();
    }
    let data = column.to_data();
    let width = width(column.data_type()).unwrap_or(0);
    data.buffers()[0].as_slice()[data.offset() * width..][..data.len() * width].to_vec()
}

/// Values of a column as byte slices.
enum Values {
    Fixed(Vec<u8>),
    Binary(BinaryArray),
    LargeBinary(LargeBinaryArray),
}

impl Values {
    fn new(column: &ArrayRef) -> Self {
        match column.data_type() {
            DataType::Utf8 => Self::Binary(column.as_string::<i32>().clone().into()),
            DataType::LargeUtf8 => Self::LargeBinary(column.as_string::<i64>().clone().into()),
            DataType::Binary => Self::Binary(column.as_binary().clone()),
            DataType::LargeBinary => Self::LargeBinary(column.as_binary().clone()),
            _ => Self::Fixed(fixed(column)),
        }
    }

    fn get(&self, row: usize, width: Option<usize>) -> &[u8] {
        match self {
            Self::Fixed(bytes) => &bytes[row * width.unwrap_or(0)..][..width.unwrap_or(0)],
            Self::Binary(array) => array.value(row),
            Self::LargeBinary(array) => array.value(row),
        }
    }
}
