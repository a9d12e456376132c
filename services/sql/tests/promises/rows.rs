//! The value of a row depends on the row alone, not on the other rows of its batch.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int64Array,
    LargeListArray, ListArray, MapArray, RecordBatch, StringArray, StructArray, cast::AsArray,
    types::Float64Type,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Schema};
use forebay_sql::{Error, Expression};
use proptest::prelude::*;

/// NaNs of both signs and of several payloads.
const NANS: [u64; 4] =
    [0x7ff8_0000_0000_0000, 0xfff8_0000_0000_0000, 0x7ff8_0000_0000_0001, 0xfff0_0000_0000_beef];

/// One row: two integers, a float by its bits, a condition, a short text.
type Row = (Option<i64>, Option<i64>, Option<u64>, Option<bool>, Option<u8>);

fn row() -> impl Strategy<Value = Row> {
    let float = prop_oneof![
        prop::sample::select(NANS.to_vec()),
        prop::sample::select(vec![0.0_f64.to_bits(), (-0.0_f64).to_bits(), 1.5_f64.to_bits()]),
    ];
    (
        prop::option::weighted(0.8, -2..3_i64),
        prop::option::weighted(0.8, prop_oneof![Just(0), Just(i64::MAX), -3..4_i64]),
        prop::option::weighted(0.8, float),
        prop::option::weighted(0.8, any::<bool>()),
        prop::option::weighted(0.8, 0..4_u8),
    )
}

fn batch(rows: &[Row]) -> RecordBatch {
    let texts = ["", "7", "x", "2024-02-30"];
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("a", Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>()), true),
        ("b", Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>()), true),
        ("f", Arc::new(rows.iter().map(|row| row.2.map(f64::from_bits)).collect::<Float64Array>()), true),
        ("c", Arc::new(rows.iter().map(|row| row.3).collect::<BooleanArray>()), true),
        (
            "s",
            Arc::new(rows.iter().map(|row| row.4.map(|text| texts[text as usize])).collect::<StringArray>()),
            true,
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn evaluate(text: &str, rows: &[Row]) -> Result<ArrayRef, Error> {
    let batch = batch(rows);
    let expression = Expression::column(&format!("{text} AS y"), &batch.schema())
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    expression.evaluate(&batch.project(expression.inputs()).unwrap())
}

/// The bytes of a row that a trainer would see, with the bits of NaNs.
fn shown(array: &ArrayRef, row: usize) -> String {
    match array.as_primitive_opt::<Float64Type>() {
        Some(values) if values.is_valid(row) => format!("{:016x}", values.value(row).to_bits()),
        _ => forebay_sql::ScalarValue::try_from_array(array, row).unwrap().to_string(),
    }
}

fn expression() -> impl Strategy<Value = String> {
    let condition = prop_oneof![
        Just("a > 0".to_owned()),
        Just("c".to_owned()),
        Just("b <> 0".to_owned()),
        Just("f = CAST('NaN' AS DOUBLE)".to_owned()),
        Just("f > 1e300".to_owned()),
        Just("a / b > 0".to_owned()),
        Just("b + b > 0".to_owned()),
        Just("CAST(s AS BIGINT) > 0".to_owned()),
        Just("a BETWEEN 0 AND a / b".to_owned()),
        Just("a IN (0, a / b, 1)".to_owned()),
        Just("a NOT IN (0, a / b)".to_owned()),
        Just("a IN (0, 1)".to_owned()),
        Just("s LIKE 'x%'".to_owned()),
    ];
    let condition = condition.prop_recursive(3, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} AND {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} OR {b})")),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("(CASE WHEN {a} THEN {b} ELSE {c} END)")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("COALESCE({a}, {b})")),
            inner.prop_map(|a| format!("(NOT {a})")),
        ]
    });
    prop_oneof![
        condition.clone(),
        condition.clone().prop_map(|a| format!("CASE WHEN {a} THEN a / b WHEN c THEN b * 2 ELSE 0 END")),
        condition.clone().prop_map(|a| format!("CASE WHEN {a} THEN f ELSE f / 0e0 END")),
        condition.prop_map(|a| format!("NULLIF(COALESCE(CASE WHEN {a} THEN a / b END, b), 1)")),
        Just("-f".to_owned()),
        Just("f * 0e0".to_owned()),
        Just("NULLIF(a, a / b)".to_owned()),
        Just("nvl(a, b / a)".to_owned()),
        Just("nvl2(a, b / a, b)".to_owned()),
        Just("CASE a WHEN 0 THEN b WHEN a / b THEN 1 ELSE b / a END".to_owned()),
    ]
}

proptest! {
    #![proptest_config(crate::cases(1000))]

    #[test]
    fn a_row_has_one_value_or_error_whatever_the_other_rows(
        text in expression(),
        rows in prop::collection::vec(row(), 1..12),
    ) {
        let alone: Vec<Result<String, Error>> = rows
            .iter()
            .map(|row| evaluate(&text, std::slice::from_ref(row)).map(|array| shown(&array, 0)))
            .collect();
        match evaluate(&text, &rows) {
            Ok(together) => {
                let together: Vec<_> = (0..rows.len()).map(|row| Ok(shown(&together, row))).collect();
                prop_assert_eq!(together, alone, "{}", text);
            }
            Err(_) => prop_assert!(alone.iter().any(Result::is_err), "{}: only together it fails", text),
        }
    }
}

