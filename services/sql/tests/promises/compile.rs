//! Compilation and evaluation of expressions.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BooleanArray, FixedSizeListArray, Float64Array, Int8Array, Int32Array, Int64Array,
    LargeStringArray, ListArray, RecordBatch, StringArray, StructArray, cast::AsArray, types::Int32Type,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields, Schema};
use forebay_sql::{Error, Expression, ScalarValue, array_bytes, functions};

fn schema() -> Schema {
    let list = DataType::new_list(DataType::Int32, true);
    Schema::new(vec![
        Field::new("delay", DataType::Int32, true),
        Field::new("distance", DataType::Int64, false),
        Field::new("x", DataType::Float64, true),
        Field::new("Name", DataType::Utf8, true),
        Field::new("items", list, true),
        Field::new("place", DataType::Struct(place_fields()), true),
    ])
}

fn place_fields() -> Fields {
    let inner = DataType::Struct(vec![Field::new("code", DataType::Int32, true)].into());
    vec![Field::new("city", DataType::Utf8, true), Field::new("Post", inner, true)].into()
}

/// The second city and the third place are null.
fn places() -> StructArray {
    let codes = Int32Array::from(vec![Some(10), None, Some(30), Some(40)]);
    let inner = vec![Field::new("code", DataType::Int32, true)].into();
    let post = StructArray::new(inner, vec![Arc::new(codes)], None);
    let cities = StringArray::from(vec![Some("Ulm"), None, Some("Bern"), Some("")]);
    let present = Some(vec![true, true, false, true].into());
    StructArray::new(place_fields(), vec![Arc::new(cities), Arc::new(post)], present)
}

fn rows() -> RecordBatch {
    let items = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), Some(2), Some(3)]),
        Some(vec![]),
        None,
        Some(vec![None, Some(7)]),
    ]);
    RecordBatch::try_new(
        Arc::new(schema()),
        vec![
            Arc::new(Int32Array::from(vec![Some(5), None, Some(-3), Some(i32::MAX)])),
            Arc::new(Int64Array::from(vec![100, 0, -7, i64::MAX])),
            Arc::new(Float64Array::from(vec![Some(0.5), Some(-0.0), None, Some(f64::NAN)])),
            Arc::new(StringArray::from(vec![Some("a"), Some("ab"), None, Some("")])),
            Arc::new(items),
            Arc::new(places()),
        ],
    )
    .unwrap()
}

fn evaluate(text: &str) -> Result<ArrayRef, Error> {
    let expression = Expression::column(text, &schema())?;
    let batch = rows().project(expression.inputs()).unwrap();
    let values = expression.evaluate(&batch)?;
    assert_eq!(values.data_type(), expression.field().data_type(), "{text}");
    assert!(expression.field().is_nullable() || values.null_count() == 0, "{text}");
    Ok(values)
}

fn values(text: &str) -> Vec<String> {
    let array = evaluate(&format!("{text} AS y")).unwrap();
    let value = |row| ScalarValue::try_from_array(&array, row).unwrap().to_string();
    (0..array.len()).map(value).collect()
}

fn error(text: &str) -> String {
    evaluate(text).unwrap_err().to_string()
}

#[test]
fn feature_functions_match_their_formulas() {
    for (text, expected) in [
        ("log1p(x)", ["0.4054651081081644", "-0", "NULL", "NaN"]),
        ("clip(delay, 0, 10)", ["5", "NULL", "0", "10"]),
        ("clip(x, 0.0, 0.25)", ["0.25", "-0", "NULL", "NaN"]),
        ("clip(delay, -0.5, 0.5)", ["0.5", "NULL", "-0.5", "0.5"]),
        ("standardize(distance, 100, 50)", ["0", "-2", "-2.14", "184467440737095520"]),
        ("bucketize(x, 0, 0.5, 1)", ["2", "1", "NULL", "3"]),
        ("bucketize(distance, -7, 100)", ["2", "1", "1", "2"]),
        ("list_truncate(items, 2)", ["[1, 2]", "[]", "", "[, 7]"]),
        ("list_pad(items, 2, -1)", ["[1, 2, 3]", "[-1, -1]", "", "[, 7]"]),
        ("list_pad(list_truncate(items, 2), 2, NULL)", ["[1, 2]", "[, ]", "", "[, 7]"]),
    ] {
        assert_eq!(values(text), expected, "{text}");
    }
}

