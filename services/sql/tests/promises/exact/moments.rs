//! Dates, timestamps and times of day of all units are compared by their exact values.
//!
//! The expected results come from 128-bit integers of nanoseconds.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, Date32Array, Date64Array, DurationMillisecondArray, DurationNanosecondArray, Int64Array,
    RecordBatch, StringArray, Time32MillisecondArray, Time32SecondArray, Time64MicrosecondArray,
    Time64NanosecondArray, UInt64Array as Indexes, cast::AsArray, types::Int64Type,
};
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use arrow_select::take::take;
use forebay_sql::{Expression, Verdict};

use super::{Ends, OPERATORS, ScalarValue, compared, conditions};

const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400 * SECOND;
const UNITS: [TimeUnit; 4] =
    [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];

/// Nanoseconds of a unit.
fn size(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => SECOND,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// Nanoseconds of each value.
fn exact(column: &ArrayRef) -> Vec<Option<i128>> {
    let unit = match column.data_type() {
        DataType::Date32 => DAY,
        DataType::Date64 => 1_000_000,
        DataType::Timestamp(unit, _)
        | DataType::Time32(unit)
        | DataType::Time64(unit)
        | DataType::Duration(unit) => size(*unit),
        other => panic!("{other}"),
    };
    let narrow = cast(column, &DataType::Int32).unwrap_or_else(|_| Arc::clone(column));
    let integers = cast(column, &DataType::Int64).or_else(|_| cast(&narrow, &DataType::Int64)).unwrap();
    integers.as_primitive::<Int64Type>().iter().map(|units| Some(i128::from(units?) * unit)).collect()
}

/// Times at which a type can end, around the ranges of other units, in nanoseconds.
fn moments() -> Vec<i128> {
    let ends = [i64::MIN, i64::MAX].map(i128::from);
    let days = [i32::MIN, i32::MAX].map(|days| i128::from(days) * DAY);
    let of_units = UNITS.iter().flat_map(|unit| ends.map(|end| end * size(*unit)));
    let known = LITERALS.iter().map(|(_, nanoseconds)| *nanoseconds);
    let around = of_units.chain(days).chain(known).chain([0]);
    around.flat_map(|moment| [-DAY, -SECOND, -1_000_000, -1, 0, 1, 999, DAY].map(|by| moment + by)).collect()
}

/// A column of each type of dates and timestamps, with its values next to [`moments`] and a null.
fn columns() -> Vec<ArrayRef> {
    fn values<T: TryFrom<i128>>(unit: i128) -> Vec<Option<T>> {
        let units = moments().into_iter().map(|moment| moment.div_euclid(unit));
        let mut units: Vec<i128> = units.collect();
        units.sort_unstable();
        units.dedup();
        units.into_iter().filter_map(|units| T::try_from(units).ok()).map(Some).chain([None]).collect()
    }
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(Date32Array::from(values::<i32>(DAY))),
        Arc::new(Date64Array::from(values::<i64>(1_000_000))),
    ];
    for unit in UNITS {
        let integers: ArrayRef = Arc::new(Int64Array::from(values::<i64>(size(unit))));
        for zone in [None, Some("UTC")] {
            columns.push(cast(&integers, &DataType::Timestamp(unit, zone.map(Into::into))).unwrap());
        }
    }
    columns
}

/// A column of each type of times of day.
fn times() -> Vec<ArrayRef> {
    let seconds = [0, 1, 43_200, 86_399];
    let within = |unit: i64| {
        seconds
            .iter()
            .flat_map(move |second| [second * unit, (second + 1) * unit - 1])
            .map(Some)
            .chain([None])
            .collect::<Vec<_>>()
    };
    let narrow =
        |unit| within(unit).into_iter().map(|value| value.map(|value| value as i32)).collect::<Vec<_>>();
    vec![
        Arc::new(Time32SecondArray::from(narrow(1))),
        Arc::new(Time32MillisecondArray::from(narrow(1_000))),
        Arc::new(Time64MicrosecondArray::from(within(1_000_000))),
        Arc::new(Time64NanosecondArray::from(within(1_000_000_000))),
    ]
}

