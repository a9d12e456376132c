//! Panics of the work of a background task, as errors, so that the task reports them and tries again.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// Reason of an error in place of a panic, whose message is in the log.
const PANICKED: &str = "the server panicked, which is a bug; its log has the message";

/// Runs `work`. If it panics, returns the error that `panicked` makes of the reason. `work` must not change shared data before its last step, so
/// that a panic leaves none of it half changed.
pub(super) async fn caught<T, E>(
    work: impl Future<Output = Result<T, E>>,
    panicked: impl FnOnce(&'static str) -> E,
) -> Result<T, E> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| Err(panicked(PANICKED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_and_other_outcomes_stay() {
        let outcome: Result<(), String> = caught(async { panic!("hidden") }, str::to_owned).await;
        assert_eq!(outcome, Err(PANICKED.to_owned()));
        let outcome: Result<u8, String> = caught(async { Ok(7) }, str::to_owned).await;
        assert_eq!(outcome, Ok(7));
    }
}
