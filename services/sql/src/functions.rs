//! Functions that expressions can call: DataFusion's pure functions whose result size is bounded by their arguments, and
//! functions for feature engineering:
//!
//! | function | result |
//! |---|---|
//! | `log1p(x)` | ln(1 + x) in double precision |
//! | `clip(x, low, high)` | min(max(x, low), high), of x's type |
//! | `standardize(x, mean, deviation)` | (x - mean) / deviation in double precision |
//! | `bucketize(x, b1, b2, ...)` | number of the ascending bounds that are <= x |
//! | `hash_bucket(x, n [, seed])` | a stable number from 0 to n - 1 |
//! | `list_truncate(list, n)` | the first n items of the list |
//! | `list_pad(list, n, value)` | the list, extended with `value` to n items |

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use datafusion_expr::ScalarUDF;
use datafusion_functions::{core, datetime, math, string, unicode};

mod arguments;
pub(crate) mod get_field;
mod hash_bucket;
mod lists;
mod numbers;

/// DataFusion's functions. Excluded are functions that are not pure, and functions with unbounded results, such as `repeat`.
const DATAFUSION: &[&str] = &[
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

/// Returns all functions, by name and by alias.
pub fn all() -> &'static BTreeMap<String, Arc<ScalarUDF>> {
    static ALL: OnceLock<BTreeMap<String, Arc<ScalarUDF>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let datafusion = [
            core::functions(),
            math::functions(),
            string::functions(),
            unicode::functions(),
            datetime::functions(),
        ];
        let datafusion =
            datafusion.into_iter().flatten().filter(|function| DATAFUSION.contains(&function.name()));
        let own = numbers::functions().into_iter().chain(lists::functions());
        let own = own.chain([hash_bucket::function(), get_field::function()]);
        let mut all = BTreeMap::new();
        for function in datafusion.chain(own) {
            for alias in function.aliases() {
                all.insert(alias.clone(), Arc::clone(&function));
            }
            all.insert(function.name().to_owned(), function);
        }
        all
    })
}
