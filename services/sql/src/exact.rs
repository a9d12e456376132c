//! Exact comparisons of numbers.
//!
//! DataFusion compares numbers of two types in a common type that can't always represent them: it rounds, or fails for a value.
//! The comparisons of an expression are therefore resolved before DataFusion coerces types:
//!
//! - A literal is compared in the type of the other side. If the type has no such value, the comparison is one with the next value:
//!   `i > 1.5` becomes `i > 1` for integers. For a float type, the literal is rounded to it.
//! - Two types with a common type that represents all of their values are left to DataFusion.
//! - For other types, a [function] orders the values exactly.

use arrow_schema::{DECIMAL256_MAX_PRECISION, DataType};
use datafusion_common::{
    DFSchema, Result, ScalarValue,
    tree_node::{Transformed, TreeNode},
};
use datafusion_expr::{
    BinaryExpr, Case, Expr, ExprSchemable, Operator,
    expr::{Between, InList, ScalarFunction},
    lit,
    type_coercion::binary::binary_numeric_coercion,
};
use datafusion_optimizer::simplify_expressions::ExprSimplifier;

pub(crate) mod cast;
pub(crate) mod floats;
pub(crate) mod function;
pub(crate) mod literals;
mod number;
mod order;
mod place;

use self::{
    literals::exact,
    number::Number,
    place::{Place, place},
};
use crate::{
    guard::{decimal_digits, widens},
    lower::{binary, is_comparison},
};

/// Functions whose result has the common type of their arguments.
const WITH_COMMON_TYPE: &[&str] = &["coalesce", "greatest", "least", "nvl", "nvl2"];

/// One side of a comparison.
enum Side {
    /// A literal.
    Exact(Number),
    /// A value of a number type.
    Number(DataType),
    /// A value of another type.
    Other,
}

impl Side {
    fn of(part: &Expr, schema: &DFSchema) -> Result<Self> {
        if let Some(number) = exact(part) {
            return Ok(Self::Exact(number));
        }
        let data_type = part.get_type(schema)?;
        Ok(if plain(&data_type).is_numeric() { Self::Number(data_type) } else { Self::Other })
    }

    fn is_number(&self) -> bool {
        !matches!(self, Self::Other)
    }
}

/// The type of the values of a dictionary, and other types as they are.
fn plain(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, value) => value,
        other => other,
    }
}

/// Makes the comparisons of numbers in `expression`, whose types are not coerced yet, exact.
///
/// # Errors
/// If a part has no type.
pub(crate) fn with_exact_comparisons(
    expression: Expr,
    schema: &DFSchema,
    simplifier: &ExprSimplifier,
) -> Result<Expr> {
    let rewritten = expression.transform_up(|part| {
        let rewritten = match part {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
                compared(*left, op, *right, schema)?
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.is_numerical_operators() => {
                let [left, right] = wide_decimals([*left, *right], schema)?;
                binary(left, op, right)
            }
            Expr::Between(range) => between(range, schema)?,
            Expr::InList(list) => in_list(list, schema)?,
            Expr::Case(case) => with_operand(with_wide_results(case, schema)?, schema)?,
            Expr::ScalarFunction(call) if call.name() == "nullif" => nullif(call, schema, simplifier)?,
            Expr::ScalarFunction(call) if WITH_COMMON_TYPE.contains(&call.name()) => {
                let args = wide_decimals(call.args, schema)?;
                Expr::ScalarFunction(ScalarFunction { func: call.func, args })
            }
            part => part,
        };
        Ok(Transformed::yes(rewritten))
    });
    rewritten.map(|rewritten| rewritten.data)
}

/// Gives decimals of 32 and 64 bits the type with 128 bits if others are integers. DataFusion would convert them to
/// integers.
fn wide_decimals<T: AsMut<[Expr]>>(mut parts: T, schema: &DFSchema) -> Result<T> {
    let types = parts.as_mut().iter().map(|part| part.get_type(schema)).collect::<Result<Vec<_>>>()?;
    if types.iter().any(|data_type| plain(data_type).is_integer()) {
        for (part, data_type) in parts.as_mut().iter_mut().zip(types) {
            if let DataType::Decimal32(digits, scale) | DataType::Decimal64(digits, scale) = plain(&data_type)
            {
                let narrow = std::mem::replace(part, lit(false));
                *part = narrow.cast_to(&DataType::Decimal128(*digits, *scale), schema)?;
            }
        }
    }
    Ok(parts)
}

