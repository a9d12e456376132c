//! `round` and `trunc` of floats to a number of digits. DataFusion multiplies by a power of ten, which overflows and rounds.

use std::sync::Arc;

use arrow_array::{ArrayRef, ArrowPrimitiveType, Int64Array, PrimitiveArray, cast::AsArray, types::*};
use arrow_schema::DataType;
use datafusion_common::Result;
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

/// Float `x` with `digits` digits after the point, or with zeros before it for negative `digits`. `whole` rounds to an integer. The value is
/// `x` if all its bits are before the last one of the digits.
macro_rules! to_digits {
    ($name:ident, $float:ty) => {
        fn $name(x: $float, digits: i64, whole: fn($float) -> $float) -> $float {
            // Powers of ten up to this one are finite.
            const LARGEST: i64 = <$float>::MAX_10_EXP as i64;
            // From here on, all values are integers.
            let integers = 2.0_f64.powi(<$float>::MANTISSA_DIGITS as i32 - 1) as $float;
            let ten: $float = 10.0;
            if !x.is_finite() || digits > LARGEST {
                return x;
            }
            if digits < -LARGEST {
                let zero: $float = 0.0;
                return zero.copysign(x);
            }
            if digits < 0 {
                let power = ten.powi(-digits as i32);
                return whole(x / power) * power;
            }
            let power = ten.powi(digits as i32);
            let scaled = x * power;
            if scaled.abs() >= integers { x } else { whole(scaled) / power }
        }
    };
}

to_digits!(to_digits_64, f64);
to_digits!(to_digits_32, f32);

pub(super) fn round(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    rounded(
        function,
        call,
        |x, digits| to_digits_64(x, digits, f64::round),
        |x, digits| to_digits_32(x, digits, f32::round),
    )
}

pub(super) fn trunc(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    rounded(
        function,
        call,
        |x, digits| to_digits_64(x, digits, f64::trunc),
        |x, digits| to_digits_32(x, digits, f32::trunc),
    )
}

/// Rounds floats. Calls without digits, and those with other numbers, are left to the function of DataFusion.
fn rounded(
    function: &ScalarUDF,
    call: ScalarFunctionArgs,
    double: fn(f64, i64) -> f64,
    single: fn(f32, i64) -> f32,
) -> Result<ColumnarValue> {
    let [x, digits] = &call.args[..] else { return function.invoke_with_args(call) };
    if !matches!(x.data_type(), DataType::Float32 | DataType::Float64) {
        return function.invoke_with_args(call);
    }
    let x = x.clone().into_array(call.number_rows)?;
    let digits = digits.cast_to(&DataType::Int64, None)?.into_array(call.number_rows)?;
    let digits = digits.as_primitive::<Int64Type>();
    Ok(ColumnarValue::Array(match x.data_type() {
        DataType::Float32 => each::<Float32Type>(&x, digits, single),
        _ => each::<Float64Type>(&x, digits, double),
    }))
}

fn each<T: ArrowPrimitiveType>(
    x: &ArrayRef,
    digits: &Int64Array,
    round: fn(T::Native, i64) -> T::Native,
) -> ArrayRef {
    let x = x.as_primitive::<T>();
    let rounded = x.iter().zip(digits).map(|(x, digits)| Some(round(x?, digits?)));
    Arc::new(rounded.collect::<PrimitiveArray<T>>())
}