#[test]
fn hash_bucket_is_frozen() {
    // Computed with Python: xxhash.xxh3_64_intdigest(bytes) % n.
    assert_eq!(values("hash_bucket(distance, 1000)"), ["475", "897", "204", "142"]);
    assert_eq!(values("hash_bucket(CAST(distance AS BIGINT), 1000, 7)"), ["746", "977", "829", "697"]);
    assert_eq!(values("hash_bucket(\"Name\", 1000)"), ["719", "28", "NULL", "138"]);
    assert_eq!(values("hash_bucket(x, 1000)"), ["217", "897", "NULL", "895"]);
    assert_eq!(values("hash_bucket(delay, 1000)"), values("hash_bucket(CAST(delay AS BIGINT), 1000)"));
}

#[test]
fn operators_and_functions_have_sql_semantics() {
    for (text, expected) in [
        ("delay > 0 AND distance < 1000", ["true", "NULL", "false", "false"]),
        ("CASE WHEN delay IS NULL THEN -1 WHEN delay > 0 THEN 1 ELSE 0 END", ["1", "-1", "0", "1"]),
        ("COALESCE(delay, 0)", ["5", "0", "-3", "2147483647"]),
        ("CAST(distance AS DOUBLE) / 8", ["12.5", "0", "-0.875", "1152921504606847000"]),
        ("upper(\"Name\") || '!'", ["A!", "AB!", "NULL", "!"]),
        ("Name LIKE 'a%'", ["true", "true", "NULL", "false"]),
        ("distance IN (100, 0)", ["true", "true", "false", "false"]),
        ("delay BETWEEN -3 AND 5", ["true", "NULL", "true", "false"]),
        ("1.5 / 0.0e0", ["inf", "inf", "inf", "inf"]),
    ] {
        assert_eq!(values(text), expected, "{text}");
    }
    assert_eq!(Expression::column("distance", &schema()).unwrap().is_column(), Some(1));
    assert_eq!(Expression::column("x", &schema()).unwrap().is_column(), Some(2));
    assert_eq!(Expression::column("x + 1 AS y", &schema()).unwrap().is_column(), None);
}

#[test]
fn a_filter_is_named_filter_even_if_it_is_a_column() {
    let schema = Schema::new(vec![Field::new("valid", DataType::Boolean, true)]);
    assert_eq!(Expression::filter("valid", &schema).unwrap().field().name(), "filter");
    assert_eq!(Expression::column("valid", &schema).unwrap().field().name(), "valid");
}

#[test]
fn sizes_of_results_and_of_the_memory_for_evaluation_are_estimated() {
    let expression = |text| Expression::column(text, &schema()).unwrap();
    assert_eq!(expression("distance + 1 AS y").expected_bytes(1000, |_| 0), 8000);
    let bytes_of = |column| if column == 3 { 5000 } else { 0 };
    assert!(expression("upper(\"Name\") AS y").expected_bytes(10, bytes_of) >= 5000);
    let fields = vec![Field::new("Name", DataType::Utf8, true)];
    let texts = |text: &str| {
        let names = Arc::new(StringArray::from(vec![text, text])) as ArrayRef;
        RecordBatch::try_new(Arc::new(Schema::new(fields.clone())), vec![names]).unwrap()
    };
    let upper = expression("upper(\"Name\") AS y");
    assert!(upper.is_small(&texts("short")));
    assert!(!upper.is_small(&texts(&"x".repeat(16 << 20))));
}

