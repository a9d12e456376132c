//! Values without a result: decimals with more digits than their type, times beyond the calendar, and integers that are no time of day.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Date32Array, Date64Array, Decimal32Array, Decimal64Array, Decimal128Array, Decimal256Array,
    DictionaryArray, Int32Array, Int64Array, Time32SecondArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, TimestampSecondArray, UInt64Array, types::Int8Type,
};
use arrow_buffer::i256;
use arrow_cast::display::array_value_to_string;
use arrow_schema::DataType::{self, Decimal128};
use forebay_sql::Error;

use super::try_evaluate;

/// The values of the rows. A null is an empty text.
fn evaluate(text: &str, columns: &[(&str, ArrayRef)]) -> Vec<String> {
    let values = try_evaluate(text, columns).unwrap_or_else(|error| panic!("{text}: {error}"));
    (0..values.len()).map(|row| array_value_to_string(&values, row).unwrap()).collect()
}

/// The error of evaluating `text`.
fn failure(text: &str, columns: &[(&str, ArrayRef)]) -> String {
    match try_evaluate(text, columns) {
        Err(Error::Failed(error)) => error,
        other => panic!("{text}: {other:?}"),
    }
}

fn decimal(values: [i128; 2], precision: u8, scale: i8) -> ArrayRef {
    let [first, second] = values.map(Some);
    let decimals = Decimal128Array::from(vec![first, second, None]);
    Arc::new(decimals.with_precision_and_scale(precision, scale).unwrap())
}

/// Values of which the first ones are near the limits of their types.
fn decimals() -> Vec<(&'static str, ArrayRef)> {
    let narrow = |values: Vec<Option<i32>>, precision, scale| {
        Arc::new(Decimal32Array::from(values).with_precision_and_scale(precision, scale).unwrap()) as ArrayRef
    };
    let middle = Decimal64Array::from(vec![Some(999_999_999_999_999_999), Some(100), None]);
    let six = i256::from_string(&format!("6{}", "0".repeat(75)));
    let wide = Decimal256Array::from(vec![six, Some(i256::ONE), None]);
    vec![
        ("b", narrow(vec![Some(600_000_025), Some(100), None], 9, 2)),
        ("s", narrow(vec![Some(9_999_999), Some(100), None], 7, 2)),
        ("m", Arc::new(middle.with_precision_and_scale(18, 2).unwrap())),
        ("d", decimal([10_i128.pow(38) - 1, 10_000_000_000], 38, 10)),
        ("k", decimal([8 * 10_i128.pow(37), 10_000_000_000], 38, 10)),
        ("w", Arc::new(wide.with_precision_and_scale(76, 0).unwrap())),
        ("u", Arc::new(UInt64Array::from(vec![Some(u64::MAX), Some(5), None]))),
        ("i", Arc::new(Int64Array::from(vec![Some(i64::MAX), Some(3), None]))),
    ]
}

#[test]
fn arithmetic_of_decimals_that_does_not_fit_its_type_is_an_error() {
    let decimals = decimals();
    let first: Vec<(&str, ArrayRef)> =
        decimals.iter().map(|(name, column)| (*name, column.slice(0, 1))).collect();
    for (expression, value) in [
        ("d + 1", "10000000000000000000000000000.9999999999"),
        ("d - (-1)", "10000000000000000000000000000.9999999999"),
        ("k * 2", "16000000000000000000000000000.0000000000"),
        ("k + k", "16000000000000000000000000000.0000000000"),
        ("0 - k - k", "-16000000000000000000000000000.0000000000"),
    ] {
        for text in [
            expression,
            &format!("CAST({expression} AS VARCHAR)"),
            &format!("concat({expression}, '')"),
            &format!("({expression}) || ''"),
            &format!("hash_bucket(CAST({expression} AS TEXT), 10)"),
            &format!("TRY_CAST({expression} AS DECIMAL(38, 10))"),
            &format!("CAST({expression} AS DECIMAL(50, 12))"),
            &format!("{expression} > 5"),
        ] {
            let error = failure(text, &first);
            let expected = format!("Arithmetic overflow: the result {value} has more digits than its type");
            assert!(error.contains(&expected), "{text}: {error}");
        }
    }
    for text in ["w + w", "CAST(w + w AS VARCHAR)", "w * 2", "u * i * 10", "d / 0.1", "d * 1.5", "d % 3"] {
        let found = try_evaluate(text, &first);
        match text {
            // Doubles, and a remainder, which fits.
            "d / 0.1" | "d * 1.5" | "d % 3" => assert!(found.is_ok(), "{text}: {found:?}"),
            _ => assert!(found.unwrap_err().to_string().contains("verflow"), "{text}"),
        }
    }
    // The other rows fit.
    let second: Vec<(&str, ArrayRef)> =
        decimals.iter().map(|(name, column)| (*name, column.slice(1, 2))).collect();
    assert_eq!(evaluate("CAST(d + 1 AS VARCHAR)", &second), ["2.0000000000", ""]);
    assert_eq!(evaluate("CASE WHEN d < 100 THEN d + 1 END", &decimals), ["", "2.0000000000", ""]);
    assert_eq!(evaluate("d < 100 AND d + 1 > 1.5", &decimals), ["false", "true", ""]);
}

