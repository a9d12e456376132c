//! Parts of expressions whose results a further step checks or changes. Their type stays the same.

use std::{
    fmt,
    hash::{Hash, Hasher},
    marker::PhantomData,
    sync::Arc,
};

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Schema};
use datafusion_common::{Result, ScalarValue, exec_err};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::PhysicalExpr;

/// A step after a part.
pub(crate) trait Step: fmt::Debug + Eq + Hash + Send + Sync + 'static {
    /// Returns values in place of those of the part, with their type.
    ///
    /// # Errors
    /// If a value is not a result of the part.
    fn apply(values: &ArrayRef) -> Result<ArrayRef>;
}

/// A part that is followed by the step `S`.
#[derive(Debug, Eq)]
pub(crate) struct Followed<S> {
    part: Arc<dyn PhysicalExpr>,
    step: PhantomData<S>,
}

impl<S: Step> Followed<S> {
    /// Lets the step follow a part.
    pub(crate) fn after(part: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
        Arc::new(Self { part, step: PhantomData })
    }
}

// A derived implementation moves out of the pointer: https://github.com/rust-lang/rust/issues/78808
impl<S> PartialEq for Followed<S> {
    fn eq(&self, other: &Self) -> bool {
        self.part.eq(&other.part)
    }
}

impl<S> Hash for Followed<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.part.hash(state);
    }
}

impl<S> fmt::Display for Followed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.fmt(f)
    }
}

impl<S: Step> PhysicalExpr for Followed<S> {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.part.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.part.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        Ok(match self.part.evaluate(batch)? {
            ColumnarValue::Array(values) => ColumnarValue::Array(S::apply(&values)?),
            ColumnarValue::Scalar(value) => {
                let value = S::apply(&value.to_array()?)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&value, 0)?)
            }
        })
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.part]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let Ok([part]) = <[_; 1]>::try_from(children) else {
            return exec_err!("{self}: expected one part");
        };
        Ok(Self::after(part))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.fmt_sql(f)
    }
}
