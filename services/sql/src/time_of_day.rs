//! Casts of text to times of day.
//!
//! Arrow reads a text without a colon as the number of units since midnight, and accepts the second 60. Neither is a time of day.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow_array::{ArrayRef, BooleanArray, RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Schema};
use arrow_select::nullif::nullif;
use datafusion_common::{Result, ScalarValue, exec_err};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::{
    PhysicalExpr,
    expressions::{CastExpr, TryCastExpr},
};

/// Checks the texts that a cast of text to a time of day reads.
///
/// # Errors
/// If a part has no type in `schema`.
pub(crate) fn checked(part: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let cast = part.downcast_ref::<CastExpr>().map(|cast| (cast.expr(), cast.cast_type(), false));
    let try_cast = || part.downcast_ref::<TryCastExpr>().map(|cast| (cast.expr(), cast.cast_type(), true));
    let Some((value, to, safe)) = cast.or_else(try_cast) else { return Ok(part) };
    let reads_time = matches!(to, DataType::Time32(_) | DataType::Time64(_));
    if !reads_time || value.is::<TimeText>() || !is_text(&value.data_type(schema)?) {
        return Ok(part);
    }
    let text: Arc<dyn PhysicalExpr> = Arc::new(TimeText { text: Arc::clone(value), safe });
    part.with_new_children(vec![text])
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => is_text(value),
        other => other.is_string(),
    }
}

/// Returns false for a text that Arrow reads although it is not a time of day.
fn is_time(text: &str) -> bool {
    let mut parts = text.split(':').skip(1);
    parts.next().is_some() && parts.next().is_none_or(|seconds| !seconds.starts_with("60"))
}

/// The texts of a cast. With `safe`, those that are not a time of day become null.
#[derive(Debug, Eq)]
struct TimeText {
    text: Arc<dyn PhysicalExpr>,
    safe: bool,
}

// A derived implementation moves out of the pointer: https://github.com/rust-lang/rust/issues/78808
impl PartialEq for TimeText {
    fn eq(&self, other: &Self) -> bool {
        self.text.eq(&other.text) && self.safe == other.safe
    }
}

impl Hash for TimeText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
        self.safe.hash(state);
    }
}

impl fmt::Display for TimeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl TimeText {
    fn check(&self, texts: &ArrayRef) -> Result<ArrayRef> {
        if let DataType::Dictionary(_, value) = texts.data_type() {
            return self.check(&arrow_cast::cast(texts, value)?);
        }
        let found: Vec<Option<&str>> = match texts.data_type() {
            DataType::Utf8 => texts.as_string::<i32>().iter().collect(),
            DataType::LargeUtf8 => texts.as_string::<i64>().iter().collect(),
            DataType::Utf8View => texts.as_string_view().iter().collect(),
            other => return exec_err!("{self}: a value of type {other}, expected a text"),
        };
        let is_other = |text: &Option<&str>| text.is_some_and(|text| !is_time(text));
        let Some(Some(first)) = found.iter().find(|text| is_other(text)) else {
            return Ok(Arc::clone(texts));
        };
        if !self.safe {
            return exec_err!(
                "Cannot cast string '{first}' to a time of day, expected hours:minutes:seconds"
            );
        }
        let others: Vec<bool> = found.iter().map(is_other).collect();
        Ok(nullif(texts, &BooleanArray::from(others))?)
    }
}

impl PhysicalExpr for TimeText {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        Ok(match self.text.data_type(schema)? {
            DataType::Dictionary(_, value) => *value,
            other => other,
        })
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        Ok(self.safe || self.text.nullable(schema)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        Ok(match self.text.evaluate(batch)? {
            ColumnarValue::Array(texts) => ColumnarValue::Array(self.check(&texts)?),
            ColumnarValue::Scalar(text) => {
                let text = self.check(&text.to_array()?)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&text, 0)?)
            }
        })
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.text]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let Ok([text]) = <[_; 1]>::try_from(children) else {
            return exec_err!("{self}: expected one part");
        };
        Ok(Arc::new(Self { text, safe: self.safe }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt_sql(f)
    }
}
