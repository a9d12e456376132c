use std::sync::Arc;

use arrow_array::Int64Array;

use super::*;

fn schema() -> Schema {
    Schema::new(vec![Field::new("x", DataType::Int64, true)])
}

fn rows(count: i64) -> RecordBatch {
    let column = Int64Array::from_iter_values(0..count);
    RecordBatch::try_new(Arc::new(schema()), vec![Arc::new(column)])
        .expect("the column has the type of the schema")
}

#[test]
fn the_cost_is_proportional_to_the_rows_and_at_least_rows_times_nodes() {
    let sum = Expression::column("x + 1 AS y", &schema()).expect("it is valid");
    let cost = sum.cost(&rows(1000));
    assert!(cost >= 3 * 1000, "{cost}");
    // The costs differ slightly because the number of bytes is rounded.
    assert!(sum.cost(&rows(2000)).abs_diff(2 * cost) < 10, "{cost}");
    // The text is estimated at 40 bytes per row, which cost as much as ten nodes.
    let text = Expression::column("CAST(x AS text) AS y", &schema()).expect("it is valid");
    assert!(text.cost(&rows(1000)) >= 10 * 1000, "{}", text.cost(&rows(1000)));
}

#[test]
fn an_operand_copied_by_expansion_is_counted_once_per_copy() {
    for (text, expected) in [
        ("x", 1),
        ("x + 1", 3),
        ("abs(x)", 2),
        // The expansion has two copies of the operands.
        ("x BETWEEN 1 AND 2", 2 * 3 + 1),
        ("CASE WHEN x > 1 THEN x ELSE 0 END", 2 * 5 + 1),
        ("coalesce(x, 1)", 2 * 2 + 1),
        ("nullif(x, 1)", 2 * 2 + 1),
        // A list of constants stays a list. Any other list becomes one comparison per item.
        ("x IN (1, 2, 3)", 4 + 1),
        ("x IN (1, x, 3)", 4 * 4 + 1),
    ] {
        let planned = plan(text, &schema(), &[]).expect("it is valid");
        assert_eq!(Expanded::of(&planned).nodes, expected, "{text}");
    }
}

#[test]
fn every_function_depends_on_its_arguments_alone() {
    for (name, function) in functions::all() {
        assert_eq!(function.signature().volatility, datafusion_expr::Volatility::Immutable, "{name}");
    }
    // Functions that are reached only by special syntax.
    for text in ["{'a': x}", "struct(x)", "overlay('abc' PLACING 'd' FROM 2)"] {
        let Expr::ScalarFunction(call) = plan(text, &schema(), &[]).expect(text) else {
            panic!("{text} is not a call")
        };
        assert_eq!(call.func.signature().volatility, datafusion_expr::Volatility::Immutable, "{text}");
    }
}

#[test]
fn constant_arithmetic_that_overflows_is_refused_at_compile_time() {
    for text in ["9223372036854775807 + 1", "-9223372036854775807 - 2", "9223372036854775807 * 2"] {
        let error = Expression::filter(&format!("x < {text}"), &schema()).expect_err(text);
        assert!(error.to_string().contains("Overflow"), "{text}: {error}");
    }
}

#[test]
fn an_expression_may_have_64_kib_and_2048_tokens() {
    let long = |bytes: usize| plan(&format!("x{}", " ".repeat(bytes - 1)), &schema(), &[]);
    assert!(long(MAX_BYTES).is_ok());
    assert!(long(MAX_BYTES + 1).expect_err("it is too long").to_string().contains("expected at most 65536"));
    let tokens = |more: &str| plan(&format!("NOT x IN ({}1){more}", "1, ".repeat(1021)), &schema(), &[]);
    assert!(tokens("").is_ok());
    let error = tokens(" IS NULL").expect_err("it has too many tokens");
    assert!(error.to_string().contains("has 2050 tokens, expected at most 2048"), "{error}");
}
