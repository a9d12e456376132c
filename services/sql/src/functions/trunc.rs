//! `date_trunc` over the whole range of each type of timestamps.

use arrow_array::{Int64Array, timezone::Tz};
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use chrono::{DateTime, Offset, TimeDelta, TimeZone, offset::MappedLocalTime};
use datafusion_common::{Result, ScalarValue, exec_datafusion_err, plan_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

use super::calendar::{DAY, NANOSECONDS, date, days, per_second, units};

/// A granularity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Granularity {
    /// A number of nanoseconds, up to a day.
    Nanoseconds(i64),
    Week,
    /// A number of months that divides a year.
    Months(i64),
}

impl Granularity {
    fn parse(text: &str) -> Option<Self> {
        Some(match text.to_lowercase().as_str() {
            "microsecond" => Self::Nanoseconds(1_000),
            "millisecond" => Self::Nanoseconds(1_000_000),
            "second" => Self::Nanoseconds(NANOSECONDS),
            "minute" => Self::Nanoseconds(60 * NANOSECONDS),
            "hour" => Self::Nanoseconds(3_600 * NANOSECONDS),
            "day" => Self::Nanoseconds(DAY * NANOSECONDS),
            "week" => Self::Week,
            "month" => Self::Months(1),
            "quarter" => Self::Months(3),
            "year" => Self::Months(12),
            _ => return None,
        })
    }

    /// True if time zones have no influence. Their offsets are whole minutes.
    fn is_fine(self) -> bool {
        matches!(self, Self::Nanoseconds(nanoseconds) if nanoseconds <= 60 * NANOSECONDS)
    }

    /// The greatest value with this granularity that is at most `value`; `None` if it is out of range.
    fn floor(self, value: i64, per_second: i64) -> Option<i64> {
        let day = DAY * per_second;
        let number = value.div_euclid(day);
        let first = match self {
            Self::Nanoseconds(nanoseconds) => {
                let size = nanoseconds / (NANOSECONDS / per_second);
                return if size <= 1 { Some(value) } else { value.checked_sub(value.rem_euclid(size)) };
            }
            // 1970-01-01 was a Thursday.
            Self::Week => number - (number + 3).rem_euclid(7),
            Self::Months(months) => {
                let (year, month, _) = date(number);
                days(year, month - (month - 1) % months, 1)
            }
        };
        first.checked_mul(day)
    }
}

/// Types of the arguments. A date becomes a timestamp.
pub(super) fn types(arguments: &[DataType]) -> Result<Vec<DataType>> {
    let [granularity, x] = arguments else {
        return plan_err!("date_trunc: expected a granularity and a timestamp, date or time");
    };
    if !granularity.is_string() {
        return plan_err!(
            "date_trunc: the granularity is of type {granularity}, expected a text such as 'day'"
        );
    }
    let x: &DataType = match x {
        DataType::Dictionary(_, value) => value,
        other => other,
    };
    let x = match x {
        DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_) => x.clone(),
        DataType::Date32 | DataType::Date64 => DataType::Timestamp(TimeUnit::Microsecond, None),
        text if text.is_string() || text.is_null() => DataType::Timestamp(TimeUnit::Nanosecond, None),
        other => return plan_err!("date_trunc: expected a timestamp, date or time, not {other}"),
    };
    Ok(vec![DataType::Utf8, x])
}

pub(super) fn date_trunc(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let [granularity, x] = &call.args[..] else { return function.invoke_with_args(call) };
    let granularity = match granularity {
        ColumnarValue::Scalar(value) => value.try_as_str().flatten().and_then(Granularity::parse),
        ColumnarValue::Array(_) => None,
    };
    let data_type = x.data_type();
    let (Some(granularity), DataType::Timestamp(unit, zone)) = (granularity, &data_type) else {
        return function.invoke_with_args(call);
    };
    let is_constant = matches!(x, ColumnarValue::Scalar(_));
    let array = x.clone().into_array(1)?;
    let zone = match zone.as_deref().filter(|_| !granularity.is_fine()) {
        Some(zone) => Some(zone.parse::<Tz>()?),
        None => None,
    };
    let per_second = per_second(*unit);
    let truncated: Int64Array = units(&array)?.try_unary(|value| {
        let truncated = match &zone {
            None => granularity.floor(value, per_second),
            Some(zone) => floor_in(zone, granularity, value, per_second),
        };
        truncated.ok_or_else(|| {
            exec_datafusion_err!("date_trunc: the value {value} of type {data_type} is out of range")
        })
    })?;
    let truncated = cast(&truncated, &data_type)?;
    Ok(match is_constant {
        true => ColumnarValue::Scalar(ScalarValue::try_from_array(&truncated, 0)?),
        false => ColumnarValue::Array(truncated),
    })
}

/// Truncates the local time of a zone. `None` if a value is out of range.
fn floor_in(zone: &Tz, granularity: Granularity, value: i64, per_second: i64) -> Option<i64> {
    let time = |value: i64| {
        let nanoseconds = value.rem_euclid(per_second) * (NANOSECONDS / per_second);
        let nanoseconds = u32::try_from(nanoseconds).ok()?;
        DateTime::from_timestamp(value.div_euclid(per_second), nanoseconds).map(|time| time.naive_utc())
    };
    let own = seconds(&zone.offset_from_utc_datetime(&time(value)?));
    let local = granularity.floor(value.checked_add(own * per_second)?, per_second)?;
    let offset = match zone.offset_from_local_datetime(&time(local)?) {
        MappedLocalTime::Single(offset) => seconds(&offset),
        // The time was truncated within the repeated hour.
        MappedLocalTime::Ambiguous(earliest, latest) => {
            if seconds(&earliest) == own {
                own
            } else {
                seconds(&latest)
            }
        }
        // Clocks skip the truncated time. It is read with the offset from before.
        MappedLocalTime::None => {
            let before = time(local)?.checked_sub_signed(TimeDelta::hours(3))?;
            seconds(&zone.offset_from_local_datetime(&before).single()?)
        }
    };
    local.checked_sub(offset * per_second)
}

/// Seconds by which local time is ahead of UTC.
fn seconds(offset: &impl Offset) -> i64 {
    offset.fix().local_minus_utc().into()
}
