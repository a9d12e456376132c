//! `log1p`, `clip` and `standardize`.

use std::sync::Arc;

use arrow_array::{ArrayRef, ArrowPrimitiveType, PrimitiveArray, cast::AsArray, types::*};
use arrow_schema::DataType;
use datafusion_common::{Result, ScalarValue, exec_err, plan_err};
use datafusion_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, create_udf,
};

use super::arguments::{constant, integer, range};

pub(super) fn functions() -> Vec<Arc<ScalarUDF>> {
    let pure = Volatility::Immutable;
    let double = DataType::Float64;
    let log1p = create_udf("log1p", vec![double.clone()], double.clone(), pure, Arc::new(log1p));
    let standardize = create_udf("standardize", vec![double.clone(); 3], double, pure, Arc::new(standardize));
    let clip = Clip { signature: Signature::user_defined(pure) };
    [log1p, standardize, ScalarUDF::from(clip)].map(Arc::new).into()
}

/// Returns the values of an argument. A constant gives one value. If all arguments are constants, DataFusion treats a result of one
/// value as a constant.
fn doubles(argument: &ColumnarValue) -> Result<PrimitiveArray<Float64Type>> {
    Ok(argument.clone().into_array(1)?.as_primitive::<Float64Type>().clone())
}

fn log1p(arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
    let x = doubles(&arguments[0])?;
    Ok(ColumnarValue::Array(Arc::new(x.unary::<_, Float64Type>(f64::ln_1p))))
}

fn double(function: &str, name: &str, argument: &ColumnarValue) -> Result<f64> {
    match constant(function, name, argument)? {
        ScalarValue::Float64(Some(value)) => Ok(value),
        other => exec_err!("{function}: {name} is {other}, expected a number"),
    }
}

fn standardize(arguments: &[ColumnarValue]) -> Result<ColumnarValue> {
    let mean = double("standardize", "the mean", &arguments[1])?;
    let deviation = double("standardize", "the deviation", &arguments[2])?;
    if !mean.is_finite() || !deviation.is_finite() || deviation == 0.0 {
        return exec_err!(
            "standardize: mean {mean} and deviation {deviation}, expected finite numbers and a deviation other than 0"
        );
    }
    let x = doubles(&arguments[0])?;
    Ok(ColumnarValue::Array(Arc::new(x.unary::<_, Float64Type>(|x| (x - mean) / deviation))))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Clip {
    signature: Signature,
}

impl ScalarUDFImpl for Clip {
    fn name(&self) -> &'static str {
        "clip"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let [x, low, high] = arguments else { return plan_err!("clip: expected a number and two bounds") };
        let known = |t: &DataType| t.is_integer() || matches!(t, DataType::Float32 | DataType::Float64);
        if ![x, low, high].into_iter().all(known) {
            return plan_err!("clip: expected integers and floats, not {x}, {low} and {high}");
        }
        if x.is_integer() && low.is_integer() && high.is_integer() {
            // A bound may be beyond the type of x.
            return Ok([x, low, high].map(Clone::clone).into());
        }
        let common = if x.is_floating() { x.clone() } else { DataType::Float64 };
        Ok(vec![common; 3])
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (low, high) =
            (constant("clip", "a bound", &call.args[1])?, constant("clip", "a bound", &call.args[2])?);
        let x = call.args[0].clone().into_array(call.number_rows)?;
        let order = match (integer(&low), integer(&high)) {
            (Some(low), Some(high)) => low.partial_cmp(&high),
            _ => low.partial_cmp(&high),
        };
        if !matches!(order, Some(order) if order.is_le()) {
            return exec_err!("clip: low is {low}, expected at most high, {high}");
        }
        let (low, high) = (bound_of(&low, x.data_type(), true)?, bound_of(&high, x.data_type(), false)?);
        let (low, high) = (low.to_array()?, high.to_array()?);
        let clipped: ArrayRef = match x.data_type() {
            DataType::Int8 => clip::<Int8Type>(&x, &low, &high),
            DataType::Int16 => clip::<Int16Type>(&x, &low, &high),
            DataType::Int32 => clip::<Int32Type>(&x, &low, &high),
            DataType::Int64 => clip::<Int64Type>(&x, &low, &high),
            DataType::UInt8 => clip::<UInt8Type>(&x, &low, &high),
            DataType::UInt16 => clip::<UInt16Type>(&x, &low, &high),
            DataType::UInt32 => clip::<UInt32Type>(&x, &low, &high),
            DataType::UInt64 => clip::<UInt64Type>(&x, &low, &high),
            DataType::Float32 => clip::<Float32Type>(&x, &low, &high),
            DataType::Float64 => clip::<Float64Type>(&x, &low, &high),
            other => return exec_err!("clip: expected integers and floats, not {other}"),
        };
        Ok(ColumnarValue::Array(clipped))
    }
}

/// Returns a bound in type `of`. A low bound below all values becomes the least value, and a high bound above all values the greatest.
///
/// # Errors
/// If all values of the type are on the other side of the bound, which is what they would become.
fn bound_of(bound: &ScalarValue, of: &DataType, is_low: bool) -> Result<ScalarValue> {
    let (Some(value), Some((least, greatest))) = (integer(bound), range(of)) else {
        return Ok(bound.clone());
    };
    if (is_low && value > greatest) || (!is_low && value < least) {
        return exec_err!("clip: the bound {bound} is beyond all values of type {of}");
    }
    let value = value.clamp(least, greatest);
    let scalar = match i64::try_from(value) {
        Ok(value) => ScalarValue::Int64(Some(value)),
        Err(_) => ScalarValue::UInt64(Some(value as u64)),
    };
    scalar.cast_to(of)
}

/// Limits each value to low and high. NaN stays NaN.
fn clip<T: ArrowPrimitiveType>(x: &ArrayRef, low: &ArrayRef, high: &ArrayRef) -> ArrayRef
where
    T::Native: PartialOrd,
{
    let (low, high) = (low.as_primitive::<T>().value(0), high.as_primitive::<T>().value(0));
    let clipped: PrimitiveArray<T> = x.as_primitive::<T>().unary(|x| {
        if x < low {
            low
        } else if x > high {
            high
        } else {
            x
        }
    });
    Arc::new(clipped)
}
