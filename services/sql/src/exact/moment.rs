//! Dates, timestamps, times of day, durations and intervals as exact numbers.

use std::fmt;

use arrow_array::{
    timezone::Tz,
    types::{IntervalDayTime, IntervalMonthDayNano},
};
use arrow_cast::parse::string_to_datetime;
use arrow_schema::{DataType, TimeUnit};
use datafusion_common::ScalarValue;
use datafusion_expr::{Cast, Expr};

use super::number::Number;

/// Seconds of a day.
pub(super) const DAY: i128 = 86_400;
const NANOSECONDS: i128 = 1_000_000_000;
/// Names of the time zone whose local time is that of instants.
const UTC: [&str; 7] = ["UTC", "Etc/UTC", "Z", "+00:00", "-00:00", "+0000", "+00"];

/// Values that are compared with each other as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Integers, decimals and floats.
    Number,
    /// Dates and timestamps, in seconds since 1970. A date is its midnight.
    Moment,
    /// Times of day, in seconds since midnight.
    Time,
    /// Durations and intervals in seconds. A month has 30 days, and a day 24 hours.
    Duration,
}

impl Class {
    /// Returns the class of a type other than a dictionary; `None` if values of the type are not compared as numbers.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            numeric if numeric.is_numeric() => Some(Self::Number),
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => Some(Self::Moment),
            DataType::Time32(_) | DataType::Time64(_) => Some(Self::Time),
            DataType::Duration(_) | DataType::Interval(_) => Some(Self::Duration),
            _ => None,
        }
    }
}

/// Number of decimal digits of a second that values of a type have. Values of [`Date32`](DataType::Date32) are days.
pub(super) fn digits(data_type: &DataType) -> Option<i8> {
    Some(match data_type {
        DataType::Date32 => 0,
        DataType::Date64 => digits_of(TimeUnit::Millisecond),
        DataType::Timestamp(unit, _)
        | DataType::Time32(unit)
        | DataType::Time64(unit)
        | DataType::Duration(unit) => digits_of(*unit),
        _ => return None,
    })
}

/// The value of a type of dates or times with this number of units; `None` for other types, and if the type has no such value.
pub(super) fn value(units: i64, data_type: &DataType) -> Option<ScalarValue> {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    let small = || units.try_into().ok();
    Some(match data_type {
        DataType::Date32 => ScalarValue::Date32(Some(small()?)),
        DataType::Date64 => ScalarValue::Date64(Some(units)),
        DataType::Time32(Second) => ScalarValue::Time32Second(Some(small()?)),
        DataType::Time32(_) => ScalarValue::Time32Millisecond(Some(small()?)),
        DataType::Time64(Microsecond) => ScalarValue::Time64Microsecond(Some(units)),
        DataType::Time64(_) => ScalarValue::Time64Nanosecond(Some(units)),
        DataType::Timestamp(Second, zone) => ScalarValue::TimestampSecond(Some(units), zone.clone()),
        DataType::Timestamp(Millisecond, zone) => {
            ScalarValue::TimestampMillisecond(Some(units), zone.clone())
        }
        DataType::Timestamp(Microsecond, zone) => {
            ScalarValue::TimestampMicrosecond(Some(units), zone.clone())
        }
        DataType::Timestamp(Nanosecond, zone) => ScalarValue::TimestampNanosecond(Some(units), zone.clone()),
        DataType::Duration(Second) => ScalarValue::DurationSecond(Some(units)),
        DataType::Duration(Millisecond) => ScalarValue::DurationMillisecond(Some(units)),
        DataType::Duration(Microsecond) => ScalarValue::DurationMicrosecond(Some(units)),
        DataType::Duration(Nanosecond) => ScalarValue::DurationNanosecond(Some(units)),
        _ => return None,
    })
}

fn digits_of(unit: TimeUnit) -> i8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

/// An exact number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seconds {
    nanoseconds: i128,
}

