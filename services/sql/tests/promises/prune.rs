//! Verdicts from the statistics of a block.

use std::{collections::HashMap, sync::Arc};

use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, Int32Array, RecordBatch, StringArray, cast::AsArray,
};
use arrow_schema::{DataType, Field, Schema};
use forebay_sql::{Bounds, Expression, ScalarValue, Verdict};
use proptest::prelude::*;

/// Exact statistics of a batch, as a writer would record them.
struct Exact {
    values: HashMap<String, Vec<ScalarValue>>,
    ranges: HashMap<String, (ScalarValue, ScalarValue)>,
    nulls: HashMap<String, (bool, bool)>,
}

impl Exact {
    fn of(batch: &RecordBatch) -> Self {
        let (mut ranges, mut nulls, mut held) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            let values = scalars(column);
            let is_nan = |value: &&ScalarValue| matches!(value, ScalarValue::Float64(Some(v)) if v.is_nan());
            let numbers: Vec<_> = values.iter().filter(|value| !value.is_null() && !is_nan(value)).collect();
            let smaller = |a: &&&ScalarValue, b: &&&ScalarValue| a.partial_cmp(b).unwrap();
            if let (Some(least), Some(greatest)) =
                (numbers.iter().min_by(smaller), numbers.iter().max_by(smaller))
            {
                ranges.insert(field.name().clone(), ((*least).clone(), (*greatest).clone()));
            }
            let null = column.null_count();
            nulls.insert(field.name().clone(), (null > 0, null < column.len()));
            held.insert(field.name().clone(), values);
        }
        Self { values: held, ranges, nulls }
    }
}

fn scalars(column: &ArrayRef) -> Vec<ScalarValue> {
    (0..column.len()).map(|row| ScalarValue::try_from_array(column, row).unwrap()).collect()
}

impl Bounds for Exact {
    fn range(&self, column: &str) -> Option<(ScalarValue, ScalarValue)> {
        self.ranges.get(column).cloned()
    }

    fn nulls(&self, column: &str) -> Option<(bool, bool)> {
        self.nulls.get(column).copied()
    }

    /// Like a Bloom filter of integers and strings.
    fn may_hold(&self, column: &str, value: &ScalarValue) -> bool {
        matches!(value, ScalarValue::Float64(_)) || self.values[column].contains(value)
    }
}

type Row = (Option<i32>, Option<f64>, Option<bool>, Option<u8>);

fn batch(rows: &[Row]) -> RecordBatch {
    let schema = Schema::new(vec![
        Field::new("i", DataType::Int32, true),
        Field::new("f", DataType::Float64, true),
        Field::new("b", DataType::Boolean, true),
        Field::new("s", DataType::Utf8, true),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| row.0).collect::<Int32Array>()),
        Arc::new(rows.iter().map(|row| row.1).collect::<Float64Array>()),
        Arc::new(rows.iter().map(|row| row.2).collect::<BooleanArray>()),
        Arc::new(rows.iter().map(|row| row.3.map(|s| format!("s{s}"))).collect::<StringArray>()),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

fn condition() -> impl Strategy<Value = String> {
    let operator = prop::sample::select(vec!["=", "<>", "<", "<=", ">", ">="]);
    let float = prop::sample::select(vec!["-1e0", "0e0", "-0e0", "2e0", "CAST('NaN' AS DOUBLE)"]);
    let leaf = prop_oneof![
        (operator.clone(), -3..4).prop_map(|(op, value)| format!("i {op} {value}")),
        (operator.clone(), -3..4).prop_map(|(op, value)| format!("{value} {op} i")),
        (operator.clone(), float).prop_map(|(op, value)| format!("f {op} {value}")),
        (operator, 0..4).prop_map(|(op, value)| format!("s {op} 's{value}'")),
        (-3..4, -3..4).prop_map(|(low, high)| format!("i BETWEEN {low} AND {high}")),
        (-3..4, -3..4).prop_map(|(a, b)| format!("i NOT IN ({a}, {b}, 1)")),
        (-3..4).prop_map(|a| format!("i IN ({a}, NULL)")),
        (-3..4).prop_map(|a| format!("(i IS DISTINCT FROM {a})")),
        Just("(i IS NOT DISTINCT FROM NULL)".to_owned()),
        Just("b".to_owned()),
        Just("i IS NULL".to_owned()),
        Just("f IS NOT NULL".to_owned()),
        Just("hash_bucket(i, 3) < 1".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} AND {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} OR {b})")),
            inner.prop_map(|a| format!("(NOT {a})")),
        ]
    })
}

