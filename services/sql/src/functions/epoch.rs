//! `to_timestamp` and the like, and `to_unixtime`: times as numbers of seconds or other units since 1970.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, cast::AsArray, types::*};
use arrow_cast::CastOptions;
use arrow_schema::DataType;
use datafusion_common::{Result, exec_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};
use datafusion_functions::datetime::to_timestamp::ToTimestampNanosFunc;

use super::calendar::{NANOSECONDS, per_second, units};
use crate::exact::floats;

/// Fails for a float without a timestamp. DataFusion takes the nearest one, and 1970 for NaN.
pub(super) fn to_timestamp(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    if let Some(seconds) = call.args.first().filter(|seconds| seconds.data_type().is_floating()) {
        for seconds in doubles(seconds)?.as_primitive::<Float64Type>().iter().flatten() {
            whole("to_timestamp", seconds * NANOSECONDS as f64, seconds)?;
        }
    }
    function.invoke_with_args(call)
}

/// The functions such as `to_timestamp_millis`. Fails for a decimal of 256 bits that is beyond 64-bit integers. DataFusion takes its lowest 64 bits.
pub(super) fn of_units(function: &ScalarUDF, mut call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    if let Some(units) = call.args.first_mut()
        && matches!(units.data_type(), DataType::Decimal256(..))
    {
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let decimals = units.clone().into_array(1)?;
        *units = ColumnarValue::Array(floats::cast(&decimals, &DataType::Int64, &options)?);
    }
    function.invoke_with_args(call)
}

/// Rounds down. DataFusion rounds towards 1970.
pub(super) fn to_unixtime(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let Some(x) = call.args.first() else { return function.invoke_with_args(call) };
    let array = |x: &ColumnarValue| x.clone().into_array(1);
    let seconds: ArrayRef = match x.data_type() {
        DataType::Timestamp(unit, _) => {
            let per_second = per_second(unit);
            Arc::new(units(&array(x)?)?.unary::<_, Int64Type>(|value| value.div_euclid(per_second)))
        }
        float if float.is_floating() => {
            let doubles = doubles(x)?;
            let whole = |x: f64| whole("to_unixtime", x.floor(), x);
            let whole: Int64Array = doubles.as_primitive::<Float64Type>().try_unary(whole)?;
            Arc::new(whole)
        }
        text if text.is_string() => {
            let rows = call.number_rows;
            let nanoseconds = ScalarUDF::from(ToTimestampNanosFunc::new_with_config(&call.config_options));
            let nanoseconds = nanoseconds.invoke_with_args(call)?.into_array(rows)?;
            Arc::new(units(&nanoseconds)?.unary::<_, Int64Type>(|value| value.div_euclid(NANOSECONDS)))
        }
        _ => return function.invoke_with_args(call),
    };
    Ok(ColumnarValue::Array(seconds))
}

/// Floats of any width, one for a constant.
fn doubles(x: &ColumnarValue) -> Result<ArrayRef> {
    x.cast_to(&DataType::Float64, None)?.into_array(1)
}

/// Returns `value` as an integer.
///
/// # Errors
/// If it is NaN or beyond the 64-bit integers.
fn whole(function: &str, value: f64, seconds: f64) -> Result<i64> {
    // 2^63, which is exact. The largest integer is not.
    let end = -(i64::MIN as f64);
    if value >= -end && value < end {
        return Ok(value as i64);
    }
    exec_err!("{function}: {seconds} seconds since 1970 are out of range")
}