#[test]
fn decimals_of_32_and_64_bits_are_computed_with_128_bits() {
    let columns = decimals();
    for (text, data_type, expected) in [
        ("b + b", Decimal128(10, 2), ["12000000.50", "2.00", ""]),
        ("CAST(b + b AS VARCHAR)", DataType::Utf8, ["12000000.50", "2.00", ""]),
        ("b - (- b)", Decimal128(10, 2), ["12000000.50", "2.00", ""]),
        ("b * b", Decimal128(19, 4), ["36000003000000.0625", "1.0000", ""]),
        ("s * s", Decimal128(15, 4), ["9999998000.0001", "1.0000", ""]),
        ("b / b", Decimal128(15, 6), ["1.000000", "1.000000", ""]),
        ("b % b", Decimal128(9, 2), ["0.00", "0.00", ""]),
        ("b + m", Decimal128(19, 2), ["10000000006000000.24", "2.00", ""]),
        ("m * b", Decimal128(28, 4), ["60000002499999999939999.9975", "1.0000", ""]),
        ("b + s", Decimal128(10, 2), ["6100000.24", "2.00", ""]),
        ("b + 1", Decimal128(23, 2), ["6000001.25", "2.00", ""]),
        ("s * k", Decimal128(38, 12), ["", "", ""]),
        ("- b", DataType::Decimal32(9, 2), ["-6000000.25", "-1.00", ""]),
        ("CAST(u * i AS VARCHAR)", DataType::Utf8, ["170141183460469231704017187605319778305", "15", ""]),
    ] {
        let found = try_evaluate(text, &columns);
        if text == "s * k" || text.contains("u * i") {
            // More than 38 digits.
            assert!(found.unwrap_err().to_string().contains("verflow"), "{text}");
            continue;
        }
        assert_eq!(*found.unwrap().data_type(), data_type, "{text}");
        assert_eq!(evaluate(text, &columns), expected, "{text}");
    }
    let kept = try_evaluate("CAST(b + b AS VARCHAR) = '12000000.50'", &columns).unwrap();
    assert_eq!(array_value_to_string(&kept, 0).unwrap(), "true");
}

/// A file can contain such values, although its format does not allow them.
#[test]
fn a_stored_decimal_with_more_digits_than_its_type_has_no_text() {
    let columns = [("d", decimal([12_345_678, 150], 5, 2))];
    let error = failure("CAST(d AS VARCHAR)", &columns);
    assert!(error.contains("column d"), "{error}");
    assert!(error.contains("123456.78 has more digits than its type Decimal128(5, 2)"), "{error}");
    assert!(failure("d || ''", &columns).contains("123456.78"));
    assert!(failure("CAST(CAST(d AS DECIMAL(7, 2)) AS VARCHAR)", &columns).contains("123456.78"));
    assert_eq!(evaluate("TRY_CAST(d AS VARCHAR)", &columns), ["", "1.50", ""]);
    assert_eq!(evaluate("CAST(d AS DOUBLE)", &columns), ["123456.78", "1.5", ""]);
    assert_eq!(evaluate("CAST(d AS DECIMAL(9, 2))", &columns), ["123456.78", "1.50", ""]);
    assert_eq!(evaluate("d > 123456", &columns), ["true", "false", ""]);
    let dictionary =
        DictionaryArray::<Int8Type>::new(vec![0, 1].into(), decimal([12_345_678, 150], 5, 2).slice(0, 2));
    let columns = [("d", Arc::new(dictionary) as ArrayRef)];
    assert_eq!(evaluate("TRY_CAST(d AS VARCHAR)", &columns), ["", "1.50"]);
}

/// The first and the last value in the years that have dates, with their neighbours.
fn ends(first: i64, last: i64) -> Vec<i64> {
    vec![i64::MIN, first - 1, first, last, last + 1, i64::MAX]
}

