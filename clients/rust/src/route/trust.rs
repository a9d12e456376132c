//! The hosts that may receive requests and the token of a client.

use super::host::{Host, Peer};
use crate::Error;

/// Decides to which locations a client connects. A location is the URI of a server in a plan. A seed is one of the URLs of the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trust {
    /// True if a seed uses TLS. Locations then have to use TLS, too.
    needs_tls: bool,
    rules: Vec<Rule>,
}

#[derive(Debug, PartialEq, Eq)]
enum Rule {
    /// This host only.
    Host(Host),
    /// Names below this domain, such as `a.example.com` for `example.com`.
    Below(String),
    /// Loopback addresses and `localhost`.
    Loopback,
}

impl Trust {
    /// Creates the rules of a client with the URLs `seeds`. The hosts of the seeds are trusted. Without `trusted_hosts`, related hosts
    /// are trusted, too; see [`Config::trusted_hosts`](crate::Config::trusted_hosts).
    ///
    /// # Errors
    /// [`Error::Request`] if one of `trusted_hosts` is malformed.
    pub(super) fn new(seeds: &[String], trusted_hosts: &[String]) -> Result<Self, Error> {
        let seeds: Vec<_> = seeds.iter().filter_map(|seed| Peer::parse(seed).ok()).collect();
        let mut rules: Vec<_> = seeds.iter().map(|seed| Rule::Host(seed.host.clone())).collect();
        for entry in trusted_hosts {
            rules.push(Rule::parse(entry)?);
        }
        if trusted_hosts.is_empty() {
            rules.extend(seeds.iter().filter_map(|seed| Rule::related_to(&seed.host)));
        }
        Ok(Self { needs_tls: seeds.iter().any(|seed| seed.is_tls), rules })
    }

    /// Checks that the client may connect to `location`.
    ///
    /// # Errors
    /// The reason why the client may not connect to it.
    pub(super) fn admits(&self, location: &str) -> Result<(), &'static str> {
        let peer = Peer::parse(location)?;
        if self.needs_tls && !peer.is_tls {
            return Err("the location does not use TLS, but the URL of the client does");
        }
        if !self.rules.iter().any(|rule| rule.matches(&peer.host)) {
            return Err("the host is not in trusted_hosts");
        }
        Ok(())
    }
}

impl Rule {
    fn parse(entry: &str) -> Result<Self, Error> {
        let (is_domain, host) = match entry.strip_prefix("*.") {
            Some(domain) => (true, domain),
            None => (false, entry),
        };
        let is_plain = |text: &str| {
            text.chars().all(|character| character.is_ascii_alphanumeric() || "-_.:[]".contains(character))
        };
        match (is_domain, Host::parse(host).filter(|_| is_plain(host))) {
            (true, Some(Host::Name(name))) if is_dns_name(&name) => Ok(Self::Below(name)),
            (false, Some(Host::Name(name))) if is_dns_name(&name) => Ok(Self::Host(Host::Name(name))),
            (false, Some(Host::Ip(ip))) => Ok(Self::Host(Host::Ip(ip))),
            _ => Err(Error::Request(format!(
                "trusted_hosts: '{}' is not a host, expected a name, an IP address or *.DOMAIN, without a port",
                entry.escape_debug()
            ))),
        }
    }

    /// Returns the rule for the hosts that are related to the host of a seed; `None` if only the host itself is trusted.
    fn related_to(seed: &Host) -> Option<Self> {
        match seed {
            // The socket belongs to a server on this machine.
            Host::Socket(_) => Some(Self::Loopback),
            host if host.is_loopback() => Some(Self::Loopback),
            Host::Ip(_) => None,
            Host::Name(name) => parent_domain(name).map(|parent| Self::Below(parent.to_owned())),
        }
    }

    fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Host(trusted), host) => trusted == host,
            (Self::Below(domain), Host::Name(name)) => {
                name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            (Self::Below(_), Host::Ip(_) | Host::Socket(_)) => false,
            (Self::Loopback, host) => host.is_loopback(),
        }
    }
}

fn is_dns_name(name: &str) -> bool {
    name.split('.').all(|label| !label.is_empty()) && !name.contains([':', '[', ']'])
}

