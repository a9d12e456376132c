//! `forebay-load cold`: a first epoch, compared with its necessary parts: decoding the same columns with parquet-rs alone, and
//! a warm epoch. A second cold epoch follows after `drop-cache`, in memory that the server has already touched. The
//! difference to the first one is the cost of page faults.

use std::{
    fs::File,
    hint::black_box,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use anyhow::{Context, ensure};
use arrow_flight::{Action, FlightClient};
use clap::Args;
use forebay_proto::{Encoding, v1};
use futures::TryStreamExt;
use parquet::arrow::{
    ProjectionMask,
    arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder},
};
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    chart::{Bar, Chart},
    data::Dataset,
    interference::{Clock, Patience},
    machine::Machine,
    output::Output,
    process::Process,
    protocol::{RunRequest, RunResult, say},
    scenario::Scenario,
    server::{self, Server, Transport},
    source::Source,
    stats::median,
    table,
    usage::Usage,
};

/// Rows per decoded batch, as in the server.
const DECODE_ROWS: usize = 4096;

/// Flags of `forebay-load cold`.
#[derive(Debug, Args)]
pub(crate) struct Cold {
    #[command(flatten)]
    source: Source,
    /// Turns. In each, the decoder runs once, and a new server streams one cold and one warm epoch.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    output: Output,
}

/// Wall and CPU time of one activity.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Cost {
    seconds: f64,
    cpu_seconds: f64,
    first_batch_seconds: f64,
}

/// Measurements of one turn.
#[derive(Debug, Clone, Copy, Serialize)]
struct Turn {
    alone: Cost,
    /// parquet-rs alone, for the rows of one window.
    alone_window: Cost,
    cold: Cost,
    warm: Cost,
    /// A second cold epoch, after `drop-cache`.
    again: Cost,
    foreign_share: f64,
}

impl Cold {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.load()?;
        let machine = Machine::this();
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            eprintln!("round {round} of {}", self.rounds);
            let one = || self.turn(&scenario, &data);
            turns.push(self.patience.undisturbed(|turn: &Turn| turn.foreign_share, one)?);
        }
        println!(
            "{}: {}\n{machine}\n{} rows; {} turns, medians\n",
            scenario.name,
            scenario.about,
            data.sizes.rows,
            turns.len()
        );
        report(&turns, machine.cores as f64);
        let chart = chart(&scenario, &machine, &turns);
        self.output.write("cold", &machine, &json!({ "scenario": scenario, "turns": turns }), &chart)
    }

    fn turn(&self, scenario: &Scenario, data: &Dataset) -> anyhow::Result<Turn> {
        let clock = Clock::now()?;
        let server = Server::start(&scenario.name, &data.path, Transport::Tcp)?;
        let train = scenario.train(0, 1);
        let window_rows = Runtime::new()?.block_on(async {
            let rows = server::opened(server.url(), &train).await?;
            ensure!(rows == data.sizes.rows, "the server has {rows} rows of {}", data.sizes.rows);
            let client = forebay_client::Connection::open(server.url(), std::sync::Arc::default()).await?;
            anyhow::Ok(client.plan(&train).await?.summary.window_rows)
        })?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["consume", "--client", "forebay", "--url", server.url()]);
        let mut consumer = Process::spawn("consume", command)?;
        consumer.ready()?;
        let used =
            |consumer: &Process| anyhow::Ok(server.usage()?.cpu_seconds + consumer.usage()?.cpu_seconds);
        let mut epoch = |epoch: u64| -> anyhow::Result<Cost> {
            let command = v1::Command::from(scenario.train(epoch, 1));
            let ticket = String::from_utf8(Encoding::Json.encode(&command))?;
            let before = used(&consumer)?;
            let RunResult { seconds, first_batch_seconds, rows, .. } =
                consumer.run(&RunRequest { ticket, compute_ms: None })?;
            ensure!(rows == data.sizes.rows, "received {rows} rows of {}", data.sizes.rows);
            Ok(Cost { seconds, cpu_seconds: used(&consumer)? - before, first_batch_seconds })
        };
        let (cold, warm) = (epoch(0)?, epoch(1)?);
        Runtime::new()?.block_on(drop_cache(server.url()))?;
        let again = epoch(0)?;
        let own = used(&consumer)?;
        drop((consumer, server));
        let alone = self.decode(None)?;
        let alone_window = self.decode(window_rows)?;
        let own = own + alone.cpu_seconds + alone_window.cpu_seconds;
        Ok(Turn { alone, alone_window, cold, warm, again, foreign_share: clock.foreign_share_since(own)? })
    }

    /// Runs the decoder in its own process.
    fn decode(&self, rows: Option<u64>) -> anyhow::Result<Cost> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["decode", "--scenario", &self.source.scenario]);
        if let Some(folder) = &self.source.data {
            command.arg("--data").arg(folder);
        }
        if let Some(rows) = rows {
            command.args(["--rows", &rows.to_string()]);
        }
        let mut process = Process::spawn("decode", command)?;
        let done = process.ready()?;
        let seconds = |name: &str| done[name].as_f64().with_context(|| format!("decode printed no {name}"));
        let (seconds, cpu_seconds) = (seconds("seconds")?, seconds("cpu_seconds")?);
        Ok(Cost { seconds, cpu_seconds, first_batch_seconds: seconds })
    }
}

