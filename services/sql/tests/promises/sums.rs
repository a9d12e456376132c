//! Sums of dates or timestamps and intervals.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Date32Array, Date64Array, IntervalMonthDayNanoArray, RecordBatch, TimestampMicrosecondArray,
    TimestampMillisecondArray, TimestampSecondArray, types::IntervalMonthDayNano,
};
use forebay_sql::{Error, Expression, ScalarValue};

/// 2024-02-29 12:00:00, in seconds.
const NOON: i64 = 1_709_208_000;

fn rows() -> RecordBatch {
    let interval =
        |nanoseconds| IntervalMonthDayNanoArray::from(vec![IntervalMonthDayNano::new(1, 1, nanoseconds)]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("d", Arc::new(Date32Array::from(vec![19_782]))),
        ("d64", Arc::new(Date64Array::from(vec![19_782 * 86_400_000]))),
        ("s", Arc::new(TimestampSecondArray::from(vec![NOON]))),
        ("ms", Arc::new(TimestampMillisecondArray::from(vec![NOON * 1_000]))),
        ("us", Arc::new(TimestampMicrosecondArray::from(vec![NOON * 1_000_000]))),
        (
            "paris",
            Arc::new(TimestampMillisecondArray::from(vec![NOON * 1_000]).with_timezone("Europe/Paris")),
        ),
        ("whole", Arc::new(interval(1_000_000_000))),
        ("fine", Arc::new(interval(1_500))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn sum(text: &str) -> Result<String, Error> {
    let expression = Expression::column(&format!("CAST({text} AS VARCHAR) AS y"), &rows().schema())?;
    let value = expression.evaluate(&rows().project(expression.inputs()).unwrap())?;
    Ok(ScalarValue::try_from_array(&value, 0).unwrap().to_string())
}

#[test]
fn no_part_of_an_interval_is_lost() {
    for (text, expected) in [
        ("d + INTERVAL '12 hours'", "2024-02-29T12:00:00"),
        ("d + INTERVAL '36 hours'", "2024-03-01T12:00:00"),
        ("d - INTERVAL '1 second'", "2024-02-28T23:59:59"),
        ("INTERVAL '1 month 25 hours' + d", "2024-03-30T01:00:00"),
        ("d + INTERVAL '1 day'", "2024-03-01T00:00:00"),
        ("d + INTERVAL '1 nanosecond'", "2024-02-29T00:00:00.000000001"),
        ("d64 - INTERVAL '1 microsecond'", "2024-02-28T23:59:59.999999"),
        ("d + whole", "2024-03-30T00:00:01"),
        ("d - fine - INTERVAL '500 nanoseconds'", "error"),
        ("s + INTERVAL '1 millisecond'", "2024-02-29T12:00:00.001"),
        ("s + INTERVAL '2 seconds'", "2024-02-29T12:00:02"),
        ("s - INTERVAL '1.5 seconds'", "2024-02-29T11:59:58.500"),
        ("ms + INTERVAL '999 microseconds'", "2024-02-29T12:00:00.000999"),
        ("ms + INTERVAL '1 nanosecond'", "2024-02-29T12:00:00.000000001"),
        ("us + INTERVAL '1 nanosecond'", "2024-02-29T12:00:00.000000001"),
        ("us + INTERVAL '1 month'", "2024-03-29T12:00:00"),
        ("s + whole", "2024-03-30T12:00:01"),
        ("ms - whole", "2024-01-28T11:59:59"),
        ("ms + fine", "error"),
        ("us + fine", "error"),
        ("CAST(us AS TIMESTAMP) + fine", "2024-03-30T12:00:00.000001500"),
        ("paris + INTERVAL '1 microsecond'", "2024-02-29T13:00:00.000001+01:00"),
    ] {
        match (sum(text), expected) {
            (Err(Error::Failed(error)), "error") => {
                assert!(error.contains("CAST the timestamp to a finer unit"), "{text}: {error}");
            }
            (found, expected) => assert_eq!(found.as_deref(), Ok(expected), "{text}"),
        }
    }
}

#[test]
fn a_sum_is_never_null_if_its_parts_are_not() {
    for text in ["d + INTERVAL '1 day'", "ms + whole", "s - fine"] {
        let expression = Expression::column(&format!("{text} AS y"), &rows().schema()).unwrap();
        assert!(expression.is_never_null(|_| false), "{text}");
        assert!(!expression.field().is_nullable(), "{text}");
    }
}
