//! Values of two kinds, such as dates and integers, are neither compared nor converted to a common type.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Date64Array, Decimal128Array,
    DurationSecondArray, FixedSizeBinaryArray, Float32Array, Int64Array, IntervalYearMonthArray,
    LargeBinaryArray, RecordBatch, StringArray, Time32SecondArray, Time64MicrosecondArray,
    TimestampMillisecondArray, UInt8Array,
};
use forebay_sql::Expression;

/// Columns and constants with their kind. Text is converted to the type of the other value.
const VALUES: [(&str, &str); 27] = [
    ("i64", "number"),
    ("u8", "number"),
    ("f32", "number"),
    ("d92", "number"),
    ("20", "number"),
    ("-1.5", "number"),
    ("20210105", "number"),
    ("flag", "boolean"),
    ("TRUE", "boolean"),
    ("bin", "bytes"),
    ("fixed", "bytes"),
    ("X'35'", "bytes"),
    ("d32", "moment"),
    ("d64", "moment"),
    ("ts", "moment"),
    ("utc", "moment"),
    ("DATE '2024-01-01'", "moment"),
    ("TIMESTAMP '2024-01-01 00:00:00'", "moment"),
    ("TIMESTAMPTZ '2024-01-01 00:00:00Z'", "moment"),
    ("t32", "time"),
    ("t64", "time"),
    ("TIME '01:30:00'", "time"),
    ("dur", "length"),
    ("months", "length"),
    ("INTERVAL '1 day'", "length"),
    ("NULL", "any"),
    ("CAST(NULL AS DATE)", "moment"),
];

/// Uses of two values.
const COMPARISONS: [&str; 10] = [
    "{a} = {b}",
    "{a} <> {b}",
    "{a} >= {b}",
    "{a} IS DISTINCT FROM {b}",
    "{a} IN ({b})",
    "{a} NOT IN ({a}, {b})",
    "{a} BETWEEN {a} AND {b}",
    "{b} NOT BETWEEN {a} AND {b}",
    "CASE {a} WHEN {a} THEN 1 WHEN {b} THEN 2 END",
    "NULLIF({a}, {b})",
];
const RESULTS: [&str; 7] = [
    "COALESCE({a}, NULL, {b})",
    "nvl({a}, {b})",
    "ifnull({a}, {b})",
    "nvl2(flag, {a}, {b})",
    "greatest({a}, {b})",
    "least({a}, {a}, {b})",
    "CASE WHEN flag THEN {a} WHEN NOT flag THEN NULL ELSE {b} END",
];

