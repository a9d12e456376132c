//! Digits of decimals. Arrow computes values with more digits than their type has, and drops the last ones of them in text.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, PrimitiveArray,
    cast::AsArray,
    types::{Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType},
};
use arrow_buffer::i256;
use arrow_schema::{DataType, Schema};
use datafusion_common::{Result, exec_err};
use datafusion_expr::Operator;
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr, expressions::BinaryExpr};

use crate::followed::{Followed, Step};

/// Wraps a part that can compute decimals with more digits than their type has: arithmetic, `round` and `lcm`. The results of the other functions
/// have no more digits than their arguments.
///
/// # Errors
/// If the part has no type in `schema`.
pub(crate) fn with_own_digits(part: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let is_arithmetic = part.downcast_ref::<BinaryExpr>().is_some_and(|binary| {
        use Operator::{Divide, Minus, Modulo, Multiply, Plus};
        matches!(binary.op(), Plus | Minus | Multiply | Divide | Modulo)
    });
    let is_longer = || {
        let call = part.downcast_ref::<ScalarFunctionExpr>();
        call.is_some_and(|call| matches!(call.name(), "round" | "lcm"))
    };
    if !(is_arithmetic || is_longer()) || !part.data_type(schema)?.is_decimal() {
        return Ok(part);
    }
    Ok(Followed::<OwnDigits>::after(part))
}

/// Positions of the values with more digits than their type has. Empty for types other than decimals.
pub(crate) fn rows_beyond(array: &ArrayRef) -> Vec<usize> {
    match array.data_type() {
        DataType::Decimal32(..) => rows::<Decimal32Type>(array.as_primitive()),
        DataType::Decimal64(..) => rows::<Decimal64Type>(array.as_primitive()),
        DataType::Decimal128(..) => rows::<Decimal128Type>(array.as_primitive()),
        DataType::Decimal256(..) => rows::<Decimal256Type>(array.as_primitive()),
        _ => Vec::new(),
    }
}

fn rows<D: DecimalType>(decimals: &PrimitiveArray<D>) -> Vec<usize> {
    let precision = decimals.precision();
    let is_beyond = |value: &D::Native| !D::is_valid_decimal_precision(*value, precision);
    let beyond = decimals.values().iter().enumerate().filter(|(_, value)| is_beyond(value));
    beyond.map(|(row, _)| row).filter(|row| decimals.is_valid(*row)).collect()
}

/// The value in a row of decimals with all of its digits; an empty text for other types.
pub(crate) fn shown(array: &ArrayRef, row: usize) -> String {
    let (value, scale) = match array.data_type() {
        DataType::Decimal32(_, scale) => {
            (i256::from(array.as_primitive::<Decimal32Type>().value(row)), *scale)
        }
        DataType::Decimal64(_, scale) => {
            (i256::from(array.as_primitive::<Decimal64Type>().value(row)), *scale)
        }
        DataType::Decimal128(_, scale) => {
            (i256::from(array.as_primitive::<Decimal128Type>().value(row)), *scale)
        }
        DataType::Decimal256(_, scale) => (array.as_primitive::<Decimal256Type>().value(row), *scale),
        _ => return String::new(),
    };
    let text = value.to_string();
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
    match usize::try_from(scale) {
        Ok(0) => text,
        Ok(scale) => {
            let digits = format!("{digits:0>width$}", width = scale + 1);
            let (whole, fraction) = digits.split_at(digits.len() - scale);
            format!("{sign}{whole}.{fraction}")
        }
        Err(_) => format!("{text}{}", "0".repeat(usize::from(scale.unsigned_abs()))),
    }
}

/// Checks that decimals have at most the digits of their type.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OwnDigits;

impl Step for OwnDigits {
    fn apply(decimals: &ArrayRef) -> Result<ArrayRef> {
        match rows_beyond(decimals).first() {
            None => Ok(Arc::clone(decimals)),
            Some(row) => exec_err!(
                "Arithmetic overflow: the result {} has more digits than its type {} holds",
                shown(decimals, *row),
                decimals.data_type()
            ),
        }
    }
}
