//! Headers of requests that concern the servers of a cluster.

use http::HeaderMap;

use super::settings::check_zone;
use crate::Error;

/// Header of GetFlightInfo with the zone of the caller.
const ZONE: &str = "forebay-zone";
/// Header of DoGet with the position of this server in the caller's list of servers.
const CANDIDATE: &str = "forebay-candidate";

/// Position of a server in the list of servers that a caller tries for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Candidate {
    /// Index of the server in the list, from 0. It is not the last one.
    Number(u32),
    /// The last server of the list.
    Last,
}

/// Returns the zone of the caller; `None` without the header.
///
/// # Errors
/// Invalid if it is malformed.
pub(crate) fn zone(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let Some(value) = headers.get(ZONE) else { return Ok(None) };
    let zone = String::from_utf8_lossy(value.as_bytes());
    check_zone(&zone).map_err(|error| Error::invalid(format!("header {ZONE}: {error}")))?;
    Ok(Some(zone.into_owned()))
}

/// Returns the position of this server in the caller's list of servers; `None` without the header.
///
/// # Errors
/// Invalid if it is malformed.
pub(crate) fn candidate(headers: &HeaderMap) -> Result<Option<Candidate>, Error> {
    let Some(value) = headers.get(CANDIDATE) else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    if text == "last" {
        return Ok(Some(Candidate::Last));
    }
    let malformed = || {
        let text = text.escape_debug();
        Error::invalid(format!("header {CANDIDATE}: '{text}', expected a number from 0 on, or 'last'"))
    };
    text.parse().map(|number| Some(Candidate::Number(number))).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        [(HeaderName::from_static(name), value)].into_iter().collect()
    }

    #[test]
    fn headers_are_read_and_malformed_ones_are_named() {
        assert_eq!(candidate(&HeaderMap::new()).unwrap(), None);
        assert_eq!(candidate(&headers(CANDIDATE, "last")).unwrap(), Some(Candidate::Last));
        assert_eq!(candidate(&headers(CANDIDATE, "2")).unwrap(), Some(Candidate::Number(2)));
        for malformed in ["", "-1", "first", "99999999999", "\u{fc}"] {
            let error = candidate(&headers(CANDIDATE, malformed)).unwrap_err();
            assert!(error.message().contains("forebay-candidate"), "{error}");
        }
        assert_eq!(zone(&HeaderMap::new()).unwrap(), None);
        assert_eq!(zone(&headers(ZONE, "eu-1a")).unwrap().as_deref(), Some("eu-1a"));
        for malformed in ["", "a b", "\u{fc}"] {
            let error = zone(&headers(ZONE, malformed)).unwrap_err();
            assert!(error.message().contains("forebay-zone"), "{error}");
        }
    }
}