proptest! {
    #![proptest_config(crate::cases(1500))]

    #[test]
    fn verdicts_agree_with_the_rows(
        rows in prop::collection::vec(
            (
                prop::option::of(-2..3),
                prop::option::of(prop::sample::select(vec![-1.0, -0.0, 0.0, 2.0, f64::NAN, -f64::NAN])),
                prop::option::of(any::<bool>()),
                prop::option::of(0..3_u8),
            ),
            1..4,
        ),
        text in condition(),
    ) {
        let batch = batch(&rows);
        let filter = Expression::filter(&text, &batch.schema()).unwrap();
        let kept = filter.evaluate(&batch.project(filter.inputs()).unwrap()).unwrap();
        let kept = kept.as_boolean().true_count();
        match filter.verdict(&Exact::of(&batch)) {
            Verdict::None => prop_assert_eq!(kept, 0, "{}", text),
            Verdict::All => prop_assert_eq!(kept, rows.len(), "{}", text),
            Verdict::Unknown => {}
        }
    }
}

#[test]
fn verdicts_are_as_precise_as_the_statistics_allow() {
    let rows = [(Some(1), Some(0.5), Some(true), Some(1)), (Some(2), None, Some(true), Some(2))];
    let (with_values, only_nulls) = (batch(&rows), batch(&[(None, None, None, None)]));
    for (text, expected) in [
        ("i > 2", Verdict::None),
        ("i >= 1 AND i < 3", Verdict::All),
        ("i = 1", Verdict::Unknown),
        ("i BETWEEN 5 AND 9", Verdict::None),
        ("i IN (7, 8)", Verdict::None),
        ("NOT (i < 3)", Verdict::None),
        ("s = 's3' OR i = 0", Verdict::None),
        ("b", Verdict::All),
        ("f < 0.5e0", Verdict::None),
        ("f IS NULL AND i IS NULL", Verdict::None),
        ("i IS NOT NULL", Verdict::All),
        ("f < 1e0", Verdict::Unknown),
        ("1 = 2", Verdict::None),
        ("1 = 1", Verdict::All),
        ("i + 0 > 5", Verdict::Unknown),
    ] {
        let filter = Expression::filter(text, &with_values.schema()).unwrap();
        assert_eq!(filter.verdict(&Exact::of(&with_values)), expected, "{text}");
    }
    for text in ["i > 0", "i <> 0", "NOT b", "s IN ('a')"] {
        let filter = Expression::filter(text, &only_nulls.schema()).unwrap();
        assert_eq!(filter.verdict(&Exact::of(&only_nulls)), Verdict::None, "{text}");
    }
}

/// Statistics of a column without nulls: its least and its greatest value.
struct Between(ScalarValue, ScalarValue);

impl Bounds for Between {
    fn range(&self, _: &str) -> Option<(ScalarValue, ScalarValue)> {
        Some((self.0.clone(), self.1.clone()))
    }

    fn nulls(&self, _: &str) -> Option<(bool, bool)> {
        Some((false, true))
    }

    fn may_hold(&self, _: &str, _: &ScalarValue) -> bool {
        true
    }
}

const FLOATS: [DataType; 3] = [DataType::Float16, DataType::Float32, DataType::Float64];

#[test]
fn statistics_decide_comparisons_of_every_number_type_with_plain_constants() {
    use Verdict::{All, None, Unknown};
    let others = [
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Decimal128(12, 2),
        DataType::Decimal128(38, 0),
        DataType::Decimal256(40, 3),
    ];
    for data_type in others.into_iter().chain(FLOATS) {
        let schema = Schema::new(vec![Field::new("x", data_type.clone(), false)]);
        let number = |number: i64| ScalarValue::Int64(Some(number)).cast_to(&data_type).unwrap();
        let bounds = Between(number(10), number(20));
        // A float column may hold NaNs, which are greater than all numbers.
        for (text, expected, of_floats) in [
            ("x = 123", None, None),
            ("x = 10", Unknown, Unknown),
            ("x <> 123", All, All),
            ("x <> 10", Unknown, Unknown),
            ("x <> 20", Unknown, Unknown),
            ("x < 10", None, None),
            ("x < 11", Unknown, Unknown),
            ("x < 21", All, Unknown),
            ("x <= 9", None, None),
            ("x <= 10", Unknown, Unknown),
            ("x <= 20", All, Unknown),
            ("x > 20", None, Unknown),
            ("x > 10", Unknown, Unknown),
            ("x > 9", All, All),
            ("123 <= x", None, Unknown),
            ("x >= 20", Unknown, Unknown),
            ("x >= 10", All, All),
            ("x IN (9, 21)", None, None),
            ("x NOT IN (9, 21)", All, All),
            ("x BETWEEN 21 AND 30", None, Unknown),
        ] {
            let verdict = Expression::filter(text, &schema).unwrap().verdict(&bounds);
            let expected = if data_type.is_floating() { of_floats } else { expected };
            assert_eq!(verdict, expected, "{text} of {data_type}");
        }
    }
}