/// Compares all values of one column with all of the other one.
fn compare_all(left: &ArrayRef, right: &ArrayRef, operators: &[&str]) {
    let (rows, other) = ((left.len() * right.len()) as u64, right.len() as u64);
    let of = |column: &ArrayRef, index: &dyn Fn(u64) -> u64| {
        take(column, &Indexes::from_iter_values((0..rows).map(index)), None).unwrap()
    };
    let (a, b) = (of(left, &|row| row / other), of(right, &|row| row % other));
    let batch = RecordBatch::try_from_iter_with_nullable([("a", a, true), ("b", b, true)]).unwrap();
    let (left_values, right_values) = (exact(left), exact(right));
    for op in operators {
        for (row, found) in conditions(&format!("a {op} b"), &batch).into_iter().enumerate() {
            let (a, b) = (&left_values[row / right.len()], &right_values[row % right.len()]);
            let types = (left.data_type(), right.data_type());
            assert_eq!(found, compared(a.as_ref(), op, b.as_ref()), "{a:?} {op} {b:?} of {types:?}");
        }
        let of = |text: String| conditions(&text, &batch);
        let opposite: Vec<_> =
            of(format!("a {op} b")).into_iter().map(|found| found.map(|found| !found)).collect();
        assert_eq!(of(format!("NOT a {op} b")), opposite, "NOT {op}");
    }
}

#[test]
fn dates_and_timestamps_of_any_two_units_are_compared_exactly() {
    let columns = columns();
    for (left_at, left) in columns.iter().enumerate() {
        for (right_at, right) in columns.iter().enumerate() {
            let operators = [left_at, left_at + right_at].map(|at| OPERATORS[at % OPERATORS.len()]);
            compare_all(left, right, &operators);
        }
    }
}

#[test]
fn times_of_day_of_any_two_units_are_compared_exactly() {
    let times = times();
    for left in &times {
        for right in &times {
            compare_all(left, right, &OPERATORS);
        }
    }
    let durations: [ArrayRef; 2] = [
        Arc::new(DurationMillisecondArray::from(vec![Some(i64::MAX), Some(1), Some(i64::MIN), None])),
        Arc::new(DurationNanosecondArray::from(vec![Some(i64::MAX), Some(1_000_000), Some(1), None])),
    ];
    compare_all(&durations[0], &durations[1], &OPERATORS);
    compare_all(&durations[1], &durations[0], &OPERATORS);
}

/// Literals without their type, and their nanoseconds since 1970.
const LITERALS: [(&str, i128); 10] = [
    ("0001-01-01 00:00:00", -62_135_596_800 * SECOND),
    ("1677-09-21 00:12:43.145224193", -9_223_372_036_854_775_807),
    ("1677-09-21 00:12:43.145224191", -9_223_372_036_854_775_809),
    ("1969-12-31 23:59:59.999999999", -1),
    ("1970-01-01 00:00:00", 0),
    ("2024-02-29 12:34:56.789", 1_709_210_096_789_000_000),
    ("2262-04-11 23:47:16.854775807", 9_223_372_036_854_775_807),
    ("2262-04-11 23:47:16.854775808", 9_223_372_036_854_775_808),
    ("3000-01-01 00:00:00", 32_503_680_000 * SECOND),
    ("9999-12-31 23:59:59.999999", 253_402_300_799 * SECOND + 999_999_000),
];

/// Tries all comparisons of a column with two literals, given as their texts and values.
fn compare_with_literals(
    column: &ArrayRef,
    (text, literal): (&str, i128),
    (next, next_literal): (&str, i128),
) {
    let data_type = column.data_type();
    let batch = RecordBatch::try_from_iter_with_nullable([("x", Arc::clone(column), true)]).unwrap();
    let values = exact(column);
    for (at, op) in OPERATORS.iter().enumerate() {
        let condition = if at % 3 == 0 { format!("{text} {op} x") } else { format!("x {op} {text}") };
        let expected = values.iter().map(|value| match at % 3 {
            0 => compared(Some(&literal), op, value.as_ref()),
            _ => compared(value.as_ref(), op, Some(&literal)),
        });
        let expected: Vec<Option<bool>> = expected.collect();
        assert_eq!(conditions(&condition, &batch), expected, "{condition} of {data_type}: {values:?}");
        let filter = Expression::filter(&condition, &batch.schema()).unwrap();
        for row in 0..column.len() {
            let rows = (column.len() - row).min(1 + row % 2);
            let kept = expected[row..row + rows].iter().filter(|kept| **kept == Some(true)).count();
            let verdict = filter.verdict(&ends(&column.slice(row, rows)));
            match verdict {
                Verdict::None => assert_eq!(kept, 0, "{condition} of {data_type}"),
                Verdict::All => assert_eq!(kept, rows, "{condition} of {data_type}"),
                Verdict::Unknown => {}
            }
            let is_decided = op.starts_with("IS") || rows == 2 || verdict != Verdict::Unknown;
            assert!(is_decided, "{condition} of {data_type} does not use the bounds of row {row}");
        }
    }
    let equal = |value: &Option<i128>, literal: i128| compared(value.as_ref(), "=", Some(&literal));
    let either: Vec<_> =
        values.iter().map(|value| Some(equal(value, literal)? || equal(value, next_literal)?)).collect();
    let neither: Vec<_> = either.iter().map(|found| found.map(|found| !found)).collect();
    let found: Vec<_> = either.iter().map(|found| Some(found.unwrap_or(false))).collect();
    let null: Vec<_> = values.iter().map(|value| Some(equal(value, literal) != Some(false))).collect();
    let within =
        values.iter().map(|value| value.map(|value| value >= literal && value <= next_literal)).collect();
    for (condition, expected) in [
        (format!("x IN ({text}, {next})"), &either),
        (format!("x NOT IN ({text}, {next})"), &neither),
        (format!("x IN ({text}, x) OR x IS NULL"), &vec![Some(true); values.len()]),
        (format!("CASE x WHEN {text} THEN true WHEN {next} THEN true ELSE false END"), &found),
        (format!("nullif(x, {text}) IS NULL"), &null),
        (format!("x BETWEEN {text} AND {next}"), &within),
    ] {
        assert_eq!(&conditions(&condition, &batch), expected, "{condition} of {data_type}: {values:?}");
    }
}

