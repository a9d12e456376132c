//! Casts have one meaning, whatever the width of the type and the spelling of the expression.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, Date32Array, Decimal128Array, Decimal256Array, DurationMillisecondArray,
    DurationSecondArray, FixedSizeListArray, Float64Array, Int8Array, Int32Array, Int64Array, ListArray,
    StringArray, StructArray, TimestampSecondArray, UInt32Array, UInt64Array,
    types::{Date32Type, Int64Type, TimestampSecondType},
};
use arrow_buffer::{OffsetBuffer, i256};
use arrow_cast::display::array_value_to_string;
use arrow_schema::{DataType, Field};
use forebay_sql::Error;

use super::try_evaluate;

fn evaluate(text: &str, columns: &[(&str, ArrayRef)]) -> Vec<String> {
    let values = try_evaluate(text, columns).unwrap_or_else(|error| panic!("{text}: {error}"));
    (0..values.len()).map(|row| array_value_to_string(&values, row).unwrap()).collect()
}

/// The error of a request or of a value.
fn failure(text: &str, columns: &[(&str, ArrayRef)]) -> String {
    match try_evaluate(text, columns) {
        Err(Error::Failed(error) | Error::Invalid(error)) => error,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn an_integer_of_any_type_is_a_number_of_seconds_as_a_timestamp() {
    let seconds = 1_700_000_000;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i", Arc::new(Int64Array::from(vec![Some(seconds), None]))),
        ("j", Arc::new(Int32Array::from(vec![Some(seconds as i32), None]))),
        ("u", Arc::new(UInt32Array::from(vec![Some(seconds as u32), None]))),
        ("w", Arc::new(UInt64Array::from(vec![Some(seconds as u64), None]))),
    ];
    let others = [
        "-(-i)",
        "CASE WHEN i > 0 THEN j ELSE i END",
        "coalesce(j, i)",
        "1700000000",
        "i + 0",
        "+i",
        "CAST(j AS BIGINT)",
    ];
    for value in ["i", "j", "u", "w"].into_iter().chain(others) {
        for cast in ["CAST", "TRY_CAST"] {
            for (to, expected) in [
                ("TIMESTAMP", "2023-11-14T22:13:20"),
                ("TIMESTAMP(0)", "2023-11-14T22:13:20"),
                ("TIMESTAMP(3)", "2023-11-14T22:13:20"),
                ("TIMESTAMP(6)", "2023-11-14T22:13:20"),
                ("TIMESTAMPTZ", "2023-11-14T22:13:20Z"),
            ] {
                let text = format!("{cast}({value} AS {to})");
                assert_eq!(evaluate(&text, &columns)[0], expected, "{text}");
            }
        }
    }
    let kept = evaluate("CAST(j AS TIMESTAMP) >= TIMESTAMP '2023-01-01 00:00:00'", &columns);
    assert_eq!(kept, ["true", ""]);
    // Beyond the years of the type.
    let far: Vec<(&str, ArrayRef)> = vec![("i", Arc::new(Int64Array::from(vec![i64::MAX, 1])))];
    assert_eq!(evaluate("TRY_CAST(i AS TIMESTAMP)", &far), ["", "1970-01-01T00:00:01"]);
    failure("CAST(i AS TIMESTAMP)", &far);
    let small: Vec<(&str, ArrayRef)> = vec![("t", Arc::new(Int8Array::from(vec![-1])))];
    assert_eq!(evaluate("CAST(t AS TIMESTAMP)", &small), ["1969-12-31T23:59:59"]);
}

#[test]
fn a_number_with_a_fraction_is_no_timestamp() {
    let decimals = Decimal128Array::from(vec![170_000_000_025]).with_precision_and_scale(12, 2).unwrap();
    let columns: Vec<(&str, ArrayRef)> =
        vec![("d", Arc::new(decimals)), ("x", Arc::new(Float64Array::from(vec![1.7e9])))];
    for value in ["d", "x", "1.7e9", "x + 1"] {
        for cast in ["CAST", "TRY_CAST"] {
            let error = failure(&format!("{cast}({value} AS TIMESTAMP)"), &columns);
            assert!(error.contains("expected an integer") && error.contains("to_timestamp(x)"), "{error}");
        }
    }
    assert_eq!(evaluate("to_timestamp(d)", &columns), ["2023-11-14T22:13:20.250"]);
}

#[test]
fn a_wide_decimal_beyond_integers_is_no_number_of_units() {
    let values = vec![i256::from_i128(1_700_000_000), i256::from_i128(10_i128.pow(25))];
    let decimals = Decimal256Array::from(values).with_precision_and_scale(60, 0).unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![("w", Arc::new(decimals.clone()))];
    let first: Vec<(&str, ArrayRef)> = vec![("w", Arc::new(decimals.slice(0, 1)))];
    for (function, expected) in [
        ("to_timestamp_seconds", "2023-11-14T22:13:20"),
        ("to_timestamp_millis", "1970-01-20T16:13:20"),
        ("to_timestamp_micros", "1970-01-01T00:28:20"),
        ("to_timestamp_nanos", "1970-01-01T00:00:01.700"),
    ] {
        let text = format!("{function}(w)");
        assert_eq!(evaluate(&text, &first), [expected], "{text}");
        failure(&text, &columns);
    }
}

#[test]
fn a_text_without_a_unit_is_no_interval() {
    let texts = StringArray::from(vec![
        Some("5"),
        Some("5 seconds"),
        Some(" -3 "),
        Some("1.5"),
        Some("1 month"),
        None,
    ]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("s", Arc::new(texts)),
        ("du", Arc::new(DurationSecondArray::from(vec![1, 6, 100, 200, 300, 400]))),
    ];
    let tried = try_evaluate("TRY_CAST(s AS INTERVAL)", &columns).unwrap();
    assert_eq!([0, 1, 2, 3, 4, 5].map(|row| tried.is_valid(row)), [false, true, false, false, true, false]);
    assert!(
        failure("CAST(s AS INTERVAL)", &columns)
            .contains("the text '5' is no interval, expected numbers with units")
    );
    for text in [
        "du > '5'",
        "coalesce(du, '5')",
        "CASE WHEN du IS NULL THEN du ELSE '5' END",
        "CAST('5' AS INTERVAL) = du",
    ] {
        let error = failure(text, &columns);
        assert!(error.contains("'5'"), "{text}: {error}");
    }
    assert_eq!(evaluate("du > '5 seconds'", &columns), ["false", "true", "true", "true", "true", "true"]);
    assert_eq!(evaluate("du > INTERVAL '5'", &columns), ["false", "true", "true", "true", "true", "true"]);
}

#[test]
fn items_of_lists_are_cast_as_values_are() {
    let far = i64::from(i32::MAX) * 86_400;
    let texts = {
        let mut builder = arrow_array::builder::ListBuilder::new(arrow_array::builder::StringBuilder::new());
        builder.append_value([Some("12"), Some("12:30"), None, Some("23:59:60")]);
        builder.finish()
    };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("texts", Arc::new(texts)),
        (
            "numbers",
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some([
                Some(5),
                Some(86_400_000_000_000),
            ])])),
        ),
        (
            "dates",
            Arc::new(ListArray::from_iter_primitive::<Date32Type, _, _>([Some([
                Some(19_782),
                Some(i32::MAX),
            ])])),
        ),
        (
            "times",
            Arc::new(ListArray::from_iter_primitive::<TimestampSecondType, _, _>([Some([
                Some(86_400),
                Some(far),
            ])])),
        ),
    ];
    assert_eq!(evaluate("TRY_CAST(texts AS TIME[])", &columns), ["[, 12:30:00, , ]"]);
    assert_eq!(evaluate("TRY_CAST(numbers AS TIME[])", &columns), ["[00:00:00.000000005, ]"]);
    assert_eq!(evaluate("TRY_CAST(times AS DATE[])", &columns), ["[1970-01-02, ]"]);
    assert_eq!(evaluate("TRY_CAST(dates AS VARCHAR[])", &columns), ["[2024-02-29, ]"]);
    assert_eq!(evaluate("TRY_CAST(times AS VARCHAR[])", &columns), ["[1970-01-02T00:00:00, ]"]);
    assert!(failure("CAST(texts AS TIME[])", &columns).contains("the text '12' is no time of day"));
    assert!(
        failure("CAST(numbers AS TIME[])", &columns).contains("the integer 86400000000000 is no time of day")
    );
    assert!(failure("CAST(times AS DATE[])", &columns).contains("is beyond the years"));
    assert!(failure("CAST(dates AS VARCHAR[])", &columns).contains("is beyond the years"));
    // The text of a list, also where an operator or a function needs it.
    assert_eq!(evaluate("TRY_CAST(dates AS VARCHAR)", &columns), ["[2024-02-29, ]"]);
    for text in ["CAST(dates AS VARCHAR)", "dates || ''", "concat(dates)"] {
        let error = failure(text, &columns);
        assert!(error.contains("is beyond the years"), "{text}: {error}");
    }
    let seconds: Vec<(&str, ArrayRef)> = vec![(
        "numbers",
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(86_400), None])])),
    )];
    for to in ["TIMESTAMP[]", "TIMESTAMP(3)[]"] {
        let text = format!("TRY_CAST(numbers AS {to})");
        assert_eq!(evaluate(&text, &seconds), ["[1970-01-02T00:00:00, ]"], "{text}");
    }
}

