//! `forebay-load filtered`: a filter on 30 of 400 daily partitions, compared with a dataset of these 30 days, both cold.

use std::{fs, path::Path};

use anyhow::Context;
use clap::Args;
use forebay_proto::v1;
use serde::Serialize;
use serde_json::json;

use crate::{
    chart::{Bar, Chart},
    interference::Patience,
    machine::Machine,
    output::Output,
    protocol::RunResult,
    scenario::Scenario,
    session::Session,
    source::Source,
    table,
    turns::Turns,
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

#[derive(Debug, Serialize)]
struct Turn {
    filtered: RunResult,
    alone: RunResult,
}

impl Filtered {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = Source::built_in("filtered").load()?;
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
        let rows = data.sizes.rows * SELECTED.len() as u64;
        let one = |round: usize| turn(&scenario, &all, &selected, rows, round.is_multiple_of(2));
        let turns = Turns::measure(self.rounds, &self.patience, one)?;
        let machine = Machine::this();
        println!(
            "{machine}\n{rows} rows of {} days of {DAYS}; {} turns, medians\n",
            SELECTED.len(),
            turns.len()
        );
        report(&turns);
        let bars = DATASETS.map(|(name, of)| Bar::of(name, turns.values(|turn| of(turn).seconds), true));
        let chart = Chart::bars("Filtered epoch, cold", &machine, "seconds", bars);
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

/// Measures both datasets with `rows` selected rows. Also returns the CPU seconds.
fn turn(
    scenario: &Scenario,
    all: &Path,
    selected: &Path,
    rows: u64,
    alone_first: bool,
) -> anyhow::Result<(Turn, f64)> {
    let columns = (0..12).map(|column| format!("f{column:03}")).collect();
    let alone = v1::Train { columns, ..scenario.train(0, 1) };
    let filter = format!("day BETWEEN {} AND {}", SELECTED.start, SELECTED.end - 1);
    let filtered = v1::Train { filter, ..alone.clone() };
    let mut own_seconds = 0.0;
    let mut stream = |path: &Path, train: &v1::Train| {
        // Lists the files and reads the footers, without the filter.
        let mut session = Session::start(scenario, path, &alone)?;
        let (result, _) = session.run(train.clone(), rows)?;
        own_seconds += session.cpu_seconds()?;
        anyhow::Ok(result)
    };
    let (filtered, alone) = if alone_first {
        let alone = stream(selected, &alone)?;
        (stream(all, &filtered)?, alone)
    } else {
        (stream(all, &filtered)?, stream(selected, &alone)?)
    };
    Ok((Turn { filtered, alone }, own_seconds))
}

/// A name, and the result of a turn that it denotes.
type NamedResult = (&'static str, fn(&Turn) -> &RunResult);

const DATASETS: [NamedResult; 2] =
    [("filter on all days", |turn| &turn.filtered), ("selected days alone", |turn| &turn.alone)];

fn report(turns: &Turns<Turn>) {
    println!("{:<22} {:>15} {:>12}", "", "first batch, s", "epoch, s");
    for (name, of) in DATASETS {
        let first = turns.median(|turn| of(turn).first_batch_seconds);
        println!("{name:<22} {first:>15.3} {:>12.3}", turns.median(|turn| of(turn).seconds));
    }
    let first = turns.median(|turn| turn.filtered.first_batch_seconds / turn.alone.first_batch_seconds);
    let whole = turns.median(|turn| turn.filtered.seconds / turn.alone.seconds);
    println!("{:<22} {first:>15.2} {whole:>12.2}", "ratio");
    println!("\nCPU share of other processes               {:.1}%", turns.foreign_percent());
}
