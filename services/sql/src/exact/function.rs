//! Comparisons of values of two types of numbers, dates or times that have no common type.

use std::{cmp::Ordering, sync::Arc};

use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray,
    cast::AsArray,
    types::{
        Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
        DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
        Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
        IntervalDayTimeType, IntervalMonthDayNanoType, IntervalYearMonthType, Time32MillisecondType,
        Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
        TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
        UInt32Type, UInt64Type,
    },
};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::{DataType, IntervalUnit, TimeUnit};
use datafusion_common::{Result, exec_err};
use datafusion_expr::{
    ColumnarValue, Expr, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::{
    moment::{DAY, of_day_time, of_interval, of_months},
    order::Value,
};

/// Comparison operators and the names of their functions, which are part of identities. No expression can call a function by such a
/// name.
const NAMES: [(Operator, &str); 8] = [
    (Operator::Eq, "exact ="),
    (Operator::NotEq, "exact <>"),
    (Operator::Lt, "exact <"),
    (Operator::LtEq, "exact <="),
    (Operator::Gt, "exact >"),
    (Operator::GtEq, "exact >="),
    (Operator::IsDistinctFrom, "exact is distinct from"),
    (Operator::IsNotDistinctFrom, "exact is not distinct from"),
];

/// Returns the exact comparison of two numbers, or of two dates or times; `None` for an operator that does not compare.
pub(super) fn compared(left: Expr, op: Operator, right: Expr) -> Option<Expr> {
    let (_, name) = NAMES.iter().find(|(known, _)| *known == op)?;
    let function = Comparison { op, name, signature: Signature::any(2, Volatility::Immutable) };
    Some(ScalarUDF::from(function).call(vec![left, right]))
}

/// Returns the operator of the exact comparison with this name.
pub(crate) fn operator(name: &str) -> Option<Operator> {
    NAMES.iter().find(|(_, known)| *known == name).map(|(op, _)| *op)
}

/// Returns the result of `op` for two non-null values whose order is `order`.
pub(super) fn holds(op: Operator, order: Ordering) -> bool {
    match op {
        Operator::Eq | Operator::IsNotDistinctFrom => order.is_eq(),
        Operator::NotEq | Operator::IsDistinctFrom => order.is_ne(),
        Operator::Lt => order.is_lt(),
        Operator::LtEq => order.is_le(),
        Operator::Gt => order.is_gt(),
        Operator::GtEq => order.is_ge(),
        _ => false,
    }
}

/// Returns true for comparisons whose result is never null.
pub(crate) fn is_distinct(op: Operator) -> bool {
    matches!(op, Operator::IsDistinctFrom | Operator::IsNotDistinctFrom)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Comparison {
    op: Operator,
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for Comparison {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = call.number_rows;
        let (left, right) = (Operand::new(&call.args[0])?, Operand::new(&call.args[1])?);
        let (left_values, right_values) = (values(&left.array)?, values(&right.array)?);
        let order = |row: usize| left_values(left.at(row)).cmp(right_values(right.at(row)));
        let (left_nulls, right_nulls) = (left.nulls(rows), right.nulls(rows));
        let compared = if is_distinct(self.op) {
            let is_null =
                |nulls: &Option<NullBuffer>, row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            let each = |row| match (is_null(&left_nulls, row), is_null(&right_nulls, row)) {
                (false, false) => holds(self.op, order(row)),
                (left, right) => (left != right) == (self.op == Operator::IsDistinctFrom),
            };
            BooleanArray::new(BooleanBuffer::collect_bool(rows, each), None)
        } else {
            let nulls = NullBuffer::union(left_nulls.as_ref(), right_nulls.as_ref());
            BooleanArray::new(BooleanBuffer::collect_bool(rows, |row| holds(self.op, order(row))), nulls)
        };
        Ok(ColumnarValue::Array(Arc::new(compared)))
    }
}

/// A column, or a constant for all rows.
struct Operand {
    array: ArrayRef,
    is_constant: bool,
}

impl Operand {
    fn new(value: &ColumnarValue) -> Result<Self> {
        Ok(match value {
            ColumnarValue::Array(array) => Self { array: Arc::clone(array), is_constant: false },
            ColumnarValue::Scalar(value) => Self { array: value.to_array()?, is_constant: true },
        })
    }

    fn at(&self, row: usize) -> usize {
        if self.is_constant { 0 } else { row }
    }

    fn nulls(&self, rows: usize) -> Option<NullBuffer> {
        match self.is_constant {
            true => self.array.is_null(0).then(|| NullBuffer::new_null(rows)),
            false => self.array.nulls().cloned(),
        }
    }
}

/// Returns the value of each row. The value of a null is arbitrary. Dates, times and intervals are numbers of seconds.
fn values(array: &ArrayRef) -> Result<Box<dyn Fn(usize) -> Value + '_>> {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    fn of<'a, T: ArrowPrimitiveType>(
        array: &'a ArrayRef,
        value: impl Fn(T::Native) -> Value + 'a,
    ) -> Box<dyn Fn(usize) -> Value + 'a> {
        let values = array.as_primitive::<T>().values();
        Box::new(move |row| value(values[row]))
    }
    fn integers<T: ArrowPrimitiveType>(array: &ArrayRef, scale: i8) -> Box<dyn Fn(usize) -> Value + '_>
    where
        T::Native: Into<i128>,
    {
        of::<T>(array, move |value| Value::Small(value.into(), scale))
    }
    Ok(match array.data_type() {
        DataType::Int8 => integers::<Int8Type>(array, 0),
        DataType::Int16 => integers::<Int16Type>(array, 0),
        DataType::Int32 => integers::<Int32Type>(array, 0),
        DataType::Int64 => integers::<Int64Type>(array, 0),
        DataType::UInt8 => integers::<UInt8Type>(array, 0),
        DataType::UInt16 => integers::<UInt16Type>(array, 0),
        DataType::UInt32 => integers::<UInt32Type>(array, 0),
        DataType::UInt64 => integers::<UInt64Type>(array, 0),
        DataType::Decimal32(_, scale) => integers::<Decimal32Type>(array, *scale),
        DataType::Decimal64(_, scale) => integers::<Decimal64Type>(array, *scale),
        DataType::Decimal128(_, scale) => integers::<Decimal128Type>(array, *scale),
        DataType::Decimal256(_, scale) => {
            let scale = *scale;
            of::<Decimal256Type>(array, move |value| Value::Large(value, scale))
        }
        DataType::Float16 => of::<Float16Type>(array, |value| Value::Float(value.into())),
        DataType::Float32 => of::<Float32Type>(array, |value| Value::Float(value.into())),
        DataType::Float64 => of::<Float64Type>(array, Value::Float),
        DataType::Date32 => of::<Date32Type>(array, |days| Value::Small(i128::from(days) * DAY, 0)),
        DataType::Date64 => integers::<Date64Type>(array, 3),
        DataType::Time32(Second) => integers::<Time32SecondType>(array, 0),
        DataType::Time32(_) => integers::<Time32MillisecondType>(array, 3),
        DataType::Time64(Microsecond) => integers::<Time64MicrosecondType>(array, 6),
        DataType::Time64(_) => integers::<Time64NanosecondType>(array, 9),
        DataType::Timestamp(Second, _) => integers::<TimestampSecondType>(array, 0),
        DataType::Timestamp(Millisecond, _) => integers::<TimestampMillisecondType>(array, 3),
        DataType::Timestamp(Microsecond, _) => integers::<TimestampMicrosecondType>(array, 6),
        DataType::Timestamp(Nanosecond, _) => integers::<TimestampNanosecondType>(array, 9),
        DataType::Duration(Second) => integers::<DurationSecondType>(array, 0),
        DataType::Duration(Millisecond) => integers::<DurationMillisecondType>(array, 3),
        DataType::Duration(Microsecond) => integers::<DurationMicrosecondType>(array, 6),
        DataType::Duration(Nanosecond) => integers::<DurationNanosecondType>(array, 9),
        DataType::Interval(IntervalUnit::YearMonth) => {
            of::<IntervalYearMonthType>(array, |months| Value::Small(of_months(months), 9))
        }
        DataType::Interval(IntervalUnit::DayTime) => {
            of::<IntervalDayTimeType>(array, |interval| Value::Small(of_day_time(interval), 9))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            of::<IntervalMonthDayNanoType>(array, |interval| Value::Small(of_interval(interval), 9))
        }
        other => return exec_err!("a value of type {other}, expected a number, a date or a time"),
    })
}
