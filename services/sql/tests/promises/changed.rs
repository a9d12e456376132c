//! Functions of DataFusion that are evaluated in another way, and casts of text to times of day.

use std::{sync::Arc, thread, time::Duration};

use arrow_array::{
    Array, ArrayRef, Date32Array, DurationMicrosecondArray, DurationSecondArray, Float32Array, Float64Array,
    Int64Array, LargeStringArray, StringArray, StringViewArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, TimestampNanosecondArray, TimestampSecondArray,
};
use arrow_schema::{DataType, TimeUnit};
use forebay_sql::{Error, ScalarValue};

use super::try_evaluate;

fn evaluate(text: &str, columns: &[(&str, ArrayRef)]) -> Vec<String> {
    shown(&try_evaluate(text, columns).unwrap_or_else(|error| panic!("{text}: {error}")))
}

fn shown(array: &ArrayRef) -> Vec<String> {
    (0..array.len()).map(|row| ScalarValue::try_from_array(array, row).unwrap().to_string()).collect()
}

/// The error of evaluating `text`.
fn failure(text: &str, columns: &[(&str, ArrayRef)]) -> String {
    match try_evaluate(text, columns) {
        Err(Error::Failed(error)) => error,
        other => panic!("{text}: {other:?}"),
    }
}

