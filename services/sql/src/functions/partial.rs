//! `sqrt` and `power`, with NaN and infinities where DataFusion fails.

use std::sync::Arc;

use arrow_arith::arity::binary;
use arrow_array::{ArrayRef, cast::AsArray, types::*};
use arrow_schema::DataType;
use datafusion_common::Result;
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

/// The square root, and NaN for a negative number.
pub(super) fn sqrt(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let [x] = &call.args[..] else { return function.invoke_with_args(call) };
    let x = x.clone().into_array(call.number_rows)?;
    let roots: ArrayRef = match x.data_type() {
        DataType::Float32 => Arc::new(x.as_primitive::<Float32Type>().unary::<_, Float32Type>(f32::sqrt)),
        DataType::Float64 => Arc::new(x.as_primitive::<Float64Type>().unary::<_, Float64Type>(f64::sqrt)),
        _ => return function.invoke_with_args(call),
    };
    Ok(ColumnarValue::Array(roots))
}

/// The power as IEEE 754 defines it. A negative power of zero is infinite.
pub(super) fn power(function: &ScalarUDF, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let [base, exponent] = &call.args[..] else { return function.invoke_with_args(call) };
    if [base, exponent].into_iter().any(|argument| argument.data_type() != DataType::Float64) {
        return function.invoke_with_args(call);
    }
    let base = base.clone().into_array(call.number_rows)?;
    let exponent = exponent.clone().into_array(call.number_rows)?;
    let (base, exponent) = (base.as_primitive::<Float64Type>(), exponent.as_primitive::<Float64Type>());
    Ok(ColumnarValue::Array(Arc::new(binary::<_, _, _, Float64Type>(base, exponent, f64::powf)?)))
}