/// A list or struct of required parts.
fn required(part: &ArrayRef) -> Vec<ArrayRef> {
    let field = |name: &str, part: &ArrayRef| Arc::new(Field::new(name, part.data_type().clone(), false));
    let list = |part: &ArrayRef| {
        let offsets = OffsetBuffer::from_lengths([part.len()]);
        Arc::new(ListArray::new(field("item", part), offsets, Arc::clone(part), None)) as ArrayRef
    };
    let fixed = |part: &ArrayRef| {
        let size = i32::try_from(part.len()).unwrap();
        Arc::new(FixedSizeListArray::new(field("item", part), size, Arc::clone(part), None)) as ArrayRef
    };
    let structs =
        |part: &ArrayRef| Arc::new(StructArray::from(vec![(field("a", part), Arc::clone(part))])) as ArrayRef;
    vec![
        list(&list(part)),
        list(&structs(part)),
        structs(&list(part)),
        fixed(&fixed(part)),
        structs(&structs(part)),
    ]
}

#[test]
fn parts_that_a_file_requires_are_cast_as_others_are() {
    let days: ArrayRef = Arc::new(Date32Array::from(vec![19_782, 1]));
    for (number, nested) in required(&days).into_iter().enumerate() {
        let columns = [("x", nested)];
        let to = [
            "VARCHAR[][]",
            "STRUCT<a VARCHAR>[]",
            "STRUCT<a VARCHAR[]>",
            "VARCHAR[][]",
            "STRUCT<a STRUCT<a VARCHAR>>",
        ][number];
        for cast in ["CAST", "TRY_CAST"] {
            let found = evaluate(&format!("{cast}(x AS {to})"), &columns).concat();
            assert!(found.contains("2024-02-29") && found.contains("1970-01-02"), "{to}: {found}");
            // Structs and lists of a fixed size have no text.
            if number > 0 {
                continue;
            }
            let text = evaluate(&format!("{cast}(x AS VARCHAR)"), &columns).concat();
            assert!(text.contains("2024-02-29") && text.contains("1970-01-02"), "{to}: {text}");
        }
    }
}

