//! Constants of expressions.

use arrow_schema::DataType;
use datafusion_common::{DFSchema, Result, ScalarValue, plan_err};
use datafusion_expr::{Cast, Expr, ExprSchemable, lit};

use crate::lower::{one_row, value_of};

pub(super) fn constant(value: ScalarValue) -> Expr {
    Expr::Literal(value, None)
}

/// The text of a constant; `None` for other parts.
pub(super) fn text(part: &Expr) -> Option<String> {
    let Expr::Literal(value, _) = part else { return None };
    value.try_as_str().flatten().map(str::to_owned)
}

/// Reads a text as a value of another type, as `CAST` does.
///
/// # Errors
/// If it is not a value of this type.
pub(super) fn read(text: &str, data_type: &DataType) -> Result<ScalarValue> {
    let cast = Expr::Cast(Cast::new(Box::new(lit(text)), data_type.clone()));
    match value_of(&cast, &one_row()?) {
        Ok(value) => Ok(value),
        Err(_) => plan_err!("'{text}' is not a value of type {data_type}, which the other values have"),
    }
}

/// Converts a part to another type.
///
/// # Errors
/// If values of its type cannot be converted.
pub(super) fn convert(part: &mut Expr, data_type: &DataType, schema: &DFSchema) -> Result<()> {
    *part = std::mem::replace(part, lit(false)).cast_to(data_type, schema)?;
    Ok(())
}
