//! Exact comparisons of numbers, dates and times.
//!
//! DataFusion compares values of two types in a common type that can't always represent them: it rounds, or fails for a value.
//! The comparisons of an expression are therefore resolved before DataFusion coerces types:
//!
//! - A literal is compared in the type of the other side. If the type has no such value, the comparison is one with the next value:
//!   `i > 1.5` becomes `i > 1` for integers. For a float type, the literal is rounded to it.
//! - Two types with a common type that represents all of their values are left to DataFusion.
//! - For other types, a [function] orders the values exactly.
//!
//! Dates and times are numbers of seconds: integers with the scale of their unit. Intervals are, too, but different ones can be equal.

use arrow_schema::{DECIMAL256_MAX_PRECISION, DataType};
use datafusion_common::{
    DFSchema, Result, ScalarValue, plan_err,
    tree_node::{Transformed, TreeNode},
};
use datafusion_expr::{
    BinaryExpr, Case, Expr, ExprSchemable, Operator,
    binary::BinaryTypeCoercer,
    expr::{Between, InList, ScalarFunction},
    lit,
    type_coercion::{binary::binary_numeric_coercion, is_signed_numeric, is_timestamp},
};
use datafusion_optimizer::simplify_expressions::ExprSimplifier;

pub(crate) mod cast;
mod common_number;
mod common_time;
mod common_type;
mod constants;
mod explicit;
pub(crate) mod floats;
pub(crate) mod function;
pub(crate) mod kind;
mod limits;
pub(crate) mod literals;
mod moment;
mod number;
mod order;
pub(crate) mod place;
mod side;

use self::{
    common_type::{call_of_one_type, case_of_one_type, wide_operands},
    constants::{constant, convert},
    kind::{check_comparable, shown},
    number::Number,
    place::{Place, place},
    side::{Scope, Side},
};
use crate::{
    guard::{decimal_digits, widens},
    lower::{binary, is_comparison},
    values::member::{is_member_test, with_type},
};

/// Makes the comparisons of numbers, dates and times in `expression`, whose types are not coerced yet, exact.
///
/// # Errors
/// If a part has no type, if values of different kinds are compared, such as dates with integers, and if the values of which one becomes the
/// result have no common type.
pub(crate) fn with_exact_comparisons(
    expression: Expr,
    schema: &DFSchema,
    simplifier: &ExprSimplifier,
) -> Result<Expr> {
    let scope = Scope { schema, simplifier };
    let rewritten = expression.transform_up(|part| {
        let rewritten = match part {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
                compared(*left, op, *right, scope)?
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.is_numerical_operators() => {
                let [left, right] = wide_operands([*left, *right], schema)?;
                binary(left, op, right)
            }
            Expr::Between(range) => between(range, scope)?,
            Expr::InList(list) => in_list(list, scope)?,
            Expr::Cast(_) | Expr::TryCast(_) => explicit::cast(part, scope)?,
            Expr::Case(case) => with_operand(case_of_one_type(case, scope)?, scope)?,
            Expr::ScalarFunction(call) if call.name() == "nullif" => nullif(call, scope)?,
            Expr::ScalarFunction(call) if is_member_test(call.name()) => with_type(call, schema)?,
            Expr::ScalarFunction(call) => call_of_one_type(call, scope)?,
            Expr::Not(operand) => {
                check_condition(&operand.get_type(schema)?)?;
                Expr::Not(operand)
            }
            Expr::Negative(operand) => {
                check_signed(&operand.get_type(schema)?)?;
                Expr::Negative(operand)
            }
            part => part,
        };
        Ok(Transformed::yes(rewritten))
    });
    rewritten.map(|rewritten| rewritten.data)
}

/// Checks the type of the operand of `NOT`.
fn check_condition(data_type: &DataType) -> Result<()> {
    let coerced = BinaryTypeCoercer::new(data_type, &Operator::IsDistinctFrom, &DataType::Boolean);
    match coerced.get_input_types() {
        Ok(_) => Ok(()),
        Err(_) => plan_err!("NOT of a value of type {data_type}, expected a boolean"),
    }
}

