use std::hash::DefaultHasher;

use arrow_array::{ArrayRef, Int64Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::Field;

use super::*;
use crate::Expression;

fn schema() -> Schema {
    let fields = [
        ("small", DataType::Int32),
        ("x", DataType::Int64),
        ("f", DataType::Float32),
        ("d", DataType::Float64),
        ("c", DataType::Boolean),
        ("t", DataType::Utf8),
        ("u", DataType::Utf8),
    ];
    Schema::new(fields.map(|(name, data_type)| Field::new(name, data_type, true)).to_vec())
}

fn physical(text: &str) -> Arc<dyn PhysicalExpr> {
    Expression::column(&format!("{text} AS y"), &schema())
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .physical
}

/// Number of parts of type `T`.
fn count<T: PhysicalExpr>(part: &Arc<dyn PhysicalExpr>) -> usize {
    usize::from(part.is::<T>()) + part.children().into_iter().map(count::<T>).sum::<usize>()
}

#[test]
fn only_a_right_side_that_can_fail_is_guarded() {
    for (right, is_guarded) in [
        ("c", false),
        ("true", false),
        ("x = 1", false),
        ("x <> 1", false),
        ("x < 1", false),
        ("x <= 1", false),
        ("x > 1", false),
        ("x >= 1", false),
        ("x IS DISTINCT FROM 1", false),
        ("x IS NOT DISTINCT FROM 1", false),
        ("x IS NULL", false),
        ("x IS NOT NULL", false),
        ("NOT c", false),
        ("x IN (1, 2)", false),
        ("(c OR x > 1)", false),
        ("d * 2e0 + d / 3e0 - 1e0 > d", false),
        ("d % 2e0 > 1", false),
        ("f > d", false),
        ("small > x", false),
        ("t LIKE 'a%'", false),
        ("x + 1 > 2", true),
        ("x - 1 > 2", true),
        ("x * 2 > 2", true),
        ("x / 2 > 2", true),
        ("x % 2 > 2", true),
        ("t || 'a' = u", true),
        ("x > d", false),
        ("CAST(t AS BIGINT) > 1", true),
        ("abs(x) > 1", true),
        ("(c OR abs(x) > 1)", true),
        ("CASE WHEN c THEN true ELSE false END", true),
    ] {
        for operator in ["AND", "OR"] {
            let text = format!("c {operator} {right}");
            assert_eq!(physical(&text).is::<Guarded>(), is_guarded, "{text}");
        }
    }
}

#[test]
fn only_parts_that_can_compute_a_nan_are_wrapped_in_one_nan() {
    for (text, expected) in [
        ("d > 1.5e0", 0),
        ("d > f", 1), // the cast of f
        ("d + 1.5e0 > 1e0", 1),
        ("CASE WHEN c THEN d ELSE 1e0 END", 0),
        ("CASE WHEN c THEN d / 2e0 ELSE 1e0 END", 1),
        ("x + 1", 0),
        ("c AND abs(d) > 1e0", 1),
    ] {
        assert_eq!(count::<OneNan>(&physical(text)), expected, "{text}");
    }
}

/// Values of a type at the ends of its range and with the most digits after the point.
fn extremes(data_type: &DataType) -> ArrayRef {
    let texts: Vec<String> = match data_type {
        DataType::Float16 => {
            ["65504", "-65504", "0.000000059604645", "1.0009765625"].map(str::to_owned).to_vec()
        }
        DataType::Float32 => {
            ["3.4028235e38", "-3.4028235e38", "1e-45", "1.0000001"].map(str::to_owned).to_vec()
        }
        DataType::Float64 => {
            ["1.7976931348623157e308", "-1.7976931348623157e308", "5e-324", "1.0000000000000002"]
                .map(str::to_owned)
                .to_vec()
        }
        DataType::Decimal128(digits, scale) => {
            let (nines, scale) = ("9".repeat(usize::from(*digits)), *scale as usize);
            let text = format!("{}.{}", &nines[..nines.len() - scale], &nines[nines.len() - scale..]);
            vec![format!("-{text}"), text]
        }
        integer => {
            let bits = integer.primitive_width().unwrap() as u32 * 8;
            let (min, max) = match integer.is_signed_integer() {
                true => (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1),
                false => (0, (1_i128 << bits) - 1),
            };
            [min, min + 1, max - 1, max].map(|value| value.to_string()).to_vec()
        }
    };
    let texts: ArrayRef = Arc::new(arrow_array::StringArray::from(texts));
    cast_with_options(&texts, data_type, &CastOptions { safe: false, ..CastOptions::default() })
        .unwrap_or_else(|error| panic!("{data_type}: {error}"))
}

#[test]
fn a_type_widens_to_another_if_every_value_survives_the_cast_there_and_back() {
    use DataType::{
        Decimal128, Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    };
    let types = [
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
        Decimal128(3, 0),
        Decimal128(5, 0),
        Decimal128(10, 0),
        Decimal128(19, 0),
        Decimal128(20, 0),
        Decimal128(22, 2),
        Decimal128(4, 2),
        Decimal128(5, 3),
        Decimal128(6, 3),
    ];
    let options = CastOptions { safe: false, ..CastOptions::default() };
    for from in &types {
        let values = extremes(from);
        for to in &types {
            let survive = cast_with_options(&values, to, &options)
                .and_then(|cast| cast_with_options(&cast, from, &options))
                .is_ok_and(|back| *back == *values);
            // Casts of floats to decimals round.
            let rounds = from.is_floating() && !to.is_floating();
            // Small integers would also fit in Float16 and Float32, and decimals in floats. Comparisons of these types keep their cast.
            let keeps_cast = (!from.is_floating() && matches!(to, Float16 | Float32))
                || (matches!(from, Decimal128(..)) && !matches!(to, Decimal128(..)));
            assert_eq!(widens(from, to), survive && !rounds && !keeps_cast, "{from} to {to}");
        }
    }
    assert!(!widens(&DataType::Decimal32(9, 2), &Float64));
}

#[test]
fn a_null_on_the_left_side_leaves_its_row_open_whatever_its_bits_are() {
    let values = BooleanBuffer::from(vec![true, false, true, false]);
    let nulls = NullBuffer::from(vec![true, true, false, false]);
    let decided = BooleanArray::new(values, Some(nulls));
    assert_eq!(open_rows(&decided, false), BooleanArray::from(vec![true, false, true, true]));
    assert_eq!(open_rows(&decided, true), BooleanArray::from(vec![false, true, true, true]));
}

#[test]
fn parts_are_equal_if_their_children_are() {
    let hash = |part: &Arc<dyn PhysicalExpr>| {
        let mut hasher = DefaultHasher::new();
        part.hash(&mut hasher);
        hasher.finish()
    };
    let texts = [
        "c AND abs(x) > 1",
        "c OR abs(x) > 1",
        "c AND abs(x) > 2",
        "NOT c AND abs(x) > 1",
        "d + 1e0",
        "d + 2e0",
    ];
    for (at, text) in texts.iter().enumerate() {
        for (other_at, other) in texts.iter().enumerate() {
            let (one, other) = (physical(text), physical(other));
            assert_eq!(*one == *other, at == other_at, "{one} and {other}");
            assert_eq!(hash(&one) == hash(&other), at == other_at, "{one} and {other}");
        }
    }
}

#[test]
fn a_part_can_be_null_if_one_of_its_children_can() {
    let schema = Schema::new(vec![
        Field::new("x", DataType::Int64, false),
        Field::new("n", DataType::Int64, true),
        Field::new("d", DataType::Float64, false),
    ]);
    for (text, expected) in [
        ("x > 1 AND x / 2 > 1", false),
        ("n > 1 AND x / 2 > 1", true),
        ("x > 1 AND n / 2 > 1", true),
        ("d + 1e0", false),
        ("d + n", true),
    ] {
        let compiled = Expression::column(&format!("{text} AS y"), &schema).unwrap();
        let columns = compiled.inputs().iter().map(|column| schema.field(*column).clone());
        let projected = Schema::new(columns.collect::<Vec<_>>());
        assert!(compiled.physical.is::<Guarded>() || compiled.physical.is::<OneNan>(), "{text}");
        assert_eq!(compiled.physical.nullable(&projected).unwrap(), expected, "{text}");
    }
}

#[test]
fn a_constant_left_side_decides_all_rows_or_none() {
    let schema = Schema::new(vec![Field::new("x", DataType::Int64, true)]);
    let rows =
        RecordBatch::try_new(Arc::new(schema.clone()), vec![Arc::new(Int64Array::from(vec![0, 5]))]).unwrap();
    let evaluate = |text: &str| Expression::filter(text, &schema).unwrap().evaluate(&rows);
    assert_eq!(evaluate("false AND 10 / x > 1").unwrap().as_boolean(), &BooleanArray::from(vec![false; 2]));
    assert_eq!(evaluate("true OR 10 / x > 1").unwrap().as_boolean(), &BooleanArray::from(vec![true; 2]));
    assert!(evaluate("true AND 10 / x > 1").is_err());
    assert!(evaluate("false OR 10 / x > 1").is_err());
    assert_eq!(evaluate("true AND x > 1").unwrap().as_boolean(), &BooleanArray::from(vec![false, true]));
}