/// `CASE` with results that have a [common type](wide_decimals).
fn with_wide_results(case: Case, schema: &DFSchema) -> Result<Case> {
    let Case { expr, when_then_expr, else_expr } = case;
    let (whens, mut results): (Vec<_>, Vec<_>) =
        when_then_expr.into_iter().map(|(when, then)| (when, *then)).unzip();
    let has_else = else_expr.is_some();
    results.extend(else_expr.map(|otherwise| *otherwise));
    let mut results = wide_decimals(results, schema)?;
    let else_expr = if has_else { results.pop().map(Box::new) } else { None };
    let when_then_expr = whens.into_iter().zip(results.into_iter().map(Box::new)).collect();
    Ok(Case { expr, when_then_expr, else_expr })
}

fn compared(left: Expr, op: Operator, right: Expr, schema: &DFSchema) -> Result<Expr> {
    Ok(match (Side::of(&left, schema)?, Side::of(&right, schema)?) {
        (Side::Exact(a), Side::Exact(b)) => lit(function::holds(op, a.cmp(&b))),
        (Side::Number(data_type), Side::Exact(number)) => {
            with_number(left, op, &number, &data_type, right, schema)?
        }
        (Side::Exact(number), Side::Number(data_type)) => {
            with_number(right, swapped(op), &number, &data_type, left, schema)?
        }
        (Side::Number(a), Side::Number(b)) if !have_exact_type(plain(&a), plain(&b)) => {
            let (left, right) = (left.cast_to(plain(&a), schema)?, right.cast_to(plain(&b), schema)?);
            match function::compared(left.clone(), op, right.clone()) {
                Some(exact) => exact,
                None => binary(left, op, right),
            }
        }
        _ => binary(left, op, right),
    })
}

