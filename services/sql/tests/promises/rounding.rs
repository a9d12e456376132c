//! `round` and `trunc` of floats to digits.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch, UInt64Array, cast::AsArray,
    types::*,
};
use arrow_schema::DataType;
use forebay_sql::Expression;
use proptest::prelude::*;

fn evaluate(text: &str, x: ArrayRef) -> ArrayRef {
    let rows = RecordBatch::try_from_iter([("x", x)]).unwrap();
    let expression = Expression::column(&format!("{text} AS y"), &rows.schema());
    expression.unwrap_or_else(|error| panic!("{text}: {error}")).evaluate(&rows).unwrap()
}

fn single(text: &str, x: f32) -> f32 {
    evaluate(text, Arc::new(Float32Array::from(vec![x]))).as_primitive::<Float32Type>().value(0)
}

fn double(text: &str, x: f64) -> f64 {
    evaluate(text, Arc::new(Float64Array::from(vec![x]))).as_primitive::<Float64Type>().value(0)
}

#[test]
fn a_float_is_rounded_to_the_nearest_value_of_its_type() {
    assert_eq!(single("round(x, -3)", 925_863_488.0), 925_863_000.0_f32);
    assert_eq!(single("round(x, -5)", 163_803_643_904.0), 163_803_600_000.0_f32);
    assert_eq!(single("trunc(x, -5)", 163_803_643_904.0), 163_803_600_000.0_f32);
    assert_eq!(single("round(x, 2)", 2.675), 2.67_f32);
    assert_eq!(single("round(x, 3)", 0.0005), 0.001_f32);
    assert_eq!(single("round(x, -38)", 3e38), 3e38_f32);
    assert_eq!(single("round(x, -39)", 3e38), 0.0);
    assert_eq!(double("round(x, -300)", 1e300), 1e300);
    assert_eq!(double("trunc(x, -300)", 1e300), 1e300);
    assert_eq!(double("round(x, -23)", 7e23), 7e23);
    assert_eq!(double("round(x, 25)", 3e-25), 3e-25);
    assert_eq!(double("round(x, 300)", 1.4e-300), 1e-300);
    assert_eq!(double("round(x, -308)", 1.7e308), f64::INFINITY);
    assert_eq!(double("round(x, -3)", -0.0).to_bits(), (-0.0_f64).to_bits());
}

#[test]
fn only_round_of_an_integer_is_an_integer() {
    let x = || Arc::new(Int64Array::from(vec![1_234_567])) as ArrayRef;
    for (text, data_type) in [
        ("round(x)", DataType::Int64),
        ("round(x, -3)", DataType::Int64),
        ("trunc(x)", DataType::Float64),
        ("trunc(x, -3)", DataType::Float64),
        ("ceil(x)", DataType::Float64),
        ("floor(x)", DataType::Float64),
    ] {
        assert_eq!(*evaluate(text, x()).data_type(), data_type, "{text}");
    }
    let unsigned = Arc::new(UInt64Array::from(vec![5])) as ArrayRef;
    let half = evaluate("x / 2", unsigned);
    assert_eq!(*half.data_type(), DataType::Decimal128(24, 4));
    assert_eq!(half.as_primitive::<Decimal128Type>().value(0), 25_000);
}

proptest! {
    #![proptest_config(crate::cases(300))]

    #[test]
    fn integers_in_floats_are_rounded_as_integers(x in any::<i32>(), digits in 1_u32..10) {
        let power = 10_f64.powi(digits as i32);
        let x = x as f32;
        let nearest = ((f64::from(x) / power).round() * power) as f32;
        prop_assert_eq!(single(&format!("round(x, -{digits})"), x), nearest);
        let truncated = ((f64::from(x) / power).trunc() * power) as f32;
        prop_assert_eq!(single(&format!("trunc(x, -{digits})"), x), truncated);
    }
}
