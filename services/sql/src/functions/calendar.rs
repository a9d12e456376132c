//! Days of the Gregorian calendar, and the integers of timestamps.

use arrow_array::{ArrayRef, Int64Array, cast::AsArray, types::Int64Type};
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use chrono::NaiveDateTime;
use datafusion_common::Result;

/// Seconds of a day.
pub(super) const DAY: i64 = 86_400;
/// Nanoseconds of a second.
pub(super) const NANOSECONDS: i64 = 1_000_000_000;

/// Years in which a date or timestamp can be converted to text, `DATE` or `TIME`, and has parts such as a month. With a time zone, the first and the
/// last day of this range are excluded.
pub(crate) const DATED: &str = "years -262,143 to 262,142";

/// Least and greatest value of a type of dates or timestamps that is in [these years](DATED), and of a type of times of day; `None` for other types.
pub(crate) fn ends(data_type: &DataType) -> Option<(i64, i64)> {
    let (first, last) = (NaiveDateTime::MIN.and_utc().timestamp(), NaiveDateTime::MAX.and_utc().timestamp());
    let units = |seconds: i64, per_second: i64| {
        let units = i128::from(seconds) * i128::from(per_second);
        i64::try_from(units).unwrap_or(if seconds < 0 { i64::MIN } else { i64::MAX })
    };
    Some(match data_type {
        DataType::Date32 => (first.div_euclid(DAY), last.div_euclid(DAY)),
        DataType::Date64 => (units(first, 1_000), units(last + 1, 1_000) - 1),
        DataType::Timestamp(unit, zone) => {
            // The local time is up to a day earlier or later.
            let margin = if zone.is_some() { DAY } else { 0 };
            let per_second = per_second(*unit);
            let end = units(last + 1 - margin, per_second);
            (units(first + margin, per_second), if end == i64::MAX { end } else { end - 1 })
        }
        DataType::Time32(unit) | DataType::Time64(unit) => (0, DAY * per_second(*unit) - 1),
        _ => return None,
    })
}

/// Number of units of a second.
pub(crate) fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => NANOSECONDS,
    }
}

/// The integers of a column of timestamps or durations.
pub(super) fn units(array: &ArrayRef) -> Result<Int64Array> {
    Ok(cast(array, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
}

/// Year, month from 1 and day from 1 of a number of days since 1970-01-01.
///
/// <https://howardhinnant.github.io/date_algorithms.html> derives the formulas.
pub(super) fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // A year begins in March here.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Number of days since 1970-01-01, the reverse of [`date`].
pub(super) fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Number of days of a month.
pub(super) fn days_of_month(year: i64, month: i64) -> i64 {
    let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    days(next_year, next_month, 1) - days(year, month, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_has_one_date_and_dates_follow_each_other() {
        let mut before = date(-800_001);
        for number in -800_000..800_000 {
            let (year, month, day) = date(number);
            assert_eq!(days(year, month, day), number);
            let next = match before {
                (year, 12, 31) => (year + 1, 1, 1),
                (year, month, day) if day == days_of_month(year, month) => (year, month + 1, 1),
                (year, month, day) => (year, month, day + 1),
            };
            assert_eq!((year, month, day), next);
            before = next;
        }
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(days(10_000, 1, 1), 2_932_897);
    }
}
