//! What can go wrong between a request and its batches.

/// A failure of the training path; each variant is something a caller answers differently.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request can never be served as it stands.
    #[error("{field}: {reason}")]
    Invalid {
        /// Field of the request.
        field: String,
        /// What was found and what was expected.
        reason: String,
    },
    /// The request exceeds a limit.
    #[error("{what} needs {needed} bytes, the limit is {limit}: {advice}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Bytes it needs.
        needed: u64,
        /// Bytes there are.
        limit: u64,
        /// What to turn.
        advice: String,
    },
    /// A value of the data does not fit what the request makes of it.
    #[error("column '{column}' in {place}: {reason}")]
    Value {
        /// The column.
        column: String,
        /// File and rows.
        place: String,
        /// What was found and what was expected.
        reason: String,
    },
    /// A row has no value for an expression of the request.
    #[error("'{expression}' in {place}: {reason}")]
    Row {
        /// The name of what is computed.
        expression: String,
        /// File and rows.
        place: String,
        /// What went wrong.
        reason: String,
    },
    /// The data could not be read.
    #[error(transparent)]
    Storage(#[from] forebay_storage::Error),
    /// What is asked for can't be done now.
    #[error("{0}: try again later")]
    Unavailable(String),
    /// A defect of this program.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    pub(crate) fn batch_too_large(rows: u64, needed: u64, limit: u64) -> Self {
        let advice =
            "lower batch_size or batch_rows, ask for fewer columns or raise loader.max_batch_bytes".into();
        Self::TooLarge { what: format!("a batch of {rows} rows"), needed, limit, advice }
    }

    /// The system has no memory left, although the budget has.
    #[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
    pub(crate) fn out_of_memory(error: std::io::Error) -> Self {
        Self::Unavailable(format!("no memory: {error}"))
    }

    /// A request whose `field` makes no sense, for this reason.
    pub fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), reason: reason.into() }
    }
}