/// Returns true if DataFusion compares values of two types in a type that represents all of them.
fn have_exact_type(a: &DataType, b: &DataType) -> bool {
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

/// Compares `value` of a number type with a literal, in the type of the value.
fn with_number(
    value: Expr,
    op: Operator,
    number: &Number,
    data_type: &DataType,
    literal: Expr,
    schema: &DFSchema,
) -> Result<Expr> {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    let data_type = plain(data_type);
    let (Some(found), Some(least)) = (place(number, data_type), place::least(data_type)) else {
        return Ok(binary(value, op, literal));
    };
    let value = value.cast_to(data_type, schema)?;
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

fn between(range: Between, schema: &DFSchema) -> Result<Expr> {
    let Between { expr, negated, low, high } = range;
    let sides = [&*expr, &*low, &*high].map(|part| Side::of(part, schema));
    let mut has_number = false;
    for side in sides {
        has_number |= side?.is_number();
    }
    if !has_number {
        return Ok(Expr::Between(Between { expr, negated, low, high }));
    }
    let (left, right, combine) = match negated {
        false => (Operator::GtEq, Operator::LtEq, Operator::And),
        true => (Operator::Lt, Operator::Gt, Operator::Or),
    };
    let low = compared(*expr.clone(), left, *low, schema)?;
    let high = compared(*expr, right, *high, schema)?;
    Ok(binary(low, combine, high))
}

fn in_list(in_list: InList, schema: &DFSchema) -> Result<Expr> {
    let InList { expr, list, negated } = in_list;
    let side = Side::of(&expr, schema)?;
    let is_constant = |item: &Expr| exact(item).is_some() || matches!(item, Expr::Literal(..));
    match &side {
        Side::Other => return Ok(Expr::InList(InList { expr, list, negated })),
        Side::Number(data_type) if list.iter().all(is_constant) => {
            let data_type = plain(data_type);
            let value = expr.cast_to(data_type, schema)?;
            // Numbers that the type does not have are in no row.
            let of_type = |item| match exact(&item).and_then(|number| place(&number, data_type)) {
                Some(Place::At(value)) => Some(constant(value)),
                Some(Place::Above(_) | Place::BelowAll) => None,
                None => Some(item),
            };
            let list: Vec<Expr> = list.into_iter().filter_map(of_type).collect();
            return Ok(match place::least(data_type).filter(|_| list.is_empty()) {
                Some(least) if negated => binary(value, Operator::GtEq, constant(least)),
                Some(least) => binary(value, Operator::Lt, constant(least)),
                None => Expr::InList(InList { expr: Box::new(value), list, negated }),
            });
        }
        _ => {}
    }
    let mut any = None;
    for item in list {
        let equal = compared(*expr.clone(), Operator::Eq, item, schema)?;
        any = Some(match any {
            Some(any) => binary(any, Operator::Or, equal),
            None => equal,
        });
    }
    let any = any.unwrap_or_else(|| lit(false));
    Ok(if negated { Expr::Not(Box::new(any)) } else { any })
}

/// `CASE` with an operand that is a number.
fn with_operand(case: Case, schema: &DFSchema) -> Result<Expr> {
    let Case { expr: Some(operand), when_then_expr, else_expr } = case else { return Ok(Expr::Case(case)) };
    if !Side::of(&operand, schema)?.is_number() {
        return Ok(Expr::Case(Case { expr: Some(operand), when_then_expr, else_expr }));
    }
    if let Some(when_then_expr) = of_one_type(&operand, &when_then_expr, schema)? {
        return Ok(Expr::Case(Case { expr: Some(operand), when_then_expr, else_expr }));
    }
    let mut branches = Vec::with_capacity(when_then_expr.len());
    for (when, then) in when_then_expr {
        let equal = compared(*operand.clone(), Operator::Eq, *when, schema)?;
        branches.push((Box::new(equal), then));
    }
    Ok(Expr::Case(Case { expr: None, when_then_expr: branches, else_expr }))
}

/// A branch of `CASE`: the value or condition, and the result.
type Branch = (Box<Expr>, Box<Expr>);

/// Returns the branches with values in the type of the operand, if that is not a float type and has all of them. The operand is then
/// evaluated once.
fn of_one_type(operand: &Expr, branches: &[Branch], schema: &DFSchema) -> Result<Option<Vec<Branch>>> {
    let data_type = operand.get_type(schema)?;
    if exact(operand).is_some() || !(data_type.is_integer() || data_type.is_decimal()) {
        return Ok(None);
    }
    let mut of_type = Vec::with_capacity(branches.len());
    for (when, then) in branches {
        let value = match exact(when).and_then(|number| place(&number, &data_type)) {
            Some(Place::At(value)) => constant(value),
            Some(Place::Above(_) | Place::BelowAll) => return Ok(None),
            None if when.get_type(schema)? == data_type => *when.clone(),
            None => return Ok(None),
        };
        of_type.push((Box::new(value), then.clone()));
    }
    Ok(Some(of_type))
}

/// `NULLIF` of numbers. The result has the type that DataFusion chooses, unless that is not a float type and can't represent each value.
fn nullif(call: ScalarFunction, schema: &DFSchema, simplifier: &ExprSimplifier) -> Result<Expr> {
    let [value, other] = &call.args[..] else { return Ok(Expr::ScalarFunction(call)) };
    if !Side::of(value, schema)?.is_number() || !Side::of(other, schema)?.is_number() {
        return Ok(Expr::ScalarFunction(call));
    }
    let (value, other) = (value.clone(), other.clone());
    let own = value.get_type(schema)?;
    let common = simplifier.coerce(Expr::ScalarFunction(call), schema)?.get_type(schema)?;
    let result = if common.is_floating() || widens(&own, &common) { common } else { own };
    let equal = compared(value.clone(), Operator::Eq, other, schema)?;
    let null = constant(ScalarValue::try_from(&result)?);
    let kept = value.cast_to(&result, schema)?;
    Ok(Expr::Case(Case::new(None, vec![(Box::new(equal), Box::new(null))], Some(Box::new(kept)))))
}

fn constant(value: ScalarValue) -> Expr {
    Expr::Literal(value, None)
}