fn ends(rows: &ArrayRef) -> Ends {
    let values = exact(rows).into_iter().enumerate().filter_map(|(row, value)| Some((value?, row)));
    let value = |(_, row): (i128, usize)| ScalarValue::try_from_array(rows, row).unwrap();
    let range = values.clone().min().map(value).zip(values.max().map(value));
    Ends(range, (rows.null_count() > 0, rows.null_count() < rows.len()))
}

#[test]
fn timestamps_are_exact_in_every_comparison_with_literals_and_statistics_agree_with_the_rows() {
    for column in columns() {
        let is_zoned = matches!(column.data_type(), DataType::Timestamp(_, Some(_)));
        let spelled = |(text, nanoseconds): (&str, i128)| match is_zoned {
            true => (format!("TIMESTAMPTZ '{text}+00:00'"), nanoseconds),
            false => (format!("TIMESTAMP '{text}'"), nanoseconds),
        };
        for (index, literal) in LITERALS.into_iter().enumerate() {
            let next = spelled(LITERALS[(index + 3) % LITERALS.len()]);
            let literal = spelled(literal);
            compare_with_literals(&column, (&literal.0, literal.1), (&next.0, next.1));
        }
        let days = [("DATE '0001-01-01'", -719_162 * DAY), ("DATE '9999-12-31'", 2_932_896 * DAY)];
        compare_with_literals(&column, days[0], days[1]);
        // A text is read as a timestamp.
        if matches!(column.data_type(), DataType::Timestamp(..)) {
            compare_with_literals(&column, ("'1970-01-01'", 0), ("'3000-01-01'", 32_503_680_000 * SECOND));
        }
    }
    for column in times() {
        let texts = [("TIME '12:00:00'", 43_200 * SECOND), ("TIME '23:59:59.999999'", DAY - 1_000)];
        compare_with_literals(&column, texts[0], texts[1]);
        compare_with_literals(&column, texts[1], texts[0]);
    }
}

#[test]
fn literals_of_dates_and_times_are_compared_with_each_other_exactly() {
    let batch = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).unwrap();
    for (a, left) in LITERALS {
        for (b, right) in LITERALS {
            for (left_type, right_type) in [("TIMESTAMP", "TIMESTAMP"), ("TIMESTAMPTZ", "TIMESTAMP")] {
                let condition = format!("x = 1 AND {left_type} '{a}' < {right_type} '{b}'");
                assert_eq!(conditions(&condition, &batch), [Some(left < right)], "{condition}");
            }
        }
    }
    for (condition, expected) in [
        ("DATE '9999-12-31' < TIMESTAMP '9999-12-31 00:00:00.000000001'", true),
        ("TIME '12:00:00' BETWEEN TIME '11:59:59.999999999' AND TIME '12:00:00'", true),
        ("to_timestamp_seconds(253402214400) = DATE '9999-12-31'", true),
        ("TIMESTAMP '2024-01-01 00:00:00' + INTERVAL '1 day' = DATE '2024-01-02'", true),
    ] {
        let condition = format!("x = 1 AND {condition}");
        assert_eq!(conditions(&condition, &batch), [Some(expected)], "{condition}");
    }
}

