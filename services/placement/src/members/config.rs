//! Limits and delays of membership.

use std::time::Duration;

/// Limits and delays of [`Members`](crate::Members).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Maximum number of members, and of addresses in the member list. A longer list is not adopted. Default: 1,024.
    pub max_members: usize,
    /// Time before a new member list that is empty, or lacks more than half of the previous addresses, is adopted. Default: 60 s.
    pub shrink_delay: Duration,
    /// Time before a server that is no longer in the member list, and does not answer, leaves the cluster. Also the minimum time
    /// before a server that has left can be a member again. Default: 60 s.
    pub removal_delay: Duration,
    /// Time before a server that is no longer in the member list, but still answers, leaves the cluster. Default: 5 min.
    pub unlisted_timeout: Duration,
    /// Time before a server that is in the member list, but does not answer, leaves the cluster. If it answers again before, its
    /// streams return to it. Default: 10 min.
    pub silent_timeout: Duration,
    /// Interval at which `hello` is sent to each address. The minimum is 20 ms times the number of addresses. Default: 5 s.
    pub hello_interval: Duration,
    /// Maximum pause before `hello` is sent again to a server that did not answer or was refused. The pause starts at 1 s and doubles.
    /// The maximum is at least 20 ms times the number of addresses. Default: 3 s.
    pub max_hello_backoff: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_members: 1_024,
            shrink_delay: Duration::from_secs(60),
            removal_delay: Duration::from_secs(60),
            unlisted_timeout: Duration::from_secs(300),
            silent_timeout: Duration::from_secs(600),
            hello_interval: Duration::from_secs(5),
            max_hello_backoff: Duration::from_secs(3),
        }
    }
}
