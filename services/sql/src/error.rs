//! Errors of expressions.

use datafusion_common::{DataFusionError, SchemaError};

use crate::{hints, literal_text};

/// Error of compiling or evaluating an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The schema has no column of this name.
    #[error("there is no column '{0}'")]
    UnknownColumn(String),
    /// The text is not a valid expression, or uses something that is not supported.
    #[error("{0}")]
    Invalid(String),
    /// There is not enough memory for the values that the expression refers to. Later there can be.
    #[error("{0}")]
    Memory(String),
    /// The expression has no result for a row, because of a division by zero, an overflow or a failed conversion.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    /// The error with literals as they are written.
    pub(crate) fn without_metadata(self) -> Self {
        match self {
            Self::Invalid(message) => Self::Invalid(literal_text::without_metadata(message)),
            Self::Failed(message) => Self::Failed(literal_text::without_metadata(message)),
            other => other,
        }
    }

    /// Converts an error of evaluation.
    pub(crate) fn from_evaluation(error: &DataFusionError) -> Self {
        Self::Failed(message(error.find_root()))
    }
}

/// Converts an error of compilation.
impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        let root = error.find_root();
        if let DataFusionError::SchemaError(schema, _) = root
            && let SchemaError::FieldNotFound { field, .. } = schema.as_ref()
        {
            return Self::UnknownColumn(field.flat_name());
        }
        if let DataFusionError::ResourcesExhausted(why) = root {
            return Self::Memory(why.clone());
        }
        Self::Invalid(message(root))
    }
}

/// Returns the message of an error without DataFusion's prefixes.
fn message(error: &DataFusionError) -> String {
    let message = error.strip_backtrace();
    let prefixes =
        ["Error during planning: ", "Execution error: ", "Arrow error: ", "SQL error: ", "Schema error: "];
    let strip = |message, prefix: &&str| str::strip_prefix(message, prefix).unwrap_or(message);
    let message = prefixes.iter().fold(message.as_str(), strip);
    hints::of_message(message.trim().to_owned())
}
