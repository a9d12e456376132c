//! Types and values of expressions whose result is one of several values.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal32Array, Decimal64Array, Decimal128Array,
    DurationMillisecondArray, DurationSecondArray, Float16Array, Float32Array, Int8Array, Int32Array,
    Int64Array, RecordBatch, StringArray, Time32SecondArray, Time64MicrosecondArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, UInt64Array,
};
use arrow_cast::display::array_value_to_string;
use arrow_schema::{
    DataType::{
        self, Binary, Boolean, Date32, Decimal32, Decimal64, Decimal128, Decimal256, Duration, Float16,
        Float32, Float64, Int8, Int32, Int64, Time32, Time64, Timestamp, UInt64, Utf8,
    },
    TimeUnit::{Microsecond, Millisecond, Nanosecond, Second},
};
use forebay_sql::Expression;
use half::f16;

const FAR: i64 = -62_135_596_800;

/// Rows of which the first has values at the ends of types, and the last has nulls.
fn rows() -> RecordBatch {
    let decimals = |values: [i128; 2], precision, scale| {
        let [first, second] = values.map(Some);
        let column = Decimal128Array::from(vec![first, second, None]);
        Arc::new(column.with_precision_and_scale(precision, scale).unwrap()) as ArrayRef
    };
    let zoned = TimestampMicrosecondArray::from(vec![Some(FAR * 1_000_000), Some(0), None]);
    let narrow = Decimal32Array::from(vec![Some(240), Some(-1), None]);
    let middle = Decimal64Array::from(vec![Some(240), Some(-1), None]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i64", Arc::new(Int64Array::from(vec![Some((1 << 53) + 1), Some(5), None]))),
        ("u64", Arc::new(UInt64Array::from(vec![Some(u64::MAX), Some(5), None]))),
        ("i32", Arc::new(Int32Array::from(vec![Some(16_777_217), Some(5), None]))),
        ("i8", Arc::new(Int8Array::from(vec![Some(-128), Some(5), None]))),
        ("f32", Arc::new(Float32Array::from(vec![Some(0.1), Some(5.0), None]))),
        ("f16", Arc::new(Float16Array::from(vec![Some(f16::from_f32(0.5)), Some(f16::from_f32(5.0)), None]))),
        ("d92", decimals([123_456_789, 500], 9, 2)),
        ("d382", decimals([12_345_678_901_234_567_890_123_456_789_012_345_678, 500], 38, 2)),
        ("d3838", decimals([11_111_111_111_111_111_111_111_111_111_111_111_111, 0], 38, 38)),
        ("narrow", Arc::new(narrow.with_precision_and_scale(9, 2).unwrap())),
        ("middle", Arc::new(middle.with_precision_and_scale(18, 4).unwrap())),
        ("s", Arc::new(StringArray::from(vec![Some("5"), Some("x"), None]))),
        ("b", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None]))),
        ("bin", Arc::new(BinaryArray::from_opt_vec(vec![Some(&b"5"[..]), Some(&b"x"[..]), None]))),
        ("day", Arc::new(Date32Array::from(vec![Some(-719_162), Some(19_723), None]))),
        ("ms", Arc::new(TimestampMillisecondArray::from(vec![Some(FAR * 1000), Some(0), None]))),
        ("us", Arc::new(TimestampMicrosecondArray::from(vec![Some(FAR * 1_000_000), Some(1), None]))),
        ("paris", Arc::new(zoned.with_timezone("Europe/Paris"))),
        ("t32", Arc::new(Time32SecondArray::from(vec![Some(3600), Some(7200), None]))),
        ("t64", Arc::new(Time64MicrosecondArray::from(vec![Some(3_600_000_000), Some(1), None]))),
        ("long", Arc::new(DurationSecondArray::from(vec![Some(-FAR), Some(1), None]))),
        ("brief", Arc::new(DurationMillisecondArray::from(vec![Some(1), Some(1_500), None]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .unwrap()
}

/// Checks the type and the values of the rows of expressions. A null is an empty text.
fn check<const N: usize>(cases: [(&str, DataType, [&str; 3]); N]) {
    let (rows, mut wrong) = (rows(), Vec::new());
    for (text, data_type, expected) in cases {
        let found = Expression::column(&format!("{text} AS y"), &rows.schema())
            .and_then(|compiled| compiled.evaluate(&rows.project(compiled.inputs()).unwrap()));
        match found {
            Ok(values) => {
                let shown = [0, 1, 2].map(|row| array_value_to_string(&values, row).unwrap());
                if *values.data_type() != data_type || shown != expected {
                    let found = values.data_type();
                    wrong.push(format!("{text}: {found} {shown:?}, expected {data_type} {expected:?}"));
                }
            }
            Err(error) => wrong.push(format!("{text}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nullif_has_the_type_of_its_first_argument() {
    check([
        ("NULLIF(i64, 5.0)", Int64, ["9007199254740993", "", ""]),
        ("NULLIF(i64, 0.5)", Int64, ["9007199254740993", "5", ""]),
        ("NULLIF(i64, f32)", Int64, ["9007199254740993", "", ""]),
        ("NULLIF(i64, u64)", Int64, ["9007199254740993", "", ""]),
        ("NULLIF(i32, f32)", Int32, ["16777217", "", ""]),
        ("NULLIF(i32, 2147483648)", Int32, ["16777217", "5", ""]),
        ("NULLIF(i8, 1000)", Int8, ["-128", "5", ""]),
        ("NULLIF(u64, -1)", UInt64, ["18446744073709551615", "5", ""]),
        ("NULLIF(u64, i64)", UInt64, ["18446744073709551615", "", ""]),
        ("NULLIF(f32, 0.1)", Float32, ["", "5.0", ""]),
        ("NULLIF(f32, i64)", Float32, ["0.1", "", ""]),
        ("NULLIF(d92, 0.001)", Decimal128(9, 2), ["1234567.89", "5.00", ""]),
        ("NULLIF(d92, f32)", Decimal128(9, 2), ["1234567.89", "", ""]),
        ("NULLIF(d92, d3838)", Decimal128(9, 2), ["1234567.89", "5.00", ""]),
        ("NULLIF(s, 'x')", Utf8, ["5", "", ""]),
        ("NULLIF(s, NULL)", Utf8, ["5", "x", ""]),
        ("NULLIF(NULL, i32)", Int32, ["", "", ""]),
        ("NULLIF(b, FALSE)", Boolean, ["true", "", ""]),
        ("NULLIF(bin, 'x')", Binary, ["35", "", ""]),
        ("NULLIF(day, TIMESTAMP '2024-01-01 00:00:00')", Date32, ["0001-01-01", "", ""]),
        ("NULLIF(t64, TIME '01:00:00')", Time64(Microsecond), ["", "00:00:00.000001", ""]),
    ]);
}

#[test]
fn nvl2_has_the_common_type_of_its_results_and_takes_any_condition() {
    check([
        ("nvl2(day, 1, 0)", Int64, ["1", "1", "0"]),
        ("nvl2(f32, i64, 0)", Int64, ["9007199254740993", "5", "0"]),
        ("nvl2(b, i64, 0.5)", Float64, ["9007199254740992.0", "5.0", "0.5"]),
        ("nvl2(b, d92, 0.5)", Decimal128(9, 2), ["1234567.89", "5.00", "0.50"]),
        ("nvl2(ms, 'a', 'b')", Utf8, ["a", "a", "b"]),
        ("nvl2(s, i8, i32)", Int32, ["-128", "5", ""]),
        ("nvl2(i64, day, DATE '2024-01-01')", Date32, ["0001-01-01", "2024-01-01", "2024-01-01"]),
        ("nvl2(b, t64, TIME '01:00:00')", Time64(Microsecond), ["01:00:00", "00:00:00.000001", "01:00:00"]),
        ("nvl2(NULL, 1, 2)", Int64, ["2", "2", "2"]),
    ]);
}

#[test]
fn nvl_takes_all_types_that_coalesce_takes() {
    for name in ["nvl", "ifnull", "coalesce"] {
        check([
            (&format!("{name}(i8, 5)"), Int64, ["-128", "5", "5"]),
            (&format!("{name}(d92, 0)"), Decimal128(9, 2), ["1234567.89", "5.00", "0.00"]),
            (&format!("{name}(day, DATE '2024-02-29')"), Date32, ["0001-01-01", "2024-01-01", "2024-02-29"]),
            (
                &format!("{name}(ms, us)"),
                Timestamp(Microsecond, None),
                ["0001-01-01T00:00:00", "1970-01-01T00:00:00", ""],
            ),
            (&format!("{name}(b, TRUE)"), Boolean, ["true", "false", "true"]),
            (&format!("{name}(s, 'none')"), Utf8, ["5", "x", "none"]),
        ]);
    }
    check([("nvl(s, 1)", Utf8, ["5", "x", "1"])]);
    for text in ["COALESCE(i8, 300, 'x')", "COALESCE('x', i8, i64)", "greatest(i8, i32, 'x')"] {
        let refused = Expression::column(&format!("{text} AS y"), &rows().schema()).unwrap_err().to_string();
        assert!(refused.contains("'x' is not a value of type Int"), "{text}: {refused}");
    }
    for name in ["nvl", "ifnull", "coalesce", "greatest"] {
        let refused = Expression::column(&format!("{name}(i64, '5.5') AS y"), &rows().schema())
            .unwrap_err()
            .to_string();
        assert!(refused.contains("'5.5' is not a value of type Int64"), "{refused}");
    }
    check([
        ("nvl(i8, '7')", Int8, ["-128", "5", "7"]),
        ("COALESCE(d92, '0.5')", Decimal128(9, 2), ["1234567.89", "5.00", "0.50"]),
    ]);
}

/// `CASE` has the type of all of its results for what is around it, whatever the order of its branches.
#[test]
fn a_case_is_compared_and_combined_by_its_common_type() {
    let never = "i8 = 1";
    check([
        (&format!("CASE WHEN {never} THEN 1 ELSE 0.5 END > 0.7"), Boolean, ["false", "false", "false"]),
        (&format!("CASE WHEN {never} THEN 0 ELSE f32 END > 0.5"), Boolean, ["false", "true", ""]),
        (&format!("CASE WHEN {never} THEN i8 ELSE i32 END = 16777217"), Boolean, ["true", "false", ""]),
        (&format!("CASE WHEN {never} THEN i8 ELSE i32 END IN (1, 16777217)"), Boolean, ["true", "false", ""]),
        (
            &format!("CASE WHEN {never} THEN i8 ELSE i32 END BETWEEN 6 AND 16777217"),
            Boolean,
            ["true", "false", ""],
        ),
        (
            &format!("CASE CASE WHEN {never} THEN i8 ELSE i32 END WHEN 16777217 THEN 1 END"),
            Int64,
            ["1", "", ""],
        ),
        (&format!("NULLIF(CASE WHEN {never} THEN i8 ELSE i32 END, 16777217)"), Int32, ["", "5", ""]),
        (&format!("- CASE WHEN {never} THEN i8 ELSE f32 END"), Float32, ["-0.1", "-5.0", ""]),
        (&format!("CASE WHEN {never} THEN NULL ELSE i32 END = 5"), Boolean, ["false", "true", ""]),
        ("nvl2(NULL, 0, f32) > 0.5", Boolean, ["false", "true", ""]),
        (
            &format!("COALESCE(d92, CASE WHEN {never} THEN i8 ELSE f32 END)"),
            Float64,
            ["1234567.89", "5.0", ""],
        ),
        (
            &format!("COALESCE(d92, CASE WHEN {never} THEN 0 ELSE 0.125 END)"),
            Float64,
            ["1234567.89", "5.0", "0.125"],
        ),
    ]);
}

#[test]
fn integers_with_and_without_a_sign_and_floats_are_floats() {
    let large = "1.8446744073709552e19";
    check([
        ("COALESCE(u64, i64, 1e-20)", Float64, [large, "5.0", "1e-20"]),
        ("COALESCE(i64, 1e-20, u64)", Float64, ["9007199254740992.0", "5.0", "1e-20"]),
        ("greatest(u64, 0, f32)", Float32, ["1.8446744e19", "5.0", "0.0"]),
        ("CASE WHEN b THEN u64 WHEN i8 = 5 THEN i64 ELSE 1e-20 END", Float64, [large, "5.0", "1e-20"]),
        ("COALESCE(u64, i64, 1e-20) = 1e-20", Boolean, ["false", "false", "true"]),
        ("COALESCE(u64, i64)", Decimal128(20, 0), ["18446744073709551615", "5", ""]),
    ]);
}

#[test]
fn floats_of_16_bits_and_integers_are_floats_of_32_bits_unless_the_integers_are_short_literals() {
    check([
        ("COALESCE(f16, i32)", Float32, ["0.5", "5.0", ""]),
        ("COALESCE(f16, 70000)", Float32, ["0.5", "5.0", "70000.0"]),
        ("nvl2(b, f16, i64)", Float32, ["0.5", "5.0", ""]),
        ("greatest(i32, f16)", Float32, ["16777216.0", "5.0", ""]),
        ("COALESCE(f16, 0)", Float16, ["0.5", "5", "0"]),
        ("CASE WHEN b THEN f16 ELSE 100 END", Float16, ["0.5", "100", "100"]),
    ]);
}

#[test]
fn times_of_day_and_constants_have_a_common_type() {
    let micros = Time64(Microsecond);
    check([
        ("COALESCE(t64, TIME '02:00:00')", micros.clone(), ["01:00:00", "00:00:00.000001", "02:00:00"]),
        ("COALESCE(t64, '02:00')", micros.clone(), ["01:00:00", "00:00:00.000001", "02:00:00"]),
        (
            "CASE WHEN b THEN t64 ELSE TIME '01:30:00' END",
            micros.clone(),
            ["01:00:00", "01:30:00", "01:30:00"],
        ),
        ("greatest(t64, TIME '00:30:00')", micros.clone(), ["01:00:00", "00:30:00", "00:30:00"]),
        ("least(t32, t64)", micros, ["01:00:00", "00:00:00.000001", ""]),
        ("COALESCE(t32, TIME '02:00:00')", Time32(Second), ["01:00:00", "02:00:00", "02:00:00"]),
        ("COALESCE(t32, TIME '02:00:00.5')", Time32(Millisecond), ["01:00:00", "02:00:00", "02:00:00.500"]),
        (
            "COALESCE(t64, TIME '02:00:00.000000001')",
            Time64(Nanosecond),
            ["01:00:00", "00:00:00.000001", "02:00:00.000000001"],
        ),
    ]);
}

#[test]
fn durations_of_different_units_have_the_finer_unit() {
    let milliseconds = Duration(Millisecond);
    let far = "PT62135596800S";
    check([
        ("COALESCE(long, brief)", milliseconds.clone(), [far, "PT1S", ""]),
        ("greatest(long, brief)", milliseconds.clone(), [far, "PT1.5S", ""]),
        ("least(long, NULL, brief)", milliseconds.clone(), ["PT0.001S", "PT1S", ""]),
        ("CASE WHEN b THEN long ELSE brief END", milliseconds.clone(), [far, "PT1.5S", ""]),
        ("nvl2(s, brief, long)", milliseconds.clone(), ["PT0.001S", "PT1.5S", ""]),
        ("COALESCE(NULL, long)", Duration(Second), [far, "PT1S", ""]),
        ("COALESCE(long, brief) > INTERVAL '1 day'", Boolean, ["true", "false", ""]),
    ]);
}

#[test]
fn dates_timestamps_and_constants_have_a_common_type_with_the_unit_of_the_column() {
    let stamp = |unit| Timestamp(unit, None);
    let paris = Timestamp(Microsecond, Some("Europe/Paris".into()));
    let leap = "2024-02-29T00:00:00";
    check([
        ("COALESCE(day, '2024-02-29')", Date32, ["0001-01-01", "2024-01-01", "2024-02-29"]),
        (
            "COALESCE(ms, TIMESTAMP '2024-02-29 00:00:00')",
            stamp(Millisecond),
            ["0001-01-01T00:00:00", "1970-01-01T00:00:00", leap],
        ),
        (
            "COALESCE(ms, '2024-02-29')",
            stamp(Millisecond),
            ["0001-01-01T00:00:00", "1970-01-01T00:00:00", leap],
        ),
        (
            "COALESCE(ms, '9999-12-31')",
            stamp(Millisecond),
            ["0001-01-01T00:00:00", "1970-01-01T00:00:00", "9999-12-31T00:00:00"],
        ),
        ("greatest(ms, DATE '2024-02-29')", stamp(Millisecond), [leap, leap, leap]),
        (
            "CASE WHEN b THEN ms ELSE TIMESTAMP '2024-02-29 00:00:00.000001' END",
            stamp(Microsecond),
            ["0001-01-01T00:00:00", "2024-02-29T00:00:00.000001", "2024-02-29T00:00:00.000001"],
        ),
        ("COALESCE(us, day)", stamp(Microsecond), ["0001-01-01T00:00:00", "1970-01-01T00:00:00.000001", ""]),
        (
            "COALESCE(day, TIMESTAMP '2024-02-29 00:00:00')",
            stamp(Microsecond),
            ["0001-01-01T00:00:00", "2024-01-01T00:00:00", leap],
        ),
        (
            "COALESCE(paris, TIMESTAMP '2024-02-29 01:00:00')",
            paris.clone(),
            ["0001-01-01T00:09:21+00:09", "1970-01-01T01:00:00+01:00", "2024-02-29T01:00:00+01:00"],
        ),
        (
            "COALESCE(paris, TIMESTAMPTZ '2024-02-29 00:00:00Z')",
            paris.clone(),
            ["0001-01-01T00:09:21+00:09", "1970-01-01T01:00:00+01:00", "2024-02-29T01:00:00+01:00"],
        ),
        (
            "CASE WHEN b IS NULL THEN paris ELSE day END",
            paris,
            ["0001-01-01T00:09:21+00:09", "2024-01-01T01:00:00+01:00", ""],
        ),
    ]);
    let nanos = TimestampMillisecondArray::from(vec![0]);
    let nanos = arrow_cast::cast(&nanos, &stamp(Nanosecond)).unwrap();
    let schema = RecordBatch::try_from_iter([("ns", nanos)]).unwrap().schema();
    let error =
        Expression::column("COALESCE(ns, TIMESTAMP '3000-01-01 00:00:00') AS y", &schema).unwrap_err();
    assert!(error.to_string().contains("is beyond the range of Timestamp(ns)"), "{error}");
}

#[test]
fn constant_texts_are_read_as_booleans_and_bytes() {
    check([
        ("COALESCE(b, 'true')", Boolean, ["true", "false", "true"]),
        ("CASE WHEN b THEN b ELSE 'no' END", Boolean, ["true", "false", "false"]),
        ("COALESCE(bin, 'ab')", Binary, ["35", "78", "6162"]),
        ("COALESCE(NULL, bin, X'6162')", Binary, ["35", "78", "6162"]),
    ]);
}

#[test]
fn literals_count_with_their_own_digits_in_the_common_type_of_decimals() {
    let whole = "123456789012345678901234567890123456";
    let ones = "1".repeat(38);
    check([
        ("COALESCE(d92, 0)", Decimal128(9, 2), ["1234567.89", "5.00", "0.00"]),
        ("COALESCE(d92, 0.50)", Decimal128(9, 2), ["1234567.89", "5.00", "0.50"]),
        ("COALESCE(d92, 0.125)", Decimal128(10, 3), ["1234567.890", "5.000", "0.125"]),
        ("COALESCE(d92, -12345678)", Decimal128(10, 2), ["1234567.89", "5.00", "-12345678.00"]),
        ("COALESCE(d92, 1e3)", Decimal128(9, 2), ["1234567.89", "5.00", "1000.00"]),
        ("greatest(narrow, 1)", Decimal32(9, 2), ["2.40", "1.00", "1.00"]),
        ("COALESCE(narrow, 0.125)", Decimal64(10, 3), ["2.400", "-0.010", "0.125"]),
        ("COALESCE(narrow, middle)", Decimal64(18, 4), ["2.4000", "-0.0100", ""]),
        ("COALESCE(narrow, i8)", Decimal128(9, 2), ["2.40", "-0.01", ""]),
        ("COALESCE(i64, d92)", Decimal128(22, 2), ["9007199254740993.00", "5.00", ""]),
        ("COALESCE(d382, 0)", Decimal128(38, 2), [&format!("{whole}.78"), "5.00", "0.00"]),
        ("COALESCE(d382, 0.125)", Decimal256(39, 3), [&format!("{whole}.780"), "5.000", "0.125"]),
        (
            "CASE WHEN b THEN d92 ELSE d3838 END",
            Decimal256(45, 38),
            [&format!("1234567.89{}", "0".repeat(36)), &format!("0.{}", "0".repeat(38)), ""],
        ),
        (
            "least(d3838, 1)",
            Decimal256(39, 38),
            [&format!("0.{ones}"), &format!("0.{}", "0".repeat(38)), &format!("1.{}", "0".repeat(38))],
        ),
    ]);
    for text in ["COALESCE(d382, 1e-41)", "COALESCE(d92, 1e300)", "CASE WHEN b THEN d92 ELSE 1e-300 END"] {
        let error = Expression::column(&format!("{text} AS y"), &rows().schema()).unwrap_err().to_string();
        assert!(error.contains("digits, expected at most 76: CAST one of them"), "{text}: {error}");
    }
}
