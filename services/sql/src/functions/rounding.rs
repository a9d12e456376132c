//! `round` and `trunc` of floats to a number of digits. DataFusion multiplies by a power of ten, which overflows and rounds.

use std::sync::{Arc, LazyLock};

use arrow_array::{ArrayRef, ArrowPrimitiveType, Int64Array, PrimitiveArray, cast::AsArray, types::*};
use arrow_schema::DataType;
use datafusion_common::Result;
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

/// Powers of ten up to this one are doubles.
const EXACT: i64 = 22;
/// Powers of ten up to this one are finite doubles.
const LARGEST: i64 = f64::MAX_10_EXP as i64;
/// From this double on, all values are integers.
const INTEGERS: f64 = (1_u64 << (f64::MANTISSA_DIGITS - 1)) as f64;

/// Float `x` with `digits` digits after the point, or with zeros before it for negative `digits`. `whole` rounds to an integer. The value is
/// `x` if all its bits are before the last one of the digits.
fn to_digits(x: f64, digits: i64, whole: fn(f64) -> f64) -> f64 {
    if !x.is_finite() || digits > LARGEST {
        return x;
    }
    if digits < -LARGEST {
        return 0.0_f64.copysign(x);
    }
    let scaled = if digits < 0 { x / power(-digits) } else { x * power(digits) };
    if scaled.abs() >= INTEGERS { x } else { decimal(whole(scaled), -digits) }
}

/// The double that is nearest to ten to the power of `exponent`.
fn power(exponent: i64) -> f64 {
    static POWERS: LazyLock<Vec<f64>> = LazyLock::new(|| (0..=LARGEST).map(|at| parsed(1.0, at)).collect());
    usize::try_from(exponent).ok().and_then(|at| POWERS.get(at)).copied().unwrap_or(f64::INFINITY)
}

/// The double that is nearest to an integer times ten to the power of `exponent`.
fn decimal(integer: f64, exponent: i64) -> f64 {
    // An operation on exact operands rounds once.
    if exponent.abs() > EXACT {
        parsed(integer, exponent)
    } else if exponent < 0 {
        integer / power(-exponent)
    } else {
        integer * power(exponent)
    }
}

fn parsed(integer: f64, exponent: i64) -> f64 {
    format!("{integer}e{exponent}").parse().expect("an integer and an exponent are a number")
}

pub(super) fn round(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    rounded(function, call, f64::round)
}

pub(super) fn trunc(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    rounded(function, call, f64::trunc)
}

/// Rounds floats. Calls without digits, and those with other numbers, are left to the function of DataFusion.
fn rounded(function: &ScalarUDF, call: ScalarFunctionArgs, whole: fn(f64) -> f64) -> Result<ColumnarValue> {
    let [x, digits] = &call.args[..] else { return function.invoke_with_args(call) };
    if !matches!(x.data_type(), DataType::Float32 | DataType::Float64) {
        return function.invoke_with_args(call);
    }
    let x = x.clone().into_array(call.number_rows)?;
    let digits = digits.cast_to(&DataType::Int64, None)?.into_array(call.number_rows)?;
    let digits = digits.as_primitive::<Int64Type>();
    Ok(ColumnarValue::Array(match x.data_type() {
        // Products of floats of 32 bits and powers of ten are computed with the digits of a double.
        DataType::Float32 => {
            each::<Float32Type>(&x, digits, |x, digits| to_digits(x.into(), digits, whole) as f32)
        }
        _ => each::<Float64Type>(&x, digits, |x, digits| to_digits(x, digits, whole)),
    }))
}

fn each<T: ArrowPrimitiveType>(
    x: &ArrayRef,
    digits: &Int64Array,
    round: impl Fn(T::Native, i64) -> T::Native,
) -> ArrayRef {
    let x = x.as_primitive::<T>();
    let rounded = x.iter().zip(digits).map(|(x, digits)| Some(round(x?, digits?)));
    Arc::new(rounded.collect::<PrimitiveArray<T>>())
}
