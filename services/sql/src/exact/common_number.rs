//! The common type of numbers.
//!
//! Decimals and integers become a decimal type with the digits of all of them, decimals and floats become `DOUBLE`. Literals count with their
//! own digits. Integers and floats have the common type of DataFusion, except where that has fewer digits than a float type, or a smaller range
//! than the integers.

use arrow_schema::{
    DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION,
    DataType,
};
use datafusion_common::{DFSchema, Result, plan_err};
use datafusion_expr::Expr;

use super::{
    constants::{constant, convert},
    kind::shown,
    literals::exact,
    number::Number,
    place,
};
use crate::guard::decimal_digits;

/// Maximum number of digits for which a float of 16 bits represents every integer exactly.
const FLOAT16_DIGITS: i64 = 3;

/// Gives numbers one type.
///
/// # Errors
/// If they have more digits than a decimal type.
pub(super) fn of_one_type(mut parts: Vec<Expr>, types: &[DataType], schema: &DFSchema) -> Result<Vec<Expr>> {
    let is_typed = |data_type: &DataType, part: &Expr| data_type.is_numeric() && exact(part).is_none();
    let typed = || types.iter().zip(&parts).filter(move |(data_type, part)| is_typed(data_type, part));
    let common = if !typed().any(|(data_type, _)| data_type.is_decimal()) {
        match float_type(&parts, types) {
            Some(float) => float,
            None => return Ok(parts),
        }
    } else if typed().any(|(data_type, _)| data_type.is_floating()) {
        DataType::Float64
    } else {
        decimal_type(&parts, types)?
    };
    for (part, data_type) in parts.iter_mut().zip(types) {
        match exact(part).and_then(|number| place::decimal(&number, &common)) {
            Some(value) => *part = constant(value),
            None if data_type.is_numeric() && *data_type != common => convert(part, &common, schema)?,
            None => {}
        }
    }
    Ok(parts)
}

/// Returns the common type of integers and floats where that of DataFusion does not hold all of them. For signed integers, `BIGINT UNSIGNED` and
/// floats, DataFusion has a decimal type, in which floats lose digits and NaN is an error. For integers and floats of 16 bits, it has floats of 16
/// bits, in which integers above 65,504 are infinite. Returns `None` for other types.
fn float_type(parts: &[Expr], types: &[DataType]) -> Option<DataType> {
    let widest = types
        .iter()
        .filter(|data_type| data_type.is_floating())
        .max_by_key(|float| float.primitive_width())?;
    let is_signed = types.iter().any(DataType::is_signed_integer);
    let is_mixed = is_signed && types.contains(&DataType::UInt64);
    match widest {
        DataType::Float16 => {
            let is_large = |(part, data_type): (&Expr, &DataType)| {
                let is_short = |number: Number| number.whole_digits() <= FLOAT16_DIGITS;
                data_type.is_integer() && !exact(part).is_some_and(is_short)
            };
            parts.iter().zip(types).any(is_large).then_some(DataType::Float32)
        }
        float => is_mixed.then(|| float.clone()),
    }
}

/// The smallest decimal type with all digits of the numbers, which has at least the width of the decimals among them.
fn decimal_type(parts: &[Expr], types: &[DataType]) -> Result<DataType> {
    let (mut whole, mut fraction, mut width) = (i64::MIN, i64::MIN, DECIMAL32_MAX_PRECISION);
    for (part, data_type) in parts.iter().zip(types) {
        let digits = match exact(part) {
            Some(number) if number.is_zero() => None,
            Some(number) => Some((number.whole_digits(), number.fraction_digits())),
            None => type_digits(data_type),
        };
        if let Some((of_whole, of_fraction)) = digits {
            (whole, fraction) = (whole.max(of_whole), fraction.max(of_fraction));
        }
        if exact(part).is_none() {
            width = width.max(match data_type {
                DataType::Decimal32(..) | DataType::Null => DECIMAL32_MAX_PRECISION,
                DataType::Decimal64(..) => DECIMAL64_MAX_PRECISION,
                DataType::Decimal256(..) => DECIMAL256_MAX_PRECISION,
                _ => DECIMAL128_MAX_PRECISION,
            });
        }
    }
    let digits = whole.saturating_add(fraction).max(fraction).max(1);
    let (Ok(precision), Ok(scale)) = (u8::try_from(digits), i8::try_from(fraction)) else {
        return beyond(parts, digits);
    };
    if precision > DECIMAL256_MAX_PRECISION {
        return beyond(parts, digits);
    }
    let made: fn(u8, i8) -> DataType = match precision.max(width) {
        width if width <= DECIMAL32_MAX_PRECISION => DataType::Decimal32,
        width if width <= DECIMAL64_MAX_PRECISION => DataType::Decimal64,
        width if width <= DECIMAL128_MAX_PRECISION => DataType::Decimal128,
        _ => DataType::Decimal256,
    };
    Ok(made(precision, scale))
}

fn beyond<T>(parts: &[Expr], digits: i64) -> Result<T> {
    let parts: Vec<String> = parts.iter().map(shown).collect();
    plan_err!(
        "the common type of {} needs {digits} digits, expected at most {DECIMAL256_MAX_PRECISION}: CAST one of them",
        parts.join(", ")
    )
}

/// Digits before and after the point of the values of a type. Integers of 64 bits count as DataFusion counts them.
fn type_digits(data_type: &DataType) -> Option<(i64, i64)> {
    match data_type {
        DataType::Int64 | DataType::UInt64 => Some((20, 0)),
        other => decimal_digits(other).map(|(whole, fraction)| (whole.into(), fraction.into())),
    }
}
