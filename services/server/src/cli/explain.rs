//! `forebay explain`: the rows of a past batch and where they are stored, or the batch as a file.

mod local;
mod remote;
mod text;

use std::{
    io::{Read, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use forebay_explain::{At, DEFAULT_MAX_LISTED_ROWS, Format, JobList, Summary};
use forebay_proto::{Encoding, v1};
use serde::de::DeserializeOwned;

use super::runtime::runtime;
use crate::Settings;
use local::Local;
use remote::{Remote, Wanted};

/// Flags of `forebay explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Name of the job, or its id from --list. The most recently streamed job with the name wins.
    #[arg(long, value_name = "NAME|ID", conflicts_with_all = ["ticket", "list"])]
    job_name: Option<String>,
    /// File with a ticket, or with a command that pins a snapshot, instead of a job; - reads standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    ticket: Option<PathBuf>,
    /// List the recorded jobs and exit.
    #[arg(long)]
    list: bool,
    /// Epoch of the batch [default: that of the ticket, else 0].
    #[arg(long, value_name = "N")]
    epoch: Option<u64>,
    /// Step of the batch in its epoch; required unless --ticket is given [default: the first step of the ticket].
    #[arg(long, value_name = "N", required_unless_present_any = ["ticket", "list"])]
    step: Option<u64>,
    /// Rank that received the batch [default: that of the ticket, else 0].
    #[arg(long, value_name = "N")]
    rank: Option<u64>,
    /// HTTP address of a server that explains the batch [default: none, read the state and the datasets in this process].
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// File with the bearer token for --server [default: none].
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// CA certificates of the server (PEM), in addition to the system's [default: none].
    #[arg(long, value_name = "FILE", requires = "server")]
    ca: Option<PathBuf>,
    /// Dataset by name: a path or URL, as on the server. Can be repeated [default: none].
    #[arg(long = "dataset", value_name = "NAME=URL", env = "FOREBAY_DATASET")]
    datasets: Vec<String>,
    /// Configuration file of the server (TOML), for the state and the datasets [default: none].
    #[arg(long, value_name = "FILE", env = "FOREBAY_CONFIG")]
    config: Option<PathBuf>,
    /// Path or URL of the server's state [default: `state` in --cache-dir].
    #[arg(long, value_name = "URL", env = "FOREBAY_STATE")]
    state: Option<String>,
    /// Cache directory of the server [default: ~/.cache/forebay].
    #[arg(long, value_name = "DIR", env = "FOREBAY_CACHE_DIR")]
    cache_dir: Option<PathBuf>,
    /// File to write the batch to; the extension selects the format: .parquet, .json or .arrow (IPC stream, identical to the bytes
    /// that were sent) [default: none].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "list"])]
    output: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Maximum number of rows that are listed per row group [default: 1000].
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
        runtime(settings.io_threads, settings.blocking_threads)?.block_on(async {
            let source = match &self.server {
                Some(url) => {
                    Source::Remote(Remote::new(url, self.token_file.as_deref(), self.ca.as_deref())?)
                }
                None => Source::Local(Box::new(Local::new(settings)?)),
            };
            if self.list {
                return self.list(&source).await;
            }
            match format {
                Some(format) => self.write(&source, format).await,
                None => self.explain(&source).await,
            }
        })
    }

    async fn list(&self, source: &Source) -> anyhow::Result<()> {
        let jobs = match source {
            Source::Local(local) => serde_json::to_vec(&JobList::from(local.jobs().await?))?,
            Source::Remote(remote) => remote.jobs().await?,
        };
        self.show(jobs, text::jobs)
    }

    async fn explain(&self, source: &Source) -> anyhow::Result<()> {
        let listed = self.max_listed_rows.unwrap_or(DEFAULT_MAX_LISTED_ROWS);
        let summary = match (source, self.ticket()?) {
            (Source::Local(local), Some(train)) => {
                serde_json::to_vec(&local.summary(&train, self.at(), listed).await?)?
            }
            (Source::Local(local), None) => {
                let found = local.job(self.job()).await?;
                let summary = local.summary(&found.record.request, self.at(), listed).await?;
                serde_json::to_vec(&Summary { others: found.others, ..summary })?
            }
            (Source::Remote(remote), Some(train)) => {
                remote.summary(&Wanted::Request(&train), self.at(), listed).await?
            }
            (Source::Remote(remote), None) => {
                remote.summary(&Wanted::Job(self.job()), self.at(), listed).await?
            }
        };
        self.show(summary, text::summary)
    }

    /// Prints JSON, either as it is or as text.
    fn show<T: DeserializeOwned>(&self, json: Vec<u8>, as_text: impl Fn(&T) -> String) -> anyhow::Result<()> {
        let mut shown = json;
        if self.json {
            shown.push(b'\n');
        } else {
            let read = serde_json::from_slice(&shown).context("the server sent an unexpected response")?;
            shown = as_text(&read).into_bytes();
        }
        Ok(std::io::stdout().write_all(&shown)?)
    }

    async fn write(&self, source: &Source, format: Format) -> anyhow::Result<()> {
        let bytes = match (source, self.ticket()?) {
            (Source::Local(local), Some(train)) => local.export(&train, self.at(), format).await?,
            (Source::Local(local), None) => {
                let found = local.job(self.job()).await?;
                local.export(&found.record.request, self.at(), format).await?
            }
            (Source::Remote(remote), Some(train)) => {
                remote.export(&Wanted::Request(&train), self.at(), format).await?
            }
            (Source::Remote(remote), None) => {
                remote.export(&Wanted::Job(self.job()), self.at(), format).await?
            }
        };
        let path = self.output.as_deref().unwrap_or(Path::new("batch"));
        std::fs::write(path, bytes).with_context(|| format!("can't write {}", path.display()))
    }

    fn at(&self) -> At {
        At { epoch: self.epoch, step: self.step, rank: self.rank }
    }

    fn job(&self) -> &str {
        self.job_name.as_deref().unwrap_or_default()
    }

    /// Request of --ticket, if given.
    fn ticket(&self) -> anyhow::Result<Option<v1::Train>> {
        let Some(path) = &self.ticket else {
            if self.job_name.is_none() {
                bail!(
                    "the job is missing: give --job-name NAME or --ticket FILE; --list shows the recorded jobs"
                );
            }
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let read = match path.to_str() {
            Some("-") => std::io::stdin().read_to_end(&mut bytes).map(drop),
            _ => std::fs::read(path).map(|read| bytes = read),
        };
        read.with_context(|| format!("can't read {}", path.display()))?;
        let start = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        // Files may have whitespace before JSON; a command in protobuf never starts with whitespace.
        let bytes = if bytes.get(start) == Some(&b'{') { &bytes[start..] } else { &bytes[..] };
        let command: v1::Command =
            Encoding::of(bytes).decode("Command", bytes).with_context(|| format!("in {}", path.display()))?;
        match command.train {
            Some(train) => Ok(Some(train)),
            None => bail!("{}: expected a ticket for batches, {{\"train\": {{...}}}}", path.display()),
        }
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = match &self.config {
            Some(path) => Settings::read(path)?,
            None => Settings::default(),
        };
        settings.add_datasets(&self.datasets)?;
        settings.cache_dir = self.cache_dir.clone().unwrap_or(settings.cache_dir);
        settings.state = self.state.clone().or(settings.state);
        Ok(settings)
    }
}
