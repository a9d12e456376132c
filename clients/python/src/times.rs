//! Dates, times, timestamps and durations as Python objects.

use arrow_schema::{DataType, TimeUnit};
use pyo3::{
    exceptions::{PyArithmeticError, PyValueError},
    prelude::*,
    types::PyDict,
};

/// Number of 1970-01-01 in Python's count of days.
const EPOCH_ORDINAL: i64 = 719_163;
const DAY_MILLISECONDS: i64 = 86_400_000;

/// Meaning of the values of a type.
enum Kind<'py> {
    /// Values in days.
    Days,
    Milliseconds,
    /// Number of values per second, for the rest.
    TimeOfDay(i64),
    /// Timestamps, with the start of 1970 and their time zone.
    Moment(i64, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>),
    Duration(i64),
    /// Nanoseconds, which Python's classes cannot represent.
    Scalar,
}

/// Converts the values of one type to `datetime.date`, `time`, `datetime` or `timedelta`. Nanoseconds, and values outside the
/// range of these classes, become `numpy.datetime64` and `numpy.timedelta64` of their unit.
pub(crate) struct Times<'py> {
    kind: Kind<'py>,
    /// Class and unit of the NumPy scalars.
    scalar: (Bound<'py, PyAny>, &'static str),
    datetime: Bound<'py, PyModule>,
}

impl<'py> Times<'py> {
    /// Creates the conversion of `data_type`.
    ///
    /// # Errors
    /// `ValueError` if the type has no dates or times.
    pub(crate) fn new(py: Python<'py>, data_type: &DataType) -> PyResult<Self> {
        let datetime = py.import("datetime")?;
        let (kind, class, unit) = match data_type {
            DataType::Date32 => (Kind::Days, "datetime64", "D"),
            DataType::Date64 => (Kind::Milliseconds, "datetime64", "ms"),
            DataType::Time32(unit) | DataType::Time64(unit) => {
                (per_second(*unit).map_or(Kind::Scalar, Kind::TimeOfDay), "timedelta64", name(*unit))
            }
            DataType::Duration(unit) => {
                (per_second(*unit).map_or(Kind::Scalar, Kind::Duration), "timedelta64", name(*unit))
            }
            DataType::Timestamp(unit, zone) => {
                let kind = match per_second(*unit) {
                    None => Kind::Scalar,
                    Some(per_second) => {
                        let zone = zone.as_ref().map(|zone| zone_of(py, &datetime, zone)).transpose()?;
                        Kind::Moment(per_second, epoch(&datetime, zone.is_some())?, zone)
                    }
                };
                (kind, "datetime64", name(*unit))
            }
            other => return Err(PyValueError::new_err(format!("type {other} has no times"))),
        };
        Ok(Self { kind, scalar: (py.import("numpy")?.getattr(class)?, unit), datetime })
    }

    /// Converts one value.
    pub(crate) fn object(&self, value: i64) -> PyResult<Bound<'py, PyAny>> {
        let made = match &self.kind {
            Kind::Scalar => return self.scalar(value),
            Kind::Days => self.date(value),
            Kind::Milliseconds => self.date(value.div_euclid(DAY_MILLISECONDS)),
            Kind::TimeOfDay(per_second) => self.time(value, *per_second),
            Kind::Duration(per_second) => self.delta(value, *per_second),
            Kind::Moment(per_second, epoch, zone) => self.delta(value, *per_second).and_then(|since| {
                let moment = epoch.add(since)?;
                match zone {
                    Some(zone) => moment.call_method1("astimezone", (zone,)),
                    None => Ok(moment),
                }
            }),
        };
        made.or_else(|error| {
            let py = self.datetime.py();
            let outside =
                error.is_instance_of::<PyArithmeticError>(py) || error.is_instance_of::<PyValueError>(py);
            if outside { self.scalar(value) } else { Err(error) }
        })
    }

    fn scalar(&self, value: i64) -> PyResult<Bound<'py, PyAny>> {
        self.scalar.0.call1((value, self.scalar.1))
    }

    fn date(&self, days: i64) -> PyResult<Bound<'py, PyAny>> {
        self.datetime.getattr("date")?.call_method1("fromordinal", (EPOCH_ORDINAL.saturating_add(days),))
    }

    fn time(&self, value: i64, per_second: i64) -> PyResult<Bound<'py, PyAny>> {
        let (seconds, part) = (value.div_euclid(per_second), value.rem_euclid(per_second));
        let clock = (seconds / 3600, seconds / 60 % 60, seconds % 60, part * (1_000_000 / per_second));
        self.datetime.getattr("time")?.call1(clock)
    }

    fn delta(&self, value: i64, per_second: i64) -> PyResult<Bound<'py, PyAny>> {
        let (seconds, part) = (value.div_euclid(per_second), value.rem_euclid(per_second));
        self.datetime.getattr("timedelta")?.call1((0, seconds, part * (1_000_000 / per_second)))
    }
}

/// Returns the number of values per second; `None` for nanoseconds.
fn per_second(unit: TimeUnit) -> Option<i64> {
    match unit {
        TimeUnit::Second => Some(1),
        TimeUnit::Millisecond => Some(1_000),
        TimeUnit::Microsecond => Some(1_000_000),
        TimeUnit::Nanosecond => None,
    }
}

fn name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

fn epoch<'py>(datetime: &Bound<'py, PyModule>, in_utc: bool) -> PyResult<Bound<'py, PyAny>> {
    let options = PyDict::new(datetime.py());
    if in_utc {
        options.set_item("tzinfo", datetime.getattr("timezone")?.getattr("utc")?)?;
    }
    datetime.getattr("datetime")?.call((1970, 1, 1), Some(&options))
}

/// Returns the `tzinfo` of an Arrow time zone, which is an offset such as `+05:30` or a name. An unknown name is UTC, which is
/// the same moment.
fn zone_of<'py>(py: Python<'py>, datetime: &Bound<'py, PyModule>, zone: &str) -> PyResult<Bound<'py, PyAny>> {
    let timezone = datetime.getattr("timezone")?;
    if zone == "UTC" {
        return timezone.getattr("utc");
    }
    if let Some(minutes) = offset_minutes(zone) {
        return timezone.call1((datetime.getattr("timedelta")?.call1((0, minutes * 60))?,));
    }
    let named = py.import("zoneinfo")?.getattr("ZoneInfo")?.call1((zone,));
    named.or_else(|_| timezone.getattr("utc"))
}

/// Returns the minutes of an offset in the form `+HH:MM`.
fn offset_minutes(zone: &str) -> Option<i64> {
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone[1..].split_once(':')?;
    Some(sign * (hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?))
}
