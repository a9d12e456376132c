//! `hash_bucket`: assigns values to buckets, stable across versions, to split data.
//!
//! `hash_bucket(x, n [, seed])` is the XXH3 64-bit hash of the value's bytes, with the seed (default 0), modulo n. Equal values
//! of different widths are in the same bucket. Null is null. The bytes of a value are:
//!
//! - integers, dates, times and booleans: the value as a 64-bit little-endian integer
//! - floats: the value as a double, little-endian, with one zero and one NaN
//! - strings: UTF-8; binary values: their bytes

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int64Array, cast::AsArray, types::*};
use arrow_cast::cast;
use arrow_schema::DataType;
use datafusion_common::{Result, exec_datafusion_err, exec_err, plan_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::arguments::{constant, integer, integer_type};

/// Names of the arguments.
const BUCKETS: &str = "the number of buckets";
const SEED: &str = "the seed";

pub(super) fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(HashBucket { signature: Signature::user_defined(Volatility::Immutable) }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct HashBucket {
    signature: Signature,
}

/// Returns the type to which values are converted before hashing; `None` for unsupported types.
fn hash_type(data_type: &DataType) -> Option<DataType> {
    use DataType::{
        Binary, Boolean, Date32, Date64, Duration, Float16, Float32, Float64, Int64, LargeBinary, LargeUtf8,
        Time32, Time64, Timestamp, UInt64, Utf8,
    };
    Some(match data_type {
        UInt64 => UInt64,
        integer if integer.is_integer() => Int64,
        Boolean | Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_) => Int64,
        Float16 | Float32 | Float64 => Float64,
        Utf8 | LargeUtf8 | DataType::Utf8View => Utf8,
        Binary | LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => Binary,
        _ => return None,
    })
}

impl ScalarUDFImpl for HashBucket {
    fn name(&self) -> &'static str {
        "hash_bucket"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let (Some(x), 2 | 3) = (arguments.first(), arguments.len()) else {
            return plan_err!("hash_bucket: expected a value, the number of buckets and an optional seed");
        };
        if hash_type(x).is_none() {
            let advice =
                if x.is_decimal() { "; cast it, as in hash_bucket(CAST(price AS TEXT), 100)" } else { "" };
            return plan_err!(
                "hash_bucket: does not support values of type {x}, expected integers, floats, text, bytes, booleans or times{advice}"
            );
        }
        let names = [BUCKETS, SEED].into_iter().zip(&arguments[1..]);
        let numbers = names.map(|(name, data_type)| integer_type("hash_bucket", name, data_type));
        std::iter::once(Ok(x.clone())).chain(numbers).collect()
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let number = |name: &str, argument| {
            let value = constant("hash_bucket", name, argument)?;
            integer(&value)
                .ok_or_else(|| exec_datafusion_err!("hash_bucket: {name} is {value}, expected an integer"))
        };
        let buckets = number(BUCKETS, &call.args[1])?;
        if buckets < 1 {
            return exec_err!("hash_bucket: {BUCKETS} is {buckets}, expected at least 1");
        }
        // A bucket is a 64-bit integer with a sign.
        let Some(buckets) = i64::try_from(buckets).ok().map(i64::unsigned_abs) else {
            return exec_err!("hash_bucket: {BUCKETS} is {buckets}, expected at most {}", i64::MAX);
        };
        let seed = call.args.get(2).map_or(Ok(0), |seed| number(SEED, seed))? as u64;
        let x = call.args[0].clone().into_array(call.number_rows)?;
        let bucket = |bytes: &[u8]| (xxh3_64_with_seed(bytes, seed) % buckets) as i64;
        Ok(ColumnarValue::Array(Arc::new(hash(&x, bucket)?)))
    }
}

fn hash(x: &ArrayRef, bucket: impl Fn(&[u8]) -> i64) -> Result<Int64Array> {
    let Some(data_type) = hash_type(x.data_type()) else {
        return exec_err!("hash_bucket: does not support values of type {}", x.data_type());
    };
    let x = cast(x, &data_type)?;
    Ok(match data_type {
        DataType::UInt64 => x.as_primitive::<UInt64Type>().unary(|value| bucket(&value.to_le_bytes())),
        DataType::Int64 => x.as_primitive::<Int64Type>().unary(|value| bucket(&value.to_le_bytes())),
        DataType::Float64 => {
            x.as_primitive::<Float64Type>().unary(|value| bucket(&canonical(value).to_le_bytes()))
        }
        DataType::Utf8 => x.as_string::<i32>().iter().map(|value| Some(bucket(value?.as_bytes()))).collect(),
        _ => x.as_binary::<i32>().iter().map(|value| Some(bucket(value?))).collect(),
    })
}

/// Maps -0.0 to 0.0 and every NaN to one NaN.
fn canonical(value: f64) -> f64 {
    // The sum of -0.0 and 0.0 is 0.0.
    if value.is_nan() { f64::NAN } else { value + 0.0 }
}
