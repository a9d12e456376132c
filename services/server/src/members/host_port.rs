//! The syntax of the addresses of servers: `HOST:PORT`.

use std::net::Ipv6Addr;

use anyhow::{Context, ensure};
use forebay_storage::shown_url;

/// Maximum length of a host name, in bytes (RFC 1035).
const MAX_HOST_BYTES: usize = 253;

/// Splits `HOST:PORT` into the host, without brackets around an IPv6 address, and the port.
///
/// # Errors
/// If the host is neither a host name nor an IP address, or the port is not 1 to 65535.
pub(super) fn split(text: &str) -> anyhow::Result<(&str, u16)> {
    let shown = || shown_url(text);
    let (host, port) = text.rsplit_once(':').with_context(|| format!("'{}': expected HOST:PORT", shown()))?;
    let port = port.parse().ok().filter(|port| *port > 0);
    let port = port.with_context(|| format!("'{}': expected a port from 1 to 65535", shown()))?;
    match host.strip_prefix('[') {
        Some(bracketed) => {
            let inner = bracketed.strip_suffix(']').filter(|inner| inner.parse::<Ipv6Addr>().is_ok());
            Ok((inner.with_context(|| format!("'{}': expected [IPV6-ADDRESS]:PORT", shown()))?, port))
        }
        None => {
            check_host(host).with_context(|| format!("'{}'", shown()))?;
            Ok((host, port))
        }
    }
}

/// Checks that `host` is a host name or an IPv4 address.
///
/// # Errors
/// If it has other characters, or is empty or too long.
pub(super) fn check_host(host: &str) -> anyhow::Result<()> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    ensure!(
        (1..=MAX_HOST_BYTES).contains(&host.len()) && host.bytes().all(legal),
        "expected a host name or an IP address; an IPv6 address needs brackets, such as [::1]:8815"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_split_from_their_port() {
        assert_eq!(split("forebay-0.forebay:8815").unwrap(), ("forebay-0.forebay", 8815));
        assert_eq!(split("10.0.0.1:1").unwrap(), ("10.0.0.1", 1));
        assert_eq!(split("[fd00::1]:8815").unwrap(), ("fd00::1", 8815));
    }

    #[test]
    fn malformed_addresses_are_rejected_with_what_was_expected() {
        for (text, expected) in [
            ("host", "expected HOST:PORT"),
            ("host:0", "a port from 1 to 65535"),
            ("host:65536", "a port from 1 to 65535"),
            ("host:", "a port from 1 to 65535"),
            (":8815", "expected a host name"),
            ("a b:1", "expected a host name"),
            ("fd00::1:8815", "needs brackets"),
            ("[fd00::x]:8815", "expected [IPV6-ADDRESS]:PORT"),
            ("grpc://host:1", "expected a host name"),
        ] {
            let error = format!("{:#}", split(text).unwrap_err());
            assert!(error.contains(expected) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_is_not_shown() {
        for text in ["http://u:SECRET@h", "http://u:SECRET@h:1", "u:SECRET@h:1", "grpc://h:1?SECRET"] {
            let error = format!("{:#}", split(text).unwrap_err());
            assert!(error.contains("(not shown)") && !error.contains("SECRET"), "{error}");
        }
    }
}
