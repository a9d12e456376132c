//! The function that `value IN (:name)` is compiled to.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_buffer::BooleanBuffer;
use arrow_schema::DataType;
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue, exec_err, plan_datafusion_err};
use datafusion_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
    expr::ScalarFunction,
};

use super::{
    ValueSet,
    typed::{Typed, Unusable},
};

/// Prefix of the names of these functions, which are part of identities. The hash of the set follows it. No expression can call a
/// function by such a name.
const PREFIX: &str = "in set ";

/// Test of membership in a set.
#[derive(Debug)]
pub(crate) struct Member {
    /// Name of the function.
    name: String,
    /// Name of the set in the expression.
    set_name: String,
    pub(crate) set: Arc<ValueSet>,
    /// The values of the type of the argument; `None` before it is known.
    typed: Option<(DataType, Arc<Typed>)>,
    signature: Signature,
}

// The name of the function has the hash of the set, and the type is that of the argument.
impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        let data_type = |member: &Self| member.typed.as_ref().map(|(data_type, _)| data_type.clone());
        self.name == other.name && data_type(self) == data_type(other)
    }
}

impl Eq for Member {}

impl Hash for Member {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// Returns the test of membership of `value` in the set `name`.
pub(crate) fn member_of(name: &str, set: &Arc<ValueSet>, value: Expr) -> Expr {
    call(name, set, None, value)
}

fn call(name: &str, set: &Arc<ValueSet>, typed: Option<(DataType, Arc<Typed>)>, value: Expr) -> Expr {
    let function = Member {
        name: format!("{PREFIX}{}", set.sha256()),
        set_name: name.to_owned(),
        set: Arc::clone(set),
        typed,
        signature: Signature::any(1, Volatility::Immutable),
    };
    ScalarUDF::from(function).call(vec![value])
}

/// Returns true for the name of a test of membership.
pub(crate) fn is_member_test(function: &str) -> bool {
    function.starts_with(PREFIX)
}

/// Returns the set and the value of a test of membership; `None` for other calls.
pub(crate) fn as_member(call: &ScalarFunction) -> Option<(&Member, &Expr)> {
    Some((call.func.inner().downcast_ref::<Member>()?, call.args.first()?))
}

/// Gives a test of membership the values of the type of its argument. Other calls stay as they are.
///
/// # Errors
/// If values of the set cannot be compared with the argument.
pub(crate) fn with_type(test: ScalarFunction, schema: &DFSchema) -> Result<Expr> {
    let Some((Member { set_name, set, .. }, value)) = as_member(&test) else {
        return Ok(Expr::ScalarFunction(test));
    };
    let data_type = value.get_type(schema)?;
    let plain = match &data_type {
        DataType::Dictionary(_, value) => (**value).clone(),
        other => other.clone(),
    };
    let typed = Typed::of(set, &plain).map_err(|unusable| match unusable {
        Unusable::Type(expected) => plan_datafusion_err!(
            ":{set_name} has {}, and {} is of type {data_type}, expected {expected}",
            set.what(),
            shown(value)
        ),
        Unusable::Memory(why) => DataFusionError::ResourcesExhausted(format!(":{set_name}: {why}")),
    })?;
    let value = if plain == data_type { value.clone() } else { value.clone().cast_to(&plain, schema)? };
    Ok(call(set_name, set, Some((plain, typed)), value))
}

/// The compared value as a message shows it. The names of these functions are internal.
fn shown(value: &Expr) -> String {
    let member = match value {
        Expr::ScalarFunction(call) => as_member(call),
        _ => None,
    };
    member.map_or_else(|| value.to_string(), |(member, _)| format!("the result of IN (:{})", member.set_name))
}

impl Member {
    /// Cost of a test, in nodes of an expression: the steps of a search.
    pub(crate) fn nodes(&self) -> u64 {
        u64::from(self.set.len().checked_ilog2().unwrap_or(0))
    }

    /// Returns two answers for the values from `least` to `greatest`: true if one of them is a member, and true if all of them are known to
    /// be members. `None` if the bounds have another type.
    pub(crate) fn within(&self, least: &ScalarValue, greatest: &ScalarValue) -> Option<(bool, bool)> {
        let (_, typed) = self.typed.as_ref()?;
        let search = |value: &ScalarValue| {
            let array = value.to_array().ok()?;
            let found = typed.values.search(&array).ok()?(0);
            Some(found)
        };
        let (first, last) = (search(least)?, search(greatest)?);
        let begin = first.unwrap_or_else(|missing| missing);
        let end = last.map_or_else(|missing| missing, |found| found + 1);
        Some((begin < end, first.is_ok() && first == last))
    }

    /// The members of the set of this type, if there are at most `most`.
    pub(crate) fn constants(&self, most: usize) -> Option<Vec<ScalarValue>> {
        let (data_type, typed) = self.typed.as_ref()?;
        if typed.values.len() > most {
            return None;
        }
        typed.values.scalars(data_type)
    }

    fn holds(&self, values: &ArrayRef) -> Result<BooleanArray> {
        let Some((_, typed)) = &self.typed else { return exec_err!(":{} has no type", self.set_name) };
        let found = typed.values.search(values)?;
        let is_valid = |row| values.is_valid(row) && found(row).is_ok();
        Ok(BooleanArray::new(BooleanBuffer::collect_bool(values.len(), is_valid), values.nulls().cloned()))
    }
}

impl ScalarUDFImpl for Member {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(match &call.args[0] {
            ColumnarValue::Array(values) => ColumnarValue::Array(Arc::new(self.holds(values)?)),
            ColumnarValue::Scalar(value) => {
                let held = self.holds(&value.to_array()?)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&held, 0)?)
            }
        })
    }
}