/// Checks the type of the operand of `-`.
fn check_signed(data_type: &DataType) -> Result<()> {
    let has_sign = data_type.is_null()
        || is_signed_numeric(data_type)
        || is_interval(data_type)
        || is_timestamp(data_type);
    if has_sign { Ok(()) } else { plan_err!("- of a value of type {data_type}, expected a signed number") }
}

fn compared(left: Expr, op: Operator, right: Expr, scope: Scope<'_>) -> Result<Expr> {
    check_comparable(&left, &right, scope)?;
    let [left, right] = plain_bytes([left, right], scope)?;
    let ((left, left_side), (right, right_side)) = scope.sides(left, right)?;
    if left_side.class() != right_side.class() {
        return Ok(binary(left, op, right));
    }
    Ok(match (left_side, right_side) {
        (Side::Exact(_, a), Side::Exact(_, b)) => lit(function::holds(op, a.cmp(&b))),
        (Side::Value(_, data_type), Side::Exact(_, number)) => {
            with_number(left, op, &number, &data_type, right, scope)?
        }
        (Side::Exact(_, number), Side::Value(_, data_type)) => {
            with_number(right, swapped(op), &number, &data_type, left, scope)?
        }
        (Side::Value(_, a), Side::Value(_, b)) if !have_exact_type(&a, &b) => {
            let (left, right) = (left.cast_to(&a, scope.schema)?, right.cast_to(&b, scope.schema)?);
            match function::compared(left.clone(), op, right.clone()) {
                Some(exact) => exact,
                None => binary(left, op, right),
            }
        }
        _ => binary(left, op, right),
    })
}

/// Converts bytes of a fixed length to `BINARY` next to texts and bytes of other types, with which DataFusion does not compare them.
fn plain_bytes<T: AsMut<[Expr]>>(mut parts: T, scope: Scope<'_>) -> Result<T> {
    let types = parts.as_mut().iter().map(|part| scope.type_of(part)).collect::<Result<Vec<_>>>()?;
    let Some(fixed) = types.iter().find(|data_type| matches!(data_type, DataType::FixedSizeBinary(_))) else {
        return Ok(parts);
    };
    let is_known = |other: &DataType| other == fixed || matches!(other, DataType::Binary | DataType::Null);
    if !types.iter().all(is_known) {
        for (part, data_type) in parts.as_mut().iter_mut().zip(&types) {
            if matches!(data_type, DataType::FixedSizeBinary(_)) {
                convert(part, &DataType::Binary, scope.schema)?;
            }
        }
    }
    Ok(parts)
}

/// Returns true if DataFusion compares values of two types in a type that represents all of them.
fn have_exact_type(a: &DataType, b: &DataType) -> bool {
    if a == b {
        return !is_interval(a);
    }
    if let (Some((a_whole, a_fraction)), Some((b_whole, b_fraction))) = (decimal_digits(a), decimal_digits(b))
    {
        let digits = a_whole.max(b_whole) + a_fraction.max(b_fraction);
        // DataFusion adds the digits of decimals as 8-bit integers.
        if (a.is_decimal() || b.is_decimal()) && digits > i16::from(DECIMAL256_MAX_PRECISION) {
            return false;
        }
    }
    binary_numeric_coercion(a, b).is_some_and(|common| widens(a, &common) && widens(b, &common))
}

/// Returns true for intervals. DataFusion compares months first, then days, then the rest: 24 hours differ from a day.
fn is_interval(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Interval(_))
}

/// The operator for exchanged sides.
fn swapped(op: Operator) -> Operator {
    match op {
        Operator::Lt => Operator::Gt,
        Operator::LtEq => Operator::GtEq,
        Operator::Gt => Operator::Lt,
        Operator::GtEq => Operator::LtEq,
        symmetric => symmetric,
    }
}

