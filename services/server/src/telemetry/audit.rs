//! Audit log: who changed what, and who failed to log in, as log lines with the target `audit`.

use std::{
    net::IpAddr,
    sync::LazyLock,
    time::{Duration, Instant},
};

use forebay_storage::shown_text;
use metrics::counter;
use parking_lot::Mutex;

use crate::auth::Access;

/// Maximum number of logged failures per second; the others are only counted.
const MAX_FAILURES: u32 = 10;

/// Logs a change that a caller made or tried to make. `object` is what was changed, such as the name of a dataset.
pub(crate) fn change(access: &Access, action: &str, object: &str, result: Result<(), &str>) {
    let (caller, address) = (access.caller().to_string(), address(access.peer()));
    // A setting that is refused can be a URL with a password.
    let error = result.err().map(|error| printable(&shown_text(error)));
    let object = printable(object);
    tracing::info!(target: "audit", caller, address, action, object, error, "change");
}

/// Logs and counts a call without a valid token.
pub(crate) fn failed_login(peer: Option<IpAddr>, reason: &str) {
    counter!("forebay_authentication_failures_total").increment(1);
    if LOGGED.lock().allows(Instant::now()) {
        let (address, reason) = (address(peer), printable(reason));
        tracing::warn!(target: "audit", address, reason, "authentication failed");
    }
}

static LOGGED: LazyLock<Mutex<Rate>> = LazyLock::new(|| Mutex::new(Rate { since: Instant::now(), count: 0 }));

/// Limit on logged failures.
struct Rate {
    since: Instant,
    count: u32,
}

impl Rate {
    fn allows(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            *self = Self { since: now, count: 0 };
        }
        self.count += 1;
        self.count <= MAX_FAILURES
    }
}

fn address(peer: Option<IpAddr>) -> String {
    peer.map_or_else(|| "unix".to_owned(), |peer| peer.to_string())
}

/// Text of a caller without line breaks, which would forge lines of the log.
fn printable(text: &str) -> String {
    crate::error::clip(&text.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_failures_are_limited_per_second() {
        let begin = Instant::now();
        let mut rate = Rate { since: begin, count: 0 };
        let allowed = |rate: &mut Rate, now| (0..100).filter(|_| rate.allows(now)).count();
        assert_eq!(allowed(&mut rate, begin), 10);
        assert_eq!(allowed(&mut rate, begin + Duration::from_millis(999)), 0);
        assert_eq!(allowed(&mut rate, begin + Duration::from_secs(1)), 10);
    }

    #[test]
    fn text_of_callers_has_one_line() {
        assert_eq!(printable("a\nb\u{1b}[0m"), "a b [0m");
    }
}
