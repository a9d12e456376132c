//! Rewriting of an expression to fewer forms, before it is compiled.
//!
//! `BETWEEN`, `COALESCE` and the like become comparisons, `AND`, `OR` and `CASE`, which evaluate a part only for
//! the rows that need it. Parts without columns become constants. A widening cast is removed from a comparison of a
//! column with constants. DataFusion's simplifier is not used: it rewrites a boolean `CASE` to `AND` and `OR`, and
//! evaluates parts that short-circuiting skips.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Schema, TimeUnit};
use datafusion_common::{
    DFSchema, Result, ScalarValue,
    tree_node::{Transformed, TreeNode},
};
use datafusion_expr::{
    BinaryExpr, Case, Expr, ExprSchemable, Operator,
    execution_props::ExecutionProps,
    expr::InList,
    lit,
    simplify::{ExprSimplifyResult, SimplifyContext},
};
use datafusion_expr_common::casts::try_cast_literal_to_type;
use datafusion_physical_expr::create_physical_expr;

use crate::{
    guard::{guarded, widens},
    nan::float,
};

/// Rewrites `expression`, whose types are already coerced, over columns of `schema`.
///
/// # Errors
/// If a part has no type.
pub(crate) fn lowered(expression: Expr, schema: &Arc<DFSchema>, context: &SimplifyContext) -> Result<Expr> {
    let row = one_row()?;
    let lowered = expression.transform_up(|part| {
        let rewritten = rewritten(part, schema, context)?;
        let folded = folded(rewritten, &row)?;
        compared_without_cast(folded, schema).map(Transformed::yes)
    });
    lowered.map(|lowered| lowered.data)
}

/// Replaces one node; its children are lowered already. A replacement may contain nodes to replace.
fn rewritten(part: Expr, schema: &DFSchema, context: &SimplifyContext) -> Result<Expr> {
    match part {
        Expr::Between(between) => {
            let (left, right, combine) = match between.negated {
                false => (Operator::GtEq, Operator::LtEq, Operator::And),
                true => (Operator::Lt, Operator::Gt, Operator::Or),
            };
            let low = compared_without_cast(binary(*between.expr.clone(), left, *between.low), schema)?;
            let high = compared_without_cast(binary(*between.expr, right, *between.high), schema)?;
            Ok(binary(low, combine, high))
        }
        Expr::InList(InList { expr, list, negated }) if !list.iter().all(is_literal) => {
            let equal = list.into_iter().map(|value| binary(*expr.clone(), Operator::Eq, value));
            let any =
                equal.reduce(|any, equal| binary(any, Operator::Or, equal)).unwrap_or_else(|| lit(false));
            Ok(if negated { Expr::Not(Box::new(any)) } else { any })
        }
        Expr::InList(mut in_list) => {
            // Constants of a list are compared by their bits, although both zeros are equal.
            let zeros: Vec<Expr> = in_list.list.iter().filter_map(other_zero).collect();
            in_list.list.extend(zeros);
            Ok(Expr::InList(in_list))
        }
        // CASE with an operand would compare floats bit by bit, but 0.0 and -0.0 are equal. Therefore each branch gets a comparison.
        Expr::Case(Case { expr: Some(operand), when_then_expr, else_expr })
            if operand.get_type(schema)?.is_floating() =>
        {
            let branch = |(value, then): (Box<Expr>, _)| {
                (Box::new(binary(*operand.clone(), Operator::Eq, *value)), then)
            };
            Ok(Expr::Case(Case::new(None, when_then_expr.into_iter().map(branch).collect(), else_expr)))
        }
        Expr::ScalarFunction(call) if call.func.short_circuits() => {
            match call.func.simplify(call.args.clone(), context)? {
                ExprSimplifyResult::Simplified(simplified) => rewritten(simplified, schema, context),
                ExprSimplifyResult::Original(_) => Ok(Expr::ScalarFunction(call)),
            }
        }
        part => Ok(part),
    }
}

/// Replaces a part without columns by its value, unless its evaluation fails. Such a part fails at run time, for the
/// first row that needs it.
fn folded(part: Expr, row: &RecordBatch) -> Result<Expr> {
    // A function called by a second name, such as `pow` for `power`, is wrapped in an alias. The alias is part of the identity of the
    // expression, so it is not folded away.
    if matches!(part, Expr::Alias(_)) || !part.column_refs().is_empty() {
        return Ok(part);
    }
    let Ok(value) = value_of(&part, row) else { return Ok(part) };
    Ok(Expr::Literal(value, None))
}

