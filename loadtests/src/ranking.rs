//! `forebay-load ranking`: the features of queries, sent with every item or once per batch, to the Rust client and to the Python
//! package, warm.

use std::{path::PathBuf, process::Command};

use anyhow::ensure;
use clap::Args;
use forebay_proto::{Encoding, v1};
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
    python::Python,
    scenario::Scenario,
    server::{self, Server, Transport},
    source::Source,
    stats::median,
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
        let train = v1::Train {
            group_by: vec!["query_id".to_owned()],
            tensors: vec![tensor("item", "i_*")],
            ..scenario.train(0, 1)
        };
        match self {
            Self::Plain | Self::PythonPlain => {
                v1::Train { tensors: vec![tensor("query", "q_*"), tensor("item", "i_*")], ..train }
            }
            Self::Distinct | Self::PythonDistinct | Self::PythonExpanded => {
                let v1::Tensor { name, columns, .. } = tensor("query", "q_*");
                let key = train.group_by.clone();
                let dedupe = v1::Dedupe { key, tensor: name, columns, ..v1::Dedupe::default() };
                v1::Train { dedupe: vec![dedupe], ..train }
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
            Self::Plain | Self::Distinct => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["consume", "--client", "forebay", "--url", url]);
                Process::spawn("consume", command)
            }
            Self::PythonPlain | Self::PythonDistinct => script(&[]),
            Self::PythonExpanded => script(&["--expand"]),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
struct Turn {
    /// Results in the order of [`Method::ALL`].
    result: Vec<RunResult>,
    foreign_share: f64,
}

impl Ranking {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let source = Source::built_in("ranking");
        let (scenario, data) = source.load()?;
        let python = Python::prepare(self.python.clone())?;
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            eprintln!("round {round} of {}", self.rounds);
            let one = || turn(&scenario, &data, &python, round);
            turns.push(self.patience.undisturbed(|turn: &Turn| turn.foreign_share, one)?);
        }
        let machine = Machine::this();
        println!("{machine}\n{} rows; {} turns, medians\n", data.sizes.rows, turns.len());
        report(&turns);
        let chart = chart(&machine, &turns);
        self.output.write("ranking", &machine, &json!({ "scenario": scenario, "turns": turns }), &chart)
    }
}

/// Measures a warm run of each method. The order rotates from round to round.
fn turn(scenario: &Scenario, data: &Dataset, python: &Python, round: usize) -> anyhow::Result<Turn> {
    let clock = Clock::now()?;
    let mut own = 0.0;
    let mut result = vec![RunResult::default(); Method::ALL.len()];
    let server = Server::start(&scenario.name, &data.path, Transport::Tcp)?;
    for at in 0..Method::ALL.len() {
        let at = (at + round) % Method::ALL.len();
        let train = Method::ALL[at].request(scenario);
        Runtime::new()?.block_on(server::opened(server.url(), &train))?;
        let mut consumer = Method::ALL[at].consumer(python, server.url())?;
        consumer.ready()?;
        for (epoch, epochs) in [(0, 1), (1, scenario.epochs)] {
            let train = v1::Train { epoch, epochs: Some(epochs), ..train.clone() };
            let ticket = String::from_utf8(Encoding::Json.encode(&v1::Command::from(train)))?;
            result[at] = consumer.run(&RunRequest { ticket, compute_ms: None })?;
            let rows = result[at].rows;
            ensure!(rows == epochs * data.sizes.rows, "received {rows} rows in {epochs} epochs");
        }
        own += consumer.usage()?.cpu_seconds;
    }
    let foreign_share = clock.foreign_share_since(own + server.usage()?.cpu_seconds)?;
    Ok(Turn { result, foreign_share })
}

fn rate(turn: &Turn, at: usize) -> f64 {
    turn.result[at].rows as f64 / turn.result[at].seconds
}

fn chart(machine: &Machine, turns: &[Turn]) -> Chart {
    let bar = |(at, method): (usize, Method)| {
        Bar::of(method.name(), turns.iter().map(|turn| rate(turn, at) / 1e6), true)
    };
    let bars = Method::ALL.into_iter().enumerate().filter_map(bar).collect();
    Chart::bars("Features of queries", machine, "M rows/s", bars)
}

fn report(turns: &[Turn]) {
    let bytes = |turn: &Turn, at: usize| turn.result[at].bytes as f64 / turn.result[at].rows as f64;
    println!("{:<26} {:>10} {:>14} {:>8}", "", "M rows/s", "bytes per row", "ratio");
    for (at, method) in Method::ALL.iter().enumerate() {
        let plain = if at < 2 { 0 } else { 2 };
        println!(
            "{:<26} {:>10.2} {:>14.1} {:>8.2}",
            method.name(),
            median(turns.iter().map(|turn| rate(turn, at))) / 1e6,
            median(turns.iter().map(|turn| bytes(turn, at))),
            median(turns.iter().map(|turn| rate(turn, at) / rate(turn, plain))),
        );
    }
    // With every item: 60 values. Once per batch: 20 values, an index and an offset per item, and 40 values per query.
    let predicted = 240.0 / (80.0 + 8.0 + 160.0 / 20.0);
    let found = median(turns.iter().map(|turn| bytes(turn, 0) / bytes(turn, 1)));
    println!("\nbytes, with every item / once per batch {found:.3} (predicted {predicted:.3})");
    let foreign_share = median(turns.iter().map(|turn| turn.foreign_share)) * 100.0;
    println!("CPU share of other processes                {foreign_share:.1}%");
}
