//! `forebay-load computed`: six computed columns compared with six stored ones, cold and warm, and with the expressions
//! alone. Both views read six columns and send six columns of the same type.

use std::{fs::File, hint::black_box, process::Command, time::Instant};

use anyhow::ensure;
use clap::Args;
use forebay_proto::{Encoding, v1};
use forebay_sql::Expression;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
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
    protocol::{RunRequest, RunResult},
    scenario::Scenario,
    server::{self, Server, Transport},
    source::Source,
    stats::median,
};

const STORED: [&str; 6] = ["f006", "f007", "f008", "f009", "f010", "f011"];
const COMPUTED: [&str; 6] = [
    "CAST(log1p(f000) AS REAL) AS a",
    "clip(f001, 0.1, 0.9) AS b",
    "CAST(standardize(f002, 0.5, 0.29) AS REAL) AS c",
    "CASE WHEN f003 > 0.5 THEN f003 ELSE f000 END AS d",
    "f004 * f005 + f001 AS e",
    "CAST(sqrt(f005) AS REAL) AS f",
];

/// Rows per evaluation of an expression, as in the server.
const ROWS: usize = 4096;

/// Flags of `forebay-load computed`.
#[derive(Debug, Args)]
pub(crate) struct Computed {
    /// Turns. In each, a new server streams each view, first cold and then warm.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    output: Output,
}

/// Wall and CPU time of an epoch, or the mean of several epochs.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Cost {
    seconds: f64,
    cpu_seconds: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Turn {
    stored_cold: Cost,
    stored_warm: Cost,
    computed_cold: Cost,
    computed_warm: Cost,
    /// CPU seconds of the expressions for the same rows, on one core.
    alone: f64,
    foreign_share: f64,
}

impl Computed {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let source = Source::built_in("computed");
        let (scenario, data) = source.load()?;
        let machine = Machine::this();
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            eprintln!("round {round} of {}", self.rounds);
            let one = || turn(&scenario, &data, round % 2 == 0);
            turns.push(self.patience.undisturbed(|turn: &Turn| turn.foreign_share, one)?);
        }
        println!("{machine}\n{} rows; {} turns, medians\n", data.sizes.rows, turns.len());
        report(&turns, data.sizes.rows as f64);
        let chart = chart(&machine, &turns, data.sizes.rows as f64);
        self.output.write("computed", &machine, &json!({ "scenario": scenario, "turns": turns }), &chart)
    }
}

fn turn(scenario: &Scenario, data: &Dataset, computed_first: bool) -> anyhow::Result<Turn> {
    let clock = Clock::now()?;
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let stored = v1::Train { columns: owned(&STORED), ..scenario.train(0, 1) };
    let computed = v1::Train { select: owned(&COMPUTED), ..scenario.train(0, 1) };
    let (alone, own) = evaluate(data)?;
    let (mut own, mut costs) = (own, [[Cost::default(); 2]; 2]);
    let views = [(0, &stored), (1, &computed)];
    let order = if computed_first { [1, 0] } else { [0, 1] };
    for (place, view) in order.map(|at| views[at]) {
        let server = Server::start(&scenario.name, &data.path, Transport::Tcp)?;
        let rows = Runtime::new()?.block_on(server::opened(server.url(), view))?;
        ensure!(rows == data.sizes.rows, "the server has {rows} rows of {}", data.sizes.rows);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["consume", "--client", "forebay", "--url", server.url()]);
        let mut consumer = Process::spawn("consume", command)?;
        consumer.ready()?;
        let used =
            |consumer: &Process| anyhow::Ok(server.usage()?.cpu_seconds + consumer.usage()?.cpu_seconds);
        for (warmth, epoch, epochs) in [(0, 0, 1), (1, 1, scenario.epochs)] {
            let before = used(&consumer)?;
            let train = v1::Train { epoch, epochs: Some(epochs), ..view.clone() };
            let ticket = String::from_utf8(Encoding::Json.encode(&v1::Command::from(train)))?;
            let RunResult { seconds, rows, .. } = consumer.run(&RunRequest { ticket, compute_ms: None })?;
            ensure!(rows == epochs * data.sizes.rows, "received {rows} rows");
            let cpu_seconds = used(&consumer)? - before;
            let each = epochs as f64;
            costs[place][warmth] = Cost { seconds: seconds / each, cpu_seconds: cpu_seconds / each };
        }
        own += used(&consumer)?;
    }
    let [[stored_cold, stored_warm], [computed_cold, computed_warm]] = costs;
    let foreign_share = clock.foreign_share_since(own)?;
    Ok(Turn { stored_cold, stored_warm, computed_cold, computed_warm, alone, foreign_share })
}

/// Returns the seconds of the expressions on one core, and the seconds including the decoding.
fn evaluate(data: &Dataset) -> anyhow::Result<(f64, f64)> {
    let began = Instant::now();
    let mut alone = 0.0;
    for file in std::fs::read_dir(&data.path)? {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(file?.path())?)?;
        let schema = reader.schema().clone();
        let compiled: Vec<Expression> =
            COMPUTED.iter().map(|text| Expression::column(text, &schema)).collect::<Result<_, _>>()?;
        for batch in reader.with_batch_size(ROWS).build()? {
            let batch = batch?;
            let started = Instant::now();
            for expression in &compiled {
                black_box(expression.evaluate(&batch.project(expression.inputs())?)?);
            }
            alone += started.elapsed().as_secs_f64();
        }
    }
    Ok((alone, began.elapsed().as_secs_f64()))
}

/// A name, and the cost of a turn that it denotes.
type NamedCost = (&'static str, fn(&Turn) -> Cost);

const COSTS: [NamedCost; 4] = [
    ("six stored, cold", |turn| turn.stored_cold),
    ("six computed, cold", |turn| turn.computed_cold),
    ("six stored, warm", |turn| turn.stored_warm),
    ("six computed, warm", |turn| turn.computed_warm),
];

fn chart(machine: &Machine, turns: &[Turn], rows: f64) -> Chart {
    let bar = |(name, cost): (&str, fn(&Turn) -> Cost)| {
        Bar::of(name, turns.iter().map(|turn| rows / cost(turn).seconds / 1e6), name.contains("computed"))
    };
    Chart::bars("Computed columns", machine, "M rows/s", COSTS.into_iter().filter_map(bar).collect())
}

fn report(turns: &[Turn], rows: f64) {
    let middle = |of: &dyn Fn(&Turn) -> f64| median(turns.iter().map(of));
    println!("{:<22} {:>12} {:>9} {:>9}", "", "M rows/s", "wall, s", "CPU, s");
    for (name, cost) in COSTS {
        let (wall, cpu) = (middle(&|turn| cost(turn).seconds), middle(&|turn| cost(turn).cpu_seconds));
        println!("{name:<22} {:>12.2} {wall:>9.3} {cpu:>9.2}", rows / wall / 1e6);
    }
    let alone = middle(&|turn| turn.alone);
    println!("expressions alone      {:>12.2} {alone:>9.3} {alone:>9.2}", rows / alone / 1e6);
    let ratio = middle(&|turn| turn.stored_warm.seconds / turn.computed_warm.seconds);
    println!("\nwarm rate, computed / stored                         {ratio:.2}");
    let extra = middle(&|turn| turn.computed_cold.cpu_seconds - turn.stored_cold.cpu_seconds);
    println!("additional cold CPU, computed - stored               {extra:.2} s");
    println!("additional cold CPU / expressions alone              {:.2}", extra / alone);
    println!(
        "CPU share of other processes                             {:.1}%",
        middle(&|turn| turn.foreign_share) * 100.0
    );
}
