//! Settings of a client.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use tonic::Code;

use crate::Error;

mod token;
mod zone;

pub use token::Token;
pub(crate) use zone::zone_header;

/// Limits and policies of a [`Client`](crate::Client) or [`Connection`](crate::Connection).
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use forebay_client::{Client, Config, Error, Token};
///
/// let config = Config {
///     retry_deadline: Duration::from_secs(30),
///     token: Some(Token::new("secret")),
///     ..Config::default()
/// };
/// // A log of the settings does not contain the token.
/// assert!(!format!("{config:?}").contains("secret"));
///
/// // A client connects at its first call, and checks its arguments before.
/// let client = Client::new(["grpc://a:8815", "grpc://b:8815"], config.clone());
/// assert!(client.is_ok());
/// let urls: [&str; 0] = [];
/// assert!(matches!(Client::new(urls, config), Err(Error::Request(_))));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Largest HTTP/2 frame that the server may send, in bytes, from 16 KiB to 16 MiB - 1. Default: 1 MiB.
    /// Large frames reduce CPU time on both sides.
    pub max_frame_bytes: u32,
    /// HTTP/2 flow-control window per stream, in bytes. Default: 2 MiB, which fits into the CPU cache. A stream receives at
    /// most one window per network round trip. Increase the window if the round trip takes more than a millisecond.
    pub stream_window_bytes: u32,
    /// HTTP/2 flow-control window per connection, shared by its streams, in bytes. Default: 8 MiB. HTTP/2 closes a connection as an
    /// attack if many frames of less than 256 bytes wait to be read: with a window of 64 KiB about 100, with the default about 16,000.
    pub connection_window_bytes: u32,
    /// Maximum size of the prefetched batches per rank, in bytes. Default: 64 MiB. Each lane prefetches at least one batch.
    pub prefetch_bytes: u64,
    /// Maximum number of prefetched batches per lane. Default: 256.
    pub prefetch_batches: u64,
    /// Maximum size of a message body, in bytes. Default: 1 GiB.
    pub max_batch_bytes: u64,
    /// Maximum size of a schema, batch header or metadata, in bytes. Default: 64 MiB.
    pub max_header_bytes: u64,
    /// Maximum size of unused receive buffers that are kept for reuse per rank, in bytes. Default: 256 MiB.
    pub idle_slab_bytes: u64,
    /// Request and verify a hash of every batch, unless the request sets `content_hash` to false. Default: true.
    pub verify_hash: bool,
    /// Report the wait and compute time of the trainer to the server once per second. Default: true.
    pub report: bool,
    /// Parent trace of all calls in the format of W3C Trace Context, `00-TRACE-SPAN-01`. Servers that export traces create
    /// their spans as its children. Default: none.
    pub traceparent: Option<String>,
    /// Maximum number of requests in flight per [`Lookups`](crate::Lookups) or [`Caller`](crate::Caller). Further requests
    /// wait. Default: 256.
    pub max_in_flight: u64,
    /// Time without a request after which the DoExchange stream of lookups or of a queue is closed. The next request opens
    /// another one. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// Time to wait for the answer of a queue after the timeout of its request, to cover the network; also the time that
    /// [`Worker::close`](crate::Worker::close) waits until the server has received the replies. Default: 1 s.
    #[serde(with = "humantime_serde")]
    pub answer_grace: Duration,
    /// Time limit for opening a connection. Default: 10 s.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// Time limit for one batch or one answer, including all attempts on all servers. When it expires, the training or the
    /// request fails. Default: 5 min.
    #[serde(with = "humantime_serde")]
    pub retry_deadline: Duration,
    /// Time for which a client that was never connected waits for a server that does not exist: all addresses refuse connections, or
    /// their hosts are unknown. After it, the call fails. Once a server has accepted a connection, the client always waits until
    /// `retry_deadline`, because the server is then restarting. Set it if clients and servers start together. Default: 0.
    #[serde(with = "humantime_serde")]
    pub wait_for_server: Duration,
    /// Time without received data after which an attempt to receive a plan or a batch fails, if there is another server to ask.
    /// Servers can need long for their first batch. The limit therefore doubles after each round over all servers, is at least the
    /// time of the earlier attempts, and does not apply to an attempt after which no time would remain. Also the time without received data after which an exchange of lookups or of a queue with an overdue answer ends.
    /// Lookups follow the same limits as batches; the limit for opening an exchange is at least 1 s. Within a cluster
    /// whose servers have several locations, 10 s replace a stuck server earlier. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub attempt_timeout: Duration,
    /// Time after which a client that uses another server than the preferred one, the first URL, probes the preferred one.
    /// Trainings and lookups move there if it is healthy; callers and workers of queues stay together where they are. The time
    /// doubles, up to 32 times, if the client has to leave the preferred server again soon. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub failback_interval: Duration,
    /// Time without received data after which an HTTP/2 keepalive ping is sent. Default: 20 s. Within a cluster, 5 s for this and
    /// for `keepalive_timeout` detect a host that has failed after 10 s.
    #[serde(with = "humantime_serde")]
    pub keepalive_interval: Duration,
    /// Time to wait for the answer to a keepalive ping before the connection is closed. Default: 20 s.
    #[serde(with = "humantime_serde")]
    pub keepalive_timeout: Duration,
    /// Interval at which a training requests its plan again, because the locations of its streams can change. Each request follows
    /// the last one after a random time between a half and the whole of the interval. After the start of an epoch, and after a
    /// failure of a server, it follows within 1/30 of the interval. At least 100 ms. Plans without locations are not requested
    /// again. Default: 5 min.
    #[serde(with = "humantime_serde")]
    pub replan_interval: Duration,
    /// Trusted hosts: the locations of a plan to which the client sends requests and its token. Each entry is a name, an IP address,
    /// or `*.DOMAIN` for the names below a domain, without a port. The hosts of the client's URLs are always trusted. If a URL of the
    /// client uses TLS, locations must use TLS, too. Other locations are skipped, and nothing is sent to them.
    ///
    /// Default: none. The client then also trusts hosts that are related to its URLs:
    ///
    /// - A URL with a name of at least two dots: the names below its parent domain, such as `*.ml.svc.cluster.local` for
    ///   `forebay.ml.svc.cluster.local`. A parent domain such as `co.uk` is not trusted: two letters for a country, and a label of at
    ///   most three characters.
    /// - A URL with a loopback address, `localhost` or a Unix socket: loopback addresses and `localhost`.
    pub trusted_hosts: Vec<String>,
    /// Maximum number of locations of a ticket that are used. Further ones are ignored. Default: 16.
    pub max_locations: u64,
    /// Zone of this client. Plans then contain only locations in this zone, if the zone has servers. Default: none.
    pub zone: Option<String>,
    /// TLS settings for URLs that begin with `https://` or `grpc+tls://`.
    pub tls: Tls,
    /// Bearer token sent with every call. Default: none.
    #[serde(skip)]
    pub token: Option<Token>,
}