#[test]
fn lists_that_a_cast_widens_are_not_larger_than_estimated() {
    let flags: ArrayRef = Arc::new((0..6000).map(|row| Some(row % 3 == 0)).collect::<BooleanArray>());
    let list = |values: ArrayRef, length: usize| -> ArrayRef {
        let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(length, values.len() / length));
        let item = Arc::new(Field::new("item", values.data_type().clone(), true));
        Arc::new(ListArray::new(item, offsets, values, None))
    };
    let flat = list(Arc::clone(&flags), 600);
    let nested = list(list(Arc::clone(&flags), 100), 6);
    let item = Arc::new(Field::new("item", DataType::Boolean, true));
    let fixed: ArrayRef = Arc::new(FixedSizeListArray::new(item, 100, Arc::clone(&flags), None));
    let of_fixed = list(fixed, 6);
    let small: ArrayRef = Arc::new((0..6000).map(|row| Some((row % 100) as i8)).collect::<Int8Array>());
    for (column, to, of_one) in [
        (flat, "DOUBLE[]", 64),
        (nested, "DOUBLE[][]", 64),
        (of_fixed, "DOUBLE[][]", 64),
        (list(small, 600), "DOUBLE[]", 8),
    ] {
        let schema = Schema::new(vec![Field::new("l", column.data_type().clone(), true)]);
        let expression = Expression::column(&format!("CAST(l AS {to}) AS y"), &schema).unwrap();
        let rows = RecordBatch::try_new(Arc::new(schema), vec![Arc::clone(&column)]).unwrap();
        let made = array_bytes(&expression.evaluate(&rows).unwrap());
        let expected = expression.expected_bytes(rows.num_rows() as u64, |_| array_bytes(&column));
        assert!(made >= 6000 * 8, "{}: {made} bytes", column.data_type());
        assert!(expected >= made, "{}: {made} bytes, expected {expected}", column.data_type());
        assert!(expected < 2 * of_one * array_bytes(&column), "{}: {expected}", column.data_type());
    }
}

#[test]
fn texts_that_a_function_makes_are_not_larger_than_estimated() {
    let schema = Schema::new(vec![Field::new("t", DataType::Utf8, true)]);
    let column: ArrayRef = Arc::new(StringArray::from_iter_values((0..100).map(|row| "é".repeat(row))));
    let rows = RecordBatch::try_new(Arc::new(schema.clone()), vec![Arc::clone(&column)]).unwrap();
    let empty = vec!["''"; 200].join(", ");
    for text in [
        format!("concat_ws('a separator of some length', t, {empty})"),
        format!("concat_ws(t, {empty})"),
        format!("concat({})", vec!["t"; 50].join(", ")),
        "translate('aaaa' || t, 'a', '𝄞')".to_owned(),
        "t || t || t".to_owned(),
        "upper(t)".to_owned(),
    ] {
        let expression = Expression::column(&format!("{text} AS y"), &schema).unwrap();
        let made = array_bytes(&expression.evaluate(&rows).unwrap());
        let expected = expression.expected_bytes(100, |_| array_bytes(&column));
        assert!((made..100 * made).contains(&expected), "{text}: {made} bytes, expected {expected}");
    }
}

#[test]
fn rows_of_a_long_chunk_need_no_memory_for_its_other_rows() {
    let schema = Schema::new(vec![Field::new("t", DataType::Utf8, true)]);
    let column = StringArray::from(vec!["short", &"x".repeat(16 << 20)]);
    let rows = RecordBatch::try_new(Arc::new(schema.clone()), vec![Arc::new(column)]).unwrap().slice(0, 1);
    for text in ["concat(t, t, t)", "concat_ws(t, t, t, t)", "concat_ws(',', t, t)"] {
        let expression = Expression::column(&format!("{text} AS y"), &schema).unwrap();
        let bytes = expression.evaluate(&rows).unwrap().get_buffer_memory_size();
        assert!(bytes < 1 << 20, "{text}: {bytes} bytes");
    }
}

