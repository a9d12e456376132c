//! The token file: digests of bearer tokens, what each may read, and until when.

use std::{
    collections::{BTreeMap, HashMap},
    time::SystemTime,
};

use anyhow::{Context, bail, ensure};
use base64::Engine;
use chrono::{DateTime, Utc};
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use tonic::Status;

/// SHA-256 of a token.
pub(super) type Digest = [u8; 32];

/// What is in the token file.
pub(crate) struct Tokens {
    grants: HashMap<Digest, Grant>,
}

/// What one token is good for.
pub(super) struct Grant {
    pub(super) name: String,
    datasets: Vec<String>,
    serves: Vec<String>,
    admin: bool,
    expires: Option<SystemTime>,
}

/// One token, as it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    sha256: String,
    datasets: Vec<String>,
    #[serde(default)]
    serves: Vec<String>,
    #[serde(default)]
    admin: bool,
    expires: Option<toml::value::Datetime>,
}

impl Tokens {
    /// Reads a table of tokens by name:
    ///
    /// ```toml
    /// [ctr-team]
    /// sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    /// datasets = ["flights", "clicks-*"]
    /// serves = ["ranker"]
    /// admin = false
    /// expires = 2027-01-01T00:00:00Z
    /// ```
    ///
    /// # Errors
    /// Naming the token, and what was expected of it.
    pub(super) fn parse(text: &[u8]) -> anyhow::Result<Self> {
        let text = std::str::from_utf8(text).context("expected UTF-8")?;
        let written: BTreeMap<String, Written> = toml::from_str(text)?;
        let mut grants = HashMap::new();
        for (name, token) in written {
            let digest = hex(&token.sha256).with_context(|| {
                format!("token '{name}': sha256 is not 64 hexadecimal digits; `printf %s TOKEN | sha256sum` prints them")
            })?;
            ensure!(digest != digest_of(b""), "token '{name}': sha256 is that of no characters at all");
            ensure!(!token.datasets.is_empty(), "token '{name}': datasets is empty; [\"*\"] stands for all");
            let expires = token.expires.map(|time| instant(&time)).transpose();
            let expires = expires.with_context(|| format!("token '{name}': expires"))?;
            let Written { datasets, serves, admin, .. } = token;
            let grant = Grant { name: name.clone(), datasets, serves, admin, expires };
            if let Some(other) = grants.insert(digest, grant) {
                bail!("tokens '{}' and '{name}' are the same", other.name);
            }
        }
        Ok(Self { grants })
    }

    /// What the token with `digest` is good for.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` when there is none, or when it has expired.
    pub(super) fn grant(&self, digest: &Digest, now: SystemTime) -> Result<&Grant, Status> {
        let Some(grant) = self.grants.get(digest) else {
            return Err(Status::unauthenticated("the token is not known here"));
        };
        match grant.expires {
            Some(expires) if expires <= now => {
                let expires = DateTime::<Utc>::from(expires).format("%Y-%m-%dT%H:%M:%SZ");
                Err(Status::unauthenticated(format!("token '{}' expired at {expires}", grant.name)))
            }
            _ => Ok(grant),
        }
    }
}

impl Grant {
    /// Whether it names `dataset`, or a beginning of its name with `*` behind.
    pub(super) fn covers(&self, dataset: &str) -> bool {
        names(&self.datasets, dataset)
    }

    /// Whether it is for a worker of `queue`.
    pub(super) fn serves(&self, queue: &str) -> bool {
        names(&self.serves, queue)
    }

    /// Whether its bearer may change how the server works.
    pub(super) fn is_admin(&self) -> bool {
        self.admin
    }

    pub(super) fn covers_everything(&self) -> bool {
        self.datasets.iter().any(|pattern| pattern == "*")
    }
}

fn names(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    })
}

/// The token in an `authorization` header: `Bearer TOKEN`, or the password of `Basic`, which browsers send.
pub(super) fn secret_of(header: &[u8]) -> Option<Vec<u8>> {
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

/// SHA-256 of `token`. What is looked up is the digest, so that how long it takes tells nothing of a token.
pub(super) fn digest_of(token: &[u8]) -> Digest {
    digest(&SHA256, token).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn hex(text: &str) -> Option<Digest> {
    let mut digest = Digest::default();
    let text = text.as_bytes();
    if text.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        let nibble = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(nibble(pair[0])? << 4 | nibble(pair[1])?).ok()?;
    }
    Some(digest)
}

fn instant(time: &toml::value::Datetime) -> anyhow::Result<SystemTime> {
    let text = time.to_string();
    let time = DateTime::parse_from_rfc3339(&text);
    let time = time.with_context(|| format!("{text}: expected a time such as 2027-01-01T00:00:00Z"))?;
    Ok(time.into())
}
