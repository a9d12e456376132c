//! Property of expressions: any text is an error, or an expression whose value of a row does not depend on other rows.

use std::sync::{Arc, LazyLock};

use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, FixedSizeListArray,
    Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, LargeStringArray, ListArray, RecordBatch,
    StringArray, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray, TimestampNanosecondArray,
    UInt64Array, cast::AsArray, types::Int32Type,
};
use arrow_schema::{DataType, Field};
use forebay_sql::{Bounds, Error, Expression, ScalarValue, Verdict};

/// Number of rows of [`ROWS`].
const COUNT: usize = 6;

/// Rows with columns of most types: zeros, negative numbers, extremes, nulls and NaNs.
static ROWS: LazyLock<RecordBatch> = LazyLock::new(|| {
    const DAY: i64 = 86_400_000_000;
    let integers = [Some(0), Some(-1), Some(7), None, Some(i64::MAX), Some(i64::MIN)];
    let floats = [Some(0.0), Some(-0.0), Some(1.5), None, Some(f64::NAN), Some(f64::NEG_INFINITY)];
    let texts = [Some(""), Some("7"), Some("A b,c"), None, Some("2024-02-29"), Some("\u{e9}\u{1f600}%_")];
    let times = [Some(0), Some(-1), Some(20_000 * DAY + 1), None, Some(i64::MAX), Some(i64::MIN)];
    let lists = || {
        let lists = [Some(vec![Some(1), None]), Some(vec![]), Some(vec![Some(-7), Some(7), Some(0)]), None];
        lists.into_iter().chain([Some(vec![None]), Some(vec![Some(i32::MAX)])])
    };
    let pairs = lists().map(|list| {
        let list = list?;
        Some([list.first().copied().flatten(), list.get(1).copied().flatten()])
    });
    let text: StringArray = texts.into_iter().collect();
    let place = vec![
        (Arc::new(Field::new("city", DataType::Utf8, true)), Arc::new(text.clone()) as ArrayRef),
        (
            Arc::new(Field::new("n", DataType::Int64, true)),
            Arc::new(Int64Array::from_iter(integers)) as ArrayRef,
        ),
    ];
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("i", Arc::new(Int64Array::from_iter(integers)), true),
        ("n", Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5, 6])), false),
        (
            "u",
            Arc::new(
                integers.map(|value| value.map(|value| value as u64)).into_iter().collect::<UInt64Array>(),
            ),
            true,
        ),
        (
            "h",
            Arc::new(
                integers.map(|value| value.map(|value| value as i32)).into_iter().collect::<Int32Array>(),
            ),
            true,
        ),
        (
            "k",
            Arc::new(integers.map(|value| value.map(|value| value as i8)).into_iter().collect::<Int8Array>()),
            true,
        ),
        ("x", Arc::new(Float64Array::from_iter(floats)), true),
        (
            "f",
            Arc::new(
                floats.map(|value| value.map(|value| value as f32)).into_iter().collect::<Float32Array>(),
            ),
            true,
        ),
        (
            "b",
            Arc::new(
                [Some(true), Some(false), None, None, Some(true), Some(false)]
                    .into_iter()
                    .collect::<BooleanArray>(),
            ),
            true,
        ),
        ("s", Arc::new(text), true),
        ("r", Arc::new(texts.into_iter().collect::<LargeStringArray>()), true),
        ("y", Arc::new(texts.map(|text| text.map(str::as_bytes)).into_iter().collect::<BinaryArray>()), true),
        (
            "c",
            Arc::new(integers.map(|value| value.map(i128::from)).into_iter().collect::<Decimal128Array>()),
            true,
        ),
        (
            "d",
            Arc::new(
                integers.map(|value| value.map(|value| value as i32)).into_iter().collect::<Date32Array>(),
            ),
            true,
        ),
        ("t", Arc::new(times.into_iter().collect::<TimestampMicrosecondArray>()), true),
        (
            "z",
            Arc::new(times.into_iter().collect::<TimestampNanosecondArray>().with_timezone("+01:00")),
            true,
        ),
        (
            "o",
            Arc::new([0, 1, DAY - 1, 5, 6, 7].map(Some).into_iter().collect::<Time64MicrosecondArray>()),
            true,
        ),
        ("l", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists())), true),
        ("a", Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs, 2)), true),
        ("p", Arc::new(StructArray::from(place)), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("the columns have the same length")
});

