//! Content of a notice about a call that takes long.

use std::{fmt, sync::Arc, time::Duration};

use crate::Error;

/// A call or a stream that waits for a server. Its text says what the client tries and why it fails.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// Subject of the wait, such as `the plan of 'flights'`.
    pub subject: String,
    /// URLs of the client, the preferred one first.
    pub urls: Vec<String>,
    /// Time since the first attempt.
    pub waited: Duration,
    /// Time until the call fails.
    pub remaining: Duration,
    /// Number of failed attempts.
    pub failed: u32,
    /// Error of the last attempt; `None` if no attempt has failed.
    pub last: Option<Error>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, urls, waited, remaining, failed, last } = self;
        let (waited, remaining, urls) = (waited.as_secs(), remaining.as_secs(), urls.join(", "));
        write!(f, "waiting for {subject} from {urls} for {waited} s: ")?;
        match last {
            Some(error) if *failed == 1 => write!(f, "the first attempt failed: {}", error.with_causes()),
            Some(error) => write!(f, "{failed} attempts failed, the last one with: {}", error.with_causes()),
            None => write!(f, "no answer yet"),
        }?;
        write!(f, "; giving up in {remaining} s")
    }
}

/// Receives the notices of a client.
pub(crate) type WaitingHook = Arc<dyn Fn(&Waiting) + Send + Sync>;

/// Logs a notice.
pub(super) fn log(waiting: &Waiting) {
    tracing::warn!("{waiting}");
}
