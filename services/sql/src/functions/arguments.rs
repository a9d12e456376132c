//! Arguments of functions.

use arrow_schema::DataType;
use datafusion_common::{Result, ScalarValue, exec_err, plan_err};
use datafusion_expr::ColumnarValue;

/// Returns the value of an argument that must be a constant and not null.
pub(super) fn constant(function: &str, name: &str, argument: &ColumnarValue) -> Result<ScalarValue> {
    match argument {
        ColumnarValue::Scalar(value) if !value.is_null() => Ok(value.clone()),
        _ => exec_err!("{function}: {name} must be a constant and not null"),
    }
}

/// The value of an integer of any type; `None` for nulls and other types.
pub(super) fn integer(value: &ScalarValue) -> Option<i128> {
    match value {
        ScalarValue::Int8(value) => value.map(Into::into),
        ScalarValue::Int16(value) => value.map(Into::into),
        ScalarValue::Int32(value) => value.map(Into::into),
        ScalarValue::Int64(value) => value.map(Into::into),
        ScalarValue::UInt8(value) => value.map(Into::into),
        ScalarValue::UInt16(value) => value.map(Into::into),
        ScalarValue::UInt32(value) => value.map(Into::into),
        ScalarValue::UInt64(value) => value.map(Into::into),
        _ => None,
    }
}

/// Least and greatest value of an integer type; `None` for other types.
pub(super) fn range(data_type: &DataType) -> Option<(i128, i128)> {
    let bits = data_type.primitive_width().filter(|_| data_type.is_integer())? * 8;
    Some(match data_type.is_unsigned_integer() {
        true => (0, (1 << bits) - 1),
        false => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    })
}

/// Returns the type of an argument that must be an integer.
///
/// # Errors
/// If `data_type` is another type.
pub(super) fn integer_type(function: &str, name: &str, data_type: &DataType) -> Result<DataType> {
    match data_type {
        integer if integer.is_integer() => Ok(integer.clone()),
        // It is refused with the other nulls.
        DataType::Null => Ok(DataType::Int64),
        other => plan_err!("{function}: {name} is of type {other}, expected an integer"),
    }
}
