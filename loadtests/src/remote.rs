//! `forebay-load remote`: epochs from an S3 server, with and without additional latency.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use clap::Args;
use forebay_client::{Client, Config};
use serde::Serialize;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Runtime,
    sync::mpsc,
};

use crate::{
    chart::{Bar, Chart},
    data::Dataset,
    machine::Machine,
    output::Output,
    receive::receive_rank,
    scenario::Scenario,
    server::{self, Server, Transport},
    source::Source,
    stats::median,
    store::{self, StoreServer},
};

/// Flags of `forebay-load remote`.
#[derive(Debug, Args)]
pub(crate) struct Remote {
    #[command(flatten)]
    source: Source,
    /// Turns per place.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Additional latency of a round trip to the store.
    #[arg(long, default_value = "20ms", value_parser = humantime::parse_duration)]
    latency: Duration,
    #[command(flatten)]
    store: StoreServer,
    #[command(flatten)]
    output: Output,
}

/// Place of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    Local,
    Store,
    DelayedStore,
}

/// Measurements of one turn, in seconds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Turn {
    place: Place,
    /// Time to open the dataset: list the files and read the footers.
    open: f64,
    cold: f64,
    warm: f64,
}

impl Remote {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.load()?;
        let root = data.path.parent().context("the data have no parent folder")?;
        let bucket = data.path.file_name().and_then(|name| name.to_str()).context("the data have no name")?;
        let runtime = Runtime::new()?;
        let (_store, near) = self.store.start(root)?;
        let far = runtime.block_on(delayed(near, self.latency / 2))?;
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            for (_, place) in PLACES {
                eprintln!("round {round} of {}: {place:?}", self.rounds);
                let server = match place {
                    Place::Local => Server::start(&scenario.name, &data.path, Transport::Tcp)?,
                    Place::Store => start(&scenario, bucket, near)?,
                    Place::DelayedStore => start(&scenario, bucket, far)?,
                };
                turns.push(runtime.block_on(turn(place, &scenario, &data, &server))?);
            }
        }
        let machine = Machine::this();
        println!(
            "{}: {}\n{machine}\n{} rows; delay {:?}; medians of {} turns\n",
            scenario.name, scenario.about, data.sizes.rows, self.latency, self.rounds
        );
        report(&turns, data.sizes.rows as f64);
        let rates = PLACES.into_iter().flat_map(|place| STATES.map(|state| (place, state)));
        let bars = rates.map(|((name, place), (state, seconds))| {
            let turns = turns.iter().filter(|turn| turn.place == place);
            let rates = turns.map(|turn| data.sizes.rows as f64 / seconds(turn) / 1e6);
            Bar::of(format!("{name}, {state}"), rates, true)
        });
        let title = format!("Remote storage: {}", scenario.name);
        let chart = Chart::bars(&title, &machine, "M rows/s", bars);
        let measurements = json!({ "scenario": scenario, "latency": self.latency, "turns": turns });
        self.output.write("remote", &machine, &measurements, &chart)
    }
}

/// A name, and the figure of a turn that it denotes.
type NamedFigure = (&'static str, fn(&Turn) -> f64);

const STATES: [NamedFigure; 2] = [("cold", |turn| turn.cold), ("warm", |turn| turn.warm)];

const PLACES: [(&str, Place); 3] =
    [("local files", Place::Local), ("store", Place::Store), ("delayed store", Place::DelayedStore)];

fn report(turns: &[Turn], rows: f64) {
    let middle =
        |place: Place, of: fn(&Turn) -> f64| median(turns.iter().filter(|turn| turn.place == place).map(of));
    println!("{:<16} {:>10} {:>16} {:>16}", "place", "open, s", "cold, M rows/s", "warm, M rows/s");
    for (name, place) in PLACES {
        let rate = |of| rows / middle(place, of) / 1e6;
        let open = middle(place, |turn| turn.open);
        println!("{name:<16} {open:>10.3} {:>16.2} {:>16.2}", rate(|turn| turn.cold), rate(|turn| turn.warm));
    }
    let ratio = |of: fn(&Turn) -> f64, of_place, to_place| middle(to_place, of) / middle(of_place, of);
    println!(
        "\ncold, delayed store / store        {:.2}",
        ratio(|turn| turn.cold, Place::DelayedStore, Place::Store)
    );
    println!(
        "warm, delayed store / local files  {:.2}",
        ratio(|turn| turn.warm, Place::DelayedStore, Place::Local)
    );
}

fn start(scenario: &Scenario, bucket: &str, address: SocketAddr) -> anyhow::Result<Server> {
    let variables = store::variables(address);
    Server::start_with(&scenario.name, &format!("s3://{bucket}"), Transport::Tcp, &[], &variables)
}

async fn turn(place: Place, scenario: &Scenario, data: &Dataset, server: &Server) -> anyhow::Result<Turn> {
    let started = Instant::now();
    let rows = server::opened(server.url(), &scenario.train(0, 1)).await?.rows;
    ensure!(rows == data.sizes.rows, "the server has {rows} rows of {}", data.sizes.rows);
    let open = started.elapsed().as_secs_f64();
    let client = Client::new([server.url()], Config::default())?;
    let mut seconds = [0.0; 2];
    for (epoch, seconds) in seconds.iter_mut().enumerate() {
        let result = receive_rank(&client, &scenario.train(epoch as u64, 1), None).await?;
        ensure!(result.rows == rows, "received {} rows of {rows}", result.rows);
        *seconds = result.seconds;
    }
    Ok(Turn { place, open, cold: seconds[0], warm: seconds[1] })
}

/// Starts a proxy for `target` that delays every byte by `delay` in each direction. Returns its address.
async fn delayed(target: SocketAddr, delay: Duration) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let far = TcpStream::connect(target).await?;
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::try_join!(pump(near_in, far_out, delay), pump(far_in, near_out, delay)).map(drop)
            });
        }
    });
    Ok(address)
}

/// Forwards bytes after `delay`. The queue bounds the bytes in flight.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) -> io::Result<()> {
    const IN_FLIGHT: usize = 4096;
    const CHUNK_BYTES: usize = 64 << 10;
    let (sender, mut queue) = mpsc::channel::<(tokio::time::Instant, Arc<[u8]>)>(IN_FLIGHT);
    let read = async move {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = from.read(&mut chunk).await?;
            let due = tokio::time::Instant::now() + delay;
            if length == 0 || sender.send((due, chunk[..length].into())).await.is_err() {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((due, chunk)) = queue.recv().await {
            tokio::time::sleep_until(due).await;
            to.write_all(&chunk).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(drop)
}
