//! Notices about calls that take long, with what the client waits for and why.

use std::time::Duration;

use tokio::time::Instant;

use super::{servers::Servers, waiting::Waiting};
use crate::Error;

/// Time after which a call is reported for the first time.
pub(crate) const FIRST_NOTICE: Duration = Duration::from_secs(3);
/// Time after which it is checked again whether a wait is known from another source.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two notices about a call.
const NOTICE_INTERVAL: Duration = Duration::from_secs(30);

/// The time of the next notice about one call.
#[derive(Clone)]
pub(crate) struct Notices {
    servers: Servers,
    subject: String,
    next: Instant,
}

/// The progress of a call, for a notice.
#[derive(Clone)]
pub(crate) struct Progress {
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    pub(super) failed: u32,
    pub(super) last: Option<Error>,
}

impl Progress {
    /// True if an attempt of the call has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed > 0
    }
}

impl Notices {
    /// Creates the notices about a call for `subject` that begins now.
    pub(super) fn new(servers: &Servers, subject: String) -> Self {
        Self { servers: servers.clone(), subject, next: Instant::now() + FIRST_NOTICE }
    }

    /// Starts the time before the first notice again.
    pub(super) fn restart(&mut self) {
        self.next = Instant::now() + FIRST_NOTICE;
    }

    pub(super) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Gives a notice if one is due.
    pub(super) fn remind(&mut self, progress: &Progress) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + NOTICE_INTERVAL;
        let Progress { began, deadline, failed, last } = progress;
        self.servers.notify(|urls| Waiting {
            subject: self.subject.clone(),
            urls: urls.to_vec(),
            waited: now - *began,
            remaining: deadline.saturating_duration_since(now),
            failed: *failed,
            last: last.clone(),
        });
    }

    /// Runs `attempt` until the deadline of `progress`, and gives notices in the meantime. `None` if the deadline has expired.
    pub(crate) async fn during<T>(
        &mut self,
        progress: &Progress,
        attempt: impl Future<Output = T>,
    ) -> Option<T> {
        self.unless(|| false, progress, attempt).await
    }

    /// As [`during`](Self::during), with notices only while `is_known` is false: the wait is then not known from another source.
    pub(crate) async fn unless<T>(
        &mut self,
        is_known: impl Fn() -> bool,
        progress: &Progress,
        attempt: impl Future<Output = T>,
    ) -> Option<T> {
        let mut attempt = std::pin::pin!(attempt);
        loop {
            let until = self.next.min(progress.deadline);
            if let Ok(done) = tokio::time::timeout_at(until, attempt.as_mut()).await {
                return Some(done);
            }
            if Instant::now() >= progress.deadline {
                return None;
            }
            if is_known() {
                self.next = Instant::now() + CHECK_INTERVAL;
            } else {
                self.remind(progress);
            }
        }
    }
}
