//! `forebay-load`: how fast Forebay feeds emulated accelerators, and what its users would pick instead.
//!
//! ```text
//! scenario --> data (generated once) --> server --> receive --> accelerator --> report, plot
//!                    \                                ^
//!                     \-> peers (prepared, stock, python) taking turns
//! ```
//!
//! - [`scenario`]: what is read, how it is asked for, by what kind of accelerator. [`data`] makes it.
//! - [`train`]: ranks against one server. [`accelerator`] is MLPerf Storage's rule, [`share`] the search
//!   for the largest share of an accelerator that is kept busy.
//! - [`peers`]: contestants, each a server process and a consumer process that speaks [`ask`].
//! - [`process`], [`usage`], [`server`]: child processes and what they used.
//! - [`stats`], [`machine`], [`foreign`], [`plot`], [`logical`]: what figures are made of. [`output`] writes
//!   them to files.

#![forbid(unsafe_code)]

mod accelerator;
mod ask;
mod cold;
mod computed;
mod consume;
mod data;
mod filtered;
mod foreign;
mod infer;
mod logical;
mod lookups;
mod machine;
mod output;
mod peers;
mod place;
mod plot;
mod process;
mod ranking;
mod receive;
mod remote;
mod scenario;
mod server;
mod share;
mod soak;
mod stats;
mod table;
mod train;
mod usage;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use data::Prepared;
use scenario::Scenario;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Load tests for Forebay.
///
/// Scenarios: tensor, dlrm, clicks, clicks-nulls, lists, lineitem, flights, images, users, or a file like those
/// in loadtests/scenarios. Their data are generated once, under target/loadtests/data.
///
///   forebay-load train --scenario tensor --ranks 2 --runs 5
///   forebay-load train --scenario dlrm --find-share --json dlrm.json
///   forebay-load peers --scenario clicks --rounds 5 --plot clicks.svg
///   forebay-load cold --scenario clicks
///   forebay-load computed
///   forebay-load ranking
///   forebay-load filtered
///   forebay-load lookups --callers 8 --keys 500
///   forebay-load infer --batch-rows 64,1024 --delays 0ms,2ms --plot frontier.svg
///   forebay-load tune --slo 10ms --rate 2000
///   forebay-load remote --scenario clicks --latency 20ms --s3-server s3s-fs
///   forebay-load soak --scenario soak --jobs 8 --stalled 1 --minutes 5 --cache-memory 1GiB
#[derive(Debug, Parser)]
#[command(name = "forebay-load", version, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stream a scenario to emulated accelerators: rates, utilization (AU), CPU time, memory.
    Train(train::Train),
    /// Let Forebay and what users would pick instead take turns on one scenario.
    Peers(peers::Peers),
    /// A first epoch beside what it can't do without: decoding alone, and a warm epoch.
    Cold(cold::Cold),
    /// Six computed columns beside six stored ones, cold and warm.
    Computed(computed::Computed),
    /// 30 of 400 daily partitions by a filter, beside a dataset of those alone, cold.
    Filtered(filtered::Filtered),
    /// Features of queries with every item, and once a batch, to the Rust client and to the Python package.
    Ranking(ranking::Ranking),
    /// Features by key, beside Redis.
    Lookups(lookups::Lookups),
    /// A batch queue under requests that come when they come: a grid of batch size, delay and load.
    Infer(infer::Infer),
    /// The settings of a batch queue that keep a latency at a load, and why.
    Tune(infer::Tune),
    /// Epochs from an S3-speaking server, near and behind a delay, beside local files.
    Remote(remote::Remote),
    /// Many jobs of different views in little memory, some of them stalled: who progresses, and how much
    /// memory it takes.
    Soak(soak::Soak),
    /// Make the data of a scenario and say where they are.
    Data(MakeData),
    /// A consumer for `peers`, driven over its standard streams.
    #[command(hide = true)]
    Consume(consume::Consume),
    /// parquet-rs alone for `cold`.
    #[command(hide = true)]
    Decode(cold::Decode),
    /// The server of prepared buffers for `peers`.
    #[command(hide = true)]
    ServePrepared(peers::prepared::ServePrepared),
    /// The stock arrow-flight server for `peers`.
    #[command(hide = true)]
    ServeStock(peers::stock::ServeStock),
}

/// Which data.
#[derive(Debug, Args)]
struct Source {
    /// A built-in scenario, or a file.
    #[arg(long, value_name = "NAME|FILE")]
    scenario: String,
    /// Folder of the generated data; target/loadtests/data if it is not given.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl Source {
    fn prepared(&self) -> anyhow::Result<(Scenario, Prepared)> {
        let scenario = Scenario::named(&self.scenario)?;
        let folder = match &self.data {
            Some(folder) => folder.clone(),
            None => place::loadtests()?.join("data"),
        };
        let prepared = data::prepare(&scenario, &folder)?;
        Ok((scenario, prepared))
    }
}

#[derive(Debug, Args)]
struct MakeData {
    #[command(flatten)]
    source: Source,
}

impl MakeData {
    fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.prepared()?;
        let bytes = data.sizes.epoch_bytes(&scenario.request)?;
        println!("{}: {}", scenario.name, scenario.about);
        println!("{} rows, {bytes} bytes an epoch, in {}", data.sizes.rows, data.path.display());
        Ok(())
    }
}

fn main() -> std::process::ExitCode {
    let done = match Cli::parse().command {
        Command::Train(train) => train.run(),
        Command::Peers(peers) => peers.run(),
        Command::Cold(cold) => cold.run(),
        Command::Computed(computed) => computed.run(),
        Command::Filtered(filtered) => filtered.run(),
        Command::Ranking(ranking) => ranking.run(),
        Command::Lookups(lookups) => lookups.run(),
        Command::Infer(infer) => infer.run(),
        Command::Tune(tune) => tune.run(),
        Command::Remote(remote) => remote.run(),
        Command::Soak(soak) => soak.run(),
        Command::Decode(decode) => decode.run(),
        Command::Data(data) => data.run(),
        Command::Consume(consume) => consume.run(),
        Command::ServePrepared(serve) => serve.run(),
        Command::ServeStock(serve) => serve.run(),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-load: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