#[test]
fn structs_are_cast_field_by_field_or_not_at_all() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["hello"]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![5]));
    let field = |name: &str, data_type: DataType| Arc::new(Field::new(name, data_type, true));
    let st =
        StructArray::from(vec![(field("a", DataType::Utf8), texts), (field("b", DataType::Int64), numbers)]);
    let columns: Vec<(&str, ArrayRef)> =
        vec![("st", Arc::new(st)), ("i", Arc::new(Int64Array::from(vec![5])))];
    for text in [
        "TRY_CAST(st AS STRUCT<b TIME, a VARCHAR>)",
        "CAST(st AS STRUCT<a VARCHAR, b TIMESTAMP>)",
        "TRY_CAST(i AS TIMESTAMP[])",
        "CAST(i AS TIME[])",
        "TRY_CAST('5' AS TIME[])",
    ] {
        let error = failure(text, &columns);
        assert!(error.contains("is not supported"), "{text}: {error}");
    }
    let found = evaluate("CAST(st AS STRUCT<b VARCHAR, a VARCHAR>)", &columns).concat();
    assert!(found.contains("hello") && found.contains('5'), "{found}");
    let found = evaluate("TRY_CAST(st AS STRUCT<a TIME, b BIGINT>)", &columns).concat();
    assert!(!found.contains("hello") && found.contains('5'), "{found}");
}

