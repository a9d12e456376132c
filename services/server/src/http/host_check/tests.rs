use super::*;

fn rejected(check: &HostCheck, method: &str, headers: &[(&'static str, &'static str)]) -> bool {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let named =
        headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    check.check(&method, &Uri::from_static("/"), &named.collect()).is_err()
}

fn without_tokens() -> HostCheck {
    HostCheck::new(&["forebay.example".to_owned()], false)
}

#[test]
fn requests_with_a_rebound_host_name_are_rejected() {
    let (check, open) = (without_tokens(), HostCheck::new(&[], true));
    for (host, is_allowed) in [
        ("127.0.0.1:8816", true),
        ("127.0.0.1", true),
        ("[::1]:8816", true),
        ("LOCALHOST:8816", true),
        ("forebay:8816", true),
        ("Forebay.Example:8816", true),
        ("other.forebay.example", false),
        ("evil.example:8816", false),
        ("localhost.evil.example", false),
        ("127.0.0.1.evil.example", false),
        ("", false),
        ("a b", false),
    ] {
        assert_eq!(rejected(&check, "GET", &[("host", host)]), !is_allowed, "{host}");
        assert!(!rejected(&open, "GET", &[("host", host)]), "{host}");
    }
    assert!(!rejected(&check, "GET", &[]), "HTTP/1.0 has no Host header, and browsers do not use it");
}

#[test]
fn requests_with_several_hosts_are_rejected() {
    let several = || {
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        headers.append(header::HOST, HeaderValue::from_static("evil.example"));
        headers
    };
    for check in [without_tokens(), HostCheck::new(&[], true)] {
        assert!(check.check(&Method::GET, &Uri::from_static("/"), &several()).is_err());
    }
}

#[test]
fn requests_of_other_sites_are_rejected_but_links_work() {
    let check = &without_tokens();
    let host = ("host", "localhost:8816");
    for (site, is_rejected) in
        [("same-origin", false), ("none", false), ("same-site", true), ("cross-site", true), ("x", true)]
    {
        assert_eq!(rejected(check, "GET", &[host, ("sec-fetch-site", site)]), is_rejected, "{site}");
        assert_eq!(rejected(check, "PATCH", &[host, ("sec-fetch-site", site)]), is_rejected, "{site}");
    }
    let link = [host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert!(!rejected(check, "GET", &link));
    assert!(rejected(check, "PATCH", &link) && rejected(check, "POST", &link));
}

#[test]
fn a_change_from_another_origin_is_rejected() {
    let check = &without_tokens();
    let host = ("host", "localhost:8816");
    for (origin, is_rejected) in [
        ("http://localhost:8816", false),
        ("http://LOCALHOST:8816", false),
        ("http://localhost:3000", true),
        ("http://evil.example", true),
        ("null", true),
    ] {
        assert_eq!(rejected(check, "PATCH", &[host, ("origin", origin)]), is_rejected, "{origin}");
        assert!(!rejected(check, "GET", &[host, ("origin", origin)]), "the browser itself blocks reads");
    }
    assert!(
        rejected(check, "PATCH", &[("origin", "http://localhost:8816")]),
        "no Host header to compare with"
    );
}
