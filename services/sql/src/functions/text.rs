//! `strpos`, `btrim`, `ltrim` and `rtrim` in a time that is proportional to the length of their texts. DataFusion takes the product of two
//! lengths.

use std::{collections::HashSet, sync::Arc};

use arrow_array::{
    ArrayRef, Int32Array, Int64Array, LargeStringArray, StringArray, StringViewArray, cast::AsArray,
};
use arrow_schema::DataType;
use datafusion_common::{Result, exec_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

/// Texts of an argument, which is a column or a constant.
struct Texts {
    array: ArrayRef,
    is_constant: bool,
}

impl Texts {
    /// `None` for an argument of another type.
    fn of(argument: &ColumnarValue) -> Result<Option<Self>> {
        let is_text =
            matches!(argument.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        if !is_text {
            return Ok(None);
        }
        Ok(Some(match argument {
            ColumnarValue::Array(array) => Self { array: Arc::clone(array), is_constant: false },
            ColumnarValue::Scalar(value) => Self { array: value.to_array()?, is_constant: true },
        }))
    }

    fn at(&self, row: usize) -> Option<&str> {
        let row = if self.is_constant { 0 } else { row };
        if self.array.is_null(row) {
            return None;
        }
        Some(match self.array.data_type() {
            DataType::Utf8 => self.array.as_string::<i32>().value(row),
            DataType::LargeUtf8 => self.array.as_string::<i64>().value(row),
            _ => self.array.as_string_view().value(row),
        })
    }
}

/// Position of a part in a text, in characters from 1 on; 0 if the text does not contain it.
pub(super) fn strpos(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let [text, part] = &call.args[..] else { return function.invoke_with_args(call) };
    let (Some(texts), Some(parts)) = (Texts::of(text)?, Texts::of(part)?) else {
        return function.invoke_with_args(call);
    };
    let position = |row| {
        let (text, part) = (texts.at(row)?, parts.at(row)?);
        // The search of the standard library is linear.
        Some(text.find(part).map_or(0, |at| text[..at].chars().count() + 1))
    };
    let rows = 0..call.number_rows;
    let found: ArrayRef = match call.return_type() {
        DataType::Int64 => {
            Arc::new(rows.map(|row| position(row).map(|at| at as i64)).collect::<Int64Array>())
        }
        DataType::Int32 => {
            Arc::new(rows.map(|row| position(row).map(|at| at as i32)).collect::<Int32Array>())
        }
        other => return exec_err!("strpos: a result of type {other}, expected an integer"),
    };
    Ok(ColumnarValue::Array(found))
}

pub(super) fn btrim(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    trim(function, call, true, true)
}

pub(super) fn ltrim(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    trim(function, call, true, false)
}

pub(super) fn rtrim(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    trim(function, call, false, true)
}

/// Removes characters from the ends of a text.
fn trim(
    function: &ScalarUDF,
    call: ScalarFunctionArgs,
    at_start: bool,
    at_end: bool,
) -> Result<ColumnarValue> {
    let [text, characters] = &call.args[..] else { return function.invoke_with_args(call) };
    let (Some(texts), Some(sets)) = (Texts::of(text)?, Texts::of(characters)?) else {
        return function.invoke_with_args(call);
    };
    let constant = if sets.is_constant { sets.at(0).map(Characters::of) } else { None };
    let trimmed = |row| {
        let (mut text, set) = (texts.at(row)?, sets.at(row)?);
        let own;
        let set = match &constant {
            Some(constant) => constant,
            None => {
                own = Characters::of(set);
                &own
            }
        };
        if at_start {
            text = text.trim_start_matches(|character: char| set.contains(character));
        }
        if at_end {
            text = text.trim_end_matches(|character: char| set.contains(character));
        }
        Some(text)
    };
    let rows = (0..call.number_rows).map(trimmed);
    Ok(ColumnarValue::Array(match texts.array.data_type() {
        DataType::Utf8 => Arc::new(rows.collect::<StringArray>()),
        DataType::LargeUtf8 => Arc::new(rows.collect::<LargeStringArray>()),
        _ => Arc::new(rows.collect::<StringViewArray>()),
    }))
}

/// A set of characters.
struct Characters {
    /// One bit for each ASCII character.
    ascii: u128,
    others: HashSet<char>,
}

impl Characters {
    fn of(text: &str) -> Self {
        let mut set = Self { ascii: 0, others: HashSet::new() };
        for character in text.chars() {
            if character.is_ascii() {
                set.ascii |= 1 << u32::from(character);
            } else {
                set.others.insert(character);
            }
        }
        set
    }

    fn contains(&self, character: char) -> bool {
        if character.is_ascii() {
            self.ascii & (1 << u32::from(character)) != 0
        } else {
            self.others.contains(&character)
        }
    }
}
