//! Limits and delays of membership.

use std::time::Duration;

/// Limits and delays of [`Members`](crate::Members).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Maximum number of servers in a cluster, and of addresses in a list of them. A longer list is not adopted. Default: 1,024.
    pub max_members: usize,
    /// Time for which the last list of addresses is kept after a list that is empty or lacks more than half of its addresses.
    /// Default: 60 s.
    pub shrink_delay: Duration,
    /// Time for which a server stays a member that is no longer listed and does not answer, and for which a server that was
    /// removed is not a member again. Default: 60 s.
    pub removal_delay: Duration,
    /// Time for which a server stays a member that is no longer listed, but answers. Default: 5 min.
    pub unlisted_timeout: Duration,
    /// Time for which a server stays a member that is listed, but does not answer. Until then, its streams return to it when it
    /// answers again. Default: 10 min.
    pub silent_timeout: Duration,
    /// Interval at which each member is greeted. In a cluster of more than 250 servers it is longer: 20 ms per server. Default: 5 s.
    pub hello_interval: Duration,
    /// Maximum pause after a server did not answer or was refused. The pause starts at 1 s and doubles. Default: 30 s.
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
            max_hello_backoff: Duration::from_secs(30),
        }
    }
}
