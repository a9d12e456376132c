//! `forebay explain`: any batch again, and where its rows come from.

use std::{
    io::{Read, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use forebay_proto::{Encoding, v1};
use serde::de::DeserializeOwned;

use super::{
    At, DEFAULT_LISTED_ROWS, Format, JobList, Summary,
    local::Local,
    remote::{Remote, Wanted},
    text,
};
use crate::{Settings, cli::runtime};

/// Flags of `forebay explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The job, by its name or the id that --list shows; of several with one name, the one that was seen last.
    #[arg(long, value_name = "NAME|ID", conflicts_with_all = ["ticket", "list"])]
    job: Option<String>,
    /// A ticket, or a command that pins a snapshot, instead of a job: a file, or - for standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    ticket: Option<PathBuf>,
    /// List the jobs that are remembered, and stop.
    #[arg(long)]
    list: bool,
    /// [default: 0, or that of the ticket]
    #[arg(long, value_name = "N")]
    epoch: Option<u64>,
    /// [default: the first one of the ticket]
    #[arg(long, value_name = "N", required_unless_present_any = ["ticket", "list"])]
    step: Option<u64>,
    /// [default: 0, or that of the ticket]
    #[arg(long, value_name = "N")]
    rank: Option<u64>,
    /// Ask this server, where it listens for HTTP, instead of reading the state and the datasets here.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// File with the token to show to the server.
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// Authorities of the server's certificate (PEM), beside the system's.
    #[arg(long, value_name = "FILE", requires = "server")]
    ca: Option<PathBuf>,
    /// Where a dataset lies, as its server has it. Repeats.
    #[arg(long = "dataset", value_name = "NAME=URL", env = "FOREBAY_DATASET")]
    datasets: Vec<String>,
    /// The server's configuration file (TOML), for state and datasets.
    #[arg(long, value_name = "FILE", env = "FOREBAY_CONFIG")]
    config: Option<PathBuf>,
    /// The server's state.
    #[arg(long, value_name = "URL", env = "FOREBAY_STATE")]
    state: Option<String>,
    /// The server's cache directory, which holds its state if nothing else was said.
    #[arg(long, value_name = "DIR", env = "FOREBAY_CACHE_DIR")]
    cache_dir: Option<PathBuf>,
    /// Write the batch again, as the name says: .parquet, .json or .arrow (an IPC stream, with the bytes that were sent).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "list"])]
    output: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// List so many rows of each row group, at most.
    #[arg(long, value_name = "N")]
    listed_rows: Option<usize>,
}

/// Who makes the batch.
enum Source {
    Local(Box<Local>),
    Remote(Remote),
}

impl Explain {
    /// Prints what was asked for, or writes it to a file.
    ///
    /// # Errors
    /// When there is no such job or batch, or it can't be made any more; in words for a person.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let format = self.output.as_deref().map(Format::of_file).transpose().map_err(anyhow::Error::msg)?;
        let settings = self.settings()?;
        runtime(settings.io_threads, settings.file_threads)?.block_on(async {
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
        let listed = self.listed_rows.unwrap_or(DEFAULT_LISTED_ROWS);
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

    /// Prints what is said in JSON, as it is or as text.
    fn show<T: DeserializeOwned>(&self, json: Vec<u8>, as_text: impl Fn(&T) -> String) -> anyhow::Result<()> {
        let mut shown = json;
        if self.json {
            shown.push(b'\n');
        } else {
            let read = serde_json::from_slice(&shown).context("the server answers with something else")?;
            shown = as_text(&read).into_bytes();
        }
        Ok(std::io::stdout().write_all(&shown)?)
    }

    async fn write(&self, source: &Source, format: Format) -> anyhow::Result<()> {
        let bytes = match (source, self.ticket()?) {
            (Source::Local(local), Some(train)) => local.written(&train, self.at(), format).await?,
            (Source::Local(local), None) => {
                let found = local.job(self.job()).await?;
                local.written(&found.record.request, self.at(), format).await?
            }
            (Source::Remote(remote), Some(train)) => {
                remote.written(&Wanted::Request(&train), self.at(), format).await?
            }
            (Source::Remote(remote), None) => {
                remote.written(&Wanted::Job(self.job()), self.at(), format).await?
            }
        };
        let path = self.output.as_deref().unwrap_or(Path::new("batch"));
        std::fs::write(path, bytes).with_context(|| format!("can't write {}", path.display()))
    }

    fn at(&self) -> At {
        At { epoch: self.epoch, step: self.step, rank: self.rank }
    }

    fn job(&self) -> &str {
        self.job.as_deref().unwrap_or_default()
    }

    /// The request of the ticket, if one was given instead of a job.
    fn ticket(&self) -> anyhow::Result<Option<v1::Train>> {
        let Some(path) = &self.ticket else {
            if self.job.is_none() {
                bail!("which job? --job NAME, or --ticket FILE; --list shows those that are remembered");
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
        // Blanks before JSON are from whoever saved it; a protobuf of a command begins with none.
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