fn rows() -> RecordBatch {
    let milliseconds = || TimestampMillisecondArray::from(vec![Some(1_704_067_200_000), None]);
    let fixed = [Some(b"5"), None].into_iter();
    let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, 1).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i64", Arc::new(Int64Array::from(vec![Some(20_210_105), None]))),
        ("u8", Arc::new(UInt8Array::from(vec![Some(20), None]))),
        ("f32", Arc::new(Float32Array::from(vec![Some(20.0), None]))),
        ("d92", Arc::new(Decimal128Array::from(vec![Some(7), None]).with_precision_and_scale(9, 2).unwrap())),
        ("flag", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("words", Arc::new(StringArray::from(vec![Some("x"), None]))),
        ("bin", Arc::new(BinaryArray::from_opt_vec(vec![Some(&b"5"[..]), None]))),
        ("fixed", Arc::new(fixed)),
        ("d32", Arc::new(Date32Array::from(vec![Some(19_723), None]))),
        ("d64", Arc::new(Date64Array::from(vec![Some(1_704_067_200_000), None]))),
        ("ts", Arc::new(milliseconds())),
        ("utc", Arc::new(milliseconds().with_timezone("UTC"))),
        ("t32", Arc::new(Time32SecondArray::from(vec![Some(5400), None]))),
        ("t64", Arc::new(Time64MicrosecondArray::from(vec![Some(5_400_000_000), None]))),
        ("dur", Arc::new(DurationSecondArray::from(vec![Some(86_400), None]))),
        ("months", Arc::new(IntervalYearMonthArray::from(vec![Some(1), None]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .unwrap()
}

/// Compiles and evaluates an expression.
fn evaluated(text: &str, rows: &RecordBatch) -> Result<ArrayRef, String> {
    let compiled = Expression::column(&format!("{text} AS y"), &rows.schema());
    let compiled = compiled.map_err(|error| format!("compilation: {error}"))?;
    let inputs = rows.project(compiled.inputs()).unwrap();
    compiled.evaluate(&inputs).map_err(|error| format!("evaluation: {error}"))
}

#[test]
fn values_of_different_kinds_are_refused_when_the_request_is_resolved() {
    let (rows, mut wrong) = (rows(), Vec::new());
    for (a, kind) in VALUES {
        for (b, other) in VALUES {
            let fits = kind == other || kind == "any" || other == "any";
            for (form, message) in COMPARISONS
                .map(|form| (form, "cannot be compared with"))
                .into_iter()
                .chain(RESULTS.map(|form| (form, "have no common type: CAST one of them")))
            {
                let text = form.replace("{a}", a).replace("{b}", b);
                match evaluated(&text, &rows) {
                    Ok(_) if fits => {}
                    Ok(_) => wrong.push(format!("{text} has a value")),
                    Err(error) if fits && error.contains("always null") => {}
                    Err(error) if !fits && error.starts_with("compilation") && error.contains(message) => {}
                    Err(error) => wrong.push(format!("{text}: {error}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn refused_values_are_named_with_their_types() {
    let rows = rows();
    for (text, message) in [
        ("d32 >= 20210105", "d32 is of type Date32 and cannot be compared with 20210105 of type Int64"),
        ("0.5 < t64", "0.5 is of type Float64 and cannot be compared with t64 of type Time64(µs)"),
        ("COALESCE(d32, 5)", "d32 is of type Date32 and 5 of type Int64, which have no common type"),
        (
            "greatest(flag, words)",
            "flag is of type Boolean and words of type Utf8, which have no common type",
        ),
        ("COALESCE(flag, 'maybe')", "'maybe' is not a value of type Boolean, which the other values have"),
        ("COALESCE(d32, 'soon')", "'soon' is not a value of type Date32"),
        ("COALESCE(t64, 'noon')", "'noon' is not a value of type Time64(ns)"),
        ("COALESCE(ts, 'noon')", "'noon' is not a value of type Timestamp(ns)"),
    ] {
        let error = evaluated(text, &rows).unwrap_err();
        assert!(error.contains(message), "{text}: {error}");
    }
}

/// The value of an expression in the first row.
fn shown(text: &str, rows: &RecordBatch) -> String {
    let values = evaluated(text, rows).unwrap_or_else(|error| panic!("{text}: {error}"));
    arrow_cast::display::array_value_to_string(&values, 0).unwrap()
}

#[test]
fn bytes_of_a_fixed_length_are_compared_with_all_bytes_and_with_text() {
    let fixed = |bytes: &[u8]| {
        let value = [Some(bytes)].into_iter();
        Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(value, bytes.len() as i32).unwrap())
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("fixed", fixed(b"aa")),
        ("long", fixed(b"aab")),
        ("bin", Arc::new(BinaryArray::from_vec(vec![b"aa"]))),
        ("large", Arc::new(LargeBinaryArray::from_vec(vec![b"aa"]))),
        ("view", Arc::new(BinaryViewArray::from_iter_values([b"aa"]))),
        ("words", Arc::new(StringArray::from(vec!["aa"]))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    for other in ["fixed", "bin", "large", "view", "words", "'aa'", "X'6161'"] {
        for text in [
            "fixed = {}",
            "{} = fixed",
            "NOT fixed < {}",
            "fixed IS NOT DISTINCT FROM {}",
            "fixed IN ({}, bin)",
            "fixed IN ({}, fixed)",
            "{} IN (fixed)",
            "fixed BETWEEN {} AND bin",
            "fixed BETWEEN bin AND {}",
            "{} BETWEEN fixed AND fixed",
            "CASE fixed WHEN {} THEN true END",
            "CASE {} WHEN fixed THEN true END",
            "NULLIF(fixed, {}) IS NULL",
            "fixed < long AND {} < long",
        ] {
            let text = text.replace("{}", other);
            assert_eq!(shown(&text, &rows), "true", "{text}");
        }
    }
}

#[test]
fn a_null_is_compared_with_each_value_by_itself() {
    let most = Decimal128Array::from(vec![10_i128.pow(38) - 1]).with_precision_and_scale(38, 0).unwrap();
    let columns: Vec<(&str, ArrayRef)> =
        vec![("d", Arc::new(most)), ("none", arrow_array::new_null_array(&arrow_schema::DataType::Null, 1))];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    for null in ["NULL", "none"] {
        for (text, expected) in [
            ("{} IN (0.5, d)", ""),
            ("{} NOT IN (0.5, d)", ""),
            ("{} BETWEEN 0.5 AND d", ""),
            ("{} = d", ""),
            ("CASE {} WHEN 0.5 THEN 1 WHEN d THEN 2 ELSE 3 END", "3"),
        ] {
            let text = text.replace("{}", null);
            assert_eq!(shown(&text, &rows), expected, "{text}");
        }
    }
}

#[test]
fn messages_show_literals_and_nullif_as_they_are_written() {
    let rows = rows();
    for (text, message) in [
        ("d32 = i64 + 0.5", "cannot be compared with i64 + 0.5 of type Float64"),
        ("COALESCE(d32, NULLIF(i64, 0.5))", "d32 is of type Date32 and NULLIF(i64, 0.5) of type Int64"),
        ("COALESCE(d32, NULLIF(f32, i64))", "d32 is of type Date32 and NULLIF(f32, i64) of type Float32"),
        ("COALESCE(d32, NULLIF(i64, NULLIF(u8, 7)))", "and NULLIF(i64, NULLIF(u8, 7)) of type Int64"),
        ("COALESCE(d32, f32 = i64)", "d32 is of type Date32 and f32 = i64 of type Boolean"),
        ("clip(i64, NULLIF(i64, f32), 3)", "clip: NULLIF(i64, f32) must be a constant"),
        ("clip(f32, f32 + 0.25, 3)", "+ 0.25 AS Float32) must be a constant"),
        ("words LIKE NULLIF(words, 'x')", "the pattern NULLIF(words, 'x') must be a constant"),
        ("i64 & 0.5", "'i64 & 0.5' has the operator"),
        ("words ~ concat('a', 0.5)", " 0.5)' has the operator"),
    ] {
        let error = evaluated(text, &rows).unwrap_err();
        assert!(error.contains(message), "{text}: {error}");
        for part in ["FieldMetadata", "forebay.", "exact =", "CASE WHEN"] {
            assert!(!error.contains(part), "{text}: {error}");
        }
    }
}