#[test]
fn nothing_is_decided_about_a_comparison_with_nan() {
    for data_type in FLOATS {
        let schema = Schema::new(vec![Field::new("x", data_type.clone(), false)]);
        let number = |number: i64| ScalarValue::Int64(Some(number)).cast_to(&data_type).unwrap();
        for operator in ["=", "<>", "<", "<=", ">", ">="] {
            let filter = Expression::filter(&format!("x {operator} 'NaN'"), &schema).unwrap();
            assert_eq!(filter.verdict(&Between(number(10), number(20))), Verdict::Unknown, "{filter:?}");
        }
    }
}

#[test]
fn bounds_that_are_nan_decide_nothing() {
    for data_type in FLOATS {
        let schema = Schema::new(vec![Field::new("x", data_type.clone(), false)]);
        let number = |number: f64| ScalarValue::Float64(Some(number)).cast_to(&data_type).unwrap();
        for nan in [f64::NAN, -f64::NAN] {
            for bounds in [Between(number(-1.0), number(nan)), Between(number(nan), number(1.0))] {
                for operator in ["=", "<>", "<", "<=", ">", ">="] {
                    let filter = Expression::filter(&format!("x {operator} 0.5"), &schema).unwrap();
                    assert_eq!(filter.verdict(&bounds), Verdict::Unknown, "{filter:?} of {data_type}");
                }
            }
        }
    }
}

#[test]
fn a_zero_of_either_sign_may_equal_a_zero_of_the_other_sign() {
    for data_type in FLOATS {
        for zero in [0.0, -0.0] {
            let zero = ScalarValue::Float64(Some(zero)).cast_to(&data_type).unwrap();
            let row = RecordBatch::try_from_iter([("x", zero.to_array().unwrap())]).unwrap();
            for (text, kept) in [("x = 0", 1), ("x = '-0'", 1), ("x <> 0", 0), ("x <> '-0'", 0)] {
                let filter = Expression::filter(text, &row.schema()).unwrap();
                assert_eq!(filter.evaluate(&row).unwrap().as_boolean().true_count(), kept, "{filter:?}");
                let verdict = filter.verdict(&Between(zero.clone(), zero.clone()));
                assert_eq!(verdict, Verdict::Unknown, "{filter:?} of {data_type} {zero}");
            }
        }
    }
}

#[test]
fn the_constants_to_seek_in_bloom_filters_are_those_compared_with_a_column_for_equality() {
    let schema = batch(&[]).schema();
    for (text, expected) in [
        ("i = 1", &["i 1"][..]),
        ("1 <> i", &["i 1"]),
        ("NOT (s = 's1' OR i = 2 AND i > 3)", &["s s1", "i 2"]),
        ("s IN ('s1', 's2', NULL)", &["s s1", "s s2"]),
        ("i NOT IN (1, 2)", &["i 1", "i 2"]),
        ("i < 1 AND i BETWEEN 2 AND 3", &[]),
        ("i IS DISTINCT FROM 1", &[]),
        ("i = NULL", &[]),
        ("i + 0 = 1", &[]),
        ("b", &[]),
    ] {
        let constants = Expression::filter(text, &schema).unwrap().equality_constants();
        let shown: Vec<_> = constants.iter().map(|(column, value)| format!("{column} {value}")).collect();
        assert_eq!(shown, expected, "{text}");
    }
}

#[test]
fn the_cost_of_a_verdict_is_the_number_of_nodes() {
    let schema = batch(&[]).schema();
    for (text, expected) in
        [("b", 1), ("NOT b", 2), ("i = 1", 3), ("i IN (1, 2, 3)", 5), ("b OR NOT i < 1", 6)]
    {
        assert_eq!(Expression::filter(text, &schema).unwrap().nodes(), expected, "{text}");
    }
}
