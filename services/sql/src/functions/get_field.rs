//! `get_field`, the function behind `place['city']` and `place.city`.

use std::sync::Arc;

use arrow_array::{Array, BooleanArray, StructArray, cast::AsArray};
use arrow_schema::{DataType, Field, FieldRef};
use arrow_select::nullif::nullif;
use datafusion_common::{Result, ScalarValue, exec_err, plan_err};
use datafusion_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion_functions::core::get_field;

/// Maximum number of field names in an error message.
const MAX_LISTED: usize = 20;

/// A field of a struct by its name, or a value of a map by its key. Every field of a null struct is null, unlike in DataFusion's
/// function of this name, which returns the values under the null.
pub(crate) fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(GetField { signature: Signature::any(2, Volatility::Immutable) }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct GetField {
    signature: Signature,
}

impl ScalarUDFImpl for GetField {
    fn name(&self) -> &'static str {
        "get_field"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        exec_err!("get_field: the type depends on the field's name")
    }

    fn return_field_from_args(&self, call: ReturnFieldArgs) -> Result<FieldRef> {
        let of = &call.arg_fields[0];
        if matches!(of.data_type(), DataType::Map(..)) {
            return get_field().return_field_from_args(call);
        }
        let Some(Some(Some(name))) = call.scalar_arguments[1].map(ScalarValue::try_as_str) else {
            return plan_err!("get_field: the field name must be a constant string");
        };
        let DataType::Struct(fields) = of.data_type() else {
            return plan_err!(
                "cannot read field '{name}' of '{}' of type {}, expected a struct",
                of.name(),
                of.data_type()
            );
        };
        let Some((_, field)) = fields.find(name) else {
            let known: Vec<&str> =
                fields.iter().take(MAX_LISTED).map(|field| field.name().as_str()).collect();
            return plan_err!("'{}' has no field '{name}', expected one of {}", of.name(), known.join(", "));
        };
        let nullable = of.is_nullable() || field.is_nullable();
        Ok(Arc::new(Field::new(name, field.data_type().clone(), nullable)))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if matches!(call.args[0].data_type(), DataType::Map(..)) {
            return get_field().invoke_with_args(call);
        }
        let of = call.args[0].clone().into_array(call.number_rows)?;
        let (Some(of), ColumnarValue::Scalar(name)) = (of.as_struct_opt(), &call.args[1]) else {
            return exec_err!("get_field: expected a struct and a constant field name");
        };
        let field = name.try_as_str().flatten().and_then(|name| struct_field(of, name));
        let Some(field) = field else { return exec_err!("get_field: the struct has no field {name}") };
        field.map(ColumnarValue::Array)
    }
}

fn struct_field(of: &StructArray, name: &str) -> Option<Result<arrow_array::ArrayRef>> {
    let field = of.column_by_name(name)?;
    let Some(nulls) = of.nulls() else { return Some(Ok(Arc::clone(field))) };
    Some(nullif(field, &BooleanArray::new(!nulls.inner(), None)).map_err(Into::into))
}