/// `pass` of 100 rows have a divisor, for shares at which engines choose different ways to evaluate the right side.
fn divisors(pass: usize) -> Vec<Row> {
    (0..100).map(|row| (Some(12), Some(i64::from(row < pass) * 3), None, None, None)).collect()
}

#[test]
fn the_left_side_of_and_and_or_guards_the_right_side_at_any_share_of_rows() {
    for pass in [0, 1, 10, 19, 21, 50, 66, 99, 100] {
        for (text, where_guarded) in [
            ("b > 0 AND a / b > 3", false),
            ("b = 0 OR a / b > 3", true),
            ("CASE WHEN b > 0 THEN a / b > 3 ELSE false END", false),
            ("a > 0 AND (b > 0 AND a / b > 3)", false),
            ("b > 0 AND a BETWEEN a / b AND 100", false),
            ("NOT (b = 0 OR NOT (a / b > 3))", false),
            ("a IN (12, a / b)", true),
            ("NOT (a NOT IN (12, a / b))", true),
            ("b NOT IN (0, a / b)", false),
        ] {
            let found = evaluate(text, &divisors(pass)).unwrap_or_else(|error| panic!("{text}: {error}"));
            let expected: BooleanArray =
                (0..100).map(|row| Some(if row < pass { true } else { where_guarded })).collect();
            assert_eq!(found.as_boolean(), &expected, "{text}, {pass} of 100 pass");
        }
    }
    assert!(evaluate("a / b > 3 AND b > 0", &divisors(50)).is_err());
}

#[test]
fn every_nan_is_the_same_value_for_every_float_type_and_depth() {
    let bits = |bits: [u32; 4]| Float32Array::from_iter_values(bits.map(f32::from_bits));
    let nans = bits([0x7fc0_0000, 0xffc0_0000, 0x7fc0_0001, 0xff80_beef]);
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let list =
        ListArray::new(Arc::clone(&item), OffsetBuffer::from_lengths([1; 4]), Arc::new(nans.clone()), None);
    let large = LargeListArray::new(
        Arc::clone(&item),
        OffsetBuffer::from_lengths([1; 4]),
        Arc::new(nans.clone()),
        None,
    );
    let fixed = FixedSizeListArray::new(item, 1, Arc::new(nans.clone()), None);
    let entry = Arc::new(Field::new("x", DataType::Float32, true));
    let place = StructArray::new(vec![entry].into(), vec![Arc::new(nans.clone()) as ArrayRef], None);
    let entries = StructArray::from(vec![
        (
            Arc::new(Field::new("keys", DataType::Int64, false)),
            Arc::new(Int64Array::from_iter_values(0..4)) as ArrayRef,
        ),
        (Arc::new(Field::new("values", DataType::Float32, true)), Arc::new(nans.clone()) as ArrayRef),
    ]);
    let of_entries = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let map = MapArray::new(of_entries, OffsetBuffer::from_lengths([1; 4]), entries, None, false);
    let half: arrow_array::Float16Array =
        [0x7e00, 0xfe00, 0x7e01, 0xfc01].into_iter().map(|bits| Some(half::f16::from_bits(bits))).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("half", Arc::new(half)),
        ("single", Arc::new(nans)),
        ("list", Arc::new(list)),
        ("large", Arc::new(large)),
        ("fixed", Arc::new(fixed)),
        ("map", Arc::new(map)),
        ("place", Arc::new(place)),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    for text in [
        "half = CAST('NaN' AS DOUBLE)",
        "single = CAST('NaN' AS DOUBLE)",
        "list = list_truncate(list, 5)",
        "place['x'] = CAST('NaN' AS DOUBLE)",
        "hash_bucket(single, 1000) = hash_bucket(CAST('NaN' AS REAL), 1000)",
    ] {
        let expression = Expression::filter(text, &batch.schema()).unwrap();
        let kept = expression.evaluate(&batch.project(expression.inputs()).unwrap()).unwrap();
        assert_eq!(kept.as_boolean().true_count(), 4, "{text}");
    }
    // Parts of an expression compute NaNs of both signs.
    for text in [
        "-single > 1e30",
        "-single = single",
        "single - single = CAST('NaN' AS REAL)",
        "-(single * -1.0e0) >= CAST('NaN' AS DOUBLE)",
        "half / half = -half",
        "-single IN (CAST('NaN' AS REAL), 1.0e0)",
        "hash_bucket(-single, 1000) = hash_bucket(single, 1000)",
        "CASE WHEN -single > 1e30 THEN true ELSE -half > 1e3 END",
        "0.0e0 / 0.0e0 > 1e300 AND -single = single",
    ] {
        let expression = Expression::filter(text, &batch.schema()).unwrap();
        let kept = expression.evaluate(&batch.project(expression.inputs()).unwrap()).unwrap();
        assert_eq!(kept.as_boolean().true_count(), 4, "{text}");
    }
    // Results have the canonical NaN as well.
    for text in [
        "list_truncate(list, 1)",
        "list_truncate(fixed, 1)",
        "list",
        "large",
        "fixed",
        "map",
        "place",
        "COALESCE(single, 0.0e0)",
        "-single",
        "single / 0.0e0",
    ] {
        let expression = Expression::column(&format!("CASE WHEN true THEN {text} END AS y"), &batch.schema());
        let expression = expression.unwrap_or_else(|error| panic!("{text}: {error}"));
        let values = expression.evaluate(&batch.project(expression.inputs()).unwrap()).unwrap();
        let first = values.slice(0, 1);
        for row in 1..4 {
            assert_eq!(bits_of(&values.slice(row, 1)), bits_of(&first), "{text}");
        }
    }
}

