//! Names that outlive a process, and the results that they stand for.

use std::{fmt::Write, fs, path::Path, sync::Arc};

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray, types::Int32Type,
};
use arrow_schema::{DataType, Field, TimeUnit, UnionMode};
use forebay_sql::{COMPUTED_BY, Expression, Identity, SEMANTICS, ScalarValue, functions};

fn rows() -> RecordBatch {
    let day = 86_400_000_000;
    let place = vec![(
        Arc::new(Field::new("city", DataType::Utf8, true)),
        Arc::new(StringArray::from(vec![Some("Ulm"), None, Some("Bern"), Some("")])) as ArrayRef,
    )];
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), Some(2), Some(3)]),
        Some(vec![]),
        None,
        Some(vec![None, Some(7)]),
    ]);
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("i", Arc::new(Int64Array::from(vec![Some(-7), Some(0), None, Some(12)])), true),
        ("n", Arc::new(Int64Array::from(vec![1, 2, 3, 4])), false),
        ("x", Arc::new(Float64Array::from(vec![Some(0.5), Some(-0.25), None, Some(1000.0)])), true),
        ("s", Arc::new(StringArray::from(vec![Some("Ab c"), Some(""), None, Some("\u{e9}\u{df},z")])), true),
        ("b", Arc::new(BooleanArray::from(vec![Some(true), Some(false), None, Some(true)])), true),
        (
            "t",
            Arc::new(TimestampMicrosecondArray::from(vec![Some(0), Some(-1), None, Some(20_000 * day + 1)])),
            true,
        ),
        ("l", Arc::new(list), true),
        ("p", Arc::new(StructArray::from(place)), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// At least one expression per function, operator and form. Results of transcendental functions are rounded, because
/// platforms differ in their last digits.
pub(crate) const EXPRESSIONS: &[&str] = &[
    "i + n",
    "i - n",
    "i * n",
    "i / n",
    "i % n",
    "-i",
    "x / 3.0",
    "s || 'z'",
    "i = 0",
    "i <> 0",
    "i < n",
    "i <= n",
    "i > n",
    "i >= n",
    "i IS NULL",
    "i IS NOT NULL",
    "b IS TRUE",
    "b IS NOT FALSE",
    "b IS UNKNOWN",
    "NOT b",
    "b AND i > 0",
    "b OR i > 0",
    "i IS DISTINCT FROM n",
    "i IS NOT DISTINCT FROM n",
    "i BETWEEN -1 AND 20",
    "i NOT BETWEEN -1 AND 20",
    "s LIKE 'A%'",
    "s ILIKE 'a%'",
    "s NOT LIKE '%c'",
    "i IN (0, 12)",
    "i NOT IN (0, 12, NULL)",
    "CASE WHEN i > 0 THEN 'p' WHEN i < 0 THEN 'm' ELSE s END",
    "CASE i WHEN 0 THEN 1.5 END",
    "CAST(x AS BIGINT)",
    "CAST(i AS DOUBLE)",
    "CAST(i AS VARCHAR)",
    "TRY_CAST(s AS INT)",
    "p['city']",
    "abs(i)",
    "round(acos(x / 2000), 9)",
    "round(acosh(n), 9)",
    "round(asin(x / 2000), 9)",
    "round(asinh(x), 9)",
    "round(atan(x), 9)",
    "round(atan2(x, n), 9)",
    "round(atanh(x / 2000), 9)",
    "round(cbrt(x), 9)",
    "ceil(x)",
    "round(cos(x), 9)",
    "round(cosh(n), 9)",
    "round(cot(x), 9)",
    "round(degrees(x), 9)",
    "round(exp(n), 9)",
    "floor(x)",
    "gcd(i, n)",
    "isnan(x)",
    "iszero(x)",
    "lcm(i, n)",
    "round(ln(n), 9)",
    "round(log(10, n), 9)",
    "round(log10(n), 9)",
    "round(log2(n), 9)",
    "nanvl(x, 1.0)",
    "round(pi(), 9)",
    "power(n, 2)",
    "round(radians(x), 9)",
    "round(x, 1)",
    "signum(x)",
    "round(sin(x), 9)",
    "round(sinh(n), 9)",
    "round(sqrt(n), 9)",
    "round(tan(x), 9)",
    "round(tanh(x), 9)",
    "trunc(x)",
    "coalesce(i, 5)",
    "greatest(i, n)",
    "least(i, n)",
    "nullif(i, 0)",
    "nvl(i, 9)",
    "nvl2(i, 1, 2)",
    "ascii(s)",
    "bit_length(s)",
    "btrim(s)",
    "character_length(s)",
    "chr(64 + n)",
    "concat(s, 'x', i)",
    "concat_ws('-', s, i)",
    "contains(s, 'b')",
    "ends_with(s, 'c')",
    "find_in_set('z', s)",
    "initcap(s)",
    "left(s, 2)",
    "lower(s)",
    "ltrim(s)",
    "octet_length(s)",
    "reverse(s)",
    "right(s, 2)",
    "rtrim(s)",
    "split_part(s, ' ', 1)",
    "starts_with(s, 'A')",
    "strpos(s, 'c')",
    "substr(s, 2)",
    "substr(s, 2, 2)",
    "to_hex(n)",
    "translate(s, 'A', 'x')",
    "upper(s)",
    "date_bin(INTERVAL '1 hour', t)",
    "date_part('year', t)",
    "date_part('dow', t)",
    "date_trunc('day', t)",
    "from_unixtime(n)",
    "make_date(2024, 2, 29)",
    "to_date('2024-02-29')",
    "to_local_time(t)",
    "to_timestamp('2024-02-29T01:02:03Z')",
    "to_timestamp_micros(n)",
    "to_timestamp_millis(n)",
    "to_timestamp_nanos(n)",
    "to_timestamp_seconds(n)",
    "to_unixtime(t)",
    "round(log1p(x), 9)",
    "clip(i, 0, 10)",
    "standardize(x, 1, 2)",
    "bucketize(x, 0, 0.5, 1)",
    "list_truncate(l, 2)",
    "list_pad(l, 2, -1)",
    "hash_bucket(i, 1000)",
    "hash_bucket(s, 1000, 7)",
    // Other names of functions.
    "i IN (1, pow(2, 3))",
    "length(s) > length('abc')",
];

fn compiled(text: &str) -> Expression {
    Expression::column(&format!("{text} AS y"), &rows().schema())
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn results() -> String {
    let mut out = format!("semantics {SEMANTICS}\n");
    for text in EXPRESSIONS {
        let expression = compiled(text);
        let values = expression.evaluate(&rows().project(expression.inputs()).unwrap());
        let values = values.unwrap_or_else(|error| panic!("{text}: {error}"));
        let value = |row| ScalarValue::try_from_array(&values, row).unwrap().to_string();
        let shown: Vec<String> = (0..values.len()).map(value).collect();
        writeln!(out, "{text} -> {} [{}]", values.data_type(), shown.join(" | ")).unwrap();
    }
    out
}

fn identities() -> String {
    let line = |text: &&str| format!("{text} -> {:032x}\n", compiled(text).identity());
    format!("semantics {SEMANTICS}\n") + &EXPRESSIONS.iter().map(line).collect::<String>()
}

/// Compares `found` with a golden file, or writes the file with `FOREBAY_BLESS=1`.
fn compare(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        fs::write(&path, found).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    let differs = golden.lines().zip(found.lines()).find(|(then, now)| then != now);
    assert!(
        golden == found,
        "{name} differs, first in {differs:?}: raise SEMANTICS in services/sql/src/expression_identity.rs, so that stored counts \
         and columns are not used with other results, then run this test with FOREBAY_BLESS=1"
    );
}

#[test]
fn results_of_expressions_change_only_with_the_version_of_the_semantics() {
    compare("results.txt", &results());
}

#[test]
fn identities_of_expressions_are_frozen() {
    compare("identities.txt", &identities());
}

#[test]
fn the_golden_table_covers_every_function() {
    let covered = |name: &String| {
        let called = EXPRESSIONS.iter().any(|text| text.contains(&format!("{name}(")));
        let target = functions::all()[name].name().to_owned();
        called || EXPRESSIONS.iter().any(|text| text.contains(&format!("{target}(")))
    };
    let by_syntax = ["get_field"];
    let missing: Vec<&String> = functions::all()
        .keys()
        .filter(|name| !covered(name) && !by_syntax.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "no expression calls {missing:?}");
}

#[test]
fn identities_of_types_are_frozen() {
    let zone = Some("Europe/Berlin".into());
    let field = |name: &str, data_type| Arc::new(Field::new(name, data_type, true));
    let entries = DataType::Struct(
        vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Int8, true)].into(),
    );
    let union = |mode| DataType::Union([(5, field("a", DataType::Int8))].into_iter().collect(), mode);
    let types = [
        DataType::Boolean,
        DataType::UInt16,
        DataType::Float16,
        DataType::Timestamp(TimeUnit::Microsecond, zone),
        DataType::Timestamp(TimeUnit::Nanosecond, None),
        DataType::FixedSizeBinary(16),
        DataType::Decimal128(38, -2),
        DataType::List(field("item", DataType::Float32)),
        DataType::FixedSizeList(field("item", DataType::Float32), 8),
        DataType::Map(Arc::new(Field::new("entries", entries, false)), false),
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        union(UnionMode::Sparse),
        union(UnionMode::Dense),
    ];
    let lines = types.iter().map(|data_type| {
        format!("{data_type} -> {:032x}\n", Identity::new("golden", 1).data_type(data_type).hash())
    });
    compare("types.txt", &lines.collect::<String>());
}

