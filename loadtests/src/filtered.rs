//! `forebay-load filtered`: 30 of 400 daily partitions by a filter, beside a dataset of those 30 alone, both cold.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};
use clap::Args;
use forebay_proto::{Encoding, v1};
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    Source,
    ask::{Ask, Passed},
    foreign::{Clock, Patience},
    machine::Machine,
    output::Json,
    process::Process,
    scenario::Scenario,
    server::{self, Server, Transport},
    stats::median,
    table,
};

const DAYS: usize = 400;
/// Those that are wanted, from one day on.
const WANTED: std::ops::Range<usize> = 120..150;

/// Flags of `forebay-load filtered`.
#[derive(Debug, Args)]
pub(crate) struct Filtered {
    /// Turns; in each a fresh server streams either dataset.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Clone, Serialize)]
struct Turn {
    filtered: Passed,
    alone: Passed,
    others: f64,
}

impl Filtered {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let source = Source { scenario: "filtered".into(), data: None };
        let (scenario, data) = source.prepared()?;
        let folder = tempfile::tempdir_in(data.path.parent().context("the data lie in no folder")?)?;
        let (all, wanted) = (folder.path().join("all"), folder.path().join("wanted"));
        let files = table::files(&data.path)?;
        let day = files.first().context("the data have no file")?;
        for number in 0..DAYS {
            link(day, &all, number)?;
            if WANTED.contains(&number) {
                link(day, &wanted, number)?;
            }
        }
        let expected = data.sizes.rows * WANTED.len() as u64;
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            eprintln!("round {round} of {}", self.rounds);
            let one = || turn(&scenario, &all, &wanted, expected, round % 2 == 0);
            turns.push(self.patience.undisturbed(|turn: &Turn| turn.others, one)?);
        }
        let machine = Machine::this();
        println!(
            "{machine}\n{expected} rows of {} days of {DAYS}; {} turns, medians\n",
            WANTED.len(),
            turns.len()
        );
        report(&turns);
        self.json.write(&json!({ "scenario": scenario, "machine": machine, "turns": turns }))
    }
}

/// The file of a day, as its partition.
fn link(file: &Path, folder: &Path, day: usize) -> anyhow::Result<()> {
    let partition = folder.join(format!("day={day:03}"));
    fs::create_dir_all(&partition)?;
    let place = partition.join("part-0.parquet");
    fs::hard_link(file, &place).with_context(|| format!("can't link {}", place.display()))
}

fn turn(
    scenario: &Scenario,
    all: &Path,
    wanted: &Path,
    rows: u64,
    alone_first: bool,
) -> anyhow::Result<Turn> {
    let clock = Clock::now()?;
    let columns = (0..12).map(|column| format!("f{column:03}")).collect();
    let alone = v1::Train { columns, ..scenario.train(0, 1) };
    let filter = format!("day BETWEEN {} AND {}", WANTED.start, WANTED.end - 1);
    let filtered = v1::Train { filter, ..alone.clone() };
    let mut own = 0.0;
    let mut stream = |path: &Path, train: &v1::Train| {
        let server = Server::start(&scenario.name, path, Transport::Tcp)?;
        // Files are listed and footers read; the filter is unknown yet.
        Runtime::new()?.block_on(server::opened(server.url(), &alone))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["consume", "--client", "forebay", "--url", server.url()]);
        let mut consumer = Process::spawn("consume", command)?;
        consumer.ready()?;
        let ticket = Encoding::Json.encode(&v1::Command::from(train.clone()));
        let passed = consumer.ask(&Ask { ticket: String::from_utf8(ticket)?, compute_ms: None })?;
        ensure!(passed.rows == rows, "{} rows came, expected {rows}", passed.rows);
        own += server.usage()?.cpu_seconds + consumer.usage()?.cpu_seconds;
        anyhow::Ok(passed)
    };
    let (filtered, alone) = if alone_first {
        let alone = stream(wanted, &alone)?;
        (stream(all, &filtered)?, alone)
    } else {
        (stream(all, &filtered)?, stream(wanted, &alone)?)
    };
    Ok(Turn { filtered, alone, others: clock.others_since(own)? })
}

fn report(turns: &[Turn]) {
    println!("{:<22} {:>15} {:>12}", "", "first batch, s", "epoch, s");
    type Of = fn(&Turn) -> &Passed;
    let ways: [(&str, Of); 2] =
        [("filtered", |turn| &turn.filtered), ("those days alone", |turn| &turn.alone)];
    for (name, of) in ways {
        let first = median(turns.iter().map(|turn| of(turn).first_batch_seconds));
        println!("{name:<22} {first:>15.3} {:>12.3}", median(turns.iter().map(|turn| of(turn).seconds)));
    }
    let first =
        median(turns.iter().map(|turn| turn.filtered.first_batch_seconds / turn.alone.first_batch_seconds));
    let whole = median(turns.iter().map(|turn| turn.filtered.seconds / turn.alone.seconds));
    println!("{:<22} {first:>15.2} {whole:>12.2}", "ratio");
    let others = median(turns.iter().map(|turn| turn.others)) * 100.0;
    println!("\nshare of the machine that others had   {others:.1} %");
}
