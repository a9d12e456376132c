//! Attacks on a server, each from a process of its own with low CPU priority.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use clap::{Args, ValueEnum};
use forebay_client::{Client, Config, Error, Token};
use forebay_proto::v1;
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
    task::JoinSet,
};
use tonic::Code;

use super::{
    calls::{get, keys},
    messages, unread, values,
};

/// Kind of an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Connections that send one byte.
    HalfOpen,
    /// Connections that send nothing.
    Idle,
    /// Connections that send a byte per second.
    Slow,
    /// Calls that are cancelled at once.
    RapidReset,
    /// Training streams that are not read.
    UnreadStreams,
    /// Answers to lookups that are not read.
    UnreadLookups,
    /// Answers to all kinds of gRPC calls that are not read.
    UnreadAnswers,
    /// Answers over HTTP that are not read.
    UnreadLists,
    /// Requests with hundreds of expressions.
    ExpensiveSql,
    /// Thousands of short jobs.
    Sessions,
    /// Requests for the list of jobs.
    JobsListing,
    /// A hundred streams that read as fast as they can.
    GreedyStreams,
    /// Small Arrow messages that would take much memory or time to decode.
    Messages,
    /// Uploads of sets of values that are large, wrong or never complete, and filters with large sets, of several tokens.
    Values,
}

/// Flags of `forebay-load attack`.
#[derive(Debug, Args)]
pub(crate) struct Attack {
    #[arg(long)]
    kind: Kind,
    /// HOST:PORT of gRPC.
    #[arg(long)]
    grpc: SocketAddr,
    /// HOST:PORT of HTTP.
    #[arg(long)]
    http: SocketAddr,
    /// Token of the attacker.
    #[arg(long)]
    token: String,
    /// Name of a dataset that serves lookups by `id`.
    #[arg(long)]
    dataset: String,
}

/// Number of connections of an attack with connections, per port: more than the server accepts in all.
const CONNECTIONS: usize = 1100;
/// Number of streams of an attack with streams.
const STREAMS: usize = 100;
/// Number of concurrent calls of an attack with calls.
const CALLS: usize = 16;
/// Time until a closed connection is opened again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Time until a failed call is repeated.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of expressions of a request with many of them.
const EXPRESSIONS: usize = 300;
/// Keys of a lookup whose answer is not read.
const UNREAD_KEYS: i64 = 20_000;

