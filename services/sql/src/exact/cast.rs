//! Casts that differ from those of Arrow, as parts of expressions: casts of decimals to the nearest floats, of decimals of 256 bits to integers, and
//! those of which some [values have no result](limits).

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow_array::{ArrayRef, RecordBatch};
use arrow_cast::CastOptions;
use arrow_schema::{DataType, Schema};
use datafusion_common::{
    DataFusionError, Result, ScalarValue, exec_datafusion_err, exec_err, format::DEFAULT_CAST_OPTIONS,
};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::{
    PhysicalExpr,
    expressions::{CastExpr, Column, TryCastExpr},
};

use super::{floats, limits};

/// Replaces a cast whose result by [`floats::cast`] can differ from that of Arrow, and one that has limits. Other parts stay as they are.
pub(crate) fn exact(part: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let cast = part.downcast_ref::<CastExpr>().map(|cast| (cast.expr(), cast.cast_type(), false));
    let try_cast = || part.downcast_ref::<TryCastExpr>().map(|cast| (cast.expr(), cast.cast_type(), true));
    let Some((value, to, safe)) = cast.or_else(try_cast) else { return Ok(part) };
    let from = value.data_type(schema)?;
    // DataFusion checks the range of dates in CAST, but not in TRY_CAST.
    let differs = floats::differs(&from, to) && (from != DataType::Date64 || safe);
    if !differs && !limits::has_limits(&from, to) {
        return Ok(part);
    }
    Ok(Arc::new(ExactCast { value: Arc::clone(value), to: to.clone(), safe }))
}

/// A cast by [`floats::cast`] that checks its limits. With `safe`, values that can't be converted become null.
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

impl ExactCast {
    fn converted(&self, values: &ArrayRef) -> Result<ArrayRef> {
        // The text of a duration is that of other casts.
        let options = CastOptions { safe: self.safe, ..DEFAULT_CAST_OPTIONS };
        let within = limits::within(values, &self.to, self.safe);
        let within = within.map_err(|error| match error {
            DataFusionError::Execution(reason) => {
                let column = self.value.downcast_ref::<Column>();
                let column = column.map_or(String::new(), |column| format!(" of column {}", column.name()));
                exec_datafusion_err!("CAST{column} to {}: {reason}", self.to)
            }
            other => other,
        })?;
        Ok(floats::cast(&within, &self.to, &options)?)
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
        Ok(match self.value.evaluate(batch)? {
            ColumnarValue::Array(values) => ColumnarValue::Array(self.converted(&values)?),
            ColumnarValue::Scalar(value) => {
                let value = self.converted(&value.to_array()?)?;
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
