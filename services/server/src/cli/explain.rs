//! `forebay explain`: the rows of a past batch and where they are stored, or the batch as a file.

mod local;
mod remote;
mod text;
mod wanted;

use std::{io::Write as _, path::PathBuf};

use anyhow::Context;
use clap::Args;
use forebay_explain::{At, DEFAULT_MAX_LISTED_ROWS, Format};
use serde::de::DeserializeOwned;

use super::runtime::runtime;
use crate::Settings;
use crate::printable::printable;
use local::Local;
use remote::Remote;
use wanted::Wanted;

/// Flags of `forebay explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Name of the job, or its id from --list. Of several jobs with the name, the most recently streamed one is selected. Required
    /// unless --ticket or --list is given [default: none].
    #[arg(long, value_name = "NAME|ID", conflicts_with_all = ["ticket", "list"])]
    job_name: Option<String>,
    /// File with the ticket of a stream, or with a request that names its snapshot, instead of --job-name; - reads standard input
    /// [default: none].
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    ticket: Option<PathBuf>,
    /// Lists the recorded jobs and exits [default: false].
    #[arg(long)]
    list: bool,
    /// Epoch of the batch, counted from 0 [default: that of the ticket, else 0].
    #[arg(long, value_name = "N")]
    epoch: Option<u64>,
    /// Step of the batch in its epoch, counted from 0; required unless --ticket is given [default: the first step of the ticket].
    #[arg(long, value_name = "N", required_unless_present_any = ["ticket", "list"])]
    step: Option<u64>,
    /// Rank that received the batch, counted from 0 [default: that of the ticket, else 0].
    #[arg(long, value_name = "N")]
    rank: Option<u64>,
    /// HTTP URL of a server that explains the batch, such as http://127.0.0.1:8816 [default: none, this process reads the state
    /// and the datasets itself].
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// File with the bearer token for --server [default: none].
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// File with CA certificates (PEM) that are trusted for --server, in addition to those of the system [default: none].
    #[arg(long, value_name = "FILE", requires = "server")]
    ca: Option<PathBuf>,
    /// Name of a dataset, and its path or URL, as on the server. Can be repeated; the environment variable holds one dataset
    /// [default: none].
    #[arg(long = "dataset", value_name = "NAME=URL", env = "FOREBAY_DATASET")]
    datasets: Vec<String>,
    /// Path of the server's configuration file (TOML), which names the state and the datasets [default: none].
    #[arg(long, value_name = "FILE", env = "FOREBAY_CONFIG")]
    config: Option<PathBuf>,
    /// Path or URL of the server's state [default: `state` in --cache-dir].
    #[arg(long, value_name = "URL", env = "FOREBAY_STATE")]
    state: Option<String>,
    /// Cache directory of the server [default: $XDG_CACHE_HOME/forebay or ~/.cache/forebay].
    #[arg(long, value_name = "DIR", env = "FOREBAY_CACHE_DIR")]
    cache_dir: Option<PathBuf>,
    /// File to write the batch to; the extension selects the format: .parquet, .json or .arrow (IPC stream, identical to the bytes
    /// that were sent) [default: none].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "list"])]
    output: Option<PathBuf>,
    /// Prints JSON instead of text [default: false].
    #[arg(long)]
    json: bool,
    /// Maximum number of row numbers that are listed per row group [default: 1000].
    #[arg(long, value_name = "N")]
    max_listed_rows: Option<usize>,
}

/// Place where the batch is rebuilt.
enum Source {
    Local(Box<Local>),
    Remote(Remote),
}

impl Explain {
    /// Prints the explanation, or writes the batch to a file.
    ///
    /// # Errors
    /// If the job or batch does not exist, or can no longer be rebuilt.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let format = self.output.as_deref().map(Format::from_path).transpose().map_err(anyhow::Error::msg)?;
        let settings = self.settings()?;
        runtime(settings.io_threads, settings.blocking_threads, &settings.storage)?.block_on(async {
            let source = match &self.server {
                Some(url) => {
                    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
                    anyhow::ensure!(
                        matches!(scheme, None | Some("http" | "https")),
                        "--server: '{url}' is not the URL of the dashboard, expected http://HOST:PORT or https://HOST:PORT, by default \
                         with port 8816; port 8815 is that of gRPC"
                    );
                    Source::Remote(Remote::new(url, self.token_file.as_deref(), self.ca.as_deref())?)
                }
                None => Source::Local(Box::new(Local::new(settings)?)),
            };
            if self.list {
                let jobs = match source {
                    Source::Local(local) => local.jobs().await?,
                    Source::Remote(remote) => remote.jobs().await?,
                };
                return self.show(jobs, text::jobs);
            }
            let wanted = Wanted::read(self.job_name.as_deref(), self.ticket.as_deref())?;
            let at = At { epoch: self.epoch, step: self.step, rank: self.rank };
            let Some((path, format)) = self.output.as_deref().zip(format) else {
                let listed = self.max_listed_rows.unwrap_or(DEFAULT_MAX_LISTED_ROWS);
                let summary = match source {
                    Source::Local(local) => local.summary(&wanted, at, listed).await?,
                    Source::Remote(remote) => remote.summary(&wanted, at, listed).await?,
                };
                return self.show(summary, text::summary);
            };
            let batch = match source {
                Source::Local(local) => local.export(&wanted, at, format).await?,
                Source::Remote(remote) => remote.export(&wanted, at, format).await?,
            };
            std::fs::write(path, batch).with_context(|| format!("can't write {}", path.display()))
        })
    }

    /// Prints JSON, either as it is or as text.
    fn show<T: DeserializeOwned>(&self, json: Vec<u8>, as_text: impl Fn(&T) -> String) -> anyhow::Result<()> {
        let mut shown = json;
        if self.json {
            shown.push(b'\n');
        } else {
            let read = serde_json::from_slice(&shown).context("the server sent an unexpected response")?;
            shown = printable(&as_text(&read)).into_bytes();
        }
        Ok(std::io::stdout().write_all(&shown)?)
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = self.config.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
        settings.add_datasets(&self.datasets)?;
        settings.cache_dir = self.cache_dir.clone().unwrap_or(settings.cache_dir);
        settings.state = self.state.clone().or(settings.state);
        Ok(settings)
    }
}