fn doubles(values: &[f64]) -> [(&'static str, ArrayRef); 1] {
    [("x", Arc::new(Float64Array::from(values.to_vec())))]
}

#[test]
fn a_float_is_rounded_to_digits_that_it_has() {
    let x = [0.5, -2.5, f64::NAN, f64::INFINITY, 1e300, 123_456.789, -0.0];
    let columns = doubles(&x);
    let same = || x.map(|x| ScalarValue::from(x).to_string());
    for text in
        ["round(x, 20)", "round(x, 308)", "round(x, 309)", "round(x, 400)", "trunc(x, 20)", "trunc(x, 309)"]
    {
        assert_eq!(evaluate(text, &columns), same(), "{text}");
    }
    assert_eq!(evaluate("trunc(x, 9223372036854775807)", &columns), same());
    let wide = Arc::new(Int64Array::from(vec![400; 7])) as ArrayRef;
    let digits = [columns[0].clone(), ("n", wide)];
    assert_eq!(evaluate("round(x, CAST(n AS INT))", &digits), same());
    assert_eq!(evaluate("trunc(x, n)", &digits), same());
    assert_eq!(
        evaluate("round(x, 10)", &columns)[4..6],
        ["1000000000000000000000000000000".to_owned() + &"0".repeat(270), "123456.789".to_owned()]
    );
    for (text, expected) in [
        ("round(x, 2)", "123456.79"),
        ("trunc(x, 2)", "123456.78"),
        ("round(x, -2)", "123500"),
        ("trunc(x, -5)", "100000"),
        ("round(x, -309)", "0"),
        ("round(x, -2147483648)", "0"),
        ("round(123456.789, 20)", "123456.789"),
    ] {
        assert_eq!(evaluate(text, &columns)[5], expected, "{text}");
    }
    let single =
        [("x", Arc::new(Float32Array::from(vec![0.5, -2.5, 1e38, 16_777_216.0, 0.125])) as ArrayRef)];
    for text in ["round(x, 40)", "round(x, 38)", "round(x, 3)", "trunc(x, 39)", "trunc(x, 10)"] {
        let values = try_evaluate(text, &single).unwrap();
        assert_eq!(values.data_type(), &DataType::Float32, "{text}");
        assert_eq!(shown(&values), shown(&single[0].1), "{text}");
    }
    assert_eq!(evaluate("round(x, 2)", &single)[4], "0.13");
}

#[test]
fn roots_and_powers_without_a_real_value_are_nan_or_infinite() {
    let columns = doubles(&[-1.0, 0.0, -0.0, 4.0]);
    for (text, expected) in [
        ("sqrt(x)", ["NaN", "0", "-0", "2"]),
        ("power(x, -1)", ["-1", "inf", "-inf", "0.25"]),
        ("pow(x, -2)", ["1", "inf", "inf", "0.0625"]),
        ("power(x, 0.5)", ["NaN", "0", "0", "2"]),
        ("ln(x)", ["NaN", "-inf", "-inf", "1.3862943611198906"]),
    ] {
        assert_eq!(evaluate(text, &columns), expected, "{text}");
    }
    assert_eq!(evaluate("sqrt(-1)", &columns), ["NaN"; 4]);
    assert_eq!(evaluate("power(0, -1)", &columns), ["inf"; 4]);
    let single = [("x", Arc::new(Float32Array::from(vec![-1.0, 2.25])) as ArrayRef)];
    assert_eq!(try_evaluate("sqrt(x)", &single).unwrap().data_type(), &DataType::Float32);
    assert_eq!(evaluate("sqrt(x)", &single), ["NaN", "1.5"]);
}

#[test]
fn texts_of_every_type_are_searched_and_trimmed() {
    let texts = [Some("xyábcyx"), Some(""), None, Some("á")];
    let parts = [Some("áb"), Some(""), Some("a"), None];
    for x in [
        Arc::new(StringArray::from_iter(texts)) as ArrayRef,
        Arc::new(LargeStringArray::from_iter(texts)),
        Arc::new(StringViewArray::from_iter(texts)),
    ] {
        let columns = [("x", x), ("p", Arc::new(StringArray::from_iter(parts)) as ArrayRef)];
        for (text, expected) in [
            ("strpos(x, 'c')", ["5", "0", "NULL", "0"]),
            ("strpos(x, 'yx')", ["6", "0", "NULL", "0"]),
            ("strpos(x, '')", ["1", "1", "NULL", "1"]),
            ("strpos(x, p)", ["3", "1", "NULL", "NULL"]),
            ("position('c' IN x)", ["5", "0", "NULL", "0"]),
            ("instr(x, 'á')", ["3", "0", "NULL", "1"]),
            ("strpos('xyá', x)", ["0", "1", "NULL", "3"]),
            ("btrim(x, 'yx')", ["ábc", "", "NULL", "á"]),
            ("btrim(x, 'xyá')", ["bc", "", "NULL", ""]),
            ("ltrim(x, 'yx')", ["ábcyx", "", "NULL", "á"]),
            ("rtrim(x, 'yx')", ["xyábc", "", "NULL", "á"]),
            ("rtrim(x, '')", ["xyábcyx", "", "NULL", "á"]),
            ("btrim(x, p)", ["xyábcyx", "", "NULL", "NULL"]),
            ("trim(x)", ["xyábcyx", "", "NULL", "á"]),
            ("TRIM(LEADING 'x' FROM x)", ["yábcyx", "", "NULL", "á"]),
        ] {
            assert_eq!(evaluate(text, &columns), expected, "{text} of {}", columns[0].1.data_type());
        }
    }
    assert_eq!(evaluate("strpos('abc', 'c')", &doubles(&[1.0, 2.0])), ["3"; 2]);
    assert_eq!(evaluate("btrim('abc', 'a')", &doubles(&[1.0, 2.0])), ["bc"; 2]);
}

/// With the product of the lengths, each of these takes hours.
#[test]
fn texts_are_searched_and_trimmed_in_linear_time() {
    let wide: String = (0x100..0xd000).chain(0x1_0000..0x11_0000).filter_map(char::from_u32).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("many", Arc::new(StringArray::from(vec!["a".repeat(4_000_000)]))),
        ("most", Arc::new(StringArray::from(vec!["a".repeat(2_000_000) + "b"]))),
        ("wide", Arc::new(StringArray::from(vec![wide]))),
    ];
    let (done, finished) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for (text, expected) in [
            ("strpos(many, most)", "0"),
            ("position(most IN many)", "0"),
            ("character_length(btrim(many, most))", "0"),
            ("character_length(TRIM(BOTH wide FROM wide))", "0"),
            ("character_length(ltrim(wide, wide))", "0"),
            ("character_length(rtrim(wide, wide))", "0"),
        ] {
            assert_eq!(evaluate(text, &columns), [expected], "{text}");
        }
        done.send(()).unwrap();
    });
    finished.recv_timeout(Duration::from_secs(300)).expect("the searches end");
}

#[test]
fn floats_without_a_timestamp_are_errors() {
    for (x, shown) in
        [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (-f64::INFINITY, "-inf"), (1e18, "1000000000000000000")]
    {
        for text in ["to_timestamp(x)", "to_unixtime(x * 1e10)"] {
            assert!(failure(text, &doubles(&[0.0, x])).contains("out of range"), "{text} of {x}");
        }
        let error = failure("to_timestamp(x)", &doubles(&[x]));
        assert_eq!(error, format!("to_timestamp: {shown} seconds since 1970 are out of range"));
    }
    assert!(failure("to_timestamp(CAST(x AS REAL))", &doubles(&[1e18])).contains("out of range"));
    assert!(failure("to_timestamp(1e300)", &doubles(&[1.0])).contains("out of range"));
    let some = try_evaluate("to_timestamp(x)", &doubles(&[0.5, -2.5])).unwrap();
    let expected: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![500_000_000, -2_500_000_000]));
    assert_eq!(&some, &expected);
}