impl Attack {
    /// Attacks without end.
    ///
    /// # Errors
    /// A request of the attack is invalid, so that the server does nothing for it.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            match self.kind {
                Kind::HalfOpen => self.connect(&mut tasks, Some(b"P"), false),
                Kind::Idle => self.connect(&mut tasks, None, false),
                Kind::Slow => self.connect(&mut tasks, Some(b"G"), true),
                _ => {
                    let concurrent = match self.kind {
                        Kind::UnreadStreams | Kind::GreedyStreams => STREAMS,
                        Kind::UnreadLists => CALLS * unread::HTTP_CONNECTIONS,
                        _ => CALLS,
                    };
                    for number in 0..concurrent {
                        let call = self.call(number)?;
                        tasks.spawn(call);
                    }
                }
            }
            println!("{}", serde_json::json!({ "ready": true }));
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            Ok(())
        })
    }

    fn connect(&self, tasks: &mut JoinSet<anyhow::Result<()>>, byte: Option<&'static [u8]>, repeat: bool) {
        for address in [self.grpc, self.http] {
            for _ in 0..CONNECTIONS {
                tasks.spawn(async move {
                    loop {
                        // The server closes the connection. That is the expected end.
                        drop(occupy(address, byte, repeat).await);
                        tokio::time::sleep(RECONNECT_PAUSE).await;
                    }
                });
            }
        }
    }

    /// Repeats a call without end. Refusals are what the server should answer, so they only cause a pause. An invalid request is an error.
    fn call(
        &self,
        number: usize,
    ) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + Send + 'static> {
        let config = Config {
            token: Some(Token::new(self.token.as_str())),
            retry_deadline: Duration::from_secs(1),
            ..Config::default()
        };
        let client = Client::new([format!("http://{}", self.grpc)], config)?;
        let train = v1::Train {
            dataset: self.dataset.clone(),
            batch_size: 16_384,
            epochs: Some(1_000_000),
            job_name: "attack".into(),
            ..v1::Train::default()
        };
        let (kind, grpc, http, token) = (self.kind, self.grpc, self.http, self.token.clone());
        Ok(async move {
            for turn in 0.. {
                let train = train.clone();
                let seed = (turn * 1000 + number) as u64;
                let done: anyhow::Result<()> = match kind {
                    Kind::RapidReset => {
                        // Dropping the call after the shortest time sends RST_STREAM.
                        drop(tokio::time::timeout(Duration::from_micros(200), client.plan(&train)).await);
                        continue;
                    }
                    Kind::UnreadStreams => unread(&client, &train).await,
                    Kind::UnreadLookups => lookups(&client, &train.dataset).await,
                    Kind::UnreadAnswers => unread::answers(grpc, &token, &train).await,
                    Kind::UnreadLists => unread::lists(http, &token, &train).await,
                    Kind::ExpensiveSql => sql(&client, train, seed).await,
                    Kind::Sessions => short_job(&client, train, seed).await,
                    Kind::Messages => messages::send(grpc, &token, &train.dataset, turn + number).await,
                    Kind::Values => values::attack(grpc, &token, train, seed).await,
                    Kind::JobsListing => list_jobs(http, &token).await,
                    _ => greedy(&client, &v1::Train { seed, ..train }).await,
                };
                if let Err(error) = done {
                    if is_invalid(&error) {
                        return Err(error.context("the attack is not possible"));
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Ok(())
        })
    }
}

/// True if the server has rejected a request that it can never answer.
fn is_invalid(error: &anyhow::Error) -> bool {
    let Some(error) = error.downcast_ref::<Error>() else { return false };
    let code = error.code();
    matches!(error, Error::Request(_))
        || code
            .is_some_and(|code| matches!(code, Code::InvalidArgument | Code::NotFound | Code::Unimplemented))
}

/// Connects, sends `byte` once or once per second, and waits until the server closes the connection.
async fn occupy(address: SocketAddr, byte: Option<&[u8]>, repeat: bool) -> std::io::Result<()> {
    // Connections count per host. The good clients have another address.
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0)))?;
    let mut stream = socket.connect(address).await?;
    let mut answer = [0; 64];
    loop {
        if let Some(byte) = byte {
            stream.write_all(byte).await?;
        }
        if repeat {
            let read = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut answer)).await;
            if matches!(read, Ok(Ok(0) | Err(_))) {
                return Ok(());
            }
            continue;
        }
        while stream.read(&mut answer).await? > 0 {}
        return Ok(());
    }
}

async fn unread(client: &Client, train: &v1::Train) -> anyhow::Result<()> {
    let mut training = client.train(train).await?;
    training.next().await.context("the stream has no batch")??;
    tokio::time::sleep(Duration::from_secs(600)).await;
    Ok(())
}

async fn lookups(client: &Client, dataset: &str) -> anyhow::Result<()> {
    let lookup = v1::Lookup { dataset: dataset.to_owned(), ..v1::Lookup::default() };
    let lookups = client.lookup(&lookup).await?;
    let keys = keys(0..UNREAD_KEYS)?;
    let mut answers = Vec::new();
    for _ in 0..64 {
        let mut answer = Box::pin(lookups.get(&keys));
        // Polled once, so that the request is sent.
        drop(futures::poll!(&mut answer));
        answers.push(answer);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok(())
}

async fn sql(client: &Client, train: v1::Train, seed: u64) -> anyhow::Result<()> {
    let select = (0..EXPRESSIONS)
        .map(|index| {
            format!("sin(f000 * {index}.5 + {seed}) * cos(f001) + sqrt(abs(f002 * {index})) AS e{index}")
        })
        .collect();
    let columns = (0..EXPRESSIONS).map(|index| format!("e{index}")).collect();
    let train = v1::Train { select, columns, batch_size: 64, steps: 1, ..train };
    let mut training = client.train(&train).await?;
    training.next().await.context("the stream has no batch")??;
    Ok(())
}

async fn short_job(client: &Client, train: v1::Train, seed: u64) -> anyhow::Result<()> {
    let job_name = format!("attack-{seed}");
    let train = v1::Train { seed, job_name, steps: 1, batch_size: 16, ..train };
    let mut training = client.train(&train).await?;
    while let Some(batch) = training.next().await {
        batch?;
    }
    Ok(())
}

async fn list_jobs(address: SocketAddr, token: &str) -> anyhow::Result<()> {
    let answer = get(address, "/api/v1/jobs", Some(token)).await?;
    anyhow::ensure!(answer == 200, "status {answer}");
    Ok(())
}

async fn greedy(client: &Client, train: &v1::Train) -> anyhow::Result<()> {
    let mut training = client.train(train).await?;
    while let Some(batch) = training.next().await {
        batch?;
    }
    Ok(())
}
