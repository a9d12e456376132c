//! Addresses of servers.

use std::{net::SocketAddr, time::Duration};

use crate::Error;

/// Converts the scheme of a Flight URL to the scheme that the transport expects.
pub(super) fn http_url(url: &str) -> String {
    for (flight, http) in [
        ("grpc+tls://", "https://"),
        ("grpc+tcp://", "http://"),
        ("grpc://", "http://"),
        ("grpc+unix://", "unix:"),
    ] {
        if let Some(rest) = url.strip_prefix(flight) {
            return format!("{http}{rest}");
        }
    }
    url.to_owned()
}

/// Returns the addresses of the host of `url`, in the order of the resolver. Returns none if `url` has no host, like a Unix
/// socket.
///
/// # Errors
/// [`Error::Connect`] if the name cannot be resolved within `limit`.
pub(super) async fn resolve(url: &str, limit: Duration) -> Result<Vec<SocketAddr>, Error> {
    let Ok(parsed) = http_url(url).parse::<http::Uri>() else { return Ok(Vec::new()) };
    let default_port = match parsed.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => return Ok(Vec::new()),
    };
    let Some(host) = parsed.host() else { return Ok(Vec::new()) };
    // The host of an IPv6 address has brackets.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let looked_up = tokio::net::lookup_host((host, parsed.port_u16().unwrap_or(default_port)));
    let resolved = tokio::time::timeout(limit, looked_up).await;
    let found: Vec<_> = resolved
        .map_err(|late| Error::connect(url, late))?
        .map_err(|error| Error::unresolved(url, host, &error))?
        .collect();
    if found.is_empty() {
        return Err(Error::connect(url, format!("the name '{host}' has no address")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_accepted_with_flight_and_http_schemes() {
        for (url, expected) in [
            ("grpc://a:1", "http://a:1"),
            ("grpc+tcp://a:1", "http://a:1"),
            ("grpc+tls://a:1", "https://a:1"),
            ("grpc+unix:///run/a", "unix:/run/a"),
            ("unix:/run/a", "unix:/run/a"),
            ("https://a", "https://a"),
        ] {
            assert_eq!(http_url(url), expected);
        }
    }

    #[tokio::test]
    async fn a_host_has_all_addresses_of_its_name_and_a_socket_has_none() {
        let limit = Duration::from_secs(10);
        for (url, expected) in [
            ("grpc://127.0.0.1:8815", "127.0.0.1:8815"),
            ("grpc+tls://[::1]:1", "[::1]:1"),
            ("https://10.0.0.1", "10.0.0.1:443"),
            ("http://10.0.0.1", "10.0.0.1:80"),
        ] {
            assert_eq!(resolve(url, limit).await.unwrap(), [expected.parse().unwrap()], "{url}");
        }
        assert!(resolve("unix:/run/forebay", limit).await.unwrap().is_empty());
        let local = resolve("grpc://localhost:7", limit).await.unwrap();
        assert!(!local.is_empty() && local.iter().all(|address| address.ip().is_loopback()), "{local:?}");
    }
}