#[test]
fn the_pattern_of_like_is_a_constant_of_limited_size() {
    let schema =
        Schema::new(vec![Field::new("t", DataType::Utf8, true), Field::new("u", DataType::Utf8, true)]);
    let compiled = |text: &str| Expression::filter(text, &schema);
    for text in ["t LIKE u", "t LIKE '%' || u", "t NOT ILIKE u", "t IS NULL OR t LIKE u"] {
        let error = compiled(text).unwrap_err().to_string();
        assert!(error.contains("must be a constant") && error.contains("starts_with"), "{text}: {error}");
    }
    for (wildcards, is_accepted) in
        [("%".repeat(100), true), ("_".repeat(100), true), ("_".repeat(101), false)]
    {
        for operator in ["LIKE", "ILIKE"] {
            let compiled = compiled(&format!("t {operator} 'a{wildcards}'"));
            assert_eq!(compiled.is_ok(), is_accepted, "{operator} {wildcards}");
            let refused = compiled.err().map_or_else(String::new, |error| error.to_string());
            assert!(is_accepted || refused.contains("101 wildcards, expected at most 100"), "{refused}");
        }
    }
    assert!(compiled("t LIKE 'a' || '%'").is_ok(), "constants are combined");
    // Text with 64-bit offsets.
    let schema = Schema::new(vec![Field::new("t", DataType::LargeUtf8, true)]);
    let texts: ArrayRef = Arc::new(LargeStringArray::from(vec!["abc", "xbc"]));
    let rows = RecordBatch::try_new(Arc::new(schema.clone()), vec![texts]).unwrap();
    for (text, expected) in
        [("t LIKE 'a%c'", 1), ("t ILIKE 'A%'", 1), ("t NOT LIKE '%bc'", 0), ("t LIKE NULL", 0)]
    {
        let values = Expression::filter(text, &schema).unwrap().evaluate(&rows).unwrap();
        assert_eq!(values.as_boolean().true_count(), expected, "{text}");
    }
}

#[test]
fn operands_of_case_that_are_nested_are_counted_in_one_pass() {
    let schema = Schema::new(vec![Field::new("f", DataType::Float64, true)]);
    let nested = (0..45).fold("f".to_owned(), |operand, _| format!("CASE {operand} WHEN 1e0 THEN 2e0 END"));
    // Two passes at each level would take days.
    let refused = Expression::column(&format!("{nested} AS y"), &schema).unwrap_err().to_string();
    assert!(refused.contains("nodes"), "{refused}");
}

