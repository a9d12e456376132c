//! Kinds of values. Values of two kinds are neither compared nor converted to a common type.

use arrow_schema::DataType;
use datafusion_common::{
    Column, DataFusionError, Result, ScalarValue, plan_datafusion_err,
    tree_node::{Transformed, TreeNode, TreeNodeRecursion},
};
use datafusion_expr::{BinaryExpr, Case, Expr, Operator};

use super::{function, literals, moment::Class, side::Scope};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Of(Class),
    Boolean,
    Text,
    Bytes,
}

impl Kind {
    /// The kind of a type that is no dictionary; `None` for nulls and nested types.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        match data_type {
            DataType::Boolean => Some(Self::Boolean),
            text if text.is_string() => Some(Self::Text),
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_) => Some(Self::Bytes),
            other => Class::of(other).map(Self::Of),
        }
    }

    /// Returns true if values of the two types belong together. Text belongs to all kinds, because it is read as the other one.
    fn fit(one: &DataType, other: &DataType) -> bool {
        match (Self::of(one), Self::of(other)) {
            (Some(one), Some(other)) => one == other || one == Self::Text || other == Self::Text,
            _ => true,
        }
    }
}

/// Checks that two values can be compared.
///
/// # Errors
/// If they are of different kinds. DataFusion would convert some of them, such as integers to dates.
pub(super) fn check_comparable(left: &Expr, right: &Expr, scope: Scope<'_>) -> Result<()> {
    let (left_type, right_type) = (scope.type_of(left)?, scope.type_of(right)?);
    if Kind::fit(&left_type, &right_type) {
        return Ok(());
    }
    Err(plan_datafusion_err!(
        "{} is of type {left_type} and cannot be compared with {} of type {right_type}: CAST one of them",
        shown(left),
        shown(right)
    ))
}

/// Checks that values of which one becomes the result are of one kind.
///
/// # Errors
/// As [`check_comparable`].
pub(super) fn check_common(parts: &[Expr], types: &[DataType]) -> Result<()> {
    for (at, data_type) in types.iter().enumerate() {
        if let Some(other) = types[..at].iter().position(|other| !Kind::fit(other, data_type)) {
            return Err(without_common_type((&parts[other], &types[other]), (&parts[at], data_type)));
        }
    }
    Ok(())
}

/// The error for two values that have no common type.
pub(super) fn without_common_type(one: (&Expr, &DataType), other: (&Expr, &DataType)) -> DataFusionError {
    plan_datafusion_err!(
        "{} is of type {} and {} of type {}, which have no common type: CAST one of them",
        shown(one.0),
        one.1,
        shown(other.0),
        other.1
    )
}

/// A part as a message shows it: literals as they are written, and comparisons and `NULLIF` as before they were made exact.
pub(crate) fn shown(part: &Expr) -> String {
    if let Some(text) = literals::text(part) {
        return text.to_owned();
    }
    match part {
        Expr::Literal(value, _) if value.data_type().is_string() && !value.is_null() => format!("'{value}'"),
        Expr::Literal(ScalarValue::Boolean(Some(value)), _) => value.to_string().to_uppercase(),
        Expr::Literal(value, _) => value.to_string(),
        other => written(other).to_string(),
    }
}

/// Returns `part` with each literal, comparison and `NULLIF` call replaced by a column whose name is its text.
fn written(part: &Expr) -> Expr {
    let name = |text: String| {
        let named = Expr::Column(Column::new_unqualified(text));
        Ok(Transformed::new(named, true, TreeNodeRecursion::Jump))
    };
    let written = part.clone().transform_down(|part| match &part {
        Expr::Literal(..) => name(shown(&part)),
        Expr::Case(case) => {
            match literals::text_of_nullif(case).map(str::to_owned).or_else(|| nullif(case)) {
                Some(text) => name(text),
                None => Ok(Transformed::no(part)),
            }
        }
        Expr::ScalarFunction(call) => match (function::operator(call.name()), &call.args[..]) {
            (Some(op), [left, right]) => name(format!("{} {op} {}", shown(left), shown(right))),
            _ => Ok(Transformed::no(part)),
        },
        _ => Ok(Transformed::no(part)),
    });
    written.map_or_else(|_| part.clone(), |written| written.data)
}

/// The text of the `NULLIF` call that a `CASE` is equal to; `None` for another `CASE`.
fn nullif(case: &Case) -> Option<String> {
    let ([(when, then)], Some(otherwise)) = (&case.when_then_expr[..], &case.else_expr) else { return None };
    let is_null = matches!(&**then, Expr::Literal(value, _) if value.is_null());
    let (left, right) = match &**when {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => (&**left, &**right),
        Expr::ScalarFunction(call) => match (function::operator(call.name()), &call.args[..]) {
            (Some(Operator::Eq), [left, right]) => (left, right),
            _ => return None,
        },
        _ => return None,
    };
    let is_nullif = case.expr.is_none() && is_null && *left == **otherwise;
    is_nullif.then(|| format!("NULLIF({}, {})", shown(left), shown(right)))
}
