//! Explanations by a server, over its HTTP API.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use forebay_explain::{At, Format};
use forebay_proto::{Encoding, v1};
use forebay_storage::{check_url, shown_url};
use serde::Deserialize;

use super::wanted::Wanted;

/// HTTP client of a server.
pub(super) struct Remote {
    client: reqwest::Client,
    /// Base URL, such as `http://127.0.0.1:8816`.
    url: String,
    token: Option<String>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

impl Remote {
    /// Creates a client of the server at `url`. `token_file` holds the bearer token, `authority` CA certificates in addition to the
    /// system's (PEM).
    ///
    /// # Errors
    /// If a file can't be read or is malformed, or the URL has a part that may be secret.
    pub(super) fn new(
        url: &str,
        token_file: Option<&Path>,
        authority: Option<&Path>,
    ) -> anyhow::Result<Self> {
        ensure!(
            check_url(url).is_ok(),
            "--server: '{}': expected http://HOST:PORT or https://HOST:PORT, without a user, password or query; the token is in the \
             file of --token-file",
            shown_url(url)
        );
        let read =
            |path: &Path| std::fs::read(path).with_context(|| format!("can't read {}", path.display()));
        let mut client = reqwest::Client::builder();
        if let Some(path) = authority {
            let made = reqwest::Certificate::from_pem_bundle(&read(path)?);
            for authority in made.with_context(|| format!("in {}", path.display()))? {
                client = client.add_root_certificate(authority);
            }
        }
        let token = token_file.map(|path| {
            let text = String::from_utf8(read(path)?);
            let text = text.with_context(|| format!("{} holds no token", path.display()))?;
            anyhow::Ok(text.trim().to_owned())
        });
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let client = client.build().context("can't start an HTTP client")?;
        Ok(Self { client, url: url.trim_end_matches('/').to_owned(), token: token.transpose()? })
    }

    /// Response of `GET /api/v1/jobs`.
    pub(super) async fn jobs(&self) -> anyhow::Result<Vec<u8>> {
        self.bytes(self.client.get(format!("{}/api/v1/jobs", self.url))).await
    }

    /// Summary as the JSON that was received, because numbers can change when they are parsed.
    pub(super) async fn summary(
        &self,
        wanted: &Wanted,
        at: At,
        max_listed_rows: usize,
    ) -> anyhow::Result<Vec<u8>> {
        self.bytes(self.request(wanted, at).query(&[("max_listed_rows", max_listed_rows)])).await
    }

    pub(super) async fn export(&self, wanted: &Wanted, at: At, format: Format) -> anyhow::Result<Vec<u8>> {
        self.bytes(self.request(wanted, at).query(&[("format", format.name())])).await
    }

    fn request(&self, wanted: &Wanted, at: At) -> reqwest::RequestBuilder {
        let url = format!("{}/api/v1/explain", self.url);
        let request = match wanted {
            Wanted::Job(job) => self.client.get(url).query(&[("job_name", job)]),
            Wanted::Request(train) => {
                let command = v1::Command::from(v1::Train::clone(train));
                self.client.post(url).body(Encoding::Protobuf.encode(&command))
            }
        };
        let numbers = [("epoch", at.epoch), ("step", at.step), ("rank", at.rank)];
        let given: Vec<_> = numbers.into_iter().filter_map(|(name, number)| Some((name, number?))).collect();
        request.query(&given)
    }

    async fn bytes(&self, mut request: reqwest::RequestBuilder) -> anyhow::Result<Vec<u8>> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let unreachable = || format!("can't reach {} (without --server no server is needed)", self.url);
        let answer = request.send().await.with_context(unreachable)?;
        let status = answer.status();
        let body = answer.bytes().await.with_context(|| format!("{} closed the connection", self.url))?;
        if status.is_success() {
            return Ok(body.into());
        }
        match serde_json::from_slice::<Refusal>(&body) {
            Ok(Refusal { error }) => bail!("{error}"),
            Err(_) => bail!("{}: {status}: {}", self.url, String::from_utf8_lossy(&body).trim_end()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_a_secret_is_refused_and_not_shown() {
        for url in ["http://u:SECRET@h:1", "u:SECRET@h:1", "https://h:1/?token=SECRET"] {
            let Err(error) = Remote::new(url, None, None) else { panic!("{url} is accepted") };
            let error = error.to_string();
            assert!(error.contains("(not shown)") && !error.contains("SECRET"), "{error}");
        }
    }
}