#[test]
fn conditions_with_times_of_different_units_can_be_parts_of_other_expressions() {
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("ms", Arc::new(Time32MillisecondArray::from(vec![Some(1), Some(2), None])) as ArrayRef, true),
        ("us", Arc::new(Time64MicrosecondArray::from(vec![Some(1_000), Some(1), Some(3)])) as ArrayRef, true),
    ])
    .unwrap();
    let (yes, no) = (Some(true), Some(false));
    for (condition, expected) in [
        ("NOT ms = TIME '00:00:00.001'", [no, yes, None]),
        ("NOT NOT ms = us", [yes, no, None]),
        ("NOT ms IS DISTINCT FROM us", [yes, no, no]),
        ("NOT (ms < us OR us = TIME '00:00:00.003')", [yes, yes, None]),
        ("NOT ms NOT IN (us)", [yes, no, None]),
        ("(NOT ms = us) = (ms <> us)", [yes, yes, None]),
        ("coalesce(NOT ms = us, true) AND NOT us IS NULL", [no, yes, yes]),
        ("1 + CASE WHEN NOT ms = us THEN 1 ELSE 0 END = 2", [no, yes, no]),
        ("-CASE WHEN ms = us THEN 1 ELSE 0 END = -1", [yes, no, no]),
        ("coalesce(nullif(ms, us), ms) = ms", [yes, yes, None]),
    ] {
        assert_eq!(conditions(condition, &batch), expected, "{condition}");
    }
    for (text, expected) in [
        ("NOT ms", "NOT of a value of type Time32(ms), expected a boolean"),
        ("NOT 1 + 2", "NOT of a value of type Int64, expected a boolean"),
        ("-(ms = us) = 1", "- of a value of type Boolean, expected a signed number"),
    ] {
        let error = Expression::filter(text, &batch.schema()).unwrap_err().to_string();
        assert_eq!(error, expected, "{text}");
    }
}

#[test]
fn a_time_without_a_zone_is_local_time_of_the_timestamp_that_it_is_compared_with() {
    let hour: ArrayRef = Arc::new(Int64Array::from(vec![Some(3_600_000), Some(32_503_680_000_000), None]));
    let of = |data_type| cast(&hour, &data_type).unwrap();
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("paris", of(DataType::Timestamp(TimeUnit::Millisecond, Some("Europe/Paris".into()))), true),
        ("naive", of(DataType::Timestamp(TimeUnit::Millisecond, None)), true),
    ])
    .unwrap();
    for (condition, expected) in [
        ("paris = TIMESTAMP '1970-01-01 02:00:00'", [Some(true), Some(false), None]),
        ("paris < TIMESTAMP '3000-01-01 01:00:00.000000001'", [Some(true), Some(true), None]),
        ("paris < TIMESTAMP '3000-01-01 01:00:00'", [Some(true), Some(false), None]),
        ("paris IN (TIMESTAMP '3000-01-01 01:00:00', NULL)", [None, Some(true), None]),
        ("paris = TIMESTAMPTZ '3000-01-01 00:00:00Z'", [Some(false), Some(true), None]),
        ("paris = '3000-01-01T01:00:00'", [Some(false), Some(true), None]),
        ("paris > naive", [Some(true), Some(true), None]),
        ("nullif(naive, paris) = naive", [Some(true), Some(true), None]),
    ] {
        assert_eq!(conditions(condition, &batch), expected, "{condition}");
    }
}

#[test]
fn a_text_column_is_read_as_timestamps_if_it_is_compared_with_them() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("2024-02-29 12:00:00"), None]));
    let far: ArrayRef = Arc::new(Int64Array::from(vec![253_402_300_799, 1_709_208_000]));
    let batch = RecordBatch::try_from_iter_with_nullable([
        ("s", texts, true),
        ("t", cast(&far, &DataType::Timestamp(TimeUnit::Second, None)).unwrap(), true),
    ])
    .unwrap();
    assert_eq!(conditions("s < t", &batch), [Some(true), None]);
    assert_eq!(conditions("t > s", &batch), [Some(true), None]);
    assert_eq!(conditions("s = TIMESTAMP '2024-02-29 12:00:00'", &batch), [Some(true), None]);
    assert_eq!(conditions("s < TIMESTAMP '9999-12-31 00:00:00'", &batch), [Some(true), None]);
    let fails = Expression::filter("t = 'noon'", &batch.schema());
    assert!(fails.and_then(|fails| fails.evaluate(&batch.project(&[1]).unwrap())).is_err());
}