/// Empties both cache tiers of the server at `url`.
async fn drop_cache(url: &str) -> anyhow::Result<()> {
    let channel = tonic::transport::Endpoint::from_shared(url.to_owned())?.connect().await?;
    let action = Action { r#type: "drop-cache".into(), body: b"{}".as_slice().into() };
    let answers = FlightClient::new(channel).do_action(action).await?;
    answers.try_collect::<Vec<_>>().await?;
    Ok(())
}

/// A name, and the cost of a turn that it denotes.
type NamedCost = (&'static str, fn(&Turn) -> Cost);

const COSTS: [NamedCost; 5] = [
    ("parquet-rs alone", |turn| turn.alone),
    ("parquet-rs alone, one window", |turn| turn.alone_window),
    ("cold epoch", |turn| turn.cold),
    ("warm epoch", |turn| turn.warm),
    ("cold again, after drop-cache", |turn| turn.again),
];

fn chart(scenario: &Scenario, machine: &Machine, turns: &[Turn]) -> Chart {
    let bar = |(name, cost): (&str, fn(&Turn) -> Cost)| {
        Bar::of(
            name,
            turns.iter().map(|turn| cost(turn).seconds),
            name.contains("epoch") || name.contains("again"),
        )
    };
    let bars = COSTS.into_iter().filter_map(bar).collect();
    Chart::bars(&format!("Cold epochs: {}", scenario.name), machine, "seconds", bars)
}

fn report(turns: &[Turn], cores: f64) {
    let middle = |of: fn(&Turn) -> f64| median(turns.iter().map(of));
    println!("{:<28} {:>9} {:>9} {:>16}", "", "wall, s", "CPU, s", "first batch, s");
    for (name, cost) in COSTS {
        let of = |of: fn(Cost) -> f64| median(turns.iter().map(|turn| of(cost(turn))));
        let (wall, cpu) = (of(|cost| cost.seconds), of(|cost| cost.cpu_seconds));
        println!("{name:<28} {wall:>9.3} {cpu:>9.2} {:>16.3}", of(|cost| cost.first_batch_seconds));
    }
    let ratio = middle(|turn| turn.cold.cpu_seconds / (turn.alone.cpu_seconds + turn.warm.cpu_seconds));
    println!("\ncold CPU / (parquet-rs alone + warm)          {ratio:.2}");
    let ratio = middle(|turn| turn.again.cpu_seconds / (turn.alone.cpu_seconds + turn.warm.cpu_seconds));
    println!("cold again, CPU / (parquet-rs alone + warm)   {ratio:.2}");
    let busy = middle(|turn| turn.cold.cpu_seconds / turn.cold.seconds) / cores;
    println!("cores busy during the cold epoch              {:.0}%", busy * 100.0);
    let first = middle(|turn| turn.cold.first_batch_seconds / turn.alone_window.seconds);
    println!("first batch / parquet-rs alone, one window    {first:.2}");
    let first = middle(|turn| turn.again.first_batch_seconds / turn.alone_window.seconds);
    println!("cold again, first batch / one window         {first:.2}");
    println!(
        "CPU share of other processes                      {:.1}%",
        middle(|turn| turn.foreign_share) * 100.0
    );
}

/// Flags of `forebay-load decode`.
#[derive(Debug, Args)]
pub(crate) struct Decode {
    #[command(flatten)]
    source: Source,
    /// Number of rows after which decoding stops [default: all].
    #[arg(long)]
    rows: Option<u64>,
}

impl Decode {
    /// Decodes the columns of the scenario with one thread per core and prints the time.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.load()?;
        let mut groups: Vec<(PathBuf, ArrowReaderMetadata, usize)> = Vec::new();
        let mut rows = 0;
        'files: for file in table::files(&data.path)? {
            let footer = ArrowReaderMetadata::load(&File::open(&file)?, ArrowReaderOptions::default())?;
            for (group, metadata) in footer.metadata().row_groups().iter().enumerate() {
                if self.rows.is_some_and(|limit| rows >= limit) {
                    break 'files;
                }
                rows += metadata.num_rows() as u64;
                groups.push((file.clone(), footer.clone(), group));
            }
        }
        let (before, started, next) = (Usage::own()?, Instant::now(), AtomicUsize::new(0));
        let decode = || -> anyhow::Result<u64> {
            let mut rows = 0;
            while let Some((file, footer, group)) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                let builder =
                    ParquetRecordBatchReaderBuilder::new_with_metadata(File::open(file)?, footer.clone());
                let all: Vec<String> =
                    builder.schema().fields().iter().map(|field| field.name().clone()).collect();
                let columns = table::columns(&scenario.request, &all)?;
                let mask =
                    ProjectionMask::columns(builder.parquet_schema(), columns.iter().map(String::as_str));
                let reader = builder.with_projection(mask).with_row_groups(vec![*group]);
                for batch in reader.with_batch_size(DECODE_ROWS).build()? {
                    rows += black_box(batch?).num_rows() as u64;
                }
            }
            Ok(rows)
        };
        let threads = std::thread::available_parallelism()?.get();
        let decoded = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(decode)).collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).sum::<anyhow::Result<u64>>()
        })?;
        ensure!(decoded == rows, "decoded {decoded} rows of {rows}");
        let seconds = started.elapsed().as_secs_f64();
        let cpu_seconds = Usage::own()?.cpu_seconds - before.cpu_seconds;
        say(&json!({ "seconds": seconds, "cpu_seconds": cpu_seconds, "rows": rows }))
    }
}
