//! Nullability of expressions.

use datafusion_expr::{Expr, Operator};

use crate::{Expression, exact::function, functions::is_strict, values::member::is_member_test};

impl Expression {
    /// Returns true if the expression is non-null in every row, given that only columns with `has_nulls` contain nulls.
    pub fn is_never_null(&self, has_nulls: impl Fn(&str) -> bool) -> bool {
        !maybe_null(&self.logical, &has_nulls)
    }
}

fn maybe_null(expression: &Expr, has_nulls: &impl Fn(&str) -> bool) -> bool {
    let maybe = |inner: &Expr| maybe_null(inner, has_nulls);
    match expression {
        Expr::Column(column) => has_nulls(&column.name),
        Expr::Literal(value, _) => value.is_null(),
        Expr::IsNull(_) | Expr::IsNotNull(_) | Expr::IsTrue(_) | Expr::IsFalse(_) | Expr::IsNotFalse(_) => {
            false
        }
        Expr::Not(inner) | Expr::Negative(inner) => maybe(inner),
        Expr::Cast(cast) => maybe(&cast.expr),
        Expr::BinaryExpr(binary) => {
            let strict = matches!(
                binary.op,
                Operator::Plus
                    | Operator::Minus
                    | Operator::Multiply
                    | Operator::Divide
                    | Operator::Modulo
                    | Operator::Eq
                    | Operator::NotEq
                    | Operator::Lt
                    | Operator::LtEq
                    | Operator::Gt
                    | Operator::GtEq
                    | Operator::And
                    | Operator::Or
            );
            !strict || maybe(&binary.left) || maybe(&binary.right)
        }
        Expr::Case(case) => {
            let otherwise = case.else_expr.as_ref().is_none_or(|otherwise| maybe(otherwise));
            // The expansion of COALESCE: the value is used only if it is not null.
            let is_checked = |when: &Expr, then: &Expr| {
                let Expr::IsNotNull(checked) = when else { return false };
                **checked == *then || matches!(then, Expr::Cast(cast) if cast.expr == *checked)
            };
            otherwise || case.when_then_expr.iter().any(|(when, then)| !is_checked(when, then) && maybe(then))
        }
        Expr::ScalarFunction(call) if function::operator(call.name()).is_some_and(function::is_distinct) => {
            false
        }
        Expr::ScalarFunction(call) => {
            let is_comparison = function::operator(call.name()).is_some() || is_member_test(call.name());
            !(is_strict(call.name()) || is_comparison) || call.args.iter().any(maybe)
        }
        _ => true,
    }
}