#[test]
fn struct_fields_are_accessible_and_null_for_a_null_struct() {
    assert_eq!(values("place['city']"), ["Ulm", "NULL", "NULL", ""]);
    assert_eq!(values("place.city"), ["Ulm", "NULL", "NULL", ""]);
    assert_eq!(values("get_field(place, 'city')"), ["Ulm", "NULL", "NULL", ""]);
    assert_eq!(values("upper(place['city']) || '!'"), ["ULM!", "NULL", "NULL", "!"]);
    assert_eq!(values("place['Post']['code'] + 1"), ["11", "NULL", "NULL", "41"]);
    for (text, expected) in [
        ("place['town']", &["town", "city"][..]),
        ("place.town", &["town"]),
        ("place[x]", &["place[...]"]),
        ("get_field(place, \"Name\")", &["constant"]),
        ("delay['city']", &["'city'", "'delay'", "Int32", "struct"]),
        ("items[1]", &["items[...]", "list_truncate"]),
        ("items[1:2]", &["items[...]", "list_truncate"]),
    ] {
        let error = error(&format!("{text} AS y"));
        assert!(expected.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
}

#[test]
fn a_row_without_a_result_is_an_error_with_its_reason() {
    for (text, reason) in [
        ("delay + CAST(1 AS INT) AS y", "Overflow"),
        ("distance * 2 AS y", "Overflow"),
        ("distance < 9223372036854775807 + 1 AS y", "Overflow"),
        ("distance / 0 AS y", "Divide by zero"),
        ("CAST(\"Name\" AS INT) AS y", "Cannot cast string 'a' to value of Int32 type"),
        ("CAST(distance AS INT) AS y", "Can't cast value 9223372036854775807 to type Int32"),
    ] {
        assert!(error(text).contains(reason), "{text}: {}", error(text));
    }
}

#[test]
fn invalid_expressions_are_refused_with_their_reason() {
    for (text, reason) in [
        ("delya + 1 AS y", "there is no column 'delya'"),
        ("name AS y", "there is no column 'name'"),
        ("delay + 1", "'delay + 1' has no name, add one with AS"),
        ("lgo(delay) AS y", "Invalid function 'lgo'.\nDid you mean 'log'?"),
        ("mod(delay, 2) AS y", "Invalid function 'mod': use the operator %"),
        ("sqtr(delay) AS y", "Invalid function 'sqtr'.\nDid you mean 'sqrt'?"),
        (
            "zigzag_of_it(delay) AS y",
            "Invalid function 'zigzag_of_it', expected one of the functions of the SQL reference",
        ),
        ("random() AS y", "Invalid function 'random'"),
        ("now() AS y", "Invalid function 'now'"),
        ("uuid() AS y", "Invalid function 'uuid'"),
        ("repeat(\"Name\", 1000000000) AS y", "Invalid function 'repeat'"),
        ("(SELECT 1) AS y", "is not an expression of one row"),
        ("EXISTS (SELECT 1) AS y", "is not an expression of one row"),
        ("delay IN (SELECT 1) AS y", "is not an expression of one row"),
        ("(SELECT a FROM b) AS y", "tables are not supported"),
        ("sum(delay) AS y", "Invalid function 'sum': an expression depends on one row"),
        ("abs(delay) OVER () AS y", "'abs(delay) OVER ()' is not an expression of one row"),
        ("1 + abs(delay) FILTER (WHERE delay > 1) AS y", "is not an expression of one row"),
        ("abs(DISTINCT delay) AS y", "'abs(DISTINCT delay)' is not an expression of one row"),
        ("abs(delay ORDER BY x) AS y", "is not an expression of one row"),
        ("abs(1)(delay) AS y", "is not an expression of one row"),
        ("abs(delay) IGNORE NULLS AS y", "is not an expression of one row"),
        ("abs(delay) WITHIN GROUP (ORDER BY x) AS y", "is not an expression of one row"),
        ("$1 AS y", "is not an expression of one row"),
        ("@v AS y", "has no type information"),
        ("delay +", "Expected: an expression"),
        ("delay AS y, x AS z", "has ',' after its end"),
        ("delay AS y; DROP TABLE t", "has ';' after its end"),
        ("'unfinished", "Unterminated string literal"),
        ("", "Expected: an expression"),
        ("NULL AS y", "is always null"),
        ("bucketize(x, 2, 1) AS y", "are not ascending"),
        ("bucketize(x, distance) AS y", "must be a constant"),
        ("hash_bucket(x, 0) AS y", "expected at least 1"),
        ("hash_bucket(items, 3) AS y", "does not support values of type List"),
        (
            "hash_bucket(CAST(x AS DECIMAL(9, 2)), 3) AS y",
            "does not support values of type Decimal128(9, 2), expected integers, floats, text, bytes, booleans or times; cast it",
        ),
        ("clip(x, 1, 0) AS y", "expected at most high"),
        ("standardize(x, 1, 0) AS y", "a deviation other than 0"),
        ("\"Name\" ~ 'a+' AS y", "has the operator ~, which is not supported; use LIKE"),
        ("distance << 3 AS y", "has the operator <<, which is not supported"),
        ("distance & 3 AS y", "has the operator &, which is not supported; conditions are combined by AND"),
        ("distance | 3 AS y", "has the operator |, which is not supported; conditions are combined by OR"),
        ("\"Name\" SIMILAR TO 'a+' AS y", "has SIMILAR TO, which is not supported; use LIKE"),
        ("\"Name\" RLIKE 'a+' AS y", "has a regular expression, which is not supported; use LIKE"),
        ("\"Name\" REGEXP 'a+' AS y", "has a regular expression, which is not supported; use LIKE"),
        ("\"Name\" COLLATE \"C\" AS y", "has COLLATE, which is not supported"),
        (
            "from_unixtime(distance, 'Nowhere/X') AS y",
            "'Nowhere/X' is not a time zone, expected a name such as",
        ),
        ("to_timestamp(distance) AT TIME ZONE 'Nowhere/X' AS y", "'Nowhere/X' is not a time zone"),
        ("list_pad(items, 1000000, 0) AS y", "expected 0 to 65536"),
    ] {
        assert!(error(text).contains(reason), "{text}: {}", error(text));
    }
    let filter = |text| Expression::filter(text, &schema()).unwrap_err().to_string();
    assert_eq!(filter("delay"), "is of type Int32, expected a boolean");
    assert_eq!(filter("delay > 1 AS y"), "has an alias, expected none");
}

#[test]
fn the_error_of_an_unknown_function_suggests_only_a_similar_one() {
    for (name, known) in
        [("cell", "ceil"), ("substrr", "substr"), ("date_prat", "date_part"), ("roundd", "round")]
    {
        for over in ["", " OVER ()"] {
            let error = error(&format!("{name}(delay){over} AS y"));
            assert_eq!(error, format!("Invalid function '{name}'.\nDid you mean '{known}'?"));
            assert!(functions::all().contains_key(known));
        }
    }
    for name in ["q", "xyzz", "row_number", "regexp_like"] {
        let error = error(&format!("{name}(delay) AS y"));
        assert!(error.starts_with(&format!("Invalid function '{name}'")), "{error}");
        assert!(!error.contains("Did you mean"), "{error}");
    }
}

#[test]
fn errors_name_no_parts_of_libraries() {
    for text in [
        "substr(delay, 'a')",
        "substr()",
        "substr(\"Name\")",
        "greatest(delay, \"Name\" LIKE 'a')",
        "list_truncate(delay, 2)",
        "coalesce()",
        "date_trunc(delay, 'day')",
        "strpos(delay)",
        "delay RLIKE 'a'",
        "\"Name\" COLLATE x",
        "\"Name\" NOT REGEXP 'a'",
        "CAST('12:00' AS TIME) BETWEEN 1 AND 2",
        "delay AT TIME ZONE 'UTC'",
        "TRIM(LEADING 'a' FROM delay, 3)",
        "x IS JSON",
        "delay ^ 2",
        "delay # 2",
        "~delay",
    ] {
        let error = match evaluate(&format!("{text} AS y")) {
            Err(error) => error.to_string(),
            Ok(_) => continue,
        };
        for part in [
            "DataFusion",
            "datafusion",
            "sqltorel",
            "Internal error",
            "Value(",
            "Identifier(",
            "user-defined",
        ] {
            assert!(!error.contains(part), "{text}: {error}");
        }
    }
}

#[test]
fn deep_and_long_expressions_are_compiled_or_refused() {
    let deep = format!("{}delay{} AS y", "(".repeat(10_000), ")".repeat(10_000));
    assert!(error(&deep).contains("expected at most 2048"));
    let nested = format!("{}delay{} AS y", "abs(".repeat(600), ")".repeat(600));
    assert!(error(&nested).contains("recursion limit"), "{}", error(&nested));
    let long = format!("{} AS y", vec!["x"; 700].join(" - "));
    evaluate(&long).unwrap();
    let cases = format!("{} AS y", vec!["CASE WHEN delay > 1 THEN x END"; 200].join(" + "));
    evaluate(&cases).unwrap();
    let doubled = format!("delay BETWEEN 1 AND 2{} AS y", " BETWEEN true AND true".repeat(60));
    assert!(error(&doubled).contains("expands to more than 20000 nodes"), "{}", error(&doubled));
    let nested = format!("{}delay{} AS y", "coalesce(".repeat(40), ", 1)".repeat(40));
    assert!(error(&nested).contains("expands to more than 20000 nodes"), "{}", error(&nested));
    assert!(error(&"x ".repeat(100_000)).contains("expected at most 65536"));
    // A list of constants is not expanded, and one with a column is: (1 + 140) * 141 + 1 nodes, and the chain with AND.
    evaluate(&format!("distance IN ({}) AS y", vec!["1"; 1000].join(","))).unwrap();
    let expanded = |terms: usize| {
        let list = format!("distance IN ({}, delay)", vec!["1"; 139].join(","));
        format!("{list} AND ({}) > 1 AS y", vec!["delay"; terms].join(" - "))
    };
    evaluate(&expanded(58)).unwrap();
    assert!(error(&expanded(59)).contains("expands to more than 20000 nodes"), "{}", error(&expanded(59)));
    // A chain of n terms has parts of 1, 3, ... 2n - 1 nodes, and n - 1 further terms.
    let chain = |terms: usize| format!("{} AS y", vec!["x"; terms].join(" - "));
    assert_eq!(Expression::column(&chain(10), &schema()).unwrap().complexity(), 100 + 9);
    assert!(error(&chain(707)).contains("is too complex: the sizes of its parts add up to 500555 nodes"));
}

#[test]
fn an_identity_depends_on_the_computation_and_not_on_its_name() {
    let identity = |text: &str| Expression::column(text, &schema()).unwrap().identity();
    assert_eq!(identity("delay + 1 AS a"), identity("delay  +  1 AS b"));
    assert_eq!(identity("delay BETWEEN 1 AND 5 AS a"), identity("delay >= 1 AND delay <= 5 AS a"));
    for other in ["delay + 2 AS a", "distance + 1 AS a", "CAST(delay AS DOUBLE) + 1 AS a", "delay - 1 AS a"] {
        assert_ne!(identity("delay + 1 AS a"), identity(other), "{other}");
    }
    // Constants whose text looks like several constants.
    let filter = |text: &str| Expression::filter(text, &schema()).unwrap().identity();
    let list = |texts: &[&str]| format!("\"Name\" IN ('{}')", texts.join("','"));
    let spelled = "a\"), None), Literal(Utf8(\"b";
    assert_ne!(filter(&list(&["a", "b", "c", "d", "e"])), filter(&list(&[spelled, "c", "d", "e"])));
    let metadata = |name: &str| (name.to_owned(), "x".to_owned());
    let mut with_metadata = schema().fields().to_vec();
    with_metadata[0] =
        Arc::new(with_metadata[0].as_ref().clone().with_metadata(["a", "b", "c"].map(metadata).into()));
    let with_metadata = Expression::column("delay + 1 AS a", &Schema::new(with_metadata)).unwrap();
    assert_eq!(identity("delay + 1 AS a"), with_metadata.identity());
    let mut wider = schema().fields().to_vec();
    wider[0] = Arc::new(Field::new("delay", DataType::Int64, true));
    let wider = Expression::column("delay + 1 AS a", &Schema::new(wider)).unwrap();
    assert_ne!(identity("delay + 1 AS a"), wider.identity());
}

#[test]
fn expressions_that_are_never_null_have_no_nulls() {
    // All columns except `distance` have nulls in these rows.
    for (text, never) in [
        ("log1p(distance) + 1", true),
        ("CASE WHEN delay > 1 THEN distance ELSE 0 END", true),
        ("CASE WHEN delay > 1 THEN distance END", false),
        ("COALESCE(delay, distance)", true),
        ("COALESCE(delay, x)", false),
        ("delay IS NULL", true),
        ("-distance", true),
        ("-delay", false),
        ("NOT distance > 5", true),
        ("clip(delay, 0, 1)", false),
        ("hash_bucket(distance, 10)", true),
        ("NULLIF(distance, 0)", false),
        ("TRY_CAST(CAST(distance AS VARCHAR) AS TINYINT)", false),
        ("upper(CAST(distance AS VARCHAR))", true),
        ("split_part(CAST(distance AS VARCHAR), '.', 9)", false),
        ("distance > 5 OR delay > 1", false),
    ] {
        let expression = Expression::column(&format!("{text} AS y"), &schema()).unwrap();
        assert_eq!(expression.is_never_null(|column| column != "distance"), never, "{text}");
        let batch = rows().project(expression.inputs()).unwrap();
        assert!(!never || expression.evaluate(&batch).unwrap().null_count() == 0, "{text}");
    }
}

#[test]
fn coalesce_and_the_like_accept_constants() {
    let of = |text: &str| evaluate(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(of("COALESCE(3, 2) AS y").as_primitive::<arrow_array::types::Int64Type>().value(1), 3);
    assert_eq!(
        of("nvl(2, 1) + COALESCE(COALESCE(NULL, 4), delay) AS y")
            .as_primitive::<arrow_array::types::Int64Type>()
            .value(1),
        6
    );
    assert_eq!(of("nvl2(1, 'a', 'b') AS y").as_string::<i32>().value(0), "a");
    assert!(Expression::filter("COALESCE(false, true) OR delay > 1", &schema()).is_ok());
}
