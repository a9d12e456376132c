//! `date_bin` over the whole range of each type of timestamps.

use arrow_array::{Int64Array, new_null_array};
use arrow_cast::cast;
use arrow_schema::{DataType, IntervalUnit, TimeUnit};
use datafusion_common::{Result, ScalarValue, exec_datafusion_err, exec_err, plan_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

use super::calendar::{DAY, NANOSECONDS, date, days, days_of_month, per_second, units};

const NANOSECONDS_OF_DAY: i128 = DAY as i128 * NANOSECONDS as i128;

/// Width of a bin.
#[derive(Debug, Clone, Copy)]
enum Stride {
    Months(i64),
    Nanoseconds(i128),
}

/// Types of the arguments. A date becomes a timestamp.
pub(super) fn types(arguments: &[DataType]) -> Result<Vec<DataType>> {
    let (stride, x, origin) = match arguments {
        [stride, x] => (stride, x, None),
        [stride, x, origin] => (stride, x, Some(origin)),
        _ => return plan_err!("date_bin: expected an interval, a timestamp or time, and an optional origin"),
    };
    let is_stride = matches!(stride, DataType::Interval(_) | DataType::Duration(_));
    if !is_stride && !stride.is_string() && !stride.is_null() {
        return plan_err!("date_bin: the width is of type {stride}, expected an interval");
    }
    let plain = |data_type: &DataType| match data_type {
        DataType::Dictionary(_, value) => (**value).clone(),
        other => other.clone(),
    };
    let timestamp = |data_type: DataType| match data_type {
        DataType::Timestamp(..) => Ok(data_type),
        DataType::Date32 | DataType::Date64 => Ok(DataType::Timestamp(TimeUnit::Microsecond, None)),
        text if text.is_string() || text.is_null() => Ok(DataType::Timestamp(TimeUnit::Nanosecond, None)),
        other => plan_err!("date_bin: expected a timestamp, date or time, not {other}"),
    };
    let mut types = vec![DataType::Interval(IntervalUnit::MonthDayNano)];
    match plain(x) {
        time @ (DataType::Time32(_) | DataType::Time64(_)) => {
            let values = if origin.is_some() { 2 } else { 1 };
            types.extend(std::iter::repeat_n(time, values));
        }
        other => {
            types.push(timestamp(other)?);
            if let Some(origin) = origin {
                types.push(timestamp(plain(origin))?);
            }
        }
    }
    Ok(types)
}

pub(super) fn date_bin(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let (Some(stride), Some(x)) = (call.args.first(), call.args.get(1)) else {
        return function.invoke_with_args(call);
    };
    let data_type = x.data_type();
    let DataType::Timestamp(unit, _) = &data_type else { return function.invoke_with_args(call) };
    let array = x.clone().into_array(call.number_rows)?;
    let stride = match stride {
        ColumnarValue::Scalar(value) if value.is_null() => {
            return Ok(ColumnarValue::Array(new_null_array(&data_type, array.len())));
        }
        ColumnarValue::Scalar(value) => Stride::of(value)?,
        ColumnarValue::Array(_) => return exec_err!("date_bin: the width must be a constant"),
    };
    let origin = match call.args.get(2) {
        None => 0,
        Some(ColumnarValue::Scalar(value)) if !value.is_null() => {
            let DataType::Timestamp(unit, _) = value.data_type() else {
                return exec_err!(
                    "date_bin: the origin is of type {}, expected a timestamp",
                    value.data_type()
                );
            };
            let origin = units(&value.to_array()?)?.value(0);
            i128::from(origin) * i128::from(NANOSECONDS / per_second(unit))
        }
        Some(_) => return exec_err!("date_bin: the origin must be a constant and not null"),
    };
    let unit = i128::from(NANOSECONDS / per_second(*unit));
    let bins: Int64Array = units(&array)?.try_unary(|value| {
        let bin = stride.bin(i128::from(value) * unit, origin);
        let bin = bin.and_then(|bin| i64::try_from(bin.div_euclid(unit)).ok());
        bin.ok_or_else(|| {
            exec_datafusion_err!("date_bin: the bin of {value} of type {data_type} is out of range")
        })
    })?;
    Ok(ColumnarValue::Array(cast(&bins, &data_type)?))
}

impl Stride {
    fn of(value: &ScalarValue) -> Result<Self> {
        let ScalarValue::IntervalMonthDayNano(Some(interval)) = value else {
            return exec_err!("date_bin: the width is of type {}, expected an interval", value.data_type());
        };
        let nanoseconds = i128::from(interval.days) * NANOSECONDS_OF_DAY + i128::from(interval.nanoseconds);
        match (interval.months, nanoseconds) {
            (0, 1..) => Ok(Self::Nanoseconds(nanoseconds)),
            (1.., 0) => Ok(Self::Months(interval.months.into())),
            (0, _) | (_, 0) => exec_err!("date_bin: the width is {value}, expected more than 0"),
            _ => {
                exec_err!("date_bin: the width is {value}, expected either months, or days and shorter units")
            }
        }
    }

    /// The start of the bin of `value`, all in nanoseconds since 1970; `None` if it is out of range.
    fn bin(self, value: i128, origin: i128) -> Option<i128> {
        match self {
            Self::Nanoseconds(width) => Some(value - (value - origin).rem_euclid(width)),
            Self::Months(width) => {
                let (year, month, _) = date_of(value)?;
                let (first_year, first_month, _) = date_of(origin)?;
                let months = (year - first_year) * 12 + month - first_month;
                let months = months - months.rem_euclid(width);
                let bin = later(origin, months)?;
                if bin > value { later(origin, months - width) } else { Some(bin) }
            }
        }
    }
}

fn date_of(nanoseconds: i128) -> Option<(i64, i64, i64)> {
    Some(date(i64::try_from(nanoseconds.div_euclid(NANOSECONDS_OF_DAY)).ok()?))
}

/// The time a number of months later, on the last day of the month if the month is shorter.
fn later(nanoseconds: i128, months: i64) -> Option<i128> {
    let (year, month, day) = date_of(nanoseconds)?;
    let months = year * 12 + month - 1 + months;
    let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
    let days = days(year, month, day.min(days_of_month(year, month)));
    Some(i128::from(days) * NANOSECONDS_OF_DAY + nanoseconds.rem_euclid(NANOSECONDS_OF_DAY))
}
