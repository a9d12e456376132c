//! Settings of the members of a cluster.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use bytesize::ByteSize;
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::{host_port, source};

/// Maximum length of the name of a zone, in bytes.
const MAX_ZONE_BYTES: usize = 64;

/// Limits and policies of a cluster with `members`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Interval at which the sources in `members` are read, at least 10 ms. Together, they give the member list. Default: 5 s.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// Interval at which this server sends `hello` to each address in the member list, at least 10 ms. The minimum is 20 ms times the
    /// number of addresses, which is longer than 5 s with more than 250 servers. Default: 5 s.
    #[serde(with = "humantime_serde")]
    pub hello_interval: Duration,
    /// Maximum pause before `hello` is sent again to a server that did not answer or was refused. The pause starts at 1 s and doubles.
    /// The maximum is at least 20 ms times the number of addresses. After a network failure, the servers therefore know each other again
    /// within about 5 s.
    /// Default: 3 s.
    #[serde(with = "humantime_serde")]
    pub max_hello_backoff: Duration,
    /// Maximum time to read a source in `members`. Also the maximum time to connect to a server and to receive its answer to `hello`.
    /// At least 10 ms. Default: 2 s.
    #[serde(with = "humantime_serde")]
    pub hello_timeout: Duration,
    /// Maximum number of servers to which `hello` is sent at the same time, at least 1. Default: 32.
    pub max_concurrent_hellos: usize,
    /// Time before a new member list that is empty, or lacks more than half of the previous addresses, is adopted. The previous list
    /// is used until then, because a failure of DNS can be the cause. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub shrink_delay: Duration,
    /// Time before a server that is no longer in the member list, and does not answer, leaves the cluster. Also the minimum time
    /// before a server that has left can be a member again. Default: 60 s.
    #[serde(with = "humantime_serde")]
    pub removal_delay: Duration,
    /// Time before a server that is no longer in the member list, but still answers, leaves the cluster. Default: 300 s.
    #[serde(with = "humantime_serde")]
    pub unlisted_timeout: Duration,
    /// Time before a server that is in the member list, but does not answer, leaves the cluster. If it answers again before, its
    /// streams return to it. Default: 600 s.
    #[serde(with = "humantime_serde")]
    pub silent_timeout: Duration,
    /// Maximum number of members, and of addresses in the member list, 1 to 4,096. A longer list is rejected, and the previous one is
    /// used. Default: 1,024.
    pub max_members: usize,
    /// Path of a file with the bearer token that this server sends to the other members. It must permit the action `hello`.
    /// Required with `tokens`. Default: none.
    pub token: Option<PathBuf>,
    /// Path of the CA certificates (PEM) of the other members, used with `tls`. With `tls.client_ca`, this server authenticates
    /// with the certificate of `tls`. Default: the public CAs.
    pub ca: Option<PathBuf>,
    /// Number of open streams at which this server redirects new streams to the next server in their list of locations, at least 1.
    /// Three kinds of streams are never redirected: those with partitions, those of clients without the header `forebay-candidate`, and
    /// those for which this server is the last one in the list. Default: none, no limit.
    pub overflow_streams: Option<usize>,
    /// Demand of the trainers, in servers at full load as in the metric `forebay_wanted_servers`, at which this server redirects new
    /// streams; with the exceptions of `overflow_streams`. The minimum is 0.1. The demand of one job stays below 1. A high value, such
    /// as 1000, disables these redirects. Default: 1.
    pub overflow_demand: f64,
    /// Bytes of batches sent per second, averaged over 10 s, at which this server redirects new streams; with the exceptions of
    /// `overflow_streams`. A number, or with a unit such as `10GB`. Default: 90% of `network_bandwidth`, or no limit if that is not
    /// set.
    pub overflow_bytes_per_second: Option<ByteSize>,
}

impl Default for Settings {
    fn default() -> Self {
        let forebay_placement::Config {
            max_members,
            shrink_delay,
            removal_delay,
            unlisted_timeout,
            silent_timeout,
            hello_interval,
            max_hello_backoff,
        } = forebay_placement::Config::default();
        Self {
            poll_interval: Duration::from_secs(5),
            hello_interval,
            max_hello_backoff,
            hello_timeout: Duration::from_secs(2),
            max_concurrent_hellos: 32,
            shrink_delay,
            removal_delay,
            unlisted_timeout,
            silent_timeout,
            max_members,
            token: None,
            ca: None,
            overflow_streams: None,
            overflow_demand: 1.0,
            overflow_bytes_per_second: None,
        }
    }
}

