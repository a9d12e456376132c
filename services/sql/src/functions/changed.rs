//! Functions of DataFusion that are evaluated in another way.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow_schema::{DataType, FieldRef};
use datafusion_common::{Result, exec_err};
use datafusion_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::{bin, epoch, part, partial, rounding, text, trunc};

/// Evaluates a call in place of the function of DataFusion, which is the first argument.
pub(super) type Invoke = fn(&ScalarUDF, ScalarFunctionArgs) -> Result<ColumnarValue>;
/// Types to which the arguments of a call are converted.
pub(super) type Coerce = fn(&[DataType]) -> Result<Vec<DataType>>;

/// Functions by name, with their types if these differ, too.
const CHANGED: &[(&str, Invoke, Option<Coerce>)] = &[
    ("btrim", text::btrim, None),
    ("date_bin", bin::date_bin, Some(bin::types)),
    ("date_part", part::date_part, None),
    ("date_trunc", trunc::date_trunc, Some(trunc::types)),
    ("ltrim", text::ltrim, None),
    ("power", partial::power, None),
    ("round", rounding::round, None),
    ("rtrim", text::rtrim, None),
    ("sqrt", partial::sqrt, None),
    ("strpos", text::strpos, None),
    ("to_timestamp", epoch::to_timestamp, None),
    ("to_timestamp_micros", epoch::of_units, None),
    ("to_timestamp_millis", epoch::of_units, None),
    ("to_timestamp_nanos", epoch::of_units, None),
    ("to_timestamp_seconds", epoch::of_units, None),
    ("to_unixtime", epoch::to_unixtime, None),
    ("trunc", rounding::trunc, None),
];

/// Returns the function that expressions call in place of `function`.
pub(super) fn changed(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let Some((_, invoke, coerce)) = CHANGED.iter().find(|(name, ..)| *name == function.name()) else {
        return function;
    };
    let signature = match coerce {
        Some(_) => Signature::user_defined(Volatility::Immutable),
        None => function.signature().clone(),
    };
    Arc::new(ScalarUDF::from(Changed { function, signature, invoke: *invoke, coerce: *coerce }))
}

struct Changed {
    function: Arc<ScalarUDF>,
    signature: Signature,
    invoke: Invoke,
    coerce: Option<Coerce>,
}

// A function is named by its name.
impl PartialEq for Changed {
    fn eq(&self, other: &Self) -> bool {
        self.function.name() == other.function.name()
    }
}

impl Eq for Changed {}

impl Hash for Changed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.name().hash(state);
    }
}

impl fmt::Debug for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Changed").field(&self.function.name()).finish()
    }
}

impl ScalarUDFImpl for Changed {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn aliases(&self) -> &[String] {
        self.function.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        match self.coerce {
            Some(coerce) => coerce(arguments),
            None => self.function.inner().coerce_types(arguments),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        exec_err!("{}: the type depends on the arguments", self.name())
    }

    fn return_field_from_args(&self, call: ReturnFieldArgs) -> Result<FieldRef> {
        self.function.return_field_from_args(call)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        (self.invoke)(&self.function, call)
    }
}
