//! `forebay-load ranking`: the features of queries, sent with every item or once per batch, to the Rust client and to the Python
//! package, warm.

use std::path::PathBuf;

use anyhow::ensure;
use clap::Args;
use forebay_proto::v1;
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    chart::{Bar, Chart},
    data::Dataset,
    interference::Patience,
    machine::Machine,
    output::Output,
    process::Process,
    protocol::{RunRequest, RunResult},
    python::Python,
    scenario::Scenario,
    server::{self, Server, Transport},
    source::Source,
    turns::Turns,
};

/// Flags of `forebay-load ranking`.
#[derive(Debug, Args)]
pub(crate) struct Ranking {
    /// Turns. In each, a new server streams with each method to each client.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Python with the package forebay [default: FOREBAY_PYTHON, or the environment of the acceptance tests, or a new one].
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    output: Output,
}

/// Encoding of the query features, and the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Method {
    Plain,
    Distinct,
    PythonPlain,
    PythonDistinct,
    /// Expanded in NumPy to one row of query features per item.
    PythonExpanded,
}

impl Method {
    const ALL: [Self; 5] =
        [Self::Plain, Self::Distinct, Self::PythonPlain, Self::PythonDistinct, Self::PythonExpanded];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "Rust, with every item",
            Self::Distinct => "Rust, once per batch",
            Self::PythonPlain => "Python, with every item",
            Self::PythonDistinct => "Python, once per batch",
            Self::PythonExpanded => "Python, expanded in NumPy",
        }
    }

    fn request(self, scenario: &Scenario) -> v1::Train {
        let tensor = |name: &str, columns: &str| v1::Tensor {
            name: name.to_owned(),
            columns: vec![columns.to_owned()],
            ..v1::Tensor::default()
        };
        let (query, item, key) = (tensor("query", "q_*"), tensor("item", "i_*"), "query_id".to_owned());
        let train = v1::Train { group_by: vec![key.clone()], ..scenario.train(0, 1) };
        match self {
            Self::Plain | Self::PythonPlain => v1::Train { tensors: vec![query, item], ..train },
            Self::Distinct | Self::PythonDistinct | Self::PythonExpanded => {
                let v1::Tensor { name: tensor, columns, .. } = query;
                let dedupe = v1::Dedupe { key: vec![key], tensor, columns, ..v1::Dedupe::default() };
                v1::Train { tensors: vec![item], dedupe: vec![dedupe], ..train }
            }
        }
    }

    fn consumer(self, python: &Python, url: &str) -> anyhow::Result<Process> {
        let script = |flags: &[&str]| {
            let mut command = python.command("package.py");
            command.arg(url).args(flags);
            Process::spawn("package.py", command)
        };
        match self {
            Self::Plain | Self::Distinct => Process::consumer("forebay", url),
            Self::PythonPlain | Self::PythonDistinct => script(&[]),
            Self::PythonExpanded => script(&["--expand"]),
        }
    }
}

#[derive(Debug, Serialize)]
struct Turn {
    /// Results in the order of [`Method::ALL`].
    result: Vec<RunResult>,
}

impl Ranking {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = Source::built_in("ranking").load()?;
        let python = Python::prepare(self.python.clone())?;
        let one = |round: usize| turn(&scenario, &data, &python, round);
        let turns = Turns::measure(self.rounds, &self.patience, one)?;
        let machine = Machine::this();
        println!("{machine}\n{} rows; {} turns, medians\n", data.sizes.rows, turns.len());
        report(&turns);
        let bar = |at: usize| Bar::of(Method::ALL[at].name(), turns.values(|turn| turn.rate(at) / 1e6), true);
        let bars = (0..Method::ALL.len()).map(bar);
        let chart = Chart::bars("Features of queries", &machine, "M rows/s", bars);
        self.output.write("ranking", &machine, &json!({ "scenario": scenario, "turns": turns }), &chart)
    }
}

/// Measures a warm run of each method. The order rotates from round to round. Also returns the CPU seconds.
fn turn(scenario: &Scenario, data: &Dataset, python: &Python, round: usize) -> anyhow::Result<(Turn, f64)> {
    let mut own_seconds = 0.0;
    let mut result = vec![RunResult::default(); Method::ALL.len()];
    let server = Server::start(&scenario.name, &data.path, Transport::Tcp)?;
    for at in 0..Method::ALL.len() {
        let at = (at + round) % Method::ALL.len();
        let train = Method::ALL[at].request(scenario);
        Runtime::new()?.block_on(server::opened(server.url(), &train))?;
        let mut consumer = Method::ALL[at].consumer(python, server.url())?;
        for (epoch, epochs) in [(0, 1), (1, scenario.epochs)] {
            let train = v1::Train { epoch, epochs: Some(epochs), ..train.clone() };
            result[at] = consumer.run(&RunRequest::of(train))?;
            let rows = result[at].rows;
            ensure!(rows == epochs * data.sizes.rows, "received {rows} rows in {epochs} epochs");
        }
        own_seconds += consumer.usage()?.cpu_seconds;
    }
    Ok((Turn { result }, own_seconds + server.usage()?.cpu_seconds))
}

impl Turn {
    fn rate(&self, at: usize) -> f64 {
        self.result[at].rows as f64 / self.result[at].seconds
    }

    fn bytes_per_row(&self, at: usize) -> f64 {
        self.result[at].bytes as f64 / self.result[at].rows as f64
    }
}

fn report(turns: &Turns<Turn>) {
    println!("{:<26} {:>10} {:>14} {:>8}", "", "M rows/s", "bytes per row", "ratio");
    for (at, method) in Method::ALL.iter().enumerate() {
        let plain = if at < 2 { 0 } else { 2 };
        println!(
            "{:<26} {:>10.2} {:>14.1} {:>8.2}",
            method.name(),
            turns.median(|turn| turn.rate(at)) / 1e6,
            turns.median(|turn| turn.bytes_per_row(at)),
            turns.median(|turn| turn.rate(at) / turn.rate(plain)),
        );
    }
    // With every item: 60 values. Once per batch: 20 values, an index and an offset per item, and 40 values per query.
    let predicted = 240.0 / (80.0 + 8.0 + 160.0 / 20.0);
    let found = turns.median(|turn| turn.bytes_per_row(0) / turn.bytes_per_row(1));
    println!("\nbytes, with every item / once per batch {found:.3} (predicted {predicted:.3})");
    println!("CPU share of other processes                {:.1}%", turns.foreign_percent());
}
