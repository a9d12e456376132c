//! Arguments of functions.

use datafusion_common::{Result, ScalarValue, exec_err};
use datafusion_expr::ColumnarValue;

/// Returns the value of an argument that must be a constant and not null.
pub(super) fn constant(function: &str, name: &str, argument: &ColumnarValue) -> Result<ScalarValue> {
    match argument {
        ColumnarValue::Scalar(value) if !value.is_null() => Ok(value.clone()),
        _ => exec_err!("{function}: {name} must be a constant and not null"),
    }
}
