//! The identity of a caller.

use std::{fmt, net::IpAddr};

/// Identity to which work is charged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Caller {
    /// Name of a token.
    Token(String),
    /// Client address, without tokens.
    Address(IpAddr),
    /// Clients of a Unix socket, without tokens.
    Local,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name) => write!(f, "token '{name}'"),
            Self::Address(address) => address.fmt(f),
            Self::Local => f.write_str("the Unix socket"),
        }
    }
}
