/// Error of an invalid request. Every message names the field and its valid values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A count is 0 but must be at least 1.
    #[error("{field} is 0, expected at least 1")]
    Zero {
        /// Name of the field in a request.
        field: &'static str,
    },
    /// The first step is past the end of an epoch.
    #[error(
        "start_step {start_step} is past the end of an epoch of {steps} steps, expected at most {steps} \
         (which is the next epoch)"
    )]
    StartStepPastEnd {
        /// Requested first step.
        start_step: u64,
        /// Number of steps in an epoch.
        steps: u64,
    },
}
