//! The identity of a compiled expression: its tree as tagged bytes.

use arrow_data::ArrayData;
use arrow_schema::{DataType, Schema};
use datafusion_expr::{Expr, Operator};

use crate::{Error, Identity};

/// Version of the semantics of expressions. It rises when an expression gets other values, so that what was counted or computed with
/// other results is not used any longer. Tickets and plan hashes of requests with expressions contain it.
pub const SEMANTICS: u32 = 4;

/// The identity of `expression` over the columns of `inputs`, with values of type `computed`.
///
/// Constants enter by their bytes: two constants may have the same text.
///
/// # Errors
/// [`Error::Invalid`] for a part that expressions of one row do not have.
pub(crate) fn identity_of(expression: &Expr, inputs: &Schema, computed: &DataType) -> Result<u128, Error> {
    let mut identity = Identity::new("expression", SEMANTICS).list(inputs.fields().len());
    for field in inputs.fields() {
        identity = identity.text(field.name()).data_type(field.data_type());
    }
    Ok(append(identity.data_type(computed), expression)?.hash())
}

fn append(identity: Identity, expression: &Expr) -> Result<Identity, Error> {
    let one = |name: &str, identity: Identity, part: &Expr| append(identity.text(name), part);
    Ok(match expression {
        Expr::Alias(alias) => append(identity, &alias.expr)?,
        Expr::Column(column) => identity.text("column").text(&column.name),
        Expr::Literal(value, _) => {
            let identity = identity.text("constant").data_type(&value.data_type());
            append_array(identity, &value.to_array()?.to_data())
        }
        Expr::BinaryExpr(binary) => {
            let identity = identity.text("binary").text(operator_name(binary.op)?);
            append(append(identity, &binary.left)?, &binary.right)?
        }
        Expr::Like(like) => {
            let escape = like.escape_char.map(String::from).unwrap_or_default();
            let identity = identity
                .text("like")
                .number(like.negated.into())
                .number(like.case_insensitive.into())
                .text(&escape);
            append(append(identity, &like.expr)?, &like.pattern)?
        }
        Expr::Not(part) => one("not", identity, part)?,
        Expr::IsNotNull(part) => one("is not null", identity, part)?,
        Expr::IsNull(part) => one("is null", identity, part)?,
        Expr::IsTrue(part) => one("is true", identity, part)?,
        Expr::IsFalse(part) => one("is false", identity, part)?,
        Expr::IsUnknown(part) => one("is unknown", identity, part)?,
        Expr::IsNotTrue(part) => one("is not true", identity, part)?,
        Expr::IsNotFalse(part) => one("is not false", identity, part)?,
        Expr::IsNotUnknown(part) => one("is not unknown", identity, part)?,
        Expr::Negative(part) => one("negative", identity, part)?,
        Expr::Between(between) => {
            let identity = append(identity.text("between").number(between.negated.into()), &between.expr)?;
            append(append(identity, &between.low)?, &between.high)?
        }
        Expr::Case(case) => {
            let whens = case.when_then_expr.iter().flat_map(|(when, then)| [when, then]);
            let identity = append_list(identity.text("case"), case.expr.iter().map(AsRef::as_ref))?;
            let identity = append_list(identity, whens.map(AsRef::as_ref))?;
            append_list(identity, case.else_expr.iter().map(AsRef::as_ref))?
        }
        Expr::Cast(cast) => append(identity.text("cast").data_type(cast.field.data_type()), &cast.expr)?,
        Expr::TryCast(cast) => {
            append(identity.text("try_cast").data_type(cast.field.data_type()), &cast.expr)?
        }
        Expr::InList(list) => {
            let identity = append(identity.text("in").number(list.negated.into()), &list.expr)?;
            append_list(identity, list.list.iter())?
        }
        Expr::ScalarFunction(call) => {
            append_list(identity.text("function").text(call.func.name()), call.args.iter())?
        }
        other => return Err(Error::invalid(format!("'{other}' is not an expression of one row"))),
    })
}

fn append_list<'a>(
    identity: Identity,
    parts: impl Iterator<Item = &'a Expr> + Clone,
) -> Result<Identity, Error> {
    let mut identity = identity.list(parts.clone().count());
    for part in parts {
        identity = append(identity, part)?;
    }
    Ok(identity)
}

/// Everything that an array consists of except its type.
fn append_array(identity: Identity, data: &ArrayData) -> Identity {
    let validity = |row| u8::from(data.is_valid(row));
    let validity: Vec<u8> = (0..data.len()).map(validity).collect();
    let mut identity = identity.bytes(&validity).list(data.buffers().len());
    for buffer in data.buffers() {
        identity = identity.bytes(buffer.as_slice());
    }
    data.child_data().iter().fold(identity.list(data.child_data().len()), append_array)
}

/// The name of an allowed operator. Names never change.
fn operator_name(operator: Operator) -> Result<&'static str, Error> {
    Ok(match operator {
        Operator::And => "and",
        Operator::Or => "or",
        Operator::Eq => "=",
        Operator::NotEq => "<>",
        Operator::Lt => "<",
        Operator::LtEq => "<=",
        Operator::Gt => ">",
        Operator::GtEq => ">=",
        Operator::Plus => "+",
        Operator::Minus => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::Modulo => "%",
        Operator::StringConcat => "||",
        Operator::IsDistinctFrom => "is distinct from",
        Operator::IsNotDistinctFrom => "is not distinct from",
        // The simplifier makes these of LIKE and of comparisons of constants.
        Operator::LikeMatch => "like",
        Operator::NotLikeMatch => "not like",
        Operator::ILikeMatch => "ilike",
        Operator::NotILikeMatch => "not ilike",
        other => return Err(Error::invalid(format!("operator {other} is not supported"))),
    })
}
