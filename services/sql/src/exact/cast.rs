//! Casts of decimals to the nearest floats, and of decimals of 256 bits to integers, as parts of expressions.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow_array::RecordBatch;
use arrow_cast::CastOptions;
use arrow_schema::{DataType, Schema};
use datafusion_common::{Result, ScalarValue, exec_err};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::{
    PhysicalExpr,
    expressions::{CastExpr, TryCastExpr},
};

use super::floats;

/// Replaces a cast whose result by [`floats::cast`] can differ from that of Arrow. Other parts stay as they are.
pub(crate) fn exact(part: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let cast = part.downcast_ref::<CastExpr>().map(|cast| (cast.expr(), cast.cast_type(), false));
    let try_cast = || part.downcast_ref::<TryCastExpr>().map(|cast| (cast.expr(), cast.cast_type(), true));
    let Some((value, to, safe)) = cast.or_else(try_cast) else { return Ok(part) };
    let from = value.data_type(schema)?;
    // DataFusion checks the range of dates in CAST, but not in TRY_CAST.
    if !floats::differs(&from, to) || (from == DataType::Date64 && !safe) {
        return Ok(part);
    }
    Ok(Arc::new(ExactCast { value: Arc::clone(value), to: to.clone(), safe }))
}

/// A cast by [`floats::cast`]. With `safe`, values that can't be converted become null.
#[derive(Debug, Eq)]
struct ExactCast {
    value: Arc<dyn PhysicalExpr>,
    to: DataType,
    safe: bool,
}

// A derived implementation moves out of the pointer: https://github.com/rust-lang/rust/issues/78808
impl PartialEq for ExactCast {
    fn eq(&self, other: &Self) -> bool {
        self.value.eq(&other.value) && self.to == other.to && self.safe == other.safe
    }
}

impl Hash for ExactCast {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.value.hash(state);
        self.to.hash(state);
        self.safe.hash(state);
    }
}

impl fmt::Display for ExactCast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({} AS {})", if self.safe { "TRY_CAST" } else { "CAST" }, self.value, self.to)
    }
}

impl PhysicalExpr for ExactCast {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        Ok(self.safe || self.value.nullable(schema)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let options = CastOptions { safe: self.safe, ..CastOptions::default() };
        Ok(match self.value.evaluate(batch)? {
            ColumnarValue::Array(values) => ColumnarValue::Array(floats::cast(&values, &self.to, &options)?),
            ColumnarValue::Scalar(value) => {
                let value = floats::cast(&value.to_array()?, &self.to, &options)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&value, 0)?)
            }
        })
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.value]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let Ok([value]) = <[_; 1]>::try_from(children) else {
            return exec_err!("{self}: expected one part");
        };
        Ok(Arc::new(Self { value, to: self.to.clone(), safe: self.safe }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
