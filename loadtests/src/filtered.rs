//! `forebay-load filtered`: a filter on 30 of 400 daily partitions, compared with a dataset of these 30 days, both cold.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};
use clap::Args;
use forebay_proto::{Encoding, v1};
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    chart::{Bar, Chart},
    interference::{Clock, Patience},
    machine::Machine,
    output::Output,
    process::Process,
    protocol::{RunRequest, RunResult},
    scenario::Scenario,
    server::{self, Server, Transport},
    source::Source,
    stats::median,
    table,
};

const DAYS: usize = 400;
/// Days that the filter selects.
const SELECTED: std::ops::Range<usize> = 120..150;

/// Flags of `forebay-load filtered`.
#[derive(Debug, Args)]
pub(crate) struct Filtered {
    /// Turns. In each, a new server streams each dataset.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Serialize)]
struct Turn {
    filtered: RunResult,
    alone: RunResult,
    foreign_share: f64,
}

impl Filtered {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let source = Source::built_in("filtered");
        let (scenario, data) = source.load()?;
        let folder = tempfile::tempdir_in(data.path.parent().context("the data have no parent folder")?)?;
        let (all, selected) = (folder.path().join("all"), folder.path().join("selected"));
        let files = table::files(&data.path)?;
        let day = files.first().context("the dataset has no files")?;
        for number in 0..DAYS {
            link(day, &all, number)?;
            if SELECTED.contains(&number) {
                link(day, &selected, number)?;
            }
        }
        let expected = data.sizes.rows * SELECTED.len() as u64;
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            eprintln!("round {round} of {}", self.rounds);
            let one = || turn(&scenario, &all, &selected, expected, round % 2 == 0);
            turns.push(self.patience.undisturbed(|turn: &Turn| turn.foreign_share, one)?);
        }
        let machine = Machine::this();
        println!(
            "{machine}\n{expected} rows of {} days of {DAYS}; {} turns, medians\n",
            SELECTED.len(),
            turns.len()
        );
        report(&turns);
        let chart = chart(&machine, &turns);
        self.output.write("filtered", &machine, &json!({ "scenario": scenario, "turns": turns }), &chart)
    }
}

/// Links the file of a day into its partition.
fn link(file: &Path, folder: &Path, day: usize) -> anyhow::Result<()> {
    let partition = folder.join(format!("day={day:03}"));
    fs::create_dir_all(&partition)?;
    let place = partition.join("part-0.parquet");
    fs::hard_link(file, &place).with_context(|| format!("can't link {}", place.display()))
}

fn turn(
    scenario: &Scenario,
    all: &Path,
    selected: &Path,
    rows: u64,
    alone_first: bool,
) -> anyhow::Result<Turn> {
    let clock = Clock::now()?;
    let columns = (0..12).map(|column| format!("f{column:03}")).collect();
    let alone = v1::Train { columns, ..scenario.train(0, 1) };
    let filter = format!("day BETWEEN {} AND {}", SELECTED.start, SELECTED.end - 1);
    let filtered = v1::Train { filter, ..alone.clone() };
    let mut own = 0.0;
    let mut stream = |path: &Path, train: &v1::Train| {
        let server = Server::start(&scenario.name, path, Transport::Tcp)?;
        // Lists the files and reads the footers, without the filter.
        Runtime::new()?.block_on(server::opened(server.url(), &alone))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["consume", "--client", "forebay", "--url", server.url()]);
        let mut consumer = Process::spawn("consume", command)?;
        consumer.ready()?;
        let ticket = Encoding::Json.encode(&v1::Command::from(train.clone()));
        let result = consumer.run(&RunRequest { ticket: String::from_utf8(ticket)?, compute_ms: None })?;
        ensure!(result.rows == rows, "received {} rows, expected {rows}", result.rows);
        own += server.usage()?.cpu_seconds + consumer.usage()?.cpu_seconds;
        anyhow::Ok(result)
    };
    let (filtered, alone) = if alone_first {
        let alone = stream(selected, &alone)?;
        (stream(all, &filtered)?, alone)
    } else {
        (stream(all, &filtered)?, stream(selected, &alone)?)
    };
    Ok(Turn { filtered, alone, foreign_share: clock.foreign_share_since(own)? })
}

/// A name, and the result of a turn that it denotes.
type NamedResult = (&'static str, fn(&Turn) -> &RunResult);

const DATASETS: [NamedResult; 2] =
    [("filter on all days", |turn| &turn.filtered), ("selected days alone", |turn| &turn.alone)];

fn chart(machine: &Machine, turns: &[Turn]) -> Chart {
    let bar = |(name, of): (&str, fn(&Turn) -> &RunResult)| {
        Bar::of(name, turns.iter().map(|turn| of(turn).seconds), true)
    };
    Chart::bars("Filtered epoch, cold", machine, "seconds", DATASETS.into_iter().filter_map(bar).collect())
}

fn report(turns: &[Turn]) {
    println!("{:<22} {:>15} {:>12}", "", "first batch, s", "epoch, s");
    for (name, of) in DATASETS {
        let first = median(turns.iter().map(|turn| of(turn).first_batch_seconds));
        println!("{name:<22} {first:>15.3} {:>12.3}", median(turns.iter().map(|turn| of(turn).seconds)));
    }
    let first =
        median(turns.iter().map(|turn| turn.filtered.first_batch_seconds / turn.alone.first_batch_seconds));
    let whole = median(turns.iter().map(|turn| turn.filtered.seconds / turn.alone.seconds));
    println!("{:<22} {first:>15.2} {whole:>12.2}", "ratio");
    let foreign_share = median(turns.iter().map(|turn| turn.foreign_share)) * 100.0;
    println!("\nCPU share of other processes               {foreign_share:.1}%");
}