/// Compares `value` with a constant of its class, in the type of the value.
fn with_number(
    value: Expr,
    op: Operator,
    number: &Number,
    data_type: &DataType,
    literal: Expr,
    scope: Scope<'_>,
) -> Result<Expr> {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    let value = value.cast_to(data_type, scope.schema)?;
    let (Some(found), Some(least)) = (place(number, data_type), place::least(data_type)) else {
        // Different intervals can be equal.
        let exact = function::compared(value.clone(), op, literal.clone());
        return Ok(exact.unwrap_or_else(|| binary(value, op, literal)));
    };
    let never = |value: Expr| binary(value, Lt, constant(least.clone()));
    let always = |value: Expr| binary(value, GtEq, constant(least.clone()));
    Ok(match (found, op) {
        (Place::At(found), op) => binary(value, op, constant(found)),
        // The value is evaluated also where the result does not depend on it: a null gives null.
        (_, Eq) => never(value),
        (_, NotEq) => always(value),
        (_, IsNotDistinctFrom) => Expr::IsTrue(Box::new(never(value))),
        (_, IsDistinctFrom) => Expr::IsNotFalse(Box::new(always(value))),
        (Place::Above(below), Lt | LtEq) => binary(value, LtEq, constant(below)),
        (Place::Above(below), _) => binary(value, Gt, constant(below)),
        (Place::BelowAll, Lt | LtEq) => never(value),
        (Place::BelowAll, _) => always(value),
    })
}

fn between(range: Between, scope: Scope<'_>) -> Result<Expr> {
    let Between { expr, negated, low, high } = range;
    let mut has_class = false;
    for part in [&*expr, &*low, &*high] {
        check_comparable(&expr, part, scope)?;
        has_class |= scope.side(part)?.class().is_some();
    }
    if !has_class {
        let [expr, low, high] = plain_bytes([*expr, *low, *high], scope)?.map(Box::new);
        return Ok(Expr::Between(Between { expr, negated, low, high }));
    }
    let (left, right, combine) = match negated {
        false => (Operator::GtEq, Operator::LtEq, Operator::And),
        true => (Operator::Lt, Operator::Gt, Operator::Or),
    };
    let low = compared(*expr.clone(), left, *low, scope)?;
    let high = compared(*expr, right, *high, scope)?;
    Ok(binary(low, combine, high))
}

fn in_list(in_list: InList, scope: Scope<'_>) -> Result<Expr> {
    let InList { expr, list, negated } = in_list;
    for item in &list {
        check_comparable(&expr, item, scope)?;
    }
    let side = scope.side(&expr)?;
    if side.class().is_none() && !is_null_with_numbers(&expr, &list, scope)? {
        let mut parts = list;
        parts.push(*expr);
        let mut list = plain_bytes(parts, scope)?;
        let Some(expr) = list.pop() else { return plan_err!("IN has no operand") };
        return Ok(Expr::InList(InList { expr: Box::new(expr), list, negated }));
    }
    if let Side::Value(_, data_type) = side
        && let Some(list) = of_type(&list, &data_type, scope)?
    {
        let value = expr.cast_to(&data_type, scope.schema)?;
        return Ok(match place::least(&data_type).filter(|_| list.is_empty()) {
            Some(least) if negated => binary(value, Operator::GtEq, constant(least)),
            Some(least) => binary(value, Operator::Lt, constant(least)),
            None => Expr::InList(InList { expr: Box::new(value), list, negated }),
        });
    }
    let mut any = None;
    for item in list {
        let equal = compared(*expr.clone(), Operator::Eq, item, scope)?;
        any = Some(match any {
            Some(any) => binary(any, Operator::Or, equal),
            None => equal,
        });
    }
    let any = any.unwrap_or_else(|| lit(false));
    Ok(if negated { Expr::Not(Box::new(any)) } else { any })
}

