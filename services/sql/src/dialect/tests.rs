use std::{fs, path::PathBuf};

use datafusion_sql::sqlparser::ast::{BinaryOperator, UnaryOperator};

use super::*;

fn parsed(dialect: &dyn Dialect, text: &str) -> Result<Expr, ParserError> {
    let mut parser = Parser::new(dialect).try_with_sql(text)?;
    let parsed = parser.parse_expr()?;
    parser.expect_token(&datafusion_sql::sqlparser::tokenizer::Token::EOF)?;
    Ok(parsed)
}

/// An expression with parentheses around each operation. As in the recorded results, a negated comparison is the opposite one.
fn grouped(part: &Expr) -> String {
    let infix = |left: &Expr, op: &str, right: &Expr| format!("({} {op} {})", grouped(left), grouped(right));
    let not = |is: bool, inner: String| if is { format!("(NOT {inner})") } else { inner };
    match part {
        Expr::BinaryOp { left, op, right } => infix(left, &op.to_string(), right),
        Expr::IsDistinctFrom(left, right) => infix(left, "IS DISTINCT FROM", right),
        Expr::IsNotDistinctFrom(left, right) => infix(left, "IS NOT DISTINCT FROM", right),
        Expr::Like { negated, expr, pattern, .. } => {
            infix(expr, if *negated { "NOT LIKE" } else { "LIKE" }, pattern)
        }
        Expr::ILike { expr, pattern, .. } => infix(expr, "ILIKE", pattern),
        Expr::Between { expr, negated, low, high } => {
            not(*negated, format!("({} BETWEEN {} AND {})", grouped(expr), grouped(low), grouped(high)))
        }
        Expr::InList { expr, list, negated } => {
            let list: Vec<String> = list.iter().map(grouped).collect();
            format!("({} {}IN ({}))", grouped(expr), if *negated { "NOT " } else { "" }, list.join(", "))
        }
        Expr::IsNull(inner) => format!("({} IS NULL)", grouped(inner)),
        Expr::IsNotNull(inner) => format!("({} IS NOT NULL)", grouped(inner)),
        Expr::IsTrue(inner) => format!("({} IS TRUE)", grouped(inner)),
        Expr::IsNotFalse(inner) => format!("({} IS NOT FALSE)", grouped(inner)),
        Expr::Cast { expr, .. } => format!("({}::INT)", grouped(expr)),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => format!("(- {})", grouped(expr)),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => {
            opposite(expr).unwrap_or_else(|| format!("(NOT {})", grouped(expr)))
        }
        other => other.to_string(),
    }
}

fn opposite(part: &Expr) -> Option<String> {
    use BinaryOperator::{Eq, GtEq, Lt, NotEq};
    Some(grouped(&match part.clone() {
        Expr::BinaryOp { left, op, right } => {
            let op = match op {
                Eq => NotEq,
                NotEq => Eq,
                Lt => GtEq,
                GtEq => Lt,
                _ => return None,
            };
            Expr::BinaryOp { left, op, right }
        }
        Expr::IsDistinctFrom(left, right) => Expr::IsNotDistinctFrom(left, right),
        Expr::IsNotDistinctFrom(left, right) => Expr::IsDistinctFrom(left, right),
        Expr::IsTrue(inner) => Expr::IsNotFalse(inner),
        Expr::IsNotFalse(inner) => Expr::IsTrue(inner),
        Expr::InList { expr, list, negated: false } => Expr::InList { expr, list, negated: true },
        _ => return None,
    }))
}

/// Pairs of operators without parentheses, as DuckDB 1.5.5 groups them. It refuses some of them.
const PAIRS: &str = include_str!("pairs.txt");

/// Pairs that are grouped in another way than by DuckDB. `docs/reference/sql.md` lists them.
const DIFFERENT: &[(&str, &str)] = &[];

#[test]
fn pairs_of_operators_without_parentheses_are_grouped_as_by_duckdb() {
    let mut differences = Vec::new();
    for line in PAIRS.lines() {
        let (text, expected) = line.split_once(" -> ").expect("each line has a result");
        if expected == "error" {
            continue;
        }
        let found =
            parsed(&ExpressionDialect, text).map_or_else(|error| error.to_string(), |found| grouped(&found));
        let known = DIFFERENT.iter().find(|(different, _)| *different == text).map(|(_, grouped)| *grouped);
        if found != known.unwrap_or(expected) || known == Some(expected) {
            differences.push(format!("{text}\n  found    {found}\n  expected {expected}"));
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn syntax_other_than_precedence_is_that_of_the_generic_dialect() {
    for text in [
        "{'a': 1}",
        "MAP {'a': 1}",
        "`a b` + 1",
        "@a + #b",
        "E'\\n' || U&'\\0041' || q'[x]'",
        "a << 2",
        "f(x => 1, y := 2)",
        "EXTRACT('year' FROM t)",
        "EXTRACT(year, t)",
        "TRY_CONVERT(INT, a)",
        "STRUCT(1 AS one)",
        "INTERVAL '1 day'",
        "a::INT[3]",
        "CAST(a AS INT UNSIGNED)",
        "TRIM(a, 'x')",
        "f(x) FILTER (WHERE a > 1)",
        "MATCH (a) AGAINST ('x')",
        "/* /* nested */ */ a",
        "x -> x + 1",
        "a BETWEEN 1 AND 2",
        "POSITION('a' IN b)",
    ] {
        assert_eq!(parsed(&ExpressionDialect, text), parsed(&GenericDialect, text), "{text}");
    }
}

/// Reads the source of the parser, which Cargo has fetched to build this test.
#[test]
fn every_method_of_the_generic_dialect_is_forwarded() {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let lock = include_str!("../../../../Cargo.lock");
    let (_, version) =
        lock.split_once("name = \"sqlparser\"\nversion = \"").expect("the parser is a dependency");
    let folder = format!("sqlparser-{}", version.split('"').next().expect("the version ends"));
    let registries =
        fs::read_dir(home.expect("Cargo has a folder").join("registry/src")).expect("Cargo fetches sources");
    let generic = registries
        .map(|registry| registry.expect("it is a folder").path().join(&folder).join("src/dialect/generic.rs"))
        .find_map(|path| fs::read_to_string(path).ok())
        .expect("the source of the parser is there");
    let own = include_str!("../dialect.rs");
    let methods: Vec<&str> =
        generic.lines().filter_map(|line| line.trim().strip_prefix("fn ")?.split('(').next()).collect();
    assert!(methods.len() > 60, "{methods:?}");
    for method in methods {
        let is_forwarded = own.contains(&format!("        {method},\n"))
            || own.contains(&format!("GenericDialect.{method}("));
        assert!(is_forwarded, "{method} of GenericDialect is not forwarded");
    }
}
