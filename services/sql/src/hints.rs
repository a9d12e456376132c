//! Errors of functions, operators and syntax that expressions do not have.

use datafusion_common::utils::datafusion_strsim::levenshtein;
use datafusion_expr::Operator;

use crate::functions;

/// Names of functions that are computed in another way.
const INSTEAD: &[(&str, &str)] = &[
    ("mod", "use the operator %"),
    ("modulo", "use the operator %"),
    ("if", "use CASE WHEN"),
    ("iff", "use CASE WHEN"),
    ("isnull", "use IS NULL"),
    ("regexp_like", "regular expressions are not supported, use LIKE"),
    ("regexp_matches", "regular expressions are not supported, use LIKE"),
    ("regexp_replace", "regular expressions are not supported"),
    ("current_date", "the value of a row has to be the same at any time"),
    ("current_timestamp", "the value of a row has to be the same at any time"),
    ("now", "the value of a row has to be the same at any time"),
    ("rand", "the value of a row has to be the same at any time"),
    ("random", "the value of a row has to be the same at any time"),
    ("uuid", "the value of a row has to be the same at any time"),
    ("lpad", "functions with results of any size are not available"),
    ("repeat", "functions with results of any size are not available"),
    ("replace", "functions with results of any size are not available"),
    ("rpad", "functions with results of any size are not available"),
    ("avg", "an expression depends on one row, aggregates are not available"),
    ("count", "an expression depends on one row, aggregates are not available"),
    ("max", "an expression depends on one row; greatest(a, b) is the larger one of two values"),
    ("mean", "an expression depends on one row, aggregates are not available"),
    ("median", "an expression depends on one row, aggregates are not available"),
    ("min", "an expression depends on one row; least(a, b) is the smaller one of two values"),
    ("stddev", "an expression depends on one row, aggregates are not available"),
    ("sum", "an expression depends on one row, aggregates are not available"),
    ("row_number", "an expression depends on one row, window functions are not available"),
];

/// The message for a function that does not exist.
pub(crate) fn of_function(name: &str) -> String {
    let lower = name.to_lowercase();
    if let Some((_, instead)) = INSTEAD.iter().find(|(known, _)| *known == lower) {
        return format!("Invalid function '{name}': {instead}");
    }
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    // Exchanged letters count as one change.
    let distance = |known: &str| match sorted(known) == sorted(&lower) {
        true => 1,
        false => levenshtein(known, &lower),
    };
    let similar = functions::all().keys().map(|known| (distance(known), known)).min();
    match similar {
        Some((distance, known)) if 3 * distance <= lower.chars().count() => {
            format!("Invalid function '{name}'.\nDid you mean '{known}'?")
        }
        _ => format!("Invalid function '{name}', expected one of the functions of the SQL reference"),
    }
}

/// The message for an operator that is not supported.
pub(crate) fn of_operator(operator: Operator, text: &str) -> String {
    let hint = match operator {
        Operator::RegexMatch | Operator::RegexIMatch | Operator::RegexNotMatch | Operator::RegexNotIMatch => {
            "; use LIKE, contains or starts_with"
        }
        Operator::IntegerDivide => "; use / of integers",
        Operator::BitwiseAnd => "; conditions are combined by AND",
        Operator::BitwiseOr => "; conditions are combined by OR",
        _ => "",
    };
    format!("'{text}' has the operator {operator}, which is not supported{hint}")
}

/// A shorter message for those of DataFusion's planner that show the syntax tree or suggest an unrelated function.
pub(crate) fn of_message(message: String) -> String {
    let name =
        message.strip_prefix("Invalid function '").and_then(|rest| rest.split_once("'.\nDid you mean"));
    if let Some((name, _)) = name {
        return of_function(name);
    }
    if message.starts_with("Substring without for/from is not valid") {
        return "Function 'substr' expects a text, the position of its first character and optionally a length".to_owned();
    }
    // Reason of a function of this crate, which the planner repeats with a list of signatures.
    if let Some((_, reason)) = message.split_once("user-defined coercion failed with: ") {
        let reason = reason.split(" No function matches the given name").next().unwrap_or(reason);
        let kinds = ["Error during planning: ", "Execution error: "];
        let reason = kinds.iter().fold(reason, |reason, kind| reason.strip_prefix(kind).unwrap_or(reason));
        return reason.trim_end_matches('.').to_owned();
    }
    // Errors of types are internal ones for some functions.
    match message.split_once(".\nThis issue was likely caused by a bug in DataFusion") {
        Some((reason, _)) => reason.strip_prefix("Internal error: ").unwrap_or(reason).to_owned(),
        None => message,
    }
}
