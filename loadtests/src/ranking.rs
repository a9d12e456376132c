//! `forebay-load ranking`: the features of queries sent with every item, and once a batch, to the Rust client and to the
//! Python package, warm.

use std::{path::PathBuf, process::Command};

use anyhow::ensure;
use clap::Args;
use forebay_proto::{Encoding, v1};
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    Source,
    ask::{Ask, Passed},
    data::Prepared,
    foreign::{Clock, Patience},
    machine::Machine,
    output::Json,
    peers::python::Python,
    process::Process,
    scenario::Scenario,
    server::{self, Server, Transport},
    stats::median,
};

/// Flags of `forebay-load ranking`.
#[derive(Debug, Args)]
pub(crate) struct Ranking {
    /// Turns; in each a fresh server streams both ways to each client.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Python with the package forebay; else FOREBAY_PYTHON, the acceptance tests' environment, or one made for it.
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    json: Json,
}

/// How the features of queries come, and to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Way {
    Plain,
    Distinct,
    PythonPlain,
    PythonDistinct,
    /// A row of the query's features for each item is made of them, in NumPy.
    PythonExpanded,
}

impl Way {
    const ALL: [Self; 5] =
        [Self::Plain, Self::Distinct, Self::PythonPlain, Self::PythonDistinct, Self::PythonExpanded];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "Rust, with every item",
            Self::Distinct => "Rust, once a batch",
            Self::PythonPlain => "Python, with every item",
            Self::PythonDistinct => "Python, once a batch",
            Self::PythonExpanded => "... expanded in NumPy",
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
    /// In the order of [`Way::ALL`].
    passed: Vec<Passed>,
    others: f64,
}

impl Ranking {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let source = Source { scenario: "ranking".into(), data: None };
        let (scenario, data) = source.prepared()?;
        let python = Python::prepare(self.python.clone())?;
        let mut turns = Vec::new();
        for round in 1..=self.rounds {
            eprintln!("round {round} of {}", self.rounds);
            let one = || turn(&scenario, &data, &python, round);
            turns.push(self.patience.undisturbed(|turn: &Turn| turn.others, one)?);
        }
        let machine = Machine::this();
        println!("{machine}\n{} rows; {} turns, medians\n", data.sizes.rows, turns.len());
        report(&turns);
        self.json.write(&json!({ "scenario": scenario, "machine": machine, "turns": turns }))
    }
}

/// A warm run of each way. Which comes first changes from round to round.
fn turn(scenario: &Scenario, data: &Prepared, python: &Python, round: usize) -> anyhow::Result<Turn> {
    let clock = Clock::now()?;
    let mut own = 0.0;
    let mut passed = vec![Passed::default(); Way::ALL.len()];
    let server = Server::start(&scenario.name, &data.path, Transport::Tcp)?;
    for at in 0..Way::ALL.len() {
        let at = (at + round) % Way::ALL.len();
        let train = Way::ALL[at].request(scenario);
        Runtime::new()?.block_on(server::opened(server.url(), &train))?;
        let mut consumer = Way::ALL[at].consumer(python, server.url())?;
        consumer.ready()?;
        for (epoch, epochs) in [(0, 1), (1, scenario.epochs)] {
            let train = v1::Train { epoch, epochs: Some(epochs), ..train.clone() };
            let ticket = String::from_utf8(Encoding::Json.encode(&v1::Command::from(train)))?;
            passed[at] = consumer.ask(&Ask { ticket, compute_ms: None })?;
            let rows = passed[at].rows;
            ensure!(rows == epochs * data.sizes.rows, "{rows} rows came in {epochs} epochs");
        }
        own += consumer.usage()?.cpu_seconds;
    }
    let others = clock.others_since(own + server.usage()?.cpu_seconds)?;
    Ok(Turn { passed, others })
}

fn report(turns: &[Turn]) {
    let rate = |turn: &Turn, at: usize| turn.passed[at].rows as f64 / turn.passed[at].seconds;
    let bytes = |turn: &Turn, at: usize| turn.passed[at].bytes as f64 / turn.passed[at].rows as f64;
    println!("{:<26} {:>10} {:>12} {:>8}", "", "M rows/s", "bytes a row", "ratio");
    for (at, way) in Way::ALL.iter().enumerate() {
        let plain = if at < 2 { 0 } else { 2 };
        println!(
            "{:<26} {:>10.2} {:>12.1} {:>8.2}",
            way.name(),
            median(turns.iter().map(|turn| rate(turn, at))) / 1e6,
            median(turns.iter().map(|turn| bytes(turn, at))),
            median(turns.iter().map(|turn| rate(turn, at) / rate(turn, plain))),
        );
    }
    // 60 values with every item; 20, a number and an offset with every item, and 40 values once a query.
    let predicted = 240.0 / (80.0 + 8.0 + 160.0 / 20.0);
    let found = median(turns.iter().map(|turn| bytes(turn, 0) / bytes(turn, 1)));
    println!("\nbytes, with every item / once a batch   {found:.3} (predicted {predicted:.3})");
    let others = median(turns.iter().map(|turn| turn.others)) * 100.0;
    println!("share of the machine that others had    {others:.1} %");
}
