//! Durations and intervals are compared by their length, as in DuckDB: a month has 30 days, a day 24 hours.
//!
//! The expected results come from 128-bit integers of nanoseconds.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, DurationMicrosecondArray, DurationMillisecondArray, DurationNanosecondArray,
    DurationSecondArray, IntervalDayTimeArray, IntervalMonthDayNanoArray, IntervalYearMonthArray,
    RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array,
    types::{IntervalDayTime, IntervalMonthDayNano},
};
use arrow_schema::DataType;
use arrow_select::take::take;
use forebay_sql::{Expression, ScalarValue, Verdict};

use super::{Ends, OPERATORS, compared, conditions};

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;
const MONTH: i128 = 30 * DAY;

/// A column of each type, and its values in nanoseconds.
fn columns() -> Vec<(ArrayRef, Vec<Option<i128>>)> {
    let interval = |months, days, nanoseconds| IntervalMonthDayNano::new(months, days, nanoseconds);
    let parts = [
        (0, 0, 0),
        (0, 1, 0),
        (0, 0, 86_400_000_000_000),
        (0, 0, 86_400_000_000_001),
        (1, 0, 0),
        (0, 30, 0),
        (0, 29, 86_400_000_000_000),
        (1, -30, 0),
        (0, 40, 0),
        (-1, 0, 1),
        (i32::MAX, i32::MAX, i64::MAX),
        (i32::MIN, i32::MIN, i64::MIN),
    ];
    let days =
        [(0, 0), (1, 0), (0, 86_400_000), (30, 0), (-30, 1), (i32::MAX, i32::MAX), (i32::MIN, i32::MIN)];
    let months = [0, 1, -1, 12, i32::MAX, i32::MIN];
    let units = [0, 1, -1, 86_400, 86_400_000, 86_400_000_000, 2_592_000_000, i64::MAX, i64::MIN];
    let with_null = |values: Vec<i128>| values.into_iter().map(Some).chain([None]).collect::<Vec<_>>();
    let some = |size: i128| with_null(units.iter().map(|units| i128::from(*units) * size).collect());
    let of_units = || units.into_iter().map(Some).chain([None]);
    vec![
        (
            Arc::new(IntervalMonthDayNanoArray::from_iter(
                parts
                    .map(|(months, days, rest)| Some(interval(months, days, rest)))
                    .into_iter()
                    .chain([None]),
            )),
            with_null(
                parts
                    .iter()
                    .map(|(months, days, rest)| {
                        i128::from(*months) * MONTH + i128::from(*days) * DAY + i128::from(*rest)
                    })
                    .collect(),
            ),
        ),
        (
            Arc::new(IntervalDayTimeArray::from_iter(
                days.map(|(days, rest)| Some(IntervalDayTime::new(days, rest))).into_iter().chain([None]),
            )),
            with_null(
                days.iter()
                    .map(|(days, rest)| i128::from(*days) * DAY + i128::from(*rest) * 1_000_000)
                    .collect(),
            ),
        ),
        (
            Arc::new(IntervalYearMonthArray::from_iter(months.map(Some).into_iter().chain([None]))),
            with_null(months.iter().map(|months| i128::from(*months) * MONTH).collect()),
        ),
        (Arc::new(DurationSecondArray::from_iter(of_units())), some(SECOND)),
        (Arc::new(DurationMillisecondArray::from_iter(of_units())), some(1_000_000)),
        (Arc::new(DurationMicrosecondArray::from_iter(of_units())), some(1_000)),
        (Arc::new(DurationNanosecondArray::from_iter(of_units())), some(1)),
    ]
}

#[test]
fn durations_and_intervals_of_any_two_types_are_compared_by_their_length() {
    let columns = columns();
    for (left, left_values) in &columns {
        for (right, right_values) in &columns {
            let (rows, other) = ((left.len() * right.len()) as u64, right.len() as u64);
            let of = |column: &ArrayRef, index: &dyn Fn(u64) -> u64| {
                take(column, &UInt64Array::from_iter_values((0..rows).map(index)), None).unwrap()
            };
            let (a, b) = (of(left, &|row| row / other), of(right, &|row| row % other));
            let batch = RecordBatch::try_from_iter_with_nullable([("a", a, true), ("b", b, true)]).unwrap();
            for op in OPERATORS {
                for (row, found) in conditions(&format!("a {op} b"), &batch).into_iter().enumerate() {
                    let (a, b) = (&left_values[row / right.len()], &right_values[row % right.len()]);
                    let types = (left.data_type(), right.data_type());
                    assert_eq!(found, compared(a.as_ref(), op, b.as_ref()), "{a:?} {op} {b:?} of {types:?}");
                }
            }
        }
    }
}

/// Texts of intervals, and their nanoseconds.
const LITERALS: [(&str, i128); 7] = [
    ("1 day", DAY),
    ("24 hours", DAY),
    ("1 month", MONTH),
    ("30 days", MONTH),
    ("1 nanosecond", 1),
    ("-1 month 29 days 24 hours", 0),
    ("40 days", 40 * DAY),
];