/// The bits of the floats in an array of any depth.
fn bits_of(array: &ArrayRef) -> Vec<u64> {
    if let Some(values) = array.as_primitive_opt::<arrow_array::types::Float32Type>() {
        return values.values().iter().map(|value| u64::from(value.to_bits())).collect();
    }
    if let Some(values) = array.as_primitive_opt::<Float64Type>() {
        return values.values().iter().map(|value| value.to_bits()).collect();
    }
    match array.data_type() {
        DataType::List(_) => bits_of(&array.as_list::<i32>().value(0)),
        DataType::LargeList(_) => bits_of(&array.as_list::<i64>().value(0)),
        DataType::Map(..) => bits_of(array.as_map().value(0).column(1)),
        DataType::FixedSizeList(..) => bits_of(&array.as_fixed_size_list().value(0)),
        DataType::Struct(_) => array.as_struct().columns().iter().flat_map(bits_of).collect(),
        other => panic!("no floats in {other}"),
    }
}

#[test]
fn both_zeros_are_equal_in_lists_and_an_expansion_has_a_limit() {
    let zeros: Vec<Row> =
        [0.0_f64, -0.0].iter().map(|zero| (None, None, Some(zero.to_bits()), None, None)).collect();
    for text in ["f IN (0e0, 1e0)", "f IN (-0e0, 1e0)", "f IN (-0e0, f + 1e0)", "f = 0e0"] {
        assert_eq!(evaluate(text, &zeros).unwrap().as_boolean().true_count(), 2, "{text}");
    }
    for text in [
        "CASE f WHEN 0e0 THEN 1 ELSE 2 END",
        "CASE f WHEN -0e0 THEN 1 ELSE 2 END",
        "CASE f WHEN 1e0 THEN 3 WHEN 0e0 THEN 1 ELSE 2 END",
        "CASE f WHEN f + 1e0 THEN 3 WHEN -f THEN 1 ELSE 2 END",
        "CASE f WHEN NULL THEN 3 WHEN 0e0 THEN 1 END",
    ] {
        let text = format!("({text}) = 1");
        assert_eq!(evaluate(&text, &zeros).unwrap().as_boolean().true_count(), 2, "{text}");
    }
    let list = format!("({})", vec!["c"; 300].join(", "));
    let nested = format!("((c IN {list}) IN {list}) IN {list} AS y");
    let refused = Expression::column(&nested, &batch(&zeros).schema()).unwrap_err();
    assert!(refused.to_string().contains("20000 nodes"), "{refused}");
}

#[test]
fn list_pad_reaches_its_documented_length_for_any_number_of_rows() {
    let rows = 4096;
    let item = Arc::new(Field::new("item", DataType::Int8, true));
    let values = arrow_array::Int8Array::from(vec![1_i8; rows]);
    let nulls = NullBuffer::from_iter((0..rows).map(|row| row % 2 == 0));
    let lists =
        ListArray::new(item, OffsetBuffer::from_lengths(vec![1; rows]), Arc::new(values), Some(nulls));
    let batch = RecordBatch::try_from_iter_with_nullable([("l", Arc::new(lists) as ArrayRef, true)]).unwrap();
    let expression = Expression::column("list_pad(l, 65536, 0) AS y", &batch.schema()).unwrap();
    let padded = expression.evaluate(&batch).unwrap();
    assert_eq!(padded.as_list::<i32>().values().len(), rows / 2 * 65536);
}

#[test]
fn an_argument_that_must_be_constant_is_refused_when_the_expression_is_compiled() {
    let schema = Schema::new(vec![
        Field::new("l", DataType::new_list(DataType::Int64, true), true),
        Field::new("n", DataType::Int64, false),
    ]);
    for text in [
        "list_pad(l, n, 0)",
        "list_pad(l, 3, n)",
        "list_truncate(l, n)",
        "hash_bucket(n, n)",
        "bucketize(n, n)",
        "hash_bucket(n, 0)",
        "CASE WHEN n > 0 THEN clip(n, 0, n) END",
    ] {
        let refused = Expression::column(&format!("{text} AS y"), &schema);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{text}: {refused:?}");
    }
}