/// Compiles `data` as a column and as a filter, and evaluates both.
pub(crate) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let schema = ROWS.schema();
    let unnamed = Expression::column(&format!("{text} AS result"), &schema);
    for expression in [unnamed, Expression::column(text, &schema)].into_iter().flatten() {
        evaluate(&expression);
    }
    if let Ok(filter) = Expression::filter(text, &schema) {
        let kept = evaluate(&filter);
        verdict(&filter, kept.as_ref());
    }
}

/// Evaluates an expression for all rows, and for each row alone.
fn evaluate(expression: &Expression) -> Option<ArrayRef> {
    let rows = ROWS.project(expression.inputs()).expect("the inputs are columns of the schema");
    expression.expected_bytes(COUNT as u64, |_| 100);
    let alone: Vec<Result<ArrayRef, Error>> =
        (0..COUNT).map(|row| expression.evaluate(&rows.slice(row, 1))).collect();
    for value in alone.iter().flatten() {
        checked(expression, value, 1);
    }
    let Ok(together) = expression.evaluate(&rows) else {
        assert!(alone.iter().any(Result::is_err), "{expression:?} fails only for all rows together");
        return None;
    };
    checked(expression, &together, COUNT);
    for (row, value) in alone.iter().enumerate() {
        match value {
            Ok(value) => {
                assert_eq!(&together.slice(row, 1), value, "{expression:?}: row {row} differs alone");
            }
            Err(error) => panic!("{expression:?}: row {row} fails alone: {error}"),
        }
    }
    Some(together)
}

/// Checks that values have the announced type.
fn checked(expression: &Expression, values: &ArrayRef, rows: usize) {
    let field = expression.field();
    assert_eq!(values.len(), rows, "{expression:?}");
    assert_eq!(values.data_type(), field.data_type(), "{expression:?}");
    assert!(field.is_nullable() || values.null_count() == 0, "{expression:?} has nulls");
    values.to_data().validate_full().expect("the values are valid");
}

/// Checks that the statistics of all rows, and of each row alone, do not contradict the rows.
fn verdict(filter: &Expression, kept: Option<&ArrayRef>) {
    filter.nodes();
    filter.equality_constants();
    let Some(kept) = kept.map(|kept| forebay_sql::not_null(kept.as_boolean())) else { return };
    for (first, rows) in (0..COUNT).map(|row| (row, 1)).chain([(0, COUNT)]) {
        let kept = kept.slice(first, rows).true_count();
        match filter.verdict(&Exact(ROWS.slice(first, rows))) {
            Verdict::None => assert_eq!(kept, 0, "{filter:?}: rows {first} + {rows}"),
            Verdict::All => assert_eq!(kept, rows, "{filter:?}: rows {first} + {rows}"),
            Verdict::Unknown => {}
        }
    }
}

/// Exact statistics of rows.
struct Exact(RecordBatch);

impl Exact {
    fn values(&self, column: &str) -> Vec<ScalarValue> {
        let Some(column) = self.0.column_by_name(column) else { return Vec::new() };
        let value = |row| ScalarValue::try_from_array(column, row).expect("every type has scalars");
        (0..column.len()).map(value).filter(|value| !value.is_null()).collect()
    }
}

impl Bounds for Exact {
    fn range(&self, column: &str) -> Option<(ScalarValue, ScalarValue)> {
        let is_nan = |value: &ScalarValue| match value {
            ScalarValue::Float64(Some(value)) => value.is_nan(),
            ScalarValue::Float32(Some(value)) => value.is_nan(),
            _ => false,
        };
        let values: Vec<ScalarValue> =
            self.values(column).into_iter().filter(|value| !is_nan(value)).collect();
        let (mut least, mut greatest) = (values.first()?, values.first()?);
        for value in &values {
            if value.partial_cmp(least)?.is_lt() {
                least = value;
            }
            if value.partial_cmp(greatest)?.is_gt() {
                greatest = value;
            }
        }
        Some((least.clone(), greatest.clone()))
    }

    fn nulls(&self, column: &str) -> Option<(bool, bool)> {
        let column = self.0.column_by_name(column)?;
        Some((column.null_count() > 0, column.null_count() < column.len()))
    }

    /// Rules out integers and texts, like a Bloom filter.
    fn may_hold(&self, column: &str, value: &ScalarValue) -> bool {
        let in_filter = matches!(value, ScalarValue::Int64(_) | ScalarValue::Utf8(_));
        !in_filter || self.values(column).contains(value)
    }
}
