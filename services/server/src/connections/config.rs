//! Limits of connections, from the settings.

use std::time::Duration;

use crate::settings::Limits;

/// Limits of the connections of a listener.
#[derive(Clone, Default)]
pub(crate) struct Config {
    /// Maximum number of connections. Further ones may only make one request to a probe.
    pub(super) max: usize,
    /// Maximum number of connections of one peer that count towards its limit.
    pub(super) max_per_peer: usize,
    /// True if a connection counts towards the limit of its peer only until one of its requests is authenticated.
    pub(super) counts_until_authenticated: bool,
    pub(super) first_request_timeout: Duration,
    pub(super) idle_timeout: Duration,
    /// Time in which a client must receive a charged answer, plus a second per MiB.
    pub(super) receive_timeout: Duration,
    pub(super) max_age: Option<Duration>,
}

impl Config {
    /// Limits from the settings. `has_tokens` is true if callers need a token.
    pub(crate) fn new(limits: &Limits, has_tokens: bool) -> Self {
        let max = limits.max_connections;
        let max_per_peer = match has_tokens {
            true => limits.max_unauthenticated_connections,
            // Behind a proxy, all callers have one address.
            false => (max / 2).max(1),
        };
        Self {
            max,
            max_per_peer,
            counts_until_authenticated: has_tokens,
            first_request_timeout: limits.first_request_timeout,
            idle_timeout: limits.idle_timeout,
            receive_timeout: limits.receive_timeout,
            max_age: limits.max_connection_age,
        }
    }
}
