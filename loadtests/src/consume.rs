//! `forebay-load consume`: a consumer in a process of its own, driven by lines (see [`crate::ask`]).

use std::{
    io::{BufRead, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use forebay_client::Connection;
use forebay_proto::{Encoding, v1};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    ask::{Ask, Passed},
    peers::stock,
    receive::receive,
};

/// Flags of `forebay-load consume`.
#[derive(Debug, Args)]
pub(crate) struct Consume {
    /// The client that receives.
    #[arg(long, value_enum)]
    client: Kind,
    /// Where the server listens.
    #[arg(long)]
    url: String,
}

/// A Flight client in Rust.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Kind {
    /// forebay-client.
    Forebay,
    /// arrow-flight's own.
    Stock,
}

impl Consume {
    /// Answers until its input ends.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let runtime = Runtime::new()?;
        let mut client = runtime.block_on(Client::connect(self.client, &self.url))?;
        say(&json!({ "ready": true }))?;
        for line in std::io::stdin().lock().lines() {
            let ask: Ask = serde_json::from_str(&line?)?;
            match runtime.block_on(client.one_run(&ask)) {
                Ok(passed) => say(&passed)?,
                Err(error) => say(&json!({ "error": format!("{error:#}") }))?,
            }
        }
        Ok(())
    }
}

enum Client {
    Forebay(Connection),
    Stock(Box<stock::Client>),
}

impl Client {
    async fn connect(kind: Kind, url: &str) -> anyhow::Result<Self> {
        Ok(match kind {
            Kind::Forebay => Self::Forebay(Connection::open(url, Arc::default()).await?),
            Kind::Stock => Self::Stock(Box::new(stock::Client::connect(url).await?)),
        })
    }

    async fn one_run(&mut self, ask: &Ask) -> anyhow::Result<Passed> {
        let compute = ask.compute_ms.map(|ms| Duration::from_secs_f64(ms / 1e3));
        let asked = Instant::now();
        match self {
            Self::Forebay(client) => {
                let mut batches = client.get(ticket(&ask.ticket).into()).await?;
                receive(&mut batches, asked, compute).await
            }
            Self::Stock(client) => {
                let mut batches = client.get(&ask.ticket).await?;
                receive(&mut batches, asked, compute).await
            }
        }
    }
}

/// A command is sent in its binary form, as trainers in Rust do; any other ticket as it is.
fn ticket(json: &str) -> Vec<u8> {
    match Encoding::Json.decode::<v1::Command>("Command", json.as_bytes()) {
        Ok(command) => Encoding::Protobuf.encode(&command),
        Err(_) => json.as_bytes().to_vec(),
    }
}

/// Prints one line at once.
pub(crate) fn say(line: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, line)?;
    writeln!(out).and_then(|()| out.flush()).context("nobody reads the answers")
}
