//! `forebay-load consume`: a consumer process (see [`crate::protocol`]).

use std::{
    io::BufRead,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use forebay_client::Connection;
use forebay_proto::{Encoding, v1};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    peers::stock,
    protocol::{RunRequest, RunResult, say},
    receive::receive,
};

/// Flags of `forebay-load consume`.
#[derive(Debug, Args)]
pub(crate) struct Consume {
    /// Client library.
    #[arg(long, value_enum)]
    client: Kind,
    /// URL of the server.
    #[arg(long)]
    url: String,
}

/// A Flight client in Rust.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Kind {
    /// forebay-client.
    Forebay,
    /// arrow-flight.
    Stock,
}

impl Consume {
    /// Answers requests until standard input ends.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let runtime = Runtime::new()?;
        let mut client = runtime.block_on(Client::connect(self.client, &self.url))?;
        say(&json!({ "ready": true }))?;
        for line in std::io::stdin().lock().lines() {
            let request: RunRequest = serde_json::from_str(&line?)?;
            match runtime.block_on(client.run(&request)) {
                Ok(result) => say(&result)?,
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

    async fn run(&mut self, request: &RunRequest) -> anyhow::Result<RunResult> {
        let compute = request.compute_ms.map(|ms| Duration::from_secs_f64(ms / 1e3));
        let asked = Instant::now();
        match self {
            Self::Forebay(client) => {
                let mut batches = client.get(ticket(&request.ticket).into()).await?;
                receive(&mut batches, asked, compute).await
            }
            Self::Stock(client) => {
                let mut batches = client.get(&request.ticket).await?;
                receive(&mut batches, asked, compute).await
            }
        }
    }
}

/// Returns a JSON command in its Protobuf form, as Rust clients send it, and other tickets unchanged.
fn ticket(json: &str) -> Vec<u8> {
    match Encoding::Json.decode::<v1::Command>("Command", json.as_bytes()) {
        Ok(command) => Encoding::Protobuf.encode(&command),
        Err(_) => json.as_bytes().to_vec(),
    }
}
