use std::sync::Arc;

use arrow_array::{BooleanArray, Decimal128Array, Float32Array, Float64Array, Int64Array, UInt8Array};

use super::*;

fn one(array: impl Array + 'static, dtype: &DataType) -> Result<ArrayRef, String> {
    convert(&(Arc::new(array) as ArrayRef), dtype)
}

#[test]
fn overflow_and_nan_to_an_integer_are_errors() {
    assert!(one(Int64Array::from(vec![300]), &DataType::Int8).unwrap_err().contains("300"));
    assert!(one(Int64Array::from(vec![-1]), &DataType::UInt64).is_err());
    assert!(one(Float64Array::from(vec![f64::NAN]), &DataType::Int32).is_err());
    assert!(one(Float64Array::from(vec![1e300]), &DataType::Float32).is_err());
    assert!(one(Float32Array::from(vec![1e6]), &DataType::Float16).is_err());
}

#[test]
fn rounding_infinities_nulls_and_bools_pass() {
    assert!(one(Int64Array::from(vec![(1 << 53) + 1]), &DataType::Float64).is_ok());
    let array =
        one(Float64Array::from(vec![Some(f64::INFINITY), None, Some(0.1)]), &DataType::Float32).unwrap();
    assert_eq!(array.as_primitive::<Float32Type>().value(2), 0.1f32);
    assert!(array.is_null(1));
    let array = one(BooleanArray::from(vec![true, false]), &DataType::UInt8).unwrap();
    assert_eq!(array.as_ref(), &UInt8Array::from(vec![1, 0]));
    let array =
        one(Decimal128Array::from(vec![125]).with_precision_and_scale(5, 2).unwrap(), &DataType::Float32);
    assert_eq!(array.unwrap().as_primitive::<Float32Type>().value(0), 1.25);
}

#[test]
fn a_fill_that_is_not_a_value_of_the_dtype_is_refused() {
    for (fill, dtype) in
        [(0.5, DataType::Int32), (256.0, DataType::UInt8), (-1.0, DataType::UInt8), (1e39, DataType::Float32)]
    {
        assert!(check_fill("x", fill, &dtype).is_err(), "{fill} {dtype}");
    }
    for (fill, dtype, bytes) in [
        (-128.0, DataType::Int8, vec![0x80]),
        (255.0, DataType::UInt8, vec![0xff]),
        (1.0, DataType::Float16, vec![0x00, 0x3c]),
        (-1.0, DataType::Int64, vec![0xff; 8]),
    ] {
        check_fill("x", fill, &dtype).unwrap();
        assert_eq!(fill_bytes(fill, &dtype), bytes);
    }
}

// CPUs of x86 with F16C convert float64 via float32 themselves. On others, this fails for a direct conversion.
#[test]
fn float16_is_rounded_via_float32_on_every_cpu() {
    let half = |array: ArrayRef| {
        let converted = convert(&array, &DataType::Float16)?;
        Ok::<_, String>(converted.as_primitive::<Float16Type>().value(0).to_bits())
    };
    let float = |value: f64| half(Arc::new(Float64Array::from(vec![value])));
    // The value is just below the middle of 0x3c01 and 0x3c02. As float32 it is the middle, which is rounded to even.
    let below = 1.001_464_843_7;
    check_fill("x", below, &DataType::Float16).unwrap();
    assert_eq!(fill_bytes(below, &DataType::Float16), 0x3c02_u16.to_le_bytes());
    assert_eq!(float(below), Ok(0x3c02));
    let decimal = Decimal128Array::from(vec![10_014_648_437]).with_precision_and_scale(38, 10).unwrap();
    // A decimal is rounded once.
    assert_eq!(half(Arc::new(decimal)), Ok(0x3c01));
    // The value is just below 65,520, the smallest number that overflows.
    let below = 65_519.999_9;
    assert!(check_fill("x", below, &DataType::Float16).is_err());
    assert!(float(below).is_err());
    check_fill("x", f64::INFINITY, &DataType::Float16).unwrap();
}
