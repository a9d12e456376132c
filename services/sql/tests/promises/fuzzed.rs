//! Property of the fuzz target, checked for the inputs of its corpus.

use std::{fs, path::Path};

#[path = "../../../../fuzz/properties/sql.rs"]
mod expression;
#[path = "../../../../fuzz/properties/replay.rs"]
mod replay;

#[test]
fn expressions_of_the_fuzzer_have_one_value_per_row_or_an_error() {
    replay::replay("sql", 8, expression::check);
}

/// Expressions that are not among those of the golden file.
const MORE: &[&str] = &[
    "",
    "x",
    "x AS \"a name\"",
    "h / k > 0 AND n % h = 1",
    "u + 1",
    "-k",
    "c * 1.5",
    "c / 3",
    "f = x",
    "p['n'] + p['n']",
    "p['city'] LIKE '%7_'",
    "a[1]",
    "y = 'x'",
    "r || s",
    "CAST(y AS VARCHAR)",
    "TRY_CAST(r AS DOUBLE)",
    "d > '2024-01-01'",
    "t - z",
    "t + INTERVAL '1 month'",
    "date_part('epoch', z)",
    "date_trunc('hour', o)",
    "CAST(t AS BIGINT) / 1000",
    "list_pad(a, 3, 0)",
    "list_truncate(l, 1) = l",
    "hash_bucket(l, 10)",
    "hash_bucket(p, 10, 3)",
    "CASE WHEN b THEN i / h WHEN x > 0 THEN NULL ELSE n END",
    "coalesce(nullif(s, ''), r, 'x')",
    "i IN (1, h / k, n)",
    "(b AND NOT b) IS NULL",
    "x BETWEEN f AND 1e300",
    "random()",
    "(SELECT 1)",
    "sum(i)",
    "((((((((((i))))))))))",
    "$1",
    "s ~ 'a+'",
    "i::int",
    "'\u{1f600}' || s",
];

/// Writes the inputs that fuzzing begins with.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_seeds_of_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/sql");
    fs::create_dir_all(&folder).unwrap();
    for (number, text) in crate::identity::EXPRESSIONS.iter().chain(MORE).enumerate() {
        fs::write(folder.join(format!("seed-{number:03}")), text).unwrap();
    }
}
