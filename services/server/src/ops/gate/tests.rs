use super::*;

fn refused(gate: Gate, method: &str, headers: &[(&'static str, &'static str)]) -> bool {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let named =
        headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    gate.check(&method, &Uri::from_static("/"), &named.collect()).is_err()
}

#[test]
fn a_name_that_was_made_to_mean_this_machine_gets_nothing() {
    let (local, public) = (Gate::new(true, false), Gate::new(false, false));
    for (host, is_ours) in [
        ("127.0.0.1:8816", true),
        ("127.0.0.1", true),
        ("[::1]:8816", true),
        ("LOCALHOST:8816", true),
        ("evil.example:8816", false),
        ("localhost.evil.example", false),
        ("127.0.0.1.evil.example", false),
        ("", false),
        ("a b", false),
    ] {
        assert_eq!(refused(local, "GET", &[("host", host)]), !is_ours, "{host}");
        assert!(!refused(public, "GET", &[("host", host)]), "{host}");
    }
    assert!(!refused(local, "GET", &[]), "HTTP/1.0 names nobody, and no browser speaks it");
    assert!(!refused(Gate::new(true, true), "GET", &[("host", "forebay.example")]));
}

#[test]
fn pages_of_other_sites_get_nothing_and_links_from_there_may_be_followed() {
    let gate = Gate::new(true, false);
    let host = ("host", "localhost:8816");
    for (site, is_refused) in
        [("same-origin", false), ("none", false), ("same-site", true), ("cross-site", true), ("x", true)]
    {
        assert_eq!(refused(gate, "GET", &[host, ("sec-fetch-site", site)]), is_refused, "{site}");
        assert_eq!(refused(gate, "PATCH", &[host, ("sec-fetch-site", site)]), is_refused, "{site}");
    }
    let link = [host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert!(!refused(gate, "GET", &link));
    assert!(refused(gate, "PATCH", &link) && refused(gate, "POST", &link));
}

#[test]
fn a_change_from_another_origin_is_refused() {
    let gate = Gate::new(true, false);
    let host = ("host", "localhost:8816");
    for (origin, is_refused) in [
        ("http://localhost:8816", false),
        ("http://LOCALHOST:8816", false),
        ("http://localhost:3000", true),
        ("http://evil.example", true),
        ("null", true),
    ] {
        assert_eq!(refused(gate, "PATCH", &[host, ("origin", origin)]), is_refused, "{origin}");
        assert!(!refused(gate, "GET", &[host, ("origin", origin)]), "reading is for the browser to refuse");
    }
    assert!(refused(gate, "PATCH", &[("origin", "http://localhost:8816")]), "no Host to compare it with");
}
