//! Syntax and operators that expressions have.

use std::ops::ControlFlow;

use arrow_array::timezone::Tz;
use arrow_schema::DataType;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_expr::{Expr, Operator};
use datafusion_sql::sqlparser::ast;

use crate::{Error, hints};

/// Returns the first call with a clause that applies to several rows, such as `OVER`. DataFusion's planner ignores the clauses of
/// functions of one row.
pub(crate) fn first_clause(parsed: &ast::Expr) -> Option<String> {
    let found = ast::visit_expressions(parsed, |part| match part {
        ast::Expr::Function(call) if has_clause(call) => ControlFlow::Break(call.to_string()),
        _ => ControlFlow::Continue(()),
    });
    found.break_value()
}

/// The message for syntax that DataFusion's planner answers with its syntax tree.
pub(crate) fn first_unsupported(parsed: &ast::Expr) -> Option<String> {
    let found = ast::visit_expressions(parsed, |part| {
        let what = match part {
            ast::Expr::RLike { .. } => "a regular expression, which is not supported; use LIKE",
            ast::Expr::Collate { .. } => "COLLATE, which is not supported",
            _ => return ControlFlow::Continue(()),
        };
        ControlFlow::Break(format!("'{part}' has {what}"))
    });
    found.break_value()
}

fn has_clause(call: &ast::Function) -> bool {
    let of_arguments = match &call.args {
        ast::FunctionArguments::List(list) => list.duplicate_treatment.is_some() || !list.clauses.is_empty(),
        _ => false,
    };
    of_arguments
        || call.parameters != ast::FunctionArguments::None
        || call.over.is_some()
        || call.filter.is_some()
        || call.null_treatment.is_some()
        || !call.within_group.is_empty()
}

/// Allowed operators. Excluded are bit operators and regular expressions, whose pattern could be different and large per row.
const ALLOWED: &[Operator] = &[
    Operator::And,
    Operator::Or,
    Operator::Eq,
    Operator::NotEq,
    Operator::Lt,
    Operator::LtEq,
    Operator::Gt,
    Operator::GtEq,
    Operator::Plus,
    Operator::Minus,
    Operator::Multiply,
    Operator::Divide,
    Operator::Modulo,
    Operator::StringConcat,
    Operator::IsDistinctFrom,
    Operator::IsNotDistinctFrom,
];

/// Checks that the expression depends on one row only, and has only operators and time zones that exist.
///
/// # Errors
/// [`Error::Invalid`] with the part that is not supported.
pub(crate) fn check_supported(expression: &Expr) -> Result<(), Error> {
    let mut refused = None;
    expression.apply(|part| {
        let why = match part {
            Expr::Alias(_)
            | Expr::Column(_)
            | Expr::Literal(..)
            | Expr::Like(_)
            | Expr::Not(_)
            | Expr::IsNotNull(_)
            | Expr::IsNull(_)
            | Expr::IsTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsUnknown(_)
            | Expr::IsNotTrue(_)
            | Expr::IsNotFalse(_)
            | Expr::IsNotUnknown(_)
            | Expr::Negative(_)
            | Expr::Between(_)
            | Expr::Case(_)
            | Expr::InList(_) => None,
            Expr::Cast(cast) => unknown_zone(cast.field.data_type()),
            Expr::TryCast(cast) => unknown_zone(cast.field.data_type()),
            Expr::ScalarFunction(call) => match (call.name(), &call.args[..]) {
                ("from_unixtime", [_, Expr::Literal(zone, _)]) => {
                    zone.try_as_str().flatten().and_then(unknown_zone_name)
                }
                _ => None,
            },
            Expr::BinaryExpr(binary) if ALLOWED.contains(&binary.op) => None,
            Expr::BinaryExpr(binary) => Some(hints::of_operator(binary.op, &part.to_string())),
            Expr::SimilarTo(_) => Some(format!("'{part}' has SIMILAR TO, which is not supported; use LIKE")),
            other => Some(format!("'{other}' is not an expression of one row")),
        };
        refused = why;
        Ok(if refused.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    refused.map_or(Ok(()), |why| Err(Error::Invalid(why)))
}

/// The message for a type with a time zone that does not exist.
fn unknown_zone(data_type: &DataType) -> Option<String> {
    match data_type {
        DataType::Timestamp(_, Some(zone)) => unknown_zone_name(zone),
        _ => None,
    }
}

fn unknown_zone_name(zone: &str) -> Option<String> {
    let expected = "a name such as 'Europe/Berlin' or an offset such as '+01:00'";
    zone.parse::<Tz>().is_err().then(|| format!("'{zone}' is not a time zone, expected {expected}"))
}