#[test]
fn metadata_of_a_type_does_not_change_its_identity_and_its_parts_do() {
    let plain = Field::new("item", DataType::Int8, true);
    let described = plain.clone().with_metadata([("unit".to_owned(), "m".to_owned())].into());
    let identity =
        |field: &Field| Identity::new("golden", 1).data_type(&DataType::List(Arc::new(field.clone()))).hash();
    assert_eq!(identity(&plain), identity(&described));
    assert_ne!(identity(&plain), identity(&plain.clone().with_nullable(false)));
    assert_ne!(identity(&plain), identity(&plain.with_name("element")));
}

#[test]
fn no_two_lists_of_parts_have_the_same_identity() {
    let new = || Identity::new("golden", 1);
    let all = [
        new(),
        new().text("ab"),
        new().text("a").text("b"),
        new().bytes(b"ab"),
        new().number(0),
        new().list(0),
        new().part(0),
        new().text(""),
        Identity::new("golden", 2),
        Identity::new("golden2", 1),
    ];
    let mut hashes: Vec<u128> = all.iter().map(Identity::hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), all.len());
}

#[test]
fn the_versions_of_the_libraries_in_names_are_those_of_the_lock_file() {
    let lock = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock")).unwrap();
    let version = |name: &str| {
        let start = lock.find(&format!("name = \"{name}\"\n")).unwrap();
        lock[start..].split('"').nth(3).unwrap().to_owned()
    };
    let expected = format!("arrow {}, datafusion {}", version("arrow-cast"), version("datafusion-functions"));
    assert_eq!(COMPUTED_BY, expected, "update COMPUTED_BY, which invalidates computed columns on disk");
}