/// TLS settings. All files are in PEM format.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// CA certificates that the server's certificate is verified with. Default: the public CAs of Mozilla's root program.
    pub ca: Option<PathBuf>,
    /// Certificate of this client, for servers that require one. Requires `key`. Default: none.
    pub certificate: Option<PathBuf>,
    /// Private key of `certificate`. Default: none.
    pub key: Option<PathBuf>,
    /// Name expected in the server's certificate. Default: the host of the URL.
    pub server_name: Option<String>,
}

/// Shortest replan interval.
const MIN_REPLAN_INTERVAL: Duration = Duration::from_millis(100);

impl Config {
    /// Verifies settings whose values are not all valid.
    ///
    /// # Errors
    /// [`Error::Request`] that names the setting.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        if self.replan_interval < MIN_REPLAN_INTERVAL {
            return Err(Error::Request(format!(
                "replan_interval: is {:?}, expected at least {MIN_REPLAN_INTERVAL:?}",
                self.replan_interval
            )));
        }
        self.zone.as_deref().map_or(Ok(()), |zone| zone_header(zone).map(drop))
    }

    /// Returns true if `error` rejects a token from a file, so that a retry may send a newer token.
    pub(crate) fn can_renew_token(&self, error: &Error) -> bool {
        let is_file = self.token.as_ref().is_some_and(Token::is_file);
        is_file && error.code() == Some(Code::Unauthenticated)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_frame_bytes: 1 << 20,
            stream_window_bytes: 2 << 20,
            connection_window_bytes: 8 << 20,
            prefetch_bytes: 64 << 20,
            prefetch_batches: 256,
            max_batch_bytes: 1 << 30,
            max_header_bytes: 64 << 20,
            idle_slab_bytes: 256 << 20,
            verify_hash: true,
            report: true,
            traceparent: None,
            max_in_flight: 256,
            idle_timeout: Duration::from_secs(60),
            answer_grace: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(10),
            retry_deadline: Duration::from_secs(300),
            wait_for_server: Duration::ZERO,
            attempt_timeout: Duration::from_secs(60),
            failback_interval: Duration::from_secs(60),
            keepalive_interval: Duration::from_secs(20),
            keepalive_timeout: Duration::from_secs(20),
            replan_interval: Duration::from_secs(300),
            trusted_hosts: Vec::new(),
            max_locations: 16,
            zone: None,
            tls: Tls::default(),
            token: None,
        }
    }
}
