//! `date_part` and `EXTRACT`: of durations as days, hours, minutes and seconds, and of dates and timestamps with an error beyond the calendar.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int32Array, Int64Array};
use arrow_schema::DataType;
use datafusion_common::{Result, exec_datafusion_err, exec_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

use super::calendar::{DATED, DAY, NANOSECONDS, ends, per_second, units};

/// Nanoseconds of a unit.
const SECOND: i128 = NANOSECONDS as i128;
const MINUTE: i128 = 60 * SECOND;
const HOUR: i128 = 60 * MINUTE;
const WHOLE_DAY: i128 = DAY as i128 * SECOND;

/// A part of a duration is what remains of the next larger unit, up to days: 25 hours are one day and one hour. DataFusion returns the
/// whole duration in each unit.
pub(super) fn date_part(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let [ColumnarValue::Scalar(part), duration] = &call.args[..] else {
        return function.invoke_with_args(call);
    };
    let Some(Some(part)) = part.try_as_str() else { return function.invoke_with_args(call) };
    let name = part.trim_matches(['\'', '"']).to_lowercase();
    let DataType::Duration(unit) = duration.data_type() else {
        if name != "epoch" {
            check_dated(&name, duration, call.number_rows)?;
        }
        return function.invoke_with_args(call);
    };
    let unit = i128::from(NANOSECONDS / per_second(unit));
    let durations = units(&duration.clone().into_array(call.number_rows)?)?;
    let of: fn(i128) -> i128 = match name.as_str() {
        "epoch" => {
            let seconds: Float64Array = durations.unary(|units| (i128::from(units) * unit) as f64 / 1e9);
            return Ok(ColumnarValue::Array(Arc::new(seconds)));
        }
        "nanosecond" | "nanoseconds" => {
            let rest: Int64Array = durations.unary(|units| (i128::from(units) * unit % MINUTE) as i64);
            return Ok(ColumnarValue::Array(Arc::new(rest)));
        }
        "day" | "days" => |duration| duration / WHOLE_DAY,
        "hour" | "hours" => |duration| duration % WHOLE_DAY / HOUR,
        "minute" | "minutes" => |duration| duration % HOUR / MINUTE,
        "second" | "seconds" => |duration| duration % MINUTE / SECOND,
        "millisecond" | "milliseconds" => |duration| duration % MINUTE / 1_000_000,
        "microsecond" | "microseconds" => |duration| duration % MINUTE / 1_000,
        _ => return function.invoke_with_args(call),
    };
    let parts: Int32Array = durations.try_unary(|units| {
        i32::try_from(of(i128::from(units) * unit)).map_err(|_| {
            exec_datafusion_err!("date_part: {part} of a duration of {units} units is out of range")
        })
    })?;
    Ok(ColumnarValue::Array(Arc::new(parts) as ArrayRef))
}

/// Checks that dates and timestamps are in the years that have parts. DataFusion returns null for others.
fn check_dated(part: &str, values: &ColumnarValue, rows: usize) -> Result<()> {
    let data_type = values.data_type();
    let is_dated = matches!(data_type, DataType::Date32 | DataType::Date64 | DataType::Timestamp(..));
    let Some((least, greatest)) = ends(&data_type).filter(|_| is_dated) else { return Ok(()) };
    let beyond = |unit: &i64| *unit < least || *unit > greatest;
    match units(&values.clone().into_array(rows)?)?.iter().flatten().find(beyond) {
        Some(unit) => {
            exec_err!(
                "date_part: the {part} of the value {unit} of type {data_type}, which is beyond the {DATED}"
            )
        }
        None => Ok(()),
    }
}