/// Returns the parent domain of a name with at least two dots. Returns `None` if the parent looks like a domain under which
/// unrelated parties register names, such as `co.uk`: a country of two letters below a label of at most three.
fn parent_domain(name: &str) -> Option<&str> {
    let (_, parent) = name.split_once('.')?;
    let (label, top) = parent.split_once('.')?;
    let is_public = !top.contains('.') && top.len() == 2 && label.len() <= 3;
    let is_number =
        parent.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    (!is_public && !is_number).then_some(parent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trust(seed: &str, hosts: &[&str]) -> Trust {
        Trust::new(&[seed.to_owned()], &hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>())
            .unwrap()
    }

    #[test]
    fn by_default_the_domain_of_the_seed_is_trusted_and_nothing_else() {
        for (seed, trusted, untrusted) in [
            (
                "grpc://forebay.ml.svc.cluster.local:8815",
                vec!["forebay.ml.svc.cluster.local", "forebay-0.forebay-members.ml.svc.cluster.local:99"],
                vec!["ml.svc.cluster.local", "forebay.other.svc.cluster.local", "xml.svc.cluster.local"],
            ),
            (
                "grpc://data.example.com",
                vec!["0.example.com", "DATA.example.com."],
                vec!["badexample.com", "example.com"],
            ),
            ("grpc://example.com", vec!["example.com"], vec!["a.example.com", "b.com"]),
            ("grpc://shop.co.uk", vec!["shop.co.uk"], vec!["evil.co.uk", "a.shop.co.uk"]),
            ("grpc://a.shop.co.uk", vec!["b.shop.co.uk"], vec!["b.co.uk"]),
            ("grpc://forebay", vec!["forebay:1"], vec!["forebay-0", "a.forebay"]),
            ("grpc://10.0.0.1:1", vec!["10.0.0.1:2", "[::ffff:10.0.0.1]:1"], vec!["10.0.0.2", "a.0.0.1"]),
            (
                "grpc://127.0.0.1:1",
                vec!["127.0.0.2:1", "localhost", "[::1]:7"],
                vec!["10.0.0.1", "a.localhost"],
            ),
            ("unix:/run/forebay", vec!["localhost:1"], vec!["10.0.0.1", "forebay"]),
            ("grpc://0x7f.0.0.1", vec![], vec!["a.0.0.1", "127.0.0.1"]),
        ] {
            let rules = trust(seed, &[]);
            for host in trusted {
                assert_eq!(rules.admits(&format!("grpc://{host}")), Ok(()), "{seed} {host}");
                assert_eq!(rules.admits(&format!("grpc+tls://{host}")), Ok(()), "{seed} {host}");
            }
            for host in untrusted {
                assert!(rules.admits(&format!("grpc://{host}")).is_err(), "{seed} {host}");
            }
        }
    }

    #[test]
    fn the_place_of_a_trusted_name_in_a_url_matters() {
        let rules = trust("grpc://a.example.com", &[]);
        for location in [
            "grpc://a.example.com@evil.net:1",
            "grpc://evil.net/a.example.com",
            "grpc://evil.net?a.example.com",
            "grpc://evil.net#a.example.com",
            "grpc://evil.net:1\\@a.example.com",
            "ftp://a.example.com",
            "unix:/a.example.com",
            "arrow-flight-reuse-connection://?",
        ] {
            assert!(rules.admits(location).is_err(), "{location}");
        }
    }

    #[test]
    fn a_client_that_uses_tls_connects_to_no_location_without_it() {
        let rules = trust("grpc+tls://a.example.com", &["*.example.com"]);
        assert_eq!(rules.admits("grpc+tls://b.example.com"), Ok(()));
        for plaintext in ["grpc://b.example.com", "http://a.example.com", "grpc+tcp://a.example.com"] {
            assert!(rules.admits(plaintext).unwrap_err().contains("TLS"), "{plaintext}");
        }
        let mixed = Trust::new(&["grpc://a".into(), "https://b".into()], &[]).unwrap();
        assert!(mixed.admits("grpc://a").is_err());
    }

    #[test]
    fn given_hosts_replace_the_domain_of_the_seed() {
        let rules = trust("grpc://a.example.com", &["10.0.0.1", "*.pods.local", "[::2]"]);
        for host in ["a.example.com", "10.0.0.1:1", "x.pods.local", "y.x.pods.local", "[::2]:1"] {
            assert_eq!(rules.admits(&format!("grpc://{host}")), Ok(()), "{host}");
        }
        for host in ["b.example.com", "pods.local", "10.0.0.2", "[::3]"] {
            assert!(rules.admits(&format!("grpc://{host}")).is_err(), "{host}");
        }
        for entry in ["", "*", "*.", "*.10.0.0.1", "a:1", "grpc://a", "a b", "a,b", ".a", "a..b", "[a]"] {
            let error = Trust::new(&[], &[entry.to_owned()]).unwrap_err().to_string();
            assert!(error.starts_with("trusted_hosts: "), "{entry}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_name_outside_of_the_domain_of_the_seed_is_trusted(name in "[a-z0-9-]{1,5}(\\.[a-z0-9-]{1,5}){0,4}") {
            let is_trusted = trust("grpc://a.example.com", &[]).admits(&format!("grpc://{name}:1")).is_ok();
            prop_assert_eq!(is_trusted, name.ends_with(".example.com"));
            let below = trust("grpc://a.example.com", &[]).admits(&format!("grpc://{name}.example.com:1"));
            prop_assert_eq!(below, Ok(()));
        }
    }
}