#[test]
fn seconds_since_1970_are_rounded_down() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("us", Arc::new(TimestampMicrosecondArray::from(vec![Some(-500_000), Some(1_999_999), None]))),
        ("x", Arc::new(Float64Array::from(vec![Some(-0.5), Some(1.9), None]))),
        (
            "s",
            Arc::new(StringArray::from(vec![
                Some("1969-12-31T23:59:59.5"),
                Some("1970-01-01T00:00:01.9"),
                None,
            ])),
        ),
    ];
    for text in ["to_unixtime(us)", "to_unixtime(x)", "to_unixtime(s)"] {
        assert_eq!(evaluate(text, &columns), ["-1", "1", "NULL"], "{text}");
    }
}

/// 1600-01-01 12:00, 2024-08-15 12:00 and 9999-12-31 12:00 in seconds.
const TIMES: [i64; 3] = [-11_676_052_800, 1_723_723_200, 253_402_257_600];

fn timestamps(unit: TimeUnit, zone: Option<&str>) -> ArrayRef {
    let of = |per_second: i64| TIMES.map(|time| Some(time * per_second)).into_iter().chain([None]);
    let array: ArrayRef = match unit {
        TimeUnit::Second => Arc::new(TimestampSecondArray::from_iter(of(1))),
        TimeUnit::Millisecond => Arc::new(TimestampMillisecondArray::from_iter(of(1_000))),
        _ => Arc::new(TimestampMicrosecondArray::from_iter(of(1_000_000))),
    };
    arrow_cast::cast(&array, &DataType::Timestamp(unit, zone.map(Into::into))).unwrap()
}

#[test]
fn timestamps_of_all_years_are_truncated_and_binned() {
    for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond] {
        let columns = [("t", timestamps(unit, None))];
        for (text, expected) in [
            (
                "date_trunc('year', t)",
                ["1600-01-01T00:00:00", "2024-01-01T00:00:00", "9999-01-01T00:00:00", "NULL"],
            ),
            (
                "date_trunc('quarter', t)",
                ["1600-01-01T00:00:00", "2024-07-01T00:00:00", "9999-10-01T00:00:00", "NULL"],
            ),
            (
                "date_trunc('month', t)",
                ["1600-01-01T00:00:00", "2024-08-01T00:00:00", "9999-12-01T00:00:00", "NULL"],
            ),
            (
                "date_trunc('week', t)",
                ["1599-12-27T00:00:00", "2024-08-12T00:00:00", "9999-12-27T00:00:00", "NULL"],
            ),
            (
                "date_trunc('DAY', t)",
                ["1600-01-01T00:00:00", "2024-08-15T00:00:00", "9999-12-31T00:00:00", "NULL"],
            ),
            (
                "date_trunc('microsecond', t)",
                ["1600-01-01T12:00:00", "2024-08-15T12:00:00", "9999-12-31T12:00:00", "NULL"],
            ),
            (
                "date_bin(INTERVAL '1 day', t)",
                ["1600-01-01T00:00:00", "2024-08-15T00:00:00", "9999-12-31T00:00:00", "NULL"],
            ),
            (
                "date_bin(INTERVAL '5 hours', t, TIMESTAMP '2000-01-01')",
                ["1600-01-01T08:00:00", "2024-08-15T08:00:00", "9999-12-31T09:00:00", "NULL"],
            ),
            (
                "date_bin(INTERVAL '1 month', t, TIMESTAMP '2000-01-31 13:00:00')",
                ["1599-12-31T13:00:00", "2024-07-31T13:00:00", "9999-11-30T13:00:00", "NULL"],
            ),
            (
                "date_bin(INTERVAL '1 year', t, DATE '2000-03-01')",
                ["1599-03-01T00:00:00", "2024-03-01T00:00:00", "9999-03-01T00:00:00", "NULL"],
            ),
        ] {
            let values = try_evaluate(text, &columns).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(values.data_type(), columns[0].1.data_type(), "{text}");
            assert_eq!(
                evaluate(&format!("CAST({text} AS VARCHAR)"), &columns),
                expected,
                "{text} of {unit:?}"
            );
        }
    }
}

