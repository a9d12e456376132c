//! Errors of the training path.

/// A failure of the training path. Each variant requires a different reaction from the caller.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The request is invalid and can never succeed.
    #[error("{field}: {reason}")]
    Invalid {
        /// Field of the request.
        field: String,
        /// Value found and value expected.
        reason: String,
    },
    /// The request exceeds a limit.
    #[error("{what} needs {needed} bytes, the limit is {limit}: {advice}")]
    TooLarge {
        /// Object that is too large.
        what: String,
        /// Number of bytes required.
        needed: u64,
        /// Maximum number of bytes.
        limit: u64,
        /// Settings to change.
        advice: String,
    },
    /// A value in the data does not match the type or range that the request requires.
    #[error("column '{column}' in {place}: {reason}")]
    Value {
        /// Name of the column.
        column: String,
        /// File and rows.
        place: String,
        /// Value found and value expected.
        reason: String,
    },
    /// An expression of the request can't be evaluated for a row.
    #[error("'{expression}' in {place}: {reason}")]
    Row {
        /// Name of the computed column.
        expression: String,
        /// File and rows.
        place: String,
        /// Message of the evaluation error.
        reason: String,
    },
    /// The data could not be read.
    #[error(transparent)]
    Storage(#[from] forebay_storage::Error),
    /// The request can't be served now; a retry can succeed.
    #[error("{0}: try again later")]
    Unavailable(String),
    /// Sets of values that the request refers to are not stored. Store them, and send the request again.
    #[error(
        "values: {} not stored here, for example because newer ones took the room; start a training with the same values, whose client sends \
         them again (without a client: DoPut), and then repeat the request",
        described(.missing)
    )]
    MissingValues {
        /// Name and SHA-256 of each set.
        missing: Vec<(String, String)>,
    },
    /// A defect of this program.
    #[error("internal error: {0}")]
    Internal(String),
}

fn described(missing: &[(String, String)]) -> String {
    let sets: Vec<String> = missing.iter().map(|(name, sha256)| format!("':{name}' ({sha256})")).collect();
    format!("{} {}", sets.join(", "), if sets.len() == 1 { "is" } else { "are" })
}

impl Error {
    pub(crate) fn batch_too_large(rows: u64, needed: u64, limit: u64) -> Self {
        let advice =
            "lower batch_size or max_pack_rows, request fewer columns or raise loader.max_batch_bytes".into();
        Self::TooLarge { what: format!("a batch of {rows} rows"), needed, limit, advice }
    }

    /// The data of the block at `place` contradicts its footer, its statistics or the stored counts about `columns`.
    pub(crate) fn contradiction(place: &str, columns: &str, detail: String) -> Self {
        let column = (!columns.is_empty()).then(|| columns.to_owned());
        let file = place.to_owned();
        forebay_storage::Error::Corrupt { file, row_group: None, column, detail, source: None }.into()
    }

    /// The rows of the block at `place` need more memory than there is.
    pub(crate) fn block_too_large(place: &str, needed: u64, limit: u64) -> Self {
        let advice = "raise cache_memory, request fewer columns or write smaller row groups".into();
        Self::TooLarge { what: format!("the requested columns of {place}"), needed, limit, advice }
    }

    /// The system is out of memory, although the memory budget is not exhausted.
    #[allow(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
    pub(crate) fn out_of_memory(error: std::io::Error) -> Self {
        Self::Unavailable(format!("no memory: {error}"))
    }

    /// Returns an error for a request whose `field` is invalid for the given reason.
    pub fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), reason: reason.into() }
    }
}
