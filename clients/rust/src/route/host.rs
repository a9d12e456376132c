//! The hosts of server URLs.

use std::net::{IpAddr, Ipv6Addr};

use super::address::http_url;
use crate::Error;

/// Host of a server, and whether connections to it use TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) host: Host,
    pub(super) is_tls: bool,
}

/// Host of a server, in a form that can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// Path of a Unix socket.
    Socket(String),
    Ip(IpAddr),
    /// Name in lower case, without a dot at its end.
    Name(String),
}

impl Peer {
    /// Parses the URL of a server with the parser that connections use.
    ///
    /// # Errors
    /// A description of what was expected.
    pub(super) fn parse(url: &str) -> Result<Self, &'static str> {
        let http = http_url(url);
        if let Some(path) = http.strip_prefix("unix:") {
            return Ok(Self { host: Host::Socket(path.to_owned()), is_tls: false });
        }
        let is_tls = http.starts_with("https://");
        if !is_tls && !http.starts_with("http://") {
            return Err("expected grpc://HOST:PORT, grpc+tls://HOST:PORT or grpc+unix:///PATH");
        }
        let parsed = http.parse::<http::Uri>().map_err(|_| "expected a valid URL")?;
        let authority = parsed.authority().ok_or("expected a host")?;
        if authority.as_str().contains('@') {
            return Err("expected a host without user information");
        }
        // Without this check, a port that is too large would become the default port of HTTP.
        if authority.port_u16().is_none() && !authority.as_str().ends_with(authority.host()) {
            return Err("expected a port from 0 to 65535");
        }
        Ok(Self { host: Host::parse(authority.host()).ok_or("expected a host")?, is_tls })
    }
}

impl Host {
    /// Parses an IP address or a name; `None` if it is empty. An IPv6 address may have brackets. An IPv4 address that is mapped
    /// to IPv6 is the IPv4 address.
    pub(super) fn parse(host: &str) -> Option<Self> {
        if let Some(rest) = host.strip_prefix('[') {
            let ip = rest.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?;
            return Some(Self::Ip(IpAddr::V6(ip).to_canonical()));
        }
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(Self::Ip(ip.to_canonical()));
        }
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        (!name.is_empty()).then_some(Self::Name(name))
    }

    /// Returns true for the addresses of this machine, and for `localhost`.
    pub(super) fn is_loopback(&self) -> bool {
        match self {
            Self::Ip(ip) => ip.is_loopback(),
            Self::Name(name) => name == "localhost",
            Self::Socket(_) => false,
        }
    }
}

/// Returns the URL of a server that a client was created with. `HOST:PORT` without a scheme becomes `grpc://HOST:PORT`, as gRPC
/// libraries write addresses.
///
/// # Errors
/// [`Error::Request`] if it is not the URL of a server.
pub(super) fn with_scheme(url: &str) -> Result<String, Error> {
    let has_scheme = url.contains("://") || url.starts_with("unix:");
    let full = if has_scheme { url.to_owned() } else { format!("grpc://{url}") };
    let invalid = |expected: &str| {
        Error::Request(format!("url: '{}' is invalid, {expected}", shown(url).escape_debug()))
    };
    Peer::parse(&full).map_err(invalid)?;
    // Errors contain the URL.
    if !full.starts_with("unix:") && !full.starts_with("grpc+unix:") && full.contains(['?', '#']) {
        return Err(invalid("expected a host and a port without a query or a fragment"));
    }
    // A path without a scheme is not the name of a host, and neither is a name without a port.
    let has_port =
        || full.parse::<http::Uri>().is_ok_and(|parsed| parsed.port_u16().is_some() && parsed.path() == "/");
    if !has_scheme && !has_port() {
        return Err(invalid("expected HOST:PORT, grpc://HOST:PORT, grpc+tls://HOST:PORT or unix:/PATH"));
    }
    Ok(full)
}

/// Returns a URL with `(not shown)` in place of its user, password, query and fragment, which may be secret.
fn shown(url: &str) -> String {
    let begin = url.find("://").map_or(0, |scheme| scheme + 3);
    let (scheme, rest) = url.split_at(begin);
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("(not shown)@", rest));
    match rest.find(['?', '#']) {
        Some(end) => format!("{scheme}{user}{}(not shown)", &rest[..=end]),
        None => format!("{scheme}{user}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_contains_what_may_be_secret_in_a_url() {
        for (url, shown) in [
            ("grpc://user:SECRET@a:1", "grpc://(not shown)@a:1"),
            ("s3://SECRET@a/x?SECRET", "s3://(not shown)@a/x?(not shown)"),
            ("https://user:SEC/RET@a:1", "https://(not shown)@a:1"),
            ("user:SECRET@a:1", "(not shown)@a:1"),
            ("grpc://a:1?token=SECRET", "grpc://a:1?(not shown)"),
            ("grpc+tls://a:1/#SECRET", "grpc+tls://a:1/#(not shown)"),
        ] {
            let error = with_scheme(url).unwrap_err().to_string();
            assert!(error.starts_with(&format!("url: '{shown}' is invalid, expected ")), "{error}");
        }
    }

    #[test]
    fn an_address_without_a_scheme_is_that_of_a_grpc_server_and_other_urls_are_rejected() {
        for (url, expected) in [
            ("127.0.0.1:8815", "grpc://127.0.0.1:8815"),
            ("[::1]:8815", "grpc://[::1]:8815"),
            ("forebay.ml.svc:8815", "grpc://forebay.ml.svc:8815"),
            ("grpc+tls://a:1", "grpc+tls://a:1"),
            ("unix:/run/a", "unix:/run/a"),
        ] {
            assert_eq!(with_scheme(url).unwrap(), expected);
        }
        for url in [
            "",
            "forebay",
            "/run/forebay.sock",
            "a:1/path",
            "s3://bucket/a",
            "a:99999",
            "grpc://",
            "gprc://a:1",
        ] {
            let error = with_scheme(url).unwrap_err().to_string();
            assert!(error.starts_with(&format!("url: '{url}' is invalid, expected ")), "{error}");
        }
    }

    #[test]
    fn a_port_that_is_no_port_is_an_error() {
        for url in ["grpc://a:99999", "grpc+tls://[::1]:65536", "grpc://a:"] {
            assert!(Peer::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn the_host_of_a_url_is_compared_without_case_brackets_and_final_dot() {
        let name = |text: &str| Host::Name(text.into());
        let ip = |text: &str| Host::Ip(text.parse().unwrap());
        for (url, host, is_tls) in [
            ("grpc://Forebay-0.Example.com.:8815", name("forebay-0.example.com"), false),
            ("grpc+tls://a:1", name("a"), true),
            ("https://10.0.0.1", ip("10.0.0.1"), true),
            ("http://[::FFFF:10.0.0.1]:1", ip("10.0.0.1"), false),
            ("grpc+tcp://[::1]:1", ip("::1"), false),
            ("grpc+unix:///run/a", Host::Socket("/run/a".into()), false),
            ("unix:/run/a", Host::Socket("/run/a".into()), false),
        ] {
            assert_eq!(Peer::parse(url), Ok(Peer { host, is_tls }), "{url}");
        }
        for url in ["", "a:1", "ftp://a", "grpc://", "grpc://a@b:1", "grpc://a b", "GRPC+TLS://a"] {
            assert!(Peer::parse(url).is_err(), "{url}");
        }
    }
}
