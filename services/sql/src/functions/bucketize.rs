//! `bucketize`: the number of bounds that are at most a number, by their exact values.

use std::{cmp::Ordering, fmt, sync::Arc};

use arrow_array::{Int64Array, cast::AsArray, types::*};
use arrow_cast::cast;
use arrow_schema::DataType;
use datafusion_common::{Result, ScalarValue, exec_err, plan_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

use super::arguments::{constant, integer};

pub(super) fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Bucketize { signature: Signature::user_defined(Volatility::Immutable) }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Bucketize {
    signature: Signature,
}

/// A bound, not NaN.
#[derive(Debug, Clone, Copy)]
enum Bound {
    Integer(i128),
    Double(f64),
}

impl ScalarUDFImpl for Bucketize {
    fn name(&self) -> &'static str {
        "bucketize"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        if arguments.len() < 2 {
            return plan_err!("bucketize: expected a number and at least one bound");
        }
        let number = |data_type: &DataType| match data_type {
            integer if integer.is_integer() => Ok(integer.clone()),
            other if other.is_numeric() || other.is_null() => Ok(DataType::Float64),
            other => plan_err!("bucketize: expected numbers, not {other}"),
        };
        arguments.iter().map(number).collect()
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let bounds: Vec<Bound> = call.args[1..].iter().map(Bound::of).collect::<Result<_>>()?;
        let has_nan = bounds.iter().any(|bound| matches!(bound, Bound::Double(double) if double.is_nan()));
        if has_nan || !bounds.is_sorted_by(|a, b| a.cmp(*b).is_lt()) {
            let bounds: Vec<String> = bounds.iter().map(Bound::to_string).collect();
            return exec_err!("bucketize: the bounds [{}] are not ascending", bounds.join(", "));
        }
        let number = |x: Bound| bounds.partition_point(|bound| bound.cmp(x).is_le()) as i64;
        let x = call.args[0].clone().into_array(1)?;
        let buckets: Int64Array = match x.data_type() {
            DataType::UInt64 => x.as_primitive::<UInt64Type>().unary(|x| number(Bound::Integer(x.into()))),
            integer if integer.is_integer() => {
                let x = cast(&x, &DataType::Int64)?;
                x.as_primitive::<Int64Type>().unary(|x| number(Bound::Integer(x.into())))
            }
            // Like numpy.digitize: NaN is above all bounds.
            _ => x.as_primitive::<Float64Type>().unary(|x| match x.is_nan() {
                true => bounds.len() as i64,
                false => number(Bound::Double(x)),
            }),
        };
        Ok(ColumnarValue::Array(Arc::new(buckets)))
    }
}

impl Bound {
    fn of(argument: &ColumnarValue) -> Result<Self> {
        let value = constant("bucketize", "a bound", argument)?;
        match (integer(&value), &value) {
            (Some(integer), _) => Ok(Self::Integer(integer)),
            (None, ScalarValue::Float64(Some(double))) => Ok(Self::Double(*double)),
            (None, other) => exec_err!("bucketize: a bound is {other}, expected a number"),
        }
    }

    /// Exact order. Neither side is NaN.
    fn cmp(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => a.cmp(&b),
            (Self::Double(a), Self::Double(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
            (Self::Integer(a), Self::Double(b)) => integer_with_double(a, b),
            (Self::Double(a), Self::Integer(b)) => integer_with_double(b, a).reverse(),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(integer) => integer.fmt(f),
            Self::Double(double) => write!(f, "{double:?}"),
        }
    }
}

fn integer_with_double(integer: i128, double: f64) -> Ordering {
    // A double that is converted to an integer becomes the nearest one, also an infinite one. The integers are of 64 bits.
    let floor = double.floor();
    integer.cmp(&(floor as i128)).then(if double > floor { Ordering::Less } else { Ordering::Equal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_doubles_have_their_exact_order() {
        let large = 2_i128.pow(53);
        for (integer, double, order) in [
            (large + 1, 9_007_199_254_740_992.0, Ordering::Greater),
            (large, 9_007_199_254_740_992.0, Ordering::Equal),
            (large - 1, 9_007_199_254_740_992.0, Ordering::Less),
            (1, 1.5, Ordering::Less),
            (2, 1.5, Ordering::Greater),
            (-1, -1.5, Ordering::Greater),
            (-2, -1.5, Ordering::Less),
            (0, -0.0, Ordering::Equal),
            (u64::MAX.into(), f64::INFINITY, Ordering::Less),
            (i64::MIN.into(), f64::NEG_INFINITY, Ordering::Greater),
            (u64::MAX.into(), 18_446_744_073_709_551_616.0, Ordering::Less),
        ] {
            assert_eq!(Bound::Integer(integer).cmp(Bound::Double(double)), order, "{integer} with {double}");
            assert_eq!(Bound::Double(double).cmp(Bound::Integer(integer)), order.reverse());
        }
    }
}
