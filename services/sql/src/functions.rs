//! Functions that expressions can call: DataFusion's pure functions whose result size is bounded by their arguments, and
//! functions for feature engineering. Some of DataFusion's functions are evaluated in another way, see `changed`.
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

use crate::intervals;

mod arguments;
mod bin;
mod bucketize;
pub(crate) mod calendar;
mod changed;
mod epoch;
pub(crate) mod get_field;
mod hash_bucket;
mod lists;
mod numbers;
mod part;
mod partial;
mod rounding;
mod text;
mod trunc;

/// DataFusion's functions, each with true if its result is null exactly if an argument is null. Excluded are functions that are
/// not pure, and functions with unbounded results, such as `repeat`.
const DATAFUSION: &[(&str, bool)] = &[
    // numbers
    ("abs", true),
    ("acos", true),
    ("acosh", true),
    ("asin", true),
    ("asinh", true),
    ("atan", true),
    ("atan2", true),
    ("atanh", true),
    ("cbrt", true),
    ("ceil", true),
    ("cos", true),
    ("cosh", true),
    ("cot", true),
    ("degrees", true),
    ("exp", true),
    ("floor", true),
    ("gcd", false),
    ("isnan", true),
    ("iszero", true),
    ("lcm", false),
    ("ln", true),
    ("log", true),
    ("log10", true),
    ("log2", true),
    ("nanvl", false),
    ("pi", false),
    ("power", true),
    ("radians", true),
    ("round", true),
    ("signum", true),
    ("sin", true),
    ("sinh", true),
    ("sqrt", true),
    ("tan", true),
    ("tanh", true),
    ("trunc", true),
    // nulls and choices
    ("coalesce", false),
    ("greatest", false),
    ("least", false),
    ("nullif", false),
    ("nvl", false),
    ("nvl2", false),
    // strings
    ("ascii", false),
    ("bit_length", false),
    ("btrim", false),
    ("character_length", true),
    ("chr", false),
    ("concat", false),
    ("concat_ws", false),
    ("contains", false),
    ("ends_with", false),
    ("find_in_set", false),
    ("initcap", false),
    ("left", false),
    ("lower", true),
    ("ltrim", false),
    ("octet_length", true),
    ("reverse", true),
    ("right", false),
    ("rtrim", false),
    ("split_part", false),
    ("starts_with", false),
    ("strpos", false),
    ("substr", false),
    ("to_hex", false),
    ("translate", false),
    ("upper", true),
    // dates and times
    ("date_bin", false),
    ("date_part", false),
    ("date_trunc", false),
    ("from_unixtime", false),
    ("make_date", false),
    ("to_date", false),
    ("to_local_time", false),
    ("to_timestamp", false),
    ("to_timestamp_micros", false),
    ("to_timestamp_millis", false),
    ("to_timestamp_nanos", false),
    ("to_timestamp_seconds", false),
    ("to_unixtime", false),
];

/// Functions of this crate whose result is null exactly if an argument is null.
const STRICT: &[&str] = &["bucketize", "clip", "hash_bucket", "log1p", "standardize"];

/// Functions of this crate whose arguments after the first must be constants.
const CONSTANT_ARGUMENTS: &[&str] =
    &["bucketize", "clip", "hash_bucket", "list_pad", "list_truncate", "standardize"];

/// Returns true if the arguments of a function after the first must be constants.
pub(crate) fn has_constant_arguments(name: &str) -> bool {
    CONSTANT_ARGUMENTS.contains(&name)
}

/// Returns true if the result of a function is null exactly if an argument is null.
pub(crate) fn is_strict(name: &str) -> bool {
    STRICT.contains(&name) || intervals::is_check(name) || DATAFUSION.contains(&(name, true))
}

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
        let is_listed = |name: &str| DATAFUSION.iter().any(|(listed, _)| *listed == name);
        let datafusion = datafusion.into_iter().flatten().filter(|function| is_listed(function.name()));
        let datafusion = datafusion.map(changed::changed);
        let own = numbers::functions().into_iter().chain(lists::functions());
        let own = own.chain([bucketize::function(), hash_bucket::function(), get_field::function()]);
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