#[test]
fn local_times_are_truncated_in_their_zone() {
    let columns = [("t", timestamps(TimeUnit::Microsecond, Some("Europe/Paris")))];
    assert_eq!(
        evaluate("CAST(date_trunc('month', t) AS VARCHAR)", &columns)[1..],
        ["2024-08-01T00:00:00+02:00", "9999-12-01T00:00:00+01:00", "NULL"]
    );
    let binned = try_evaluate("date_bin(INTERVAL '1 day', t)", &columns).unwrap();
    assert_eq!(binned.data_type(), columns[0].1.data_type());
    // 2024-10-27 00:30 and 01:30 UTC are both 02:30 in Paris, and on 2024-03-31 the hour from 02:00 is missing.
    let hours = [1_729_989_000, 1_729_992_600, 1_711_846_800];
    let hours: ArrayRef = Arc::new(TimestampSecondArray::from(hours.to_vec()).with_timezone("Europe/Paris"));
    let columns = [("t", hours)];
    for (text, expected) in [
        (
            "date_trunc('hour', t)",
            ["2024-10-27T02:00:00+02:00", "2024-10-27T02:00:00+01:00", "2024-03-31T03:00:00+02:00"],
        ),
        (
            "date_trunc('day', t)",
            ["2024-10-27T00:00:00+02:00", "2024-10-27T00:00:00+02:00", "2024-03-31T00:00:00+01:00"],
        ),
    ] {
        assert_eq!(evaluate(&format!("CAST({text} AS VARCHAR)"), &columns), expected, "{text}");
    }
}

#[test]
fn dates_of_all_years_are_truncated_as_timestamps() {
    let columns = [("d", Arc::new(Date32Array::from(vec![-135_139, 19_950, 2_932_896])) as ArrayRef)];
    for (text, expected) in [
        ("date_trunc('month', d)", ["1600-01-01T00:00:00", "2024-08-01T00:00:00", "9999-12-01T00:00:00"]),
        (
            "date_bin(INTERVAL '7 days', d)",
            ["1599-12-30T00:00:00", "2024-08-15T00:00:00", "9999-12-30T00:00:00"],
        ),
    ] {
        let values = try_evaluate(text, &columns).unwrap();
        assert_eq!(values.data_type(), &DataType::Timestamp(TimeUnit::Microsecond, None), "{text}");
        assert_eq!(evaluate(&format!("CAST({text} AS VARCHAR)"), &columns), expected, "{text}");
    }
}

#[test]
fn a_bin_or_a_truncated_time_out_of_range_is_an_error() {
    let least: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![i64::MIN]));
    for text in ["date_bin(INTERVAL '1 day', t)", "date_trunc('year', t)", "date_trunc('day', t)"] {
        assert!(failure(text, &[("t", Arc::clone(&least))]).contains("out of range"), "{text}");
    }
    for (text, reason) in [
        ("date_bin(INTERVAL '0 days', t)", "expected more than 0"),
        ("date_bin(INTERVAL '-1 days', t)", "expected more than 0"),
        ("date_bin(INTERVAL '1 month 1 day', t)", "expected either months, or days"),
        ("date_trunc('fortnight', t)", "Unsupported date_trunc granularity: 'fortnight'"),
    ] {
        assert!(failure(text, &[("t", Arc::clone(&least))]).contains(reason), "{text}");
    }
}

#[test]
fn parts_of_a_duration_are_what_remains_of_larger_units() {
    // 25 h 1 min 1.5 s, and its negative.
    let units = vec![Some(90_061_500_000), Some(-90_061_500_000), None];
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("d", Arc::new(DurationMicrosecondArray::from(units.clone()))),
        ("a", Arc::new(TimestampMicrosecondArray::from(units))),
        ("b", Arc::new(TimestampMicrosecondArray::from(vec![Some(0), Some(0), None]))),
        ("long", Arc::new(DurationSecondArray::from(vec![i64::MAX, 0, 0]))),
    ];
    for (part, expected) in [
        ("day", ["1", "-1", "NULL"]),
        ("hour", ["1", "-1", "NULL"]),
        ("minute", ["1", "-1", "NULL"]),
        ("second", ["1", "-1", "NULL"]),
        ("millisecond", ["1500", "-1500", "NULL"]),
        ("microseconds", ["1500000", "-1500000", "NULL"]),
        ("nanosecond", ["1500000000", "-1500000000", "NULL"]),
        ("epoch", ["90061.5", "-90061.5", "NULL"]),
    ] {
        assert_eq!(evaluate(&format!("date_part('{part}', d)"), &columns), expected, "{part}");
        assert_eq!(evaluate(&format!("EXTRACT({part} FROM a - b)"), &columns), expected, "{part}");
    }
    assert!(failure("date_part('day', long)", &columns).contains("out of range"));
    assert_eq!(evaluate("date_part('minute', long)", &columns)[0], "30");
}