/// Returns true for a null that is compared with values of classes. DataFusion would convert these values to one type.
fn is_null_with_numbers<'a>(
    operand: &Expr,
    others: impl IntoIterator<Item = &'a Expr>,
    scope: Scope<'_>,
) -> Result<bool> {
    if !scope.type_of(operand)?.is_null() {
        return Ok(false);
    }
    for other in others {
        if scope.side(other)?.class().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the items of a list that values of `data_type` can be equal to, if all items are constants. `None` for intervals, too.
fn of_type(list: &[Expr], data_type: &DataType, scope: Scope<'_>) -> Result<Option<Vec<Expr>>> {
    if is_interval(data_type) {
        return Ok(None);
    }
    let mut of_type = Vec::with_capacity(list.len());
    for item in list {
        match scope.constant_for(item, data_type)?.and_then(|number| place(&number, data_type)) {
            Some(Place::At(value)) => of_type.push(constant(value)),
            // Numbers that the type does not have are in no row.
            Some(Place::Above(_) | Place::BelowAll) => {}
            None if matches!(item, Expr::Literal(..)) => of_type.push(item.clone()),
            None => return Ok(None),
        }
    }
    Ok(Some(of_type))
}

/// `CASE` with an operand that is a number, a date or a time.
fn with_operand(case: Case, scope: Scope<'_>) -> Result<Expr> {
    let Case { expr: Some(operand), when_then_expr, else_expr } = case else { return Ok(Expr::Case(case)) };
    for (when, _) in &when_then_expr {
        check_comparable(&operand, when, scope)?;
    }
    let side = scope.side(&operand)?;
    let whens = when_then_expr.iter().map(|(when, _)| &**when);
    if side.class().is_none() && !is_null_with_numbers(&operand, whens, scope)? {
        let (mut values, thens): (Vec<_>, Vec<_>) =
            when_then_expr.into_iter().map(|(when, then)| (*when, then)).unzip();
        values.push(*operand);
        let mut values = plain_bytes(values, scope)?;
        let operand = values.pop().map(Box::new);
        let when_then_expr = values.into_iter().map(Box::new).zip(thens).collect();
        return Ok(Expr::Case(Case { expr: operand, when_then_expr, else_expr }));
    }
    if let Side::Value(_, data_type) = side
        && let Some(when_then_expr) = of_one_type(&operand, &data_type, &when_then_expr, scope)?
    {
        return Ok(Expr::Case(Case { expr: Some(operand), when_then_expr, else_expr }));
    }
    let mut branches = Vec::with_capacity(when_then_expr.len());
    for (when, then) in when_then_expr {
        let equal = compared(*operand.clone(), Operator::Eq, *when, scope)?;
        branches.push((Box::new(equal), then));
    }
    Ok(Expr::Case(Case { expr: None, when_then_expr: branches, else_expr }))
}

/// A branch of `CASE`: the value or condition, and the result.
type Branch = (Box<Expr>, Box<Expr>);

/// Returns the branches with values in the type of the operand, if that is not a float or interval type and has all of them. The operand is then
/// evaluated once.
fn of_one_type(
    operand: &Expr,
    data_type: &DataType,
    branches: &[Branch],
    scope: Scope<'_>,
) -> Result<Option<Vec<Branch>>> {
    let has_equal_values = data_type.is_floating() || is_interval(data_type);
    if has_equal_values || operand.get_type(scope.schema)? != *data_type {
        return Ok(None);
    }
    let mut of_type = Vec::with_capacity(branches.len());
    for (when, then) in branches {
        let number = scope.constant_for(when, data_type)?;
        let value = match number.and_then(|number| place(&number, data_type)) {
            Some(Place::At(value)) => constant(value),
            Some(Place::Above(_) | Place::BelowAll) => return Ok(None),
            None if when.get_type(scope.schema)? == *data_type => *when.clone(),
            None => return Ok(None),
        };
        of_type.push((Box::new(value), then.clone()));
    }
    Ok(Some(of_type))
}

/// `NULLIF`, whose result has the type of the first argument.
fn nullif(call: ScalarFunction, scope: Scope<'_>) -> Result<Expr> {
    let Ok([value, other]) = <[Expr; 2]>::try_from(call.args.clone()) else {
        return Ok(Expr::ScalarFunction(call));
    };
    let result = match scope.type_of(&value)? {
        DataType::Null => scope.type_of(&other)?,
        own => own,
    };
    let text = format!("NULLIF({}, {})", shown(&value), shown(&other));
    let equal = compared(value.clone(), Operator::Eq, other, scope)?;
    let null = literals::null_of(ScalarValue::try_from(&result)?, &text);
    let kept = value.cast_to(&result, scope.schema)?;
    Ok(Expr::Case(Case::new(None, vec![(Box::new(equal), Box::new(null))], Some(Box::new(kept)))))
}
