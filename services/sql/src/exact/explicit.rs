//! Casts in the text of an expression to which DataFusion and Arrow give more than one meaning.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, TimeUnit};
use datafusion_common::{Result, plan_err};
use datafusion_expr::{Cast, Expr, TryCast};

use super::{
    floats::{differs, item},
    limits::has_limits,
    side::{Scope, plain},
};
use crate::guard::decimal_digits;

/// Returns the part with `CAST` and `TRY_CAST` of an integer to a timestamp as one of seconds since 1970, also for items of lists. DataFusion's
/// planner does so only for `CAST` of a 64-bit integer. Arrow takes other numbers as nanoseconds, or in the unit of the type.
///
/// # Errors
/// For a cast of another number to a timestamp, and for one of a struct or between a value and a list that would not follow the rules for values.
pub(super) fn cast(part: Expr, scope: Scope<'_>) -> Result<Expr> {
    let (value, to, safe) = match &part {
        Expr::Cast(Cast { expr, field }) => (expr, field.data_type(), false),
        Expr::TryCast(TryCast { expr, field }) => (expr, field.data_type(), true),
        _ => return Ok(part),
    };
    let from = scope.type_of(value)?;
    check_parts(&from, to)?;
    let (number, timestamp) = innermost(&from, to);
    let DataType::Timestamp(unit, zone) = timestamp else { return Ok(part) };
    if !number.is_numeric() || *number == DataType::Int64 && *unit == TimeUnit::Second {
        return Ok(part);
    }
    if !is_whole(number) {
        return plan_err!(
            "CAST of a value of type {number} to a timestamp, expected an integer, the seconds since 1970; to_timestamp(x) takes seconds with a \
             fraction"
        );
    }
    let cast = |value: Expr, to: DataType| match safe {
        true => Expr::TryCast(TryCast::new(Box::new(value), to)),
        false => Expr::Cast(Cast::new(Box::new(value), to)),
    };
    let is_integer = *number == DataType::Int64;
    let [integers, seconds] = [DataType::Int64, DataType::Timestamp(TimeUnit::Second, zone.clone())]
        .map(|innermost| with_innermost(to, innermost));
    let (value, to) = (value.as_ref().clone(), to.clone());
    let integers = if is_integer { value } else { cast(value, integers) };
    Ok(cast(cast(integers, seconds), to))
}

/// True for integers, and for decimals without digits after the point, which are the results of unsigned arithmetic.
fn is_whole(number: &DataType) -> bool {
    let is_decimal = number.is_decimal() && decimal_digits(number).is_some_and(|(_, digits)| digits <= 0);
    number.is_integer() || is_decimal
}

/// The types of values in lists, if both types are lists.
fn innermost<'a>(from: &'a DataType, to: &'a DataType) -> (&'a DataType, &'a DataType) {
    match (item(from), item(to)) {
        (Some(from), Some(to)) => innermost(plain(from), to),
        _ => (from, to),
    }
}

/// A type of lists with another type of their values.
fn with_innermost(list: &DataType, innermost: DataType) -> DataType {
    let of = |field: &Arc<Field>| {
        let data_type = with_innermost(field.data_type(), innermost.clone());
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    };
    match list {
        DataType::List(field) => DataType::List(of(field)),
        DataType::LargeList(field) => DataType::LargeList(of(field)),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(of(field), *size),
        _ => innermost,
    }
}

/// Refuses casts of parts that DataFusion converts by other rules than values. Lists are converted to lists by those for values.
fn check_parts(from: &DataType, to: &DataType) -> Result<()> {
    let from = plain(from);
    match (from, to) {
        (DataType::Struct(fields), DataType::Struct(to_fields)) => {
            let names = |fields: &Fields| fields.iter().map(|field| field.name().clone()).collect::<Vec<_>>();
            let is_in_order = names(fields) == names(to_fields);
            for to in to_fields {
                let Some(from) = fields.iter().find(|from| from.name() == to.name()) else { continue };
                let (own, wanted) = innermost(from.data_type(), to.data_type());
                if is_number_as_time(own, wanted)
                    || !is_in_order && has_rules(from.data_type(), to.data_type())
                {
                    return plan_err!(
                        "CAST of the field '{}' of a struct from {} to {} is not supported: cast the field, as in CAST(s['{}'] AS ...)",
                        to.name(),
                        from.data_type(),
                        to.data_type(),
                        to.name()
                    );
                }
                check_parts(from.data_type(), to.data_type())?;
            }
            Ok(())
        }
        _ => match (item(from), item(to)) {
            (Some(from), Some(to)) => check_parts(from, to),
            (Some(item), None) if !to.is_string() && has_rules(item, to) => refused(from, to),
            (None, Some(item)) if has_rules(from, item) => refused(from, to),
            _ => Ok(()),
        },
    }
}

fn refused(from: &DataType, to: &DataType) -> Result<()> {
    plan_err!("CAST of a value of type {from} to {to} is not supported, expected two lists or two values")
}

/// True if a cast differs from that of Arrow.
fn has_rules(from: &DataType, to: &DataType) -> bool {
    has_limits(from, to) || differs(from, to) || is_number_as_time(from, to)
}

fn is_number_as_time(from: &DataType, to: &DataType) -> bool {
    plain(from).is_numeric() && matches!(to, DataType::Timestamp(..))
}