impl Seconds {
    /// Reads a cast of a text to a timestamp with nanoseconds, also if the time is outside of the range of this type; `None` for other
    /// parts.
    pub(super) fn of_text(part: &Expr) -> Option<Self> {
        let Expr::Cast(Cast { expr, field }) = part else { return None };
        let DataType::Timestamp(TimeUnit::Nanosecond, zone) = field.data_type() else { return None };
        let Expr::Literal(
            ScalarValue::Utf8(Some(text))
            | ScalarValue::LargeUtf8(Some(text))
            | ScalarValue::Utf8View(Some(text)),
            _,
        ) = &**expr
        else {
            return None;
        };
        let zone: Tz = zone.as_deref().unwrap_or("+00:00").parse().ok()?;
        let parsed = string_to_datetime(&zone, text).ok()?;
        let nanoseconds =
            i128::from(parsed.timestamp()) * NANOSECONDS + i128::from(parsed.timestamp_subsec_nanos());
        Some(Self { nanoseconds })
    }

    /// Value of a date, timestamp, time of day, duration or interval; `None` for nulls and values of other types.
    pub(super) fn of_value(value: &ScalarValue) -> Option<Self> {
        let units = match value {
            ScalarValue::IntervalYearMonth(months) => {
                return Some(Self { nanoseconds: of_months((*months)?) });
            }
            ScalarValue::IntervalDayTime(interval) => {
                return Some(Self { nanoseconds: of_day_time((*interval)?) });
            }
            ScalarValue::IntervalMonthDayNano(interval) => {
                return Some(Self { nanoseconds: of_interval((*interval)?) });
            }
            ScalarValue::Date32(days) => i128::from((*days)?) * DAY,
            ScalarValue::Time32Second(units) | ScalarValue::Time32Millisecond(units) => (*units)?.into(),
            ScalarValue::Date64(units)
            | ScalarValue::Time64Microsecond(units)
            | ScalarValue::Time64Nanosecond(units)
            | ScalarValue::TimestampSecond(units, _)
            | ScalarValue::TimestampMillisecond(units, _)
            | ScalarValue::TimestampMicrosecond(units, _)
            | ScalarValue::TimestampNanosecond(units, _)
            | ScalarValue::DurationSecond(units)
            | ScalarValue::DurationMillisecond(units)
            | ScalarValue::DurationMicrosecond(units)
            | ScalarValue::DurationNanosecond(units) => (*units)?.into(),
            _ => return None,
        };
        let digits = digits(&value.data_type())?;
        Some(Self { nanoseconds: units * 10_i128.pow(9 - u32::from(digits.unsigned_abs())) })
    }

    /// The instant at which clocks in `zone` show this time; `None` if there is no such instant, or two of them.
    pub(super) fn as_local_time_in(self, zone: &str) -> Option<Self> {
        let local = i64::try_from(self.nanoseconds.div_euclid(NANOSECONDS)).ok()?;
        let to = DataType::Timestamp(TimeUnit::Second, Some(zone.into()));
        let instant = ScalarValue::TimestampSecond(Some(local), None).cast_to(&to).ok()?;
        let fraction = self.nanoseconds.rem_euclid(NANOSECONDS);
        Some(Self { nanoseconds: Self::of_value(&instant)?.nanoseconds + fraction })
    }

    pub(super) fn number(self) -> Number {
        Number::parse(&self.to_string()).expect("digits with an exponent are a number")
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}e-9", self.nanoseconds)
    }
}

/// Nanoseconds of an interval of months.
pub(super) fn of_months(months: i32) -> i128 {
    i128::from(months) * 30 * DAY * NANOSECONDS
}

/// Nanoseconds of an interval of days and milliseconds.
pub(super) fn of_day_time(interval: IntervalDayTime) -> i128 {
    i128::from(interval.days) * DAY * NANOSECONDS + i128::from(interval.milliseconds) * 1_000_000
}

/// Nanoseconds of an interval of months, days and nanoseconds.
pub(super) fn of_interval(interval: IntervalMonthDayNano) -> i128 {
    of_months(interval.months)
        + i128::from(interval.days) * DAY * NANOSECONDS
        + i128::from(interval.nanoseconds)
}

/// Returns the zone in which times without a zone are read, if such a time is compared with a timestamp of type `other` and is
/// not the instant itself.
pub(super) fn zone_of_local_time<'a>(own: &DataType, other: &'a DataType) -> Option<&'a str> {
    match (own, other) {
        (DataType::Timestamp(_, None), DataType::Timestamp(_, Some(zone))) => {
            Some(&**zone).filter(|zone| !UTC.contains(zone))
        }
        _ => None,
    }
}