#[test]
fn a_duration_that_is_too_long_has_no_text() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("s", Arc::new(DurationSecondArray::from(vec![Some(5), Some(i64::MAX), Some(i64::MIN), None]))),
        ("ms", Arc::new(DurationMillisecondArray::from(vec![Some(5), Some(i64::MIN), Some(i64::MAX), None]))),
    ];
    let seconds = evaluate("TRY_CAST(s AS VARCHAR)", &columns);
    assert_eq!(seconds[0], "0 days 0 hours 0 mins 5 secs");
    assert_eq!(
        evaluate("CAST(s AS VARCHAR)", &[("s", Arc::new(DurationSecondArray::from(vec![5])) as ArrayRef)]),
        [seconds[0].as_str()]
    );
    assert!(seconds[1..].iter().all(String::is_empty), "{seconds:?}");
    let millis = evaluate("TRY_CAST(ms AS VARCHAR)", &columns);
    assert_eq!([0, 1, 2, 3].map(|row| millis[row].is_empty()), [false, true, false, true], "{millis:?}");
    assert!(failure("CAST(s AS VARCHAR)", &columns).contains("is too long for a text"));
}

#[test]
fn lcm_of_decimals_that_does_not_fit_its_type_is_an_error() {
    let decimal = |value: i128, precision, scale| -> ArrayRef {
        Arc::new(Decimal128Array::from(vec![value]).with_precision_and_scale(precision, scale).unwrap())
    };
    let columns = [
        ("a", decimal(9_999, 4, 2)),
        ("b", decimal(9_998, 4, 2)),
        ("c", decimal(300, 4, 2)),
        ("d", decimal(200, 4, 2)),
    ];
    assert!(failure("lcm(a, b)", &columns).contains("has more digits than its type"));
    assert_eq!(evaluate("lcm(c, d)", &columns), ["6.00"]);
    assert_eq!(try_evaluate("lcm(c, d)", &columns).unwrap().data_type(), &DataType::Decimal128(4, 2));
}

#[test]
fn casts_of_dates_and_timestamps_to_each_other_stay() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("day", Arc::new(Date32Array::from(vec![19_782]))),
        ("t", Arc::new(TimestampSecondArray::from(vec![86_400]))),
    ];
    assert_eq!(evaluate("CAST(day AS TIMESTAMP)", &columns), ["2024-02-29T00:00:00"]);
    assert_eq!(evaluate("CAST(t AS TIMESTAMP(3))", &columns), ["1970-01-02T00:00:00"]);
    assert_eq!(evaluate("CAST(CAST(t AS BIGINT) AS TIMESTAMP(0)) = t", &columns), ["true"]);
}
