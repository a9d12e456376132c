//! The common type of values of which one becomes the result.
//!
//! Constants take the type of the other values: numbers are exact in a decimal type, dates and times in the unit of the others, and a text is
//! read as a value of the other type. [`common_number`](super::common_number) and [`common_time`](super::common_time) choose the type.

use std::sync::Arc;

use arrow_schema::{DataType, IntervalUnit};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::{
    Case, Expr, ExprSchemable,
    expr::ScalarFunction,
    type_coercion::{binary::binary_numeric_coercion, other::get_coerce_type_for_case_expression},
};

use super::{
    common_number, common_time,
    constants::{constant, convert, read, text},
    kind::{Kind, check_common, without_common_type},
    moment::Class,
    side::{Scope, plain},
};
use crate::functions;

/// Gives decimals of 32 and 64 bits the type with 128 bits for arithmetic with integers, and with decimals of at most 128 bits. DataFusion would
/// drop their fractions next to integers, and products of ordinary values do not fit the narrower types.
pub(super) fn wide_operands(operands: [Expr; 2], schema: &DFSchema) -> Result<[Expr; 2]> {
    let types = [operands[0].get_type(schema)?, operands[1].get_type(schema)?];
    let is_number = |data_type: &DataType| {
        data_type.is_integer() || (data_type.is_decimal() && !matches!(data_type, DataType::Decimal256(..)))
    };
    if types.iter().all(|data_type| is_number(plain(data_type))) {
        return widened(operands, &types, schema);
    }
    Ok(operands)
}

/// Gives decimals of 32 and 64 bits the type with 128 bits if others are integers. DataFusion would convert them to integers.
fn wide_decimals(parts: Vec<Expr>, types: &[DataType], schema: &DFSchema) -> Result<Vec<Expr>> {
    if types.iter().any(DataType::is_integer) { widened(parts, types, schema) } else { Ok(parts) }
}

fn widened<T: AsMut<[Expr]>>(mut parts: T, types: &[DataType], schema: &DFSchema) -> Result<T> {
    for (part, data_type) in parts.as_mut().iter_mut().zip(types) {
        if let DataType::Decimal32(digits, scale) | DataType::Decimal64(digits, scale) = plain(data_type) {
            convert(part, &DataType::Decimal128(*digits, *scale), schema)?;
        }
    }
    Ok(parts)
}

/// Gives values one type. Those whose common type is that of DataFusion can stay as they are.
///
/// # Errors
/// If the values are of different kinds, if a text is not a value of the other type or depends on the row, and if no type holds all values.
fn of_one_type(mut parts: Vec<Expr>, scope: Scope<'_>) -> Result<Vec<Expr>> {
    let types = parts.iter().map(|part| scope.type_of(part)).collect::<Result<Vec<_>>>()?;
    check_common(&parts, &types)?;
    let is_text = |data_type: &DataType| Kind::of(data_type) == Some(Kind::Text);
    let Some(typed) = types.iter().position(|other| Kind::of(other).is_some() && !is_text(other)) else {
        return Ok(parts);
    };
    let is_number = Kind::of(&types[typed]) == Some(Kind::Of(Class::Number));
    if let Some(texts) = (0..parts.len()).find(|at| is_text(&types[*at]) && text(&parts[*at]).is_none()) {
        if is_number {
            return wide_decimals(parts, &types, scope.schema);
        }
        return Err(without_common_type((&parts[typed], &types[typed]), (&parts[texts], &types[texts])));
    }
    let of_texts = match Kind::of(&types[typed]) {
        Some(Kind::Of(Class::Number)) => return common_number::of_one_type(parts, &types, scope.schema),
        Some(Kind::Of(Class::Moment)) => return common_time::moments(parts, &types, scope),
        Some(Kind::Of(Class::Time)) => return common_time::times(parts, &types, scope),
        Some(Kind::Of(Class::Duration)) => match common_time::finest_duration(&types) {
            Some(finest) => {
                for part in &mut parts {
                    convert(part, &finest, scope.schema)?;
                }
                return Ok(parts);
            }
            // Durations become intervals if others are intervals or texts.
            None => DataType::Interval(IntervalUnit::MonthDayNano),
        },
        Some(Kind::Bytes) => {
            let is_other = |data_type: &DataType| !data_type.is_null() && *data_type != types[typed];
            let common = if types.iter().any(is_other) { DataType::Binary } else { types[typed].clone() };
            // DataFusion has no common type of bytes and nulls.
            for part in parts.iter_mut().filter(|part| text(part).is_none()) {
                convert(part, &common, scope.schema)?;
            }
            common
        }
        Some(Kind::Boolean) => DataType::Boolean,
        Some(Kind::Text) | None => return Ok(parts),
    };
    for part in &mut parts {
        if let Some(text) = text(part) {
            *part = constant(read(&text, &of_texts)?);
        }
    }
    Ok(parts)
}

