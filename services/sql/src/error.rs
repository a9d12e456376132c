//! What is wrong with an expression.

use datafusion_common::{DataFusionError, SchemaError};

/// Why an expression can't be compiled, or failed on a row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no column of this name.
    #[error("there is no column '{0}'")]
    UnknownColumn(String),
    /// It is no expression, or none that may stand here.
    #[error("{0}")]
    Invalid(String),
    /// A row's values have no result: a division by zero, an overflow, a string that is no number.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    pub(crate) fn invalid(words: impl Into<String>) -> Self {
        Self::Invalid(words.into())
    }

    /// Of compiling.
    pub(crate) fn of_plan(error: &DataFusionError) -> Self {
        let root = error.find_root();
        if let DataFusionError::SchemaError(schema, _) = root
            && let SchemaError::FieldNotFound { field, .. } = schema.as_ref()
        {
            return Self::UnknownColumn(field.flat_name());
        }
        Self::Invalid(words(root))
    }

    /// Of evaluating.
    pub(crate) fn of_row(error: &DataFusionError) -> Self {
        Self::Failed(words(error.find_root()))
    }
}

fn words(error: &DataFusionError) -> String {
    let words = error.strip_backtrace();
    let kinds =
        ["Error during planning: ", "Execution error: ", "Arrow error: ", "SQL error: ", "Schema error: "];
    let words = kinds.iter().fold(words.as_str(), |words, kind| words.strip_prefix(kind).unwrap_or(words));
    words.trim().to_owned()
}
