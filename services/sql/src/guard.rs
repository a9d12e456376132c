//! `AND` and `OR` that guard their right sides.
//!
//! DataFusion evaluates the right side for all rows unless few rows pass the left side, so that
//! `clicks > 0 AND views / clicks > 3` fails for some batches and not for others.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Schema};
use datafusion_common::{
    Result, exec_err,
    tree_node::{Transformed, TreeNode},
};
use datafusion_expr::{ColumnarValue, Operator};
use datafusion_physical_expr::{
    PhysicalExpr, ScalarFunctionExpr,
    expressions::{
        BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal,
        NotExpr,
    },
};

use crate::{
    digits::with_own_digits,
    exact::{cast::exact, function},
    followed::{Followed, Step},
    nan::{has_floats, with_one_nan},
    values::member::is_member_test,
};

/// Replaces every `AND` and `OR` whose right side can fail, makes overflow of integers and decimals an error, converts decimals exactly or to
/// the nearest floats, checks what becomes a text, a date or a time of day, and gives every computed float one NaN.
///
/// # Errors
/// If a part has no type in `schema`.
pub(crate) fn guarded(expression: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let replaced = expression.transform_up(|part| {
        let part = one_nan(exact(part, schema)?, schema)?;
        let Some(binary) = part.downcast_ref::<BinaryExpr>() else {
            return with_own_digits(part, schema).map(Transformed::yes);
        };
        let replaced: Arc<dyn PhysicalExpr> = match binary.op() {
            Operator::And | Operator::Or if can_fail(binary.right(), schema) => Arc::new(Guarded {
                is_or: *binary.op() == Operator::Or,
                left: Arc::clone(binary.left()),
                right: Arc::clone(binary.right()),
            }),
            Operator::Plus | Operator::Minus | Operator::Multiply => {
                with_own_digits(Arc::new(binary.clone().with_fail_on_overflow(true)), schema)?
            }
            _ => with_own_digits(part, schema)?,
        };
        Ok(Transformed::yes(replaced))
    });
    replaced.map(|replaced| replaced.data)
}

/// Returns false only if the evaluation is known to succeed for every row. A null result is a success.
fn can_fail(part: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    let part_can_fail = if let Some(binary) = part.downcast_ref::<BinaryExpr>() {
        match binary.op() {
            Operator::And | Operator::Or => false,
            Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide | Operator::Modulo => {
                !binary.data_type(schema).is_ok_and(|data_type| data_type.is_floating())
            }
            op => !matches!(
                op,
                Operator::Eq
                    | Operator::NotEq
                    | Operator::Lt
                    | Operator::LtEq
                    | Operator::Gt
                    | Operator::GtEq
                    | Operator::IsDistinctFrom
                    | Operator::IsNotDistinctFrom
            ),
        }
    } else if let Some(cast) = part.downcast_ref::<CastExpr>() {
        !cast.expr().data_type(schema).is_ok_and(|from| widens(&from, cast.cast_type()))
    } else {
        let has_value = part.is::<Column>()
            || part.is::<Literal>()
            || part.is::<OneNan>()
            || part
                .downcast_ref::<ScalarFunctionExpr>()
                .is_some_and(|call| function::operator(call.name()).is_some() || is_member_test(call.name()))
            || part.is::<IsNullExpr>()
            || part.is::<IsNotNullExpr>()
            || part.is::<NotExpr>()
            || part.is::<LikeExpr>()
            || part.is::<InListExpr>();
        !has_value
    };
    part_can_fail || part.children().into_iter().any(|child| can_fail(child, schema))
}

/// Returns true only if every value of type `from` has an equal value of type `to`.
pub(crate) fn widens(from: &DataType, to: &DataType) -> bool {
    let bits = |data_type: &DataType| data_type.primitive_width().unwrap_or(0) * 8;
    if from == to {
        return true;
    }
    match (from, to) {
        (DataType::Float16, DataType::Float32 | DataType::Float64)
        | (DataType::Float32, DataType::Float64) => true,
        (from, to) if from.is_integer() && to.is_integer() => {
            bits(from) < bits(to) && (from.is_unsigned_integer() || to.is_signed_integer())
        }
        // The mantissa of a double has 53 bits.
        (from, DataType::Float64) if from.is_integer() => bits(from) <= 32,
        (from, to) => match (decimal_digits(from), decimal_digits(to)) {
            (Some(from), Some((whole, fraction))) if to.is_decimal() => from.0 <= whole && from.1 <= fraction,
            _ => false,
        },
    }
}

