//! `forebay-load computed`: six computed columns compared with six stored ones, cold and warm, and with the expressions
//! alone. Both views read six columns and send six columns of the same type.

use std::{fs::File, hint::black_box, time::Instant};

use clap::Args;
use forebay_proto::v1;
use forebay_sql::Expression;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::Serialize;
use serde_json::json;

use crate::{
    chart::{Bar, Chart},
    data::Dataset,
    interference::Patience,
    machine::Machine,
    output::Output,
    scenario::Scenario,
    session::Session,
    source::Source,
    turns::Turns,
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

#[derive(Debug, Serialize)]
struct Turn {
    stored_cold: Cost,
    stored_warm: Cost,
    computed_cold: Cost,
    computed_warm: Cost,
    /// CPU seconds of the expressions for the same rows, on one core.
    alone: f64,
}

impl Computed {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = Source::built_in("computed").load()?;
        let machine = Machine::this();
        let turns = Turns::measure(self.rounds, &self.patience, |round| turn(&scenario, &data, round))?;
        println!("{machine}\n{} rows; {} turns, medians\n", data.sizes.rows, turns.len());
        let rows = data.sizes.rows as f64;
        report(&turns, rows);
        let bars = COSTS.map(|(name, cost)| {
            Bar::of(name, turns.values(|turn| rows / cost(turn).seconds / 1e6), name.contains("computed"))
        });
        let chart = Chart::bars("Computed columns", &machine, "M rows/s", bars);
        self.output.write("computed", &machine, &json!({ "scenario": scenario, "turns": turns }), &chart)
    }
}

/// Measures both views. The first one alternates from round to round. Also returns the CPU seconds.
fn turn(scenario: &Scenario, data: &Dataset, round: usize) -> anyhow::Result<(Turn, f64)> {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let stored = v1::Train { columns: owned(&STORED), ..scenario.train(0, 1) };
    let computed = v1::Train { select: owned(&COMPUTED), ..scenario.train(0, 1) };
    let (alone, mut own_seconds) = evaluate(data)?;
    let mut costs = [[Cost::default(); 2]; 2];
    for view in [1, 2].map(|at| (round + at) % 2) {
        let train = [&stored, &computed][view];
        let mut session = Session::start(scenario, &data.path, train)?;
        for (warmth, epoch, epochs) in [(0, 0, 1), (1, 1, scenario.epochs)] {
            let train = v1::Train { epoch, epochs: Some(epochs), ..train.clone() };
            let (result, cpu_seconds) = session.run(train, epochs * data.sizes.rows)?;
            let each = epochs as f64;
            costs[view][warmth] = Cost { seconds: result.seconds / each, cpu_seconds: cpu_seconds / each };
        }
        own_seconds += session.cpu_seconds()?;
    }
    let [[stored_cold, stored_warm], [computed_cold, computed_warm]] = costs;
    Ok((Turn { stored_cold, stored_warm, computed_cold, computed_warm, alone }, own_seconds))
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

fn report(turns: &Turns<Turn>, rows: f64) {
    println!("{:<22} {:>12} {:>9} {:>9}", "", "M rows/s", "wall, s", "CPU, s");
    for (name, cost) in COSTS {
        let wall = turns.median(|turn| cost(turn).seconds);
        let cpu = turns.median(|turn| cost(turn).cpu_seconds);
        println!("{name:<22} {:>12.2} {wall:>9.3} {cpu:>9.2}", rows / wall / 1e6);
    }
    let alone = turns.median(|turn| turn.alone);
    println!("expressions alone      {:>12.2} {alone:>9.3} {alone:>9.2}", rows / alone / 1e6);
    let ratio = turns.median(|turn| turn.stored_warm.seconds / turn.computed_warm.seconds);
    println!("\nwarm rate, computed / stored                         {ratio:.2}");
    let extra = turns.median(|turn| turn.computed_cold.cpu_seconds - turn.stored_cold.cpu_seconds);
    println!("additional cold CPU, computed - stored               {extra:.2} s");
    println!("additional cold CPU / expressions alone              {:.2}", extra / alone);
    println!("CPU share of other processes                             {:.1}%", turns.foreign_percent());
}
