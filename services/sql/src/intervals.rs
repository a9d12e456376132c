//! Sums of dates or timestamps and intervals.
//!
//! Arrow computes them in the type of the date or timestamp, and drops the part of the interval that this type can't represent. Therefore a
//! date becomes a timestamp, and a timestamp gets the unit of a constant interval if that is finer. Other intervals are checked.

use std::sync::Arc;

use arrow_array::{cast::AsArray, types::IntervalMonthDayNanoType};
use arrow_schema::{DataType, Field, FieldRef, IntervalUnit, TimeUnit};
use datafusion_common::{
    DFSchema, Result, ScalarValue, exec_err,
    tree_node::{Transformed, TreeNode},
};
use datafusion_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use crate::lower::{binary, one_row, value_of};

/// Units of timestamps that can be coarser than an interval, and the names of the functions that check intervals for them. No expression can
/// call a function by such a name.
const CHECKS: [(TimeUnit, &str); 3] = [
    (TimeUnit::Second, "interval of seconds"),
    (TimeUnit::Millisecond, "interval of milliseconds"),
    (TimeUnit::Microsecond, "interval of microseconds"),
];

/// Returns true if the result of the function is null exactly if its argument is.
pub(crate) fn is_check(name: &str) -> bool {
    CHECKS.iter().any(|(_, check)| *check == name)
}

/// Makes the sums of dates or timestamps and intervals in `expression`, whose types are not coerced yet, exact.
///
/// # Errors
/// If a part has no type.
pub(crate) fn with_exact_sums(expression: Expr, schema: &DFSchema) -> Result<Expr> {
    let rewritten = expression.transform_up(|part| {
        let Expr::BinaryExpr(BinaryExpr { left, op, right }) = part else { return Ok(Transformed::no(part)) };
        if !matches!(op, Operator::Plus | Operator::Minus) {
            return Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })));
        }
        let (left, right) = match (is_interval(&left, schema), is_interval(&right, schema)) {
            (false, true) => sum(*left, *right, schema)?,
            (true, false) if op == Operator::Plus => {
                let (right, left) = sum(*right, *left, schema)?;
                (left, right)
            }
            _ => (*left, *right),
        };
        Ok(Transformed::yes(binary(left, op, right)))
    });
    rewritten.map(|rewritten| rewritten.data)
}

/// True for intervals. A part with comparisons that are not resolved yet can be without a type.
fn is_interval(part: &Expr, schema: &DFSchema) -> bool {
    matches!(part.get_type(schema), Ok(DataType::Interval(_)))
}

/// Returns both sides, of which the time has a unit that represents the sum.
fn sum(time: Expr, interval: Expr, schema: &DFSchema) -> Result<(Expr, Expr)> {
    let data_type = match time.get_type(schema) {
        Ok(DataType::Dictionary(_, value)) => *value,
        Ok(other) => other,
        Err(_) => return Ok((time, interval)),
    };
    let (unit, zone) = match &data_type {
        DataType::Date32 | DataType::Date64 => (TimeUnit::Microsecond, None),
        DataType::Timestamp(unit, zone) => (*unit, zone.clone()),
        _ => return Ok((time, interval)),
    };
    let constant = match interval.column_refs().is_empty() {
        true => value_of(&interval, &one_row()?).ok(),
        false => None,
    };
    let (unit, interval) = match constant.as_ref().map(unit_of) {
        Some(finest) if size(finest) < size(unit) => (finest, interval),
        Some(_) => (unit, interval),
        None => (unit, checked(interval, unit, schema)?),
    };
    Ok((time.cast_to(&DataType::Timestamp(unit, zone), schema)?, interval))
}

/// The coarsest unit that represents a constant interval.
fn unit_of(interval: &ScalarValue) -> TimeUnit {
    let nanoseconds = match interval {
        ScalarValue::IntervalMonthDayNano(Some(interval)) => interval.nanoseconds,
        ScalarValue::IntervalDayTime(Some(interval)) => i64::from(interval.milliseconds) * 1_000_000,
        _ => 0,
    };
    let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond];
    units.into_iter().find(|unit| nanoseconds % size(*unit) == 0).unwrap_or(TimeUnit::Nanosecond)
}

/// Nanoseconds of a unit.
fn size(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// An interval that fails for a value with a part that is shorter than `unit`.
fn checked(interval: Expr, unit: TimeUnit, schema: &DFSchema) -> Result<Expr> {
    let is_coarse = match interval.get_type(schema)? {
        DataType::Interval(IntervalUnit::YearMonth) => true,
        DataType::Interval(IntervalUnit::DayTime) => size(unit) <= size(TimeUnit::Millisecond),
        _ => false,
    };
    let check = CHECKS.iter().find(|(checked, _)| *checked == unit && !is_coarse);
    let Some((unit, name)) = check else { return Ok(interval) };
    let interval = interval.cast_to(&DataType::Interval(IntervalUnit::MonthDayNano), schema)?;
    let check = Check { size: size(*unit), name, signature: Signature::any(1, Volatility::Immutable) };
    Ok(ScalarUDF::from(check).call(vec![interval]))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Check {
    /// Nanoseconds of a unit.
    size: i64,
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for Check {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Interval(IntervalUnit::MonthDayNano))
    }

    fn return_field_from_args(&self, call: ReturnFieldArgs) -> Result<FieldRef> {
        let nullable = call.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name, DataType::Interval(IntervalUnit::MonthDayNano), nullable)))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let array = call.args[0].clone().into_array(1)?;
        let Some(intervals) = array.as_primitive_opt::<IntervalMonthDayNanoType>() else {
            return exec_err!("an {} is of type {}", self.name, array.data_type());
        };
        let finer = intervals.iter().flatten().find(|interval| interval.nanoseconds % self.size != 0);
        match finer {
            Some(interval) => exec_err!(
                "an interval has {} nanoseconds, expected an {}: CAST the timestamp to a finer unit",
                interval.nanoseconds,
                self.name
            ),
            None => Ok(call.args[0].clone()),
        }
    }
}