/// A call of a function whose result has the type of its arguments, with [arguments of one type](of_one_type). `NVL` and `NVL2` become
/// `COALESCE` and `CASE`, for which DataFusion knows more types. Other calls are unchanged.
pub(super) fn call_of_one_type(call: ScalarFunction, scope: Scope<'_>) -> Result<Expr> {
    let ScalarFunction { mut func, mut args } = call;
    match (func.name(), &args[..]) {
        ("nvl2", [tested, value, otherwise]) => {
            let branch = (Box::new(tested.clone().is_not_null()), Box::new(value.clone()));
            let case = Case::new(None, vec![branch], Some(Box::new(otherwise.clone())));
            return Ok(Expr::Case(case_of_one_type(case, scope)?));
        }
        ("nvl", [value, otherwise]) => {
            let kinds = [Kind::of(&scope.type_of(value)?), Kind::of(&scope.type_of(otherwise)?)];
            let is_text = |at: usize, part: &Expr| kinds[at] == Some(Kind::Text) && text(part).is_none();
            let has_texts = is_text(0, value) || is_text(1, otherwise);
            // DataFusion converts numbers next to texts to text here, unlike in COALESCE.
            if !(has_texts && kinds.contains(&Some(Kind::Of(Class::Number)))) {
                if let Some(coalesce) = functions::all().get("coalesce") {
                    func = Arc::clone(coalesce);
                }
                args = numbers_of_texts(of_one_type(args, scope)?, scope)?;
            }
        }
        ("coalesce" | "greatest" | "least", _) => args = numbers_of_texts(of_one_type(args, scope)?, scope)?,
        _ => {}
    }
    Ok(Expr::ScalarFunction(ScalarFunction { func, args }))
}

/// Reads constant texts next to numbers as numbers of their common type. A text that is no number is then an error of the request, instead
/// of an error of a row.
///
/// # Errors
/// If a text is not a value of the type.
fn numbers_of_texts(mut parts: Vec<Expr>, scope: Scope<'_>) -> Result<Vec<Expr>> {
    let types = parts.iter().map(|part| scope.type_of(part)).collect::<Result<Vec<_>>>()?;
    let mut numbers = types.iter().filter(|data_type| data_type.is_numeric()).cloned();
    let Some(first) = numbers.next() else { return Ok(parts) };
    let Some(common) = numbers.try_fold(first, |common, other| binary_numeric_coercion(&common, &other))
    else {
        return Ok(parts);
    };
    for part in &mut parts {
        if let Some(text) = text(part) {
            *part = constant(read(&text, &common)?);
        }
    }
    Ok(parts)
}

/// Converts the results of a `CASE` to [one type](of_one_type). The rules for the expressions around a `CASE` take the type of its first result as
/// its type. All results are therefore converted here to the type to which DataFusion would convert them later.
pub(super) fn case_of_one_type(case: Case, scope: Scope<'_>) -> Result<Case> {
    let Case { expr, when_then_expr, else_expr } = case;
    let (whens, mut results): (Vec<_>, Vec<_>) =
        when_then_expr.into_iter().map(|(when, then)| (when, *then)).unzip();
    let has_else = else_expr.is_some();
    results.extend(else_expr.map(|otherwise| *otherwise));
    let mut results = of_one_type(results, scope)?;
    let types = results.iter().map(|part| part.get_type(scope.schema)).collect::<Result<Vec<_>>>()?;
    let (thens, otherwise) = types.split_at(whens.len());
    if let Some(common) = get_coerce_type_for_case_expression(thens, otherwise.first()) {
        for (part, _) in results.iter_mut().zip(&types).filter(|(_, data_type)| **data_type != common) {
            convert(part, &common, scope.schema)?;
        }
    }
    let else_expr = if has_else { results.pop().map(Box::new) } else { None };
    let when_then_expr = whens.into_iter().zip(results.into_iter().map(Box::new)).collect();
    Ok(Case { expr, when_then_expr, else_expr })
}
