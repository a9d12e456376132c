//! Hive partition columns, whose values are in folder names: `year=2024/month=01/part-0.parquet`.

use std::{borrow::Cow, sync::Arc};

use arrow_array::{ArrayRef, Int64Array, StringArray, new_null_array};
use arrow_schema::{DataType, Field};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

use crate::Error;

/// Null in a folder name, as defined by Hive.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// Value of a partition column, which applies to every row of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PartitionValue {
    /// `__HIVE_DEFAULT_PARTITION__`.
    Null,
    /// A value of a column whose values are all integers.
    Int64(i64),
    /// A value of any other column.
    Utf8(String),
}

impl PartitionValue {
    /// Returns an array of `rows` copies of the value. `data_type` is the type of the column in the snapshot.
    pub(crate) fn repeat(&self, data_type: &DataType, rows: usize) -> ArrayRef {
        match self {
            Self::Null => new_null_array(data_type, rows),
            Self::Int64(value) => Arc::new(Int64Array::from_value(*value, rows)),
            Self::Utf8(value) => Arc::new(StringArray::new_repeated(value, rows)),
        }
    }

    /// Size in bytes of `rows` values in Arrow layout.
    pub(crate) fn bytes(&self, data_type: &DataType, rows: u64) -> u64 {
        match (self, data_type) {
            (Self::Utf8(value), _) => rows * (value.len() as u64 + 4),
            (_, DataType::Int64) => rows * 8,
            _ => rows * 4,
        }
    }
}

/// The partition columns of a dataset and their values for each file.
pub(crate) struct Partitions {
    pub(crate) fields: Vec<Field>,
    pub(crate) values: Vec<Vec<PartitionValue>>,
}

impl Partitions {
    /// Parses the partition columns from relative paths. `url` converts a path to the URL for error messages.
    ///
    /// # Errors
    /// [`Error::Mismatch`] unless every file has the same keys in the same order.
    pub(crate) fn read<'a>(
        paths: impl Iterator<Item = &'a str>,
        url: impl Fn(&str) -> String,
    ) -> Result<Self, Error> {
        let mut first: Option<(&str, Vec<String>)> = None;
        let mut texts: Vec<Vec<Option<String>>> = Vec::new();
        for path in paths {
            let (keys, values) = parse(path).map_err(|detail| Error::unsupported(url(path), detail))?;
            match &first {
                None => first = Some((path, keys)),
                Some((_, expected)) if *expected == keys => {}
                Some((first, expected)) => {
                    let list = |keys: &[String]| format!("[{}]", keys.join(", "));
                    let (what, expected, found) = ("list of partition keys", list(expected), list(&keys));
                    return Err(Error::mismatch(url(first), url(path), what, &expected, &found));
                }
            }
            texts.push(values);
        }
        let keys = first.map(|(_, keys)| keys).unwrap_or_default();
        Ok(Self::typed(keys, texts))
    }

    fn typed(keys: Vec<String>, texts: Vec<Vec<Option<String>>>) -> Self {
        let mut fields = Vec::with_capacity(keys.len());
        for (column, key) in keys.into_iter().enumerate() {
            let mut present = texts.iter().filter_map(|values| values[column].as_deref()).peekable();
            let integers = present.peek().is_some() && present.all(|text| text.parse::<i64>().is_ok());
            let nullable = texts.iter().any(|values| values[column].is_none());
            fields.push(Field::new(key, if integers { DataType::Int64 } else { DataType::Utf8 }, nullable));
        }
        let typed = |(field, text): (&Field, Option<String>)| match text {
            None => PartitionValue::Null,
            Some(text) if *field.data_type() == DataType::Int64 => {
                PartitionValue::Int64(text.parse().expect("every value of the column parses"))
            }
            Some(text) => PartitionValue::Utf8(text),
        };
        let values = texts.into_iter().map(|row| fields.iter().zip(row).map(typed).collect()).collect();
        Self { fields, values }
    }
}

type Keyed = (Vec<String>, Vec<Option<String>>);

fn parse(path: &str) -> Result<Keyed, String> {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders);
    for folder in folders.split('/') {
        let Some((key, value)) = folder.split_once('=') else { continue };
        let key = decoded(key)?;
        if keys.iter().any(|other| *other == key) {
            return Err(format!("the partition key {key} occurs twice in the path"));
        }
        keys.push(key.into_owned());
        values.push(if value == NULL { None } else { Some(decoded(value)?.into_owned()) });
    }
    Ok((keys, values))
}

fn decoded(text: &str) -> Result<Cow<'_, str>, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map_err(|_| format!("the partition folder name {text} is not valid UTF-8 after percent-decoding"))
}
