//! Sides of a comparison.

use arrow_schema::{DataType, IntervalUnit, TimeUnit};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::{Expr, ExprSchemable};
use datafusion_optimizer::simplify_expressions::ExprSimplifier;

use super::{
    literals::{exact, resolved},
    moment::{Class, Seconds, zone_of_local_time},
    number::Number,
};
use crate::lower::{one_row, value_of};

/// Schema of the columns of an expression, and the simplifier that coerces its types.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) schema: &'a DFSchema,
    pub(super) simplifier: &'a ExprSimplifier,
}

/// One side of a comparison.
#[derive(Debug)]
pub(super) enum Side {
    /// A constant.
    Exact(Class, Number),
    /// A value of a type that is no dictionary.
    Value(Class, DataType),
    /// A value that is not compared as a number.
    Other,
}

impl Side {
    pub(super) fn class(&self) -> Option<Class> {
        match self {
            Self::Exact(class, _) | Self::Value(class, _) => Some(*class),
            Self::Other => None,
        }
    }
}

/// The type of the values of a dictionary, and other types as they are.
pub(super) fn plain(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, value) => value,
        other => other,
    }
}

impl Scope<'_> {
    /// Type of the values of a part.
    pub(super) fn type_of(&self, part: &Expr) -> Result<DataType> {
        Ok(plain(&part.get_type(self.schema)?).clone())
    }

    /// One side of a comparison.
    pub(super) fn side(&self, part: &Expr) -> Result<Side> {
        if let Some(number) = exact(part) {
            return Ok(Side::Exact(Class::Number, number));
        }
        let data_type = self.type_of(part)?;
        Ok(match (Class::of(&data_type), self.seconds(part, &data_type)) {
            (Some(class), Some(seconds)) => Side::Exact(class, seconds.number()),
            (Some(class), None) => Side::Value(class, data_type),
            (None, _) => Side::Other,
        })
    }

    /// Returns the sides of a comparison, each adapted to the type of the other one. A text becomes a timestamp next to a timestamp, and an
    /// interval next to a duration or an interval. A time without a zone becomes an instant next to a time with a zone.
    pub(super) fn sides(&self, left: Expr, right: Expr) -> Result<((Expr, Side), (Expr, Side))> {
        let (left_type, right_type) = (self.type_of(&left)?, self.type_of(&right)?);
        Ok((self.adapted(left, &left_type, &right_type)?, self.adapted(right, &right_type, &left_type)?))
    }

    /// The exact value of a constant that is compared with values of type `other`; `None` for other parts.
    pub(super) fn constant_for(&self, part: &Expr, other: &DataType) -> Result<Option<Number>> {
        let own = self.type_of(part)?;
        Ok(match self.adapted(part.clone(), &own, other)? {
            (_, Side::Exact(class, number)) if Some(class) == Class::of(other) => Some(number),
            _ => None,
        })
    }

    fn adapted(&self, part: Expr, own: &DataType, other: &DataType) -> Result<(Expr, Side)> {
        let part = match other {
            DataType::Timestamp(_, zone) if own.is_string() => {
                part.cast_to(&DataType::Timestamp(TimeUnit::Nanosecond, zone.clone()), self.schema)?
            }
            DataType::Duration(_) | DataType::Interval(_) if own.is_string() => {
                part.cast_to(&DataType::Interval(IntervalUnit::MonthDayNano), self.schema)?
            }
            _ => part,
        };
        let (DataType::Timestamp(unit, None), Some(zone)) = (own, zone_of_local_time(own, other)) else {
            let side = self.side(&part)?;
            return Ok((part, side));
        };
        if let Some(seconds) = self.seconds(&part, own).and_then(|local| local.as_local_time_in(zone)) {
            return Ok((part, Side::Exact(Class::Moment, seconds.number())));
        }
        let data_type = DataType::Timestamp(*unit, Some(zone.into()));
        Ok((part.cast_to(&data_type, self.schema)?, Side::Value(Class::Moment, data_type)))
    }

    /// Returns the exact value of a date, a time or a duration without columns; `None` for other parts.
    fn seconds(&self, part: &Expr, data_type: &DataType) -> Option<Seconds> {
        let is_temporal = !matches!(Class::of(data_type), None | Some(Class::Number));
        if !is_temporal || !part.column_refs().is_empty() {
            return None;
        }
        Seconds::of_text(part).or_else(|| {
            let coerced = self.simplifier.coerce(part.clone(), self.schema).and_then(resolved).ok()?;
            Seconds::of_value(&value_of(&coerced, &one_row().ok()?).ok()?)
        })
    }
}
