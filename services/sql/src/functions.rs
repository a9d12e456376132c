//! The functions that expressions may call: those of DataFusion that are pure and whose results are bounded by their
//! arguments, and those that trainers need beside them.
//!
//! | function | result |
//! |---|---|
//! | `log1p(x)` | ln(1 + x) in double precision |
//! | `clip(x, low, high)` | min(max(x, low), high), of x's type |
//! | `standardize(x, mean, deviation)` | (x - mean) / deviation in double precision |
//! | `bucketize(x, b1, b2, ...)` | how many of the ascending bounds are <= x |
//! | `hash_bucket(x, n [, seed])` | a stable number from 0 to n - 1 |
//! | `list_truncate(list, n)` | the first n items |
//! | `list_pad(list, n, value)` | the items, and `value` until there are n |

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use datafusion_expr::ScalarUDF;
use datafusion_functions::{core, datetime, math, string, unicode};

pub(crate) mod fields;
mod hash_bucket;
mod lists;
mod numbers;

/// Those of DataFusion. Not among them: what is no function of its arguments, and what makes a megabyte of a byte.
const KNOWN: &[&str] = &[
    // numbers
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "cot",
    "degrees",
    "exp",
    "floor",
    "gcd",
    "isnan",
    "iszero",
    "lcm",
    "ln",
    "log",
    "log10",
    "log2",
    "nanvl",
    "pi",
    "power",
    "radians",
    "round",
    "signum",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    // nulls and choices
    "coalesce",
    "greatest",
    "least",
    "nullif",
    "nvl",
    "nvl2",
    // strings
    "ascii",
    "bit_length",
    "btrim",
    "character_length",
    "chr",
    "concat",
    "concat_ws",
    "contains",
    "ends_with",
    "find_in_set",
    "initcap",
    "left",
    "lower",
    "ltrim",
    "octet_length",
    "reverse",
    "right",
    "rtrim",
    "split_part",
    "starts_with",
    "strpos",
    "substr",
    "to_hex",
    "translate",
    "upper",
    // dates and times
    "date_bin",
    "date_part",
    "date_trunc",
    "from_unixtime",
    "make_date",
    "to_date",
    "to_local_time",
    "to_timestamp",
    "to_timestamp_micros",
    "to_timestamp_millis",
    "to_timestamp_nanos",
    "to_timestamp_seconds",
    "to_unixtime",
];

/// All of them, by name and by alias.
pub fn all() -> &'static BTreeMap<String, Arc<ScalarUDF>> {
    static ALL: OnceLock<BTreeMap<String, Arc<ScalarUDF>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let theirs = [
            core::functions(),
            math::functions(),
            string::functions(),
            unicode::functions(),
            datetime::functions(),
        ];
        let theirs = theirs.into_iter().flatten().filter(|function| KNOWN.contains(&function.name()));
        let ours = numbers::functions().into_iter().chain(lists::functions());
        let ours = ours.chain([hash_bucket::function(), fields::function()]);
        let mut all = BTreeMap::new();
        for function in theirs.chain(ours) {
            for alias in function.aliases() {
                all.insert(alias.clone(), Arc::clone(&function));
            }
            all.insert(function.name().to_owned(), function);
        }
        all
    })
}

/// The one value of an argument that may not differ from row to row.
fn constant(
    function: &str,
    what: &str,
    argument: &datafusion_expr::ColumnarValue,
) -> datafusion_common::Result<datafusion_common::ScalarValue> {
    match argument {
        datafusion_expr::ColumnarValue::Scalar(value) if !value.is_null() => Ok(value.clone()),
        _ => datafusion_common::exec_err!("{function}: {what} has to be a constant, and not null"),
    }
}