#[test]
fn lengths_are_exact_in_every_comparison_with_constants_and_statistics_agree_with_the_rows() {
    for (column, values) in columns() {
        let batch = RecordBatch::try_from_iter_with_nullable([("x", Arc::clone(&column), true)]).unwrap();
        let of = column.data_type();
        for (at, (text, length)) in LITERALS.into_iter().enumerate() {
            let (next, next_length) = LITERALS[(at + 2) % LITERALS.len()];
            for (literal, next) in [
                (format!("INTERVAL '{text}'"), format!("INTERVAL '{next}'")),
                (format!("'{text}'"), format!("'{next}'")),
            ] {
                for op in OPERATORS {
                    let expected: Vec<_> =
                        values.iter().map(|value| compared(value.as_ref(), op, Some(&length))).collect();
                    let condition = format!("x {op} {literal}");
                    assert_eq!(conditions(&condition, &batch), expected, "{condition} of {of}");
                    let filter = Expression::filter(&condition, &batch.schema()).unwrap();
                    for (row, expected) in expected.iter().enumerate() {
                        let kept = *expected == Some(true);
                        let value = ScalarValue::try_from_array(&column, row).unwrap();
                        let is_null = value.is_null();
                        let ends = Ends((!is_null).then(|| (value.clone(), value)), (is_null, !is_null));
                        match filter.verdict(&ends) {
                            Verdict::None => assert!(!kept, "{condition} of {of}"),
                            Verdict::All => assert!(kept, "{condition} of {of}"),
                            // The values of a duration are ordered as their integers.
                            Verdict::Unknown => assert!(
                                op.starts_with("IS") || !matches!(of, DataType::Duration(_)),
                                "{condition} of {of} does not use the bounds of row {row}"
                            ),
                        }
                    }
                    let expected: Vec<_> =
                        values.iter().map(|value| compared(Some(&length), op, value.as_ref())).collect();
                    assert_eq!(
                        conditions(&format!("{literal} {op} x"), &batch),
                        expected,
                        "{literal} {op} {of}"
                    );
                }
                let either =
                    |value: &Option<i128>| value.map(|value| value == length || value == next_length);
                let found: Vec<_> = values.iter().map(either).collect();
                let not_found: Vec<_> = found.iter().map(|found| found.map(|found| !found)).collect();
                let case: Vec<_> = found.iter().map(|found| Some(found.unwrap_or(false))).collect();
                let null: Vec<_> =
                    values.iter().map(|value| Some(value.is_none_or(|value| value == length))).collect();
                let within: Vec<_> = values
                    .iter()
                    .map(|value| value.map(|value| value >= length && value <= next_length))
                    .collect();
                for (condition, expected) in [
                    (format!("x IN ({literal}, {next})"), &found),
                    (format!("x NOT IN ({literal}, {next})"), &not_found),
                    (format!("CASE x WHEN {literal} THEN true WHEN {next} THEN true ELSE false END"), &case),
                    (format!("nullif(x, {literal}) IS NULL"), &null),
                    (format!("x BETWEEN {literal} AND {next}"), &within),
                ] {
                    assert_eq!(&conditions(&condition, &batch), expected, "{condition} of {of}");
                }
            }
        }
    }
}

#[test]
fn the_difference_of_two_timestamps_is_compared_with_an_interval() {
    let days = [0_i64, 1, 2, 3];
    let hours = days.map(|day| day * 86_400_000_000 + 1);
    let batch = RecordBatch::try_from_iter([
        ("t", Arc::new(TimestampMicrosecondArray::from(hours.to_vec())) as ArrayRef),
        ("s", Arc::new(StringArray::from(vec!["1 day", "24 hours", "47 hours", "1 month"]))),
    ])
    .unwrap();
    let start = "t - TIMESTAMP '1970-01-01 00:00:00'";
    for (condition, expected) in [
        (format!("{start} > INTERVAL '1 day'"), [false, true, true, true]),
        (format!("{start} < INTERVAL '1 day'"), [true, false, false, false]),
        (format!("{start} > INTERVAL '24 hours'"), [false, true, true, true]),
        (format!("{start} > '1 day'"), [false, true, true, true]),
        (format!("{start} > s"), [false, true, true, false]),
        (format!("{start} BETWEEN INTERVAL '1 day' AND INTERVAL '49 hours'"), [false, true, true, false]),
        ("INTERVAL '1 month' = INTERVAL '30 days' AND t > '1970-01-01'".to_owned(), [true; 4]),
        ("INTERVAL '1 month' > INTERVAL '40 days' OR t < '1970-01-01'".to_owned(), [false; 4]),
    ] {
        assert_eq!(conditions(&condition, &batch), expected.map(Some), "{condition}");
    }
}
