//! Settings of a client.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use tonic::{
    Code,
    metadata::{Ascii, MetadataValue},
};

use crate::Error;

/// Limits and policies of a [`Client`](crate::Client).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Largest HTTP/2 frame that the server may send, in bytes; 16 KiB to 16 MiB - 1. Default: 1 MiB.
    /// A server sends no larger ones than its client announces, and small ones cost CPU on both sides.
    pub max_frame_bytes: u32,
    /// Bytes of one stream that may be on their way, in the sense of HTTP/2's flow control. Default: 2 MiB, for then
    /// they are still in the processor's cache when they are received. A stream gets at most this much in the time that
    /// a packet takes there and back: for a server further away than a millisecond raise it.
    pub stream_window_bytes: u32,
    /// ... and of all streams of a connection. Default: 8 MiB.
    pub connection_window_bytes: u32,
    /// Received batches that wait for their consumer, in bytes a rank. Default: 64 MiB. One batch a lane is
    /// always received.
    pub prefetch_bytes: u64,
    /// ... and how many of them, a lane. Default: 256.
    pub prefetch_batches: u64,
    /// Largest body of a message, in bytes. Default: 1 GiB.
    pub max_batch_bytes: u64,
    /// Largest schema, batch header or metadata, in bytes. Default: 64 MiB.
    pub max_header_bytes: u64,
    /// Memory of bodies that is kept for the next ones, in bytes a rank. Default: 256 MiB.
    pub idle_slab_bytes: u64,
    /// Whether the hash of every batch is asked for and checked, unless the request says `hash: false`. Default: true.
    pub verify_hash: bool,
    /// Whether the server is told once a second how long its trainer waits and computes. Default: true.
    pub report: bool,
    /// The trace that all calls are part of, as W3C Trace Context spells it: `00-TRACE-SPAN-01`. Servers that export traces make their
    /// spans children of it. Default: none.
    pub traceparent: Option<String>,
    /// Requests of one [`Lookups`](crate::Lookups) or [`Caller`](crate::Caller) that may be on their way; more of them wait.
    /// Default: 256.
    pub max_requests: u64,
    /// An exchange of lookups, or with a queue, is closed when nothing was asked for so long; the next request opens
    /// another one. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub idle_exchange: Duration,
    /// How much longer than its timeout the answer of a queue is awaited, for its way here; and how long a worker that is
    /// closed waits until its replies have been taken. Default: 1 s.
    #[serde(with = "humantime_serde")]
    pub answer_grace: Duration,
    /// How long a connection may take to be made. Default: 10 s.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// How long a batch, or an answer, may take in all, attempts on every server included, before the training, or the
    /// request, fails. Default: 5 min.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// A connection on which nothing is heard is asked for a sign of life after this. Default: 20 s.
    #[serde(with = "humantime_serde")]
    pub keepalive_interval: Duration,
    /// ... and is lost when none comes within this. Default: 20 s.
    #[serde(with = "humantime_serde")]
    pub keepalive_timeout: Duration,
    /// Whom to trust, for URLs that begin with `https://` or `grpc+tls://`.
    pub tls: Tls,
    /// The token that servers want to see. Default: none.
    #[serde(skip)]
    pub token: Option<Token>,
}

/// Files in PEM form.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Authorities of the servers. Default: those that browsers trust.
    pub ca: Option<PathBuf>,
    /// This client's certificate, for servers that want one. Default: none.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// The name in the server's certificate. Default: the host of its URL.
    pub server_name: Option<String>,
}

/// A bearer token. It is not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Kept);

#[derive(Clone, PartialEq, Eq)]
enum Kept {
    Here(String),
    File(PathBuf),
}

impl Token {
    /// The token itself.
    pub fn new(token: impl Into<String>) -> Self {
        Self(Kept::Here(token.into()))
    }

    /// A file that holds it; read for every call, so that it may change.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Kept::File(path.into()))
    }

    pub(crate) fn header(&self) -> Result<MetadataValue<Ascii>, Error> {
        let token = match &self.0 {
            Kept::Here(token) => token.clone(),
            Kept::File(path) => std::fs::read_to_string(path).map_err(|error| {
                Error::Request(format!("can't read the token in {}: {error}", path.display()))
            })?,
        };
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.trim())
            .parse()
            .map_err(|_| Error::Request("the token holds characters that no header can".into()))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kept::Here(_) => f.write_str("Token(..)"),
            Kept::File(path) => f.debug_tuple("Token").field(path).finish(),
        }
    }
}

impl Config {
    /// Whether another token may be found where the one was that led to `error`.
    pub(crate) fn renews(&self, error: &Error) -> bool {
        let is_file = self.token.as_ref().is_some_and(|token| matches!(token.0, Kept::File(_)));
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
            max_requests: 256,
            idle_exchange: Duration::from_secs(60),
            answer_grace: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(300),
            keepalive_interval: Duration::from_secs(20),
            keepalive_timeout: Duration::from_secs(20),
            tls: Tls::default(),
            token: None,
        }
    }
}
