//! An address to which `hello` is sent.

use std::time::Duration;

use super::change::RefusalReason;

/// Pause after the first hello without an answer.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// State of one address.
#[derive(Debug)]
pub(super) struct Contact {
    /// Time of the next hello.
    pub(super) next_hello: Duration,
    /// True from a `hello` to its result.
    pub(super) is_greeted: bool,
    /// Name of the member that answered last at this address.
    pub(super) name: Option<String>,
    /// Random number of the process that answered last.
    pub(super) instance: Option<u64>,
    /// Number of hellos without an answer since the last answer.
    pub(super) failures: u32,
    /// Reason why the last hello failed.
    pub(super) error: Option<String>,
    /// Time of the last answer.
    pub(super) last_heard: Option<Duration>,
    /// Name in the answer of the server, and the reason why it cannot be a member.
    pub(super) refusal: Option<(String, RefusalReason)>,
    /// Time since which another address is known to answer with the same name.
    pub(super) conflict_since: Option<Duration>,
}

impl Contact {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            next_hello: now,
            is_greeted: false,
            name: None,
            instance: None,
            failures: 0,
            error: None,
            last_heard: None,
            refusal: None,
            conflict_since: None,
        }
    }

    /// Returns whether the last hello was answered.
    pub(super) fn answers(&self) -> bool {
        self.failures == 0 && self.last_heard.is_some()
    }

    pub(super) fn fail(&mut self, now: Duration, error: String, max_backoff: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.error = Some(error);
        self.next_hello = now.saturating_add(backoff(self.failures, max_backoff));
    }
}

/// Returns the pause after `failures` hellos without an answer.
pub(super) fn backoff(failures: u32, max: Duration) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    FIRST_BACKOFF.saturating_mul(1 << doublings).min(max.max(FIRST_BACKOFF))
}
