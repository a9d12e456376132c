use std::fmt;

/// What is wrong with a request for an order. Every message names the field and what it may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// A count that has to be at least 1 was 0.
    Zero {
        /// The field's name in a request.
        field: &'static str,
    },
    /// The first step lies past the end of an epoch.
    StartStepPastEnd {
        /// The step asked for.
        start_step: u64,
        /// Steps in an epoch.
        steps: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { field } => write!(f, "{field} is 0, expected at least 1"),
            Self::StartStepPastEnd { start_step, steps } => write!(
                f,
                "start_step {start_step} is past the end of an epoch of {steps} steps, expected at most {steps} \
                 (which is the next epoch)"
            ),
        }
    }
}

impl std::error::Error for Error {}
