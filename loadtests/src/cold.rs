//! `forebay-load cold`: a first epoch, beside what it can't do without: decoding the same columns with the same
//! cores (parquet-rs alone, in a process of its own), and a warm epoch. Once the caches were dropped a second cold epoch
//! follows, in memory that the server has touched before: what the first one costs beyond it is the kernel's.

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
    Source,
    ask::{Ask, Passed},
    consume::say,
    data::Prepared,
    foreign::{Clock, Patience},
    machine::Machine,
    output::Json,
    process::Process,
    scenario::Scenario,
    server::{self, Server, Transport},
    stats::median,
    table,
    usage::Usage,
};

/// Rows that are decoded at a time, as the server does.
const DECODE_ROWS: usize = 4096;

/// Flags of `forebay-load cold`.
#[derive(Debug, Args)]
pub(crate) struct Cold {
    #[command(flatten)]
    source: Source,
    /// Turns; in each the decoder runs once, and a fresh server streams one cold and one warm epoch.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    json: Json,
}

/// Wall and CPU time of one thing that was done.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Cost {
    seconds: f64,
    cpu_seconds: f64,
    first_batch_seconds: f64,
}

/// One turn.
#[derive(Debug, Clone, Copy, Serialize)]
struct Turn {
    alone: Cost,
    /// The rows of one window, decoded alone.
    alone_window: Cost,
    cold: Cost,
    warm: Cost,
    /// A cold epoch after the caches were dropped.
    again: Cost,
    others: f64,
}

impl Cold {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.prepared()?;
        let machine = Machine::this();
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            eprintln!("round {round} of {}", self.rounds);
            let one = || self.turn(&scenario, &data);
            turns.push(self.patience.undisturbed(|turn: &Turn| turn.others, one)?);
        }
        println!(
            "{}: {}\n{machine}\n{} rows; {} turns, medians\n",
            scenario.name,
            scenario.about,
            data.sizes.rows,
            turns.len()
        );
        report(&turns, machine.cores as f64);
        self.json.write(&json!({ "scenario": scenario, "machine": machine, "turns": turns }))
    }

    fn turn(&self, scenario: &Scenario, data: &Prepared) -> anyhow::Result<Turn> {
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
            let Passed { seconds, first_batch_seconds, rows, .. } =
                consumer.ask(&Ask { ticket, compute_ms: None })?;
            ensure!(rows == data.sizes.rows, "{rows} rows came of {}", data.sizes.rows);
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
        Ok(Turn { alone, alone_window, cold, warm, again, others: clock.others_since(own)? })
    }

    /// The decoder in a process of its own.
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
        let seconds = |name: &str| done[name].as_f64().with_context(|| format!("decode did not say {name}"));
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

fn report(turns: &[Turn], cores: f64) {
    let middle = |of: fn(&Turn) -> f64| median(turns.iter().map(of));
    println!("{:<28} {:>9} {:>9} {:>16}", "what", "wall, s", "CPU, s", "first batch, s");
    type Of = fn(&Turn) -> Cost;
    let costs: [(&str, Of); 5] = [
        ("parquet-rs alone", |turn| turn.alone),
        ("parquet-rs alone, a window", |turn| turn.alone_window),
        ("cold epoch", |turn| turn.cold),
        ("warm epoch", |turn| turn.warm),
        ("cold again, caches dropped", |turn| turn.again),
    ];
    for (name, cost) in costs {
        let of = |of: fn(Cost) -> f64| median(turns.iter().map(|turn| of(cost(turn))));
        let (wall, cpu) = (of(|cost| cost.seconds), of(|cost| cost.cpu_seconds));
        println!("{name:<28} {wall:>9.3} {cpu:>9.2} {:>16.3}", of(|cost| cost.first_batch_seconds));
    }
    let ratio = middle(|turn| turn.cold.cpu_seconds / (turn.alone.cpu_seconds + turn.warm.cpu_seconds));
    println!("\ncold CPU / (parquet-rs alone + warm)          {ratio:.2}");
    let ratio = middle(|turn| turn.again.cpu_seconds / (turn.alone.cpu_seconds + turn.warm.cpu_seconds));
    println!("cold again, CPU / (parquet-rs alone + warm)   {ratio:.2}");
    let busy = middle(|turn| turn.cold.cpu_seconds / turn.cold.seconds) / cores;
    println!("cores busy during the cold epoch              {:.0} %", busy * 100.0);
    let first = middle(|turn| turn.cold.first_batch_seconds / turn.alone_window.seconds);
    println!("first batch / parquet-rs alone, a window      {first:.2}");
    let first = middle(|turn| turn.again.first_batch_seconds / turn.alone_window.seconds);
    println!("cold again, first batch / ... a window        {first:.2}");
    println!("share of the machine that others had          {:.1} %", middle(|turn| turn.others) * 100.0);
}

/// Flags of `forebay-load decode`.
#[derive(Debug, Args)]
pub(crate) struct Decode {
    #[command(flatten)]
    source: Source,
    /// Row groups are decoded until they have so many rows; all if it is not given.
    #[arg(long)]
    rows: Option<u64>,
}

impl Decode {
    /// Decodes the columns of the scenario with a thread a core and says what that took.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.prepared()?;
        let mut groups: Vec<(PathBuf, ArrowReaderMetadata, usize)> = Vec::new();
        let mut rows = 0;
        'files: for file in table::files(&data.path)? {
            let footer = ArrowReaderMetadata::load(&File::open(&file)?, ArrowReaderOptions::default())?;
            for (group, metadata) in footer.metadata().row_groups().iter().enumerate() {
                if self.rows.is_some_and(|wanted| rows >= wanted) {
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
        ensure!(decoded == rows, "{decoded} rows were decoded of {rows}");
        let seconds = started.elapsed().as_secs_f64();
        let cpu_seconds = Usage::own()?.cpu_seconds - before.cpu_seconds;
        say(&json!({ "seconds": seconds, "cpu_seconds": cpu_seconds, "rows": rows }))
    }
}