#[test]
fn times_beyond_the_calendar_are_null_in_try_cast_and_an_error_otherwise() {
    // -262143-01-01 00:00:00 and 262142-12-31 23:59:59 in seconds since 1970.
    let (first, last) = (-8_334_601_228_800, 8_210_266_876_799);
    let seconds = Arc::new(TimestampSecondArray::from(ends(first, last))) as ArrayRef;
    let milliseconds = Arc::new(TimestampMillisecondArray::from(ends(first * 1_000, last * 1_000 + 999)));
    let micros = ends(first * 1_000_000, last * 1_000_000 + 999_999);
    let microseconds = Arc::new(TimestampMicrosecondArray::from(micros.clone())) as ArrayRef;
    let paris = Arc::new(TimestampMicrosecondArray::from(micros).with_timezone("Europe/Paris")) as ArrayRef;
    let date64 = Arc::new(Date64Array::from(ends(first * 1_000, last * 1_000 + 999))) as ArrayRef;
    let days = |seconds: i64| i32::try_from(seconds.div_euclid(86_400)).unwrap();
    let date32 = vec![i32::MIN, days(first) - 1, days(first), days(last), days(last) + 1, i32::MAX];
    let date32 = Arc::new(Date32Array::from(date32)) as ArrayRef;
    let columns = [
        ("s", seconds),
        ("ms", milliseconds as ArrayRef),
        ("us", microseconds),
        ("d32", date32),
        ("d64", date64),
    ];
    for column in ["s", "ms", "us", "d32", "d64"] {
        let is_date = column.starts_with('d');
        for to in ["DATE", "TIME", "VARCHAR"] {
            if is_date && to != "VARCHAR" {
                continue;
            }
            let found = evaluate(&format!("TRY_CAST({column} AS {to})"), &columns);
            let is_null: Vec<bool> = found.iter().map(String::is_empty).collect();
            assert_eq!(is_null, [true, true, false, false, true, true], "{column} to {to}: {found:?}");
            let error = failure(&format!("CAST({column} AS {to})"), &columns);
            assert!(error.contains(&format!("column {column}")), "{error}");
            assert!(error.contains("is beyond the years -262,143 to 262,142"), "{error}");
            assert!(!error.contains("arrow"), "{error}");
        }
        let within: Vec<(&str, ArrayRef)> =
            columns.iter().map(|(name, column)| (*name, column.slice(2, 2))).collect();
        let year = format!("date_part('year', {column})");
        assert_eq!(evaluate(&year, &within), ["-262143", "262142"], "{column}");
        for text in [year, format!("EXTRACT(month FROM {column})")] {
            let error = failure(&text, &columns);
            assert!(error.contains("is beyond the years -262,143 to 262,142"), "{text}: {error}");
        }
    }
    assert_eq!(evaluate("TRY_CAST(us AS DATE)", &columns)[2], "-262143-01-01");
    assert_eq!(evaluate("TRY_CAST(us AS TIME)", &columns)[3], "23:59:59.999999");
    let epoch = evaluate("date_part('epoch', s)", &columns);
    assert!(epoch.iter().all(|seconds| !seconds.is_empty()), "{epoch:?}");
    // Local times of a zone are up to a day away.
    let columns = [("paris", paris)];
    for to in ["DATE", "TIME", "VARCHAR"] {
        let found = evaluate(&format!("TRY_CAST(paris AS {to})"), &columns);
        assert!(found.iter().all(String::is_empty), "{to}: {found:?}");
    }
}

#[test]
fn an_integer_beyond_a_day_is_no_time_of_day() {
    let day = 86_400_000_000_000;
    let columns = [
        (
            "i",
            Arc::new(Int64Array::from(vec![Some(0), Some(day - 1), Some(day), Some(-1), None])) as ArrayRef,
        ),
        ("j", Arc::new(Int32Array::from(vec![Some(0), Some(86_399), Some(86_400), Some(-1), None]))),
        ("t", Arc::new(Time32SecondArray::from(vec![Some(0), Some(86_399), Some(86_400), Some(-1), None]))),
    ];
    let last = "23:59:59.999999999";
    assert_eq!(evaluate("TRY_CAST(i AS TIME)", &columns), ["00:00:00", last, "", "", ""]);
    let error = failure("CAST(i AS TIME)", &columns);
    assert!(error.contains("the integer 86400000000000 is no time of day of type Time64(ns)"), "{error}");
    assert!(error.contains("expected 0 to 86399999999999"), "{error}");
    let within: Vec<(&str, ArrayRef)> =
        columns.iter().map(|(name, column)| (*name, column.slice(0, 2))).collect();
    assert_eq!(evaluate("CAST(i AS TIME)", &within), ["00:00:00", last]);
    // A file can contain such values.
    assert_eq!(evaluate("TRY_CAST(t AS VARCHAR)", &columns), ["00:00:00", "23:59:59", "", "", ""]);
    assert!(failure("CAST(t AS VARCHAR)", &columns).contains("the value 86400 of type Time32(s)"));
}
