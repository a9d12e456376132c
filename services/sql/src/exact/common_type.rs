//! The common type of the arguments of functions that return one of them, such as `COALESCE` and `CASE`.

use arrow_schema::DataType;
use datafusion_common::{DFSchema, Result};
use datafusion_expr::{Case, Expr, ExprSchemable, expr::ScalarFunction, lit};

use super::{literals::exact, side::plain};

/// Gives decimals of 32 and 64 bits the type with 128 bits if others are integers. DataFusion would convert them to
/// integers.
pub(super) fn wide_decimals<T: AsMut<[Expr]>>(mut parts: T, schema: &DFSchema) -> Result<T> {
    let types = parts.as_mut().iter().map(|part| part.get_type(schema)).collect::<Result<Vec<_>>>()?;
    if types.iter().any(|data_type| plain(data_type).is_integer()) {
        for (part, data_type) in parts.as_mut().iter_mut().zip(types) {
            if let DataType::Decimal32(digits, scale) | DataType::Decimal64(digits, scale) = plain(&data_type)
            {
                convert(part, &DataType::Decimal128(*digits, *scale), schema)?;
            }
        }
    }
    Ok(parts)
}

/// Gives numbers the type `DOUBLE` if some are decimals and others floats, as DuckDB does. DataFusion would convert the floats to a decimal
/// type, which rounds them to 15 digits after the point and does not hold large ones. Literals have no type of their own.
fn of_one_type(mut parts: Vec<Expr>, schema: &DFSchema) -> Result<Vec<Expr>> {
    let mut types = Vec::with_capacity(parts.len());
    let (mut has_decimal, mut has_float) = (false, false);
    for part in &parts {
        let data_type = plain(&part.get_type(schema)?).clone();
        has_decimal |= data_type.is_decimal();
        has_float |= data_type.is_floating() && exact(part).is_none();
        types.push(data_type);
    }
    if !(has_decimal && has_float) {
        return wide_decimals(parts, schema);
    }
    for (part, data_type) in parts.iter_mut().zip(types) {
        if data_type.is_numeric() && data_type != DataType::Float64 {
            convert(part, &DataType::Float64, schema)?;
        }
    }
    Ok(parts)
}

fn convert(part: &mut Expr, data_type: &DataType, schema: &DFSchema) -> Result<()> {
    *part = std::mem::replace(part, lit(false)).cast_to(data_type, schema)?;
    Ok(())
}

/// Gives [one type](of_one_type) to the arguments of a function that returns one of them. Other calls stay as they are.
pub(super) fn call_of_one_type(call: ScalarFunction, schema: &DFSchema) -> Result<Expr> {
    let ScalarFunction { func, mut args } = call;
    args = match func.name() {
        "coalesce" | "greatest" | "least" | "nvl" => of_one_type(args, schema)?,
        // The first argument is only a condition.
        "nvl2" if !args.is_empty() => {
            let results = of_one_type(args.split_off(1), schema)?;
            args.into_iter().chain(results).collect()
        }
        _ => args,
    };
    Ok(Expr::ScalarFunction(ScalarFunction { func, args }))
}

/// Gives [one type](of_one_type) to the results of a `CASE`.
pub(super) fn case_of_one_type(case: Case, schema: &DFSchema) -> Result<Case> {
    let Case { expr, when_then_expr, else_expr } = case;
    let (whens, mut results): (Vec<_>, Vec<_>) =
        when_then_expr.into_iter().map(|(when, then)| (when, *then)).unzip();
    let has_else = else_expr.is_some();
    results.extend(else_expr.map(|otherwise| *otherwise));
    let mut results = of_one_type(results, schema)?;
    let else_expr = if has_else { results.pop().map(Box::new) } else { None };
    let when_then_expr = whens.into_iter().zip(results.into_iter().map(Box::new)).collect();
    Ok(Case { expr, when_then_expr, else_expr })
}