#[test]
fn only_texts_of_times_of_day_become_times_of_day() {
    let texts = [
        Some("12"),
        Some("20240229"),
        Some("-5"),
        Some("99999999999999999"),
        Some("23:59:60"),
        Some("24:00:00"),
    ];
    let times = [Some("12:30"), Some("23:59:59.999999999"), Some("1:02:03"), Some("1:30 PM"), None];
    for to in ["TIME", "TIME(3)", "TIME(0)"] {
        let columns = [("s", Arc::new(StringArray::from_iter(texts)) as ArrayRef)];
        let Ok(tried) = try_evaluate(&format!("TRY_CAST(s AS {to})"), &columns) else { continue };
        assert_eq!(tried.null_count(), texts.len(), "{to}");
        for text in texts {
            let columns = [("s", Arc::new(StringArray::from_iter([text])) as ArrayRef)];
            failure(&format!("CAST(s AS {to})"), &columns);
        }
    }
    let columns = [("s", Arc::new(StringViewArray::from_iter(times)) as ArrayRef)];
    let expected = ["45000000000000", "86399999999999", "3723000000000", "48600000000000", "NULL"];
    assert_eq!(evaluate("CAST(s AS TIME)", &columns), expected);
    assert_eq!(evaluate("TRY_CAST(s AS TIME)", &columns), expected);
    assert_eq!(evaluate("TRY_CAST('12' AS TIME)", &columns), ["NULL"; 5]);
    let error = failure("CAST('12' AS TIME)", &columns);
    assert!(error.ends_with("the text '12' is no time of day, expected hours:minutes:seconds"), "{error}");
}

#[test]
fn casts_have_the_documented_values() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("x", Arc::new(Float64Array::from(vec![2.7, -2.7]))),
        ("d", Arc::new(Date32Array::from(vec![19_782, -1]))),
        ("us", Arc::new(TimestampMicrosecondArray::from(vec![1_500_000, -1_500_000]))),
        ("i", Arc::new(Int64Array::from(vec![19_782, -1]))),
    ];
    for (text, data_type, expected) in [
        ("CAST(x AS INT)", DataType::Int32, ["2", "-2"]),
        ("CAST(CAST(x AS DECIMAL(9, 2)) AS INT)", DataType::Int32, ["2", "-2"]),
        ("CAST(CAST(x / 21.6 AS DECIMAL(9, 2)) AS VARCHAR)", DataType::Utf8, ["0.13", "-0.13"]),
        ("CAST(CAST('0.125' AS DECIMAL(9, 2)) AS VARCHAR)", DataType::Utf8, ["0.13"; 2]),
        ("CAST(0.5 AS FLOAT(53))", DataType::Float32, ["0.5"; 2]),
        ("CAST(0.5 AS FLOAT)", DataType::Float32, ["0.5"; 2]),
        ("CAST(0.5 AS DOUBLE)", DataType::Float64, ["0.5"; 2]),
        ("CAST('abc' AS VARCHAR(1))", DataType::Utf8, ["abc"; 2]),
        ("CAST(us AS VARCHAR)", DataType::Utf8, ["1970-01-01T00:00:01.500", "1969-12-31T23:59:58.500"]),
        ("CAST(us AS BIGINT)", DataType::Int64, ["1500000", "-1500000"]),
        ("CAST(us AS TIMESTAMP(0))", DataType::Timestamp(TimeUnit::Second, None), ["1", "-1"]),
        (
            "CAST(i AS TIMESTAMP)",
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            ["19782000000000", "-1000000000"],
        ),
        ("CAST(i AS DATE) = d", DataType::Boolean, ["true"; 2]),
        ("CAST(d AS BIGINT)", DataType::Int64, ["19782", "-1"]),
        ("CAST(CAST(us AS DATE) AS BIGINT)", DataType::Int64, ["0", "-1"]),
    ] {
        let values = try_evaluate(text, &columns).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(values.data_type(), &data_type, "{text}");
        assert_eq!(shown(&values), expected, "{text}");
    }
}