/// Evaluates a part without columns.
///
/// # Errors
/// If the part has no value, because of an overflow, a division by zero or a failed conversion.
pub(crate) fn value_of(part: &Expr, row: &RecordBatch) -> Result<ScalarValue> {
    let schema = DFSchema::empty();
    let physical = create_physical_expr(part, &schema, &ExecutionProps::new(), &Default::default())?;
    match guarded(physical, row.schema_ref())?.evaluate(row)? {
        datafusion_expr::ColumnarValue::Scalar(value) => Ok(value),
        datafusion_expr::ColumnarValue::Array(array) => ScalarValue::try_from_array(&array, 0),
    }
}

/// A batch of one row without columns.
///
/// # Errors
/// Never for a supported version of Arrow.
pub(crate) fn one_row() -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)?)
}

/// Replaces a comparison of a widened column with constants by a comparison in the column's own type, so that
/// statistics can be used. This undoes type coercion, which turns `i > 3` into `CAST(i AS BIGINT) > 3`.
fn compared_without_cast(part: Expr, schema: &DFSchema) -> Result<Expr> {
    Ok(match part {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
            let narrowed = match (&*left, &*right) {
                (Expr::Cast(_), Expr::Literal(..)) => narrow(&left, std::slice::from_ref(&*right), schema)?
                    .and_then(|(column, mut value)| Some((column, value.pop()?))),
                (Expr::Literal(..), Expr::Cast(_)) => narrow(&right, std::slice::from_ref(&*left), schema)?
                    .and_then(|(column, mut value)| Some((value.pop()?, column))),
                _ => None,
            };
            match narrowed {
                Some((left, right)) => binary(left, op, right),
                None => Expr::BinaryExpr(BinaryExpr { left, op, right }),
            }
        }
        Expr::InList(InList { expr, list, negated }) => match narrow(&expr, &list, schema)? {
            Some((column, list)) => Expr::InList(InList { expr: Box::new(column), list, negated }),
            None => Expr::InList(InList { expr, list, negated }),
        },
        part => part,
    })
}

/// Returns the column under a widening cast, and the constants converted to the column's type. Returns `None` if
/// `cast` does not widen, or if the column's type cannot represent a constant exactly.
fn narrow(cast: &Expr, constants: &[Expr], schema: &DFSchema) -> Result<Option<(Expr, Vec<Expr>)>> {
    let Expr::Cast(cast) = cast else { return Ok(None) };
    let from = cast.expr.get_type(schema)?;
    let to = cast.field.data_type();
    if !matches!(*cast.expr, Expr::Column(_)) || !(widens(&from, to) || is_finer(&from, to)) {
        return Ok(None);
    }
    let narrowed = |constant: &Expr| match constant {
        Expr::Literal(value, _) => {
            let narrowed = try_cast_literal_to_type(value, &from).filter(|narrowed| !narrowed.is_null())?;
            let is_equal = narrowed.cast_to(to).is_ok_and(|widened| widened == *value);
            is_equal.then(|| Expr::Literal(narrowed, None))
        }
        _ => None,
    };
    let constants = constants.iter().map(narrowed).collect::<Option<Vec<_>>>();
    Ok(constants.map(|constants| (*cast.expr.clone(), constants)))
}

/// Returns true if both types are timestamps of one time zone and `to` has the finer unit.
fn is_finer(from: &DataType, to: &DataType) -> bool {
    let rank = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    };
    match (from, to) {
        (DataType::Timestamp(from, zone), DataType::Timestamp(to, other)) => {
            zone == other && rank(from) < rank(to)
        }
        _ => false,
    }
}

pub(crate) fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// The zero of the other sign, for a constant that is a zero of a float type.
fn other_zero(part: &Expr) -> Option<Expr> {
    let Expr::Literal(value, _) = part else { return None };
    let negative = (float(value) == Some(0.0)).then(|| value.arithmetic_negate());
    negative?.ok().map(|other| Expr::Literal(other, None))
}

fn is_literal(part: &Expr) -> bool {
    matches!(part, Expr::Literal(..))
}

pub(crate) fn binary(left: Expr, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
}

#[cfg(test)]
mod tests;