/// Number of decimal digits before and after the point of the values of an integer or decimal type.
pub(crate) fn decimal_digits(data_type: &DataType) -> Option<(i16, i16)> {
    Some(match data_type {
        DataType::Int8 | DataType::UInt8 => (3, 0),
        DataType::Int16 | DataType::UInt16 => (5, 0),
        DataType::Int32 | DataType::UInt32 => (10, 0),
        DataType::Int64 => (19, 0),
        DataType::UInt64 => (20, 0),
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
        | DataType::Decimal256(digits, scale) => (i16::from(*digits) - i16::from(*scale), i16::from(*scale)),
        _ => return None,
    })
}

/// Wraps a part that can compute NaNs: their bits depend on the processor and on the operands.
fn one_nan(part: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let has_one_nan = part.is::<Column>() || part.is::<Literal>() || part.is::<CaseExpr>();
    if has_one_nan || !has_floats(&part.data_type(schema)?) {
        return Ok(part);
    }
    Ok(OneNan::after(part))
}

/// A part whose NaNs all have the bits of the canonical NaN.
type OneNan = Followed<Canonical>;

/// Gives each NaN the bits of the canonical NaN.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Canonical;

impl Step for Canonical {
    fn apply(values: &ArrayRef) -> Result<ArrayRef> {
        Ok(with_one_nan(values)?)
    }
}

/// `left AND right` or `left OR right`. The right side is evaluated for the rows that the left side does not decide.
#[derive(Debug, Eq)]
struct Guarded {
    is_or: bool,
    left: Arc<dyn PhysicalExpr>,
    right: Arc<dyn PhysicalExpr>,
}

// A derived implementation moves out of the pointers: https://github.com/rust-lang/rust/issues/78808
impl PartialEq for Guarded {
    fn eq(&self, other: &Self) -> bool {
        self.is_or == other.is_or && self.left.eq(&other.left) && self.right.eq(&other.right)
    }
}

impl Hash for Guarded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.is_or.hash(state);
        self.left.hash(state);
        self.right.hash(state);
    }
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.left, if self.is_or { "OR" } else { "AND" }, self.right)
    }
}

impl PhysicalExpr for Guarded {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        Ok(self.left.nullable(schema)? || self.right.nullable(schema)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let rows = batch.num_rows();
        let left = self.left.evaluate(batch)?.into_array(rows)?;
        let Some(decided) = left.as_boolean_opt() else {
            return exec_err!("{self}: the left side is of type {}, expected a boolean", left.data_type());
        };
        let open = open_rows(decided, self.is_or);
        if !open.has_true() {
            return Ok(ColumnarValue::Array(left));
        }
        let right = self.right.evaluate_selection(batch, &open)?.into_array(rows)?;
        let Some(right) = right.as_boolean_opt() else {
            return exec_err!("{self}: the right side is of type {}, expected a boolean", right.data_type());
        };
        let combine =
            if self.is_or { arrow_arith::boolean::or_kleene } else { arrow_arith::boolean::and_kleene };
        Ok(ColumnarValue::Array(Arc::new(combine(decided, right)?)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.left, &self.right]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let Ok([left, right]) = <[_; 2]>::try_from(children) else {
            return exec_err!("{self}: expected two sides");
        };
        Ok(Arc::new(Self { is_or: self.is_or, left, right }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Rows whose result depends on the right side: those that are not true for `OR`, and not false for `AND`.
fn open_rows(decided: &BooleanArray, is_or: bool) -> BooleanArray {
    let values = if is_or { !decided.values() } else { decided.values().clone() };
    let open = match decided.nulls() {
        Some(nulls) => &values | &!nulls.inner(),
        None => values,
    };
    BooleanArray::new(open, None)
}

#[cfg(test)]
mod tests;