impl Settings {
    /// Returns the limits and delays of the decisions.
    pub(super) fn config(&self) -> forebay_placement::Config {
        forebay_placement::Config {
            max_members: self.max_members,
            shrink_delay: self.shrink_delay,
            removal_delay: self.removal_delay,
            unlisted_timeout: self.unlisted_timeout,
            silent_timeout: self.silent_timeout,
            hello_interval: self.hello_interval,
            max_hello_backoff: self.max_hello_backoff,
        }
    }

    /// Checks the settings without opening anything.
    ///
    /// # Errors
    /// The first invalid setting, with its value and what was expected.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        for (name, time) in [
            ("poll_interval", self.poll_interval),
            ("hello_interval", self.hello_interval),
            ("hello_timeout", self.hello_timeout),
        ] {
            let least = Duration::from_millis(10);
            ensure!(time >= least, "membership.{name} is {time:?}, expected at least 10ms");
        }
        ensure!(
            self.max_concurrent_hellos >= 1,
            "membership.max_concurrent_hellos is 0, expected at least 1"
        );
        ensure!(
            (1..=4096).contains(&self.max_members),
            "membership.max_members is {}, expected 1 to 4096",
            self.max_members
        );
        ensure!(self.overflow_streams != Some(0), "membership.overflow_streams is 0, expected at least 1");
        ensure!(
            self.overflow_demand >= 0.1,
            "membership.overflow_demand is {}, expected at least 0.1",
            self.overflow_demand
        );
        ensure!(
            self.overflow_bytes_per_second != Some(ByteSize(0)),
            "membership.overflow_bytes_per_second is 0, expected at least 1"
        );
        Ok(())
    }
}

/// Checks the settings `members`, `advertise` and `zone`.
///
/// # Errors
/// The first invalid setting, with its value and what was expected.
pub(crate) fn check_names(
    members: Option<&str>,
    advertise: Option<&str>,
    zone: Option<&str>,
) -> anyhow::Result<()> {
    if let Some(members) = members {
        source::parse(members).context("--members")?;
        ensure!(
            advertise.is_some(),
            "--members: expected --advertise HOST:PORT, the address to which clients and other servers connect"
        );
    }
    if let Some(advertise) = advertise {
        let (host, _) = host_port::split(advertise).context("--advertise")?;
        let is_unspecified = host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
        ensure!(
            !is_unspecified,
            "--advertise {advertise}: expected a name or an address to which other machines can connect"
        );
    }
    if let Some(zone) = zone {
        check_zone(zone).context("--zone")?;
    }
    Ok(())
}

/// Checks the name of a zone.
///
/// # Errors
/// If it is empty or too long, or has other characters than letters, digits, `-`, `_` and `.`.
pub(super) fn check_zone(zone: &str) -> anyhow::Result<()> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    ensure!(
        (1..=MAX_ZONE_BYTES).contains(&zone.len()) && zone.bytes().all(legal),
        "'{}': expected 1 to {MAX_ZONE_BYTES} letters, digits, '-', '_' and '.'",
        zone.escape_debug()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_a_cluster_are_checked() {
        let error =
            |members, advertise, zone| format!("{:#}", check_names(members, advertise, zone).unwrap_err());
        assert!(error(Some("a:1"), None, None).contains("expected --advertise HOST:PORT"));
        assert!(error(Some("a"), Some("a:1"), None).contains("--members"));
        assert!(error(None, Some("a"), None).contains("--advertise: 'a': expected HOST:PORT"));
        assert!(error(None, Some("0.0.0.0:1"), None).contains("other machines"));
        assert!(error(None, Some("[::]:1"), None).contains("other machines"));
        assert!(error(None, None, Some("a b")).contains("--zone: 'a b'"));
        assert!(error(None, None, Some("")).contains("--zone"));
        check_names(Some("file:/m"), Some("a:1"), Some("eu-west-1a")).unwrap();
        check_names(None, None, None).unwrap();
    }

    #[test]
    fn limits_of_a_cluster_are_checked() {
        Settings::default().check().unwrap();
        for text in [
            "poll_interval = \"1ms\"",
            "hello_interval = \"0s\"",
            "hello_timeout = \"0s\"",
            "max_concurrent_hellos = 0",
            "max_members = 0",
            "max_members = 5000",
            "overflow_streams = 0",
            "overflow_demand = 0.0",
            "overflow_demand = nan",
            "overflow_bytes_per_second = 0",
        ] {
            let settings: Settings = toml::from_str(text).unwrap();
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(&format!("membership.{}", text.split(' ').next().unwrap())), "{error}");
        }
    }
}
