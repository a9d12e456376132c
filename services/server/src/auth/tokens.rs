//! The token file: digests of bearer tokens, their permissions and expiry times.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
    time::SystemTime,
};

use anyhow::{Context, bail, ensure};
use base64::Engine;
use chrono::{DateTime, Utc};
use forebay_loader::Tenant;
use forebay_proto::ACTIONS;
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::Error;

/// SHA-256 of a token.
pub(super) type Digest = [u8; 32];

/// Contents of the token file.
pub(crate) struct Tokens {
    grants: HashMap<Digest, Grant>,
}

/// Permissions of one token.
pub(super) struct Grant {
    pub(super) name: String,
    datasets: Vec<String>,
    serves: Vec<String>,
    admin: bool,
    /// Names of the permitted actions; `None` for all.
    actions: Option<Vec<String>>,
    tenant: Tenant,
    expires: Option<SystemTime>,
}

/// One token in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    sha256: String,
    datasets: Vec<String>,
    #[serde(default)]
    serves: Vec<String>,
    #[serde(default)]
    admin: bool,
    actions: Option<Vec<String>>,
    #[serde(default = "default_weight")]
    weight: u32,
    expires: Option<toml::value::Datetime>,
}

fn default_weight() -> u32 {
    1
}

impl Tokens {
    /// Parses a table of tokens by name:
    ///
    /// ```toml
    /// [ctr-team]
    /// sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    /// datasets = ["flights", "clicks-*"]
    /// serves = ["ranker"]
    /// admin = false
    /// actions = ["refresh", "report"]
    /// weight = 1
    /// expires = 2027-01-01T00:00:00Z
    /// ```
    ///
    /// # Errors
    /// The invalid token and what was expected, also if there is no token.
    pub(super) fn parse(text: &[u8]) -> anyhow::Result<Self> {
        let text = std::str::from_utf8(text).context("expected UTF-8")?;
        let written: BTreeMap<String, Written> = toml::from_str(text).map_err(|error| {
            // The whole error shows the line, which may contain a token that was written in the wrong place.
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            anyhow::anyhow!("line {line}: {}", without_quoted(error.message()))
        })?;
        ensure!(
            !written.is_empty(),
            "there is no token, so that every call would be rejected; expected at least one table [NAME] with `sha256` and `datasets`"
        );
        let mut grants = HashMap::new();
        for (name, token) in written {
            let mut digest = Digest::default();
            hex::decode_to_slice(&token.sha256, &mut digest).ok().with_context(|| {
                format!("token '{name}': sha256 is not 64 hexadecimal digits; `printf %s TOKEN | sha256sum` prints them")
            })?;
            ensure!(digest != digest_of(b""), "token '{name}': sha256 is the digest of the empty string");
            ensure!(
                !token.datasets.is_empty(),
                "token '{name}': datasets is empty; [\"*\"] means all datasets"
            );
            let expires = token.expires.map(|time| instant(&time)).transpose();
            let expires = expires.with_context(|| format!("token '{name}': expires"))?;
            let weight = NonZeroU32::new(token.weight).filter(|weight| *weight <= Tenant::MAX_WEIGHT);
            let weight = weight.with_context(|| {
                format!("token '{name}': weight is {}; expected 1 to {}", token.weight, Tenant::MAX_WEIGHT)
            })?;
            let unknown = token.actions.iter().flatten().find(|action| !ACTIONS.contains(&action.as_str()));
            if let Some(unknown) = unknown {
                let expected = ACTIONS.join(", ");
                bail!("token '{name}': actions: there is no action '{unknown}', expected some of {expected}");
            }
            let Written { datasets, serves, admin, actions, .. } = token;
            let tenant = Tenant::new(xxh3_64(name.as_bytes()), weight);
            let grant = Grant { name: name.clone(), datasets, serves, admin, actions, tenant, expires };
            if let Some(other) = grants.insert(digest, grant) {
                bail!("tokens '{}' and '{name}' have the same sha256", other.name);
            }
        }
        Ok(Self { grants })
    }

    /// Returns the permissions of the token with `digest`.
    ///
    /// # Errors
    /// Unauthenticated if the token is unknown or has expired.
    pub(super) fn grant(&self, digest: &Digest, now: SystemTime) -> Result<&Grant, Error> {
        let Some(grant) = self.grants.get(digest) else {
            return Err(Error::unauthenticated("the token is unknown"));
        };
        match grant.expires {
            Some(expires) if expires <= now => {
                let expires = DateTime::<Utc>::from(expires).format("%Y-%m-%dT%H:%M:%SZ");
                Err(Error::unauthenticated(format!("token '{}' expired at {expires}", grant.name)))
            }
            _ => Ok(grant),
        }
    }
}

impl Grant {
    /// True if the token lists `dataset`, or a prefix of its name followed by `*`.
    pub(super) fn covers(&self, dataset: &str) -> bool {
        matches(&self.datasets, dataset)
    }

    /// True if the token is for workers of `queue`.
    pub(super) fn serves(&self, queue: &str) -> bool {
        matches(&self.serves, queue)
    }

    /// Share of the token in the CPU time.
    pub(super) fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// True if the token permits changes of the server.
    pub(super) fn is_admin(&self) -> bool {
        self.admin
    }

    /// True if the token permits the action.
    pub(super) fn permits(&self, action: &str) -> bool {
        self.actions.as_ref().is_none_or(|actions| actions.iter().any(|permitted| permitted == action))
    }

    /// True if the token covers all datasets.
    pub(super) fn covers_everything(&self) -> bool {
        self.datasets.iter().any(|pattern| pattern == "*")
    }
}

/// The text without what is between its first and its last quotation mark.
pub(crate) fn without_quoted(text: &str) -> String {
    match (text.find('"'), text.rfind('"')) {
        (Some(first), Some(last)) if first < last => format!("{}...{}", &text[..=first], &text[last..]),
        _ => text.to_owned(),
    }
}

fn matches(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    })
}

/// Extracts the token from an `authorization` header: `Bearer TOKEN`, or the password of `Basic`, which browsers send.
pub(super) fn token_of(header: &[u8]) -> Option<Vec<u8>> {
    let (scheme, value) = header.split_at_checked(header.iter().position(|&byte| byte == b' ')?)?;
    let value = value.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(value.to_owned()).filter(|token| !token.is_empty());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let pair = base64::engine::general_purpose::STANDARD.decode(value).ok()?;
    let colon = pair.iter().position(|&byte| byte == b':')?;
    Some(pair[colon + 1..].to_owned()).filter(|token| !token.is_empty())
}

/// SHA-256 of `token`. Tokens are looked up by digest, so that the time of the lookup reveals nothing about a token.
pub(super) fn digest_of(token: &[u8]) -> Digest {
    digest(&SHA256, token).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn instant(time: &toml::value::Datetime) -> anyhow::Result<SystemTime> {
    let text = time.to_string();
    let time = DateTime::parse_from_rfc3339(&text);
    let time = time.with_context(|| format!("{text}: expected a time such as 2027-01-01T00:00:00Z"))?;
    Ok(time.into())
}
