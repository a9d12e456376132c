//! `forebay-load`: measures how fast Forebay feeds simulated accelerators, and compares it with other systems.
//!
//! ```text
//! scenario --> data (generated once) --> server --> receive --> accelerator --> report, JSON, chart
//!                    \                                ^
//!                     \-> peers (copy-only baseline, stock Arrow Flight, Python loaders)
//! ```
//!
//! - [`scenario`], [`request`]: the data, the view and the accelerator. [`data`] generates the data, [`source`] selects them.
//! - [`train`]: ranks that read from one server. [`accelerator`] implements MLPerf Storage's rule, [`share`] searches for the
//!   largest share of an accelerator that is kept busy.
//! - [`peers`]: the systems compared, each a server and a consumer process with the [`protocol`] of JSON lines.
//! - [`process`], [`usage`], [`server`], [`session`], [`python`]: child processes and their resources.
//! - [`turns`], [`stats`], [`machine`], [`interference`], [`logical`]: parts of a measurement. [`output`] writes JSON, [`chart`]
//!   draws SVG.

#![forbid(unsafe_code)]

/// Names and texts of the files in a folder next to `src`. The names are without the suffix.
macro_rules! included {
    ($folder:literal $suffix:literal: $($name:literal)*) => {
        &[$(($name, include_str!(concat!("../", $folder, "/", $name, $suffix)))),*]
    };
}

mod accelerator;
mod chart;
mod cold;
mod computed;
mod consume;
mod data;
mod filtered;
mod hostile;
mod infer;
mod interference;
mod logical;
mod lookups;
mod machine;
mod output;
mod paths;
mod peers;
mod process;
mod protocol;
mod python;
mod ranking;
mod receive;
mod remote;
mod request;
mod scenario;
mod server;
mod session;
mod share;
mod soak;
mod source;
mod stats;
mod store;
mod table;
mod tier;
mod train;
mod turns;
mod usage;

use clap::{Parser, Subcommand};

use source::Source;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Load tests for Forebay.
///
/// Scenarios: tensor, dlrm, clicks, clicks-nulls, lists, lineitem, flights, images, users, or a file like those
/// in loadtests/scenarios. Their data are generated once, below target/loadtests/data. Every subcommand writes its
/// measurements with --json FILE, and a chart with --plot FILE.svg.
///
///   forebay-load train --scenario tensor --ranks 2 --runs 5
///   forebay-load train --scenario dlrm --find-share --json dlrm.json
///   forebay-load peers --scenario clicks --rounds 5 --json clicks.json
///   forebay-load chart clicks.json --out clicks.svg
///   forebay-load cold --scenario clicks
///   forebay-load computed
///   forebay-load ranking
///   forebay-load filtered
///   forebay-load lookups --callers 8 --keys 500
///   forebay-load infer --batch-rows 64,1024 --delays 0ms,2ms --plot throughput-latency.svg
///   forebay-load tune --target-latency 10ms --rate 2000
///   forebay-load remote --scenario clicks --latency 20ms --s3-server s3s-fs
///   forebay-load hostile --only half-open,greedy-streams
///   forebay-load tier --scenario tier --servers 1,2,4 --link 50
///   forebay-load soak --scenario soak --jobs 8 --stalled 1 --minutes 5 --cache-memory 1GiB
#[derive(Debug, Parser)]
#[command(name = "forebay-load", version, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stream a scenario to simulated accelerators: rates, utilization (AU), CPU time, memory.
    Train(train::Train),
    /// Compare Forebay with other systems on one scenario, in alternating runs.
    Peers(peers::Peers),
    /// Compare a first epoch with decoding alone and with a warm epoch.
    Cold(cold::Cold),
    /// Compare six computed columns with six stored ones, cold and warm.
    Computed(computed::Computed),
    /// Compare a filter on 30 of 400 daily partitions with a dataset of these days, cold.
    Filtered(filtered::Filtered),
    /// Compare query features sent with every item and once per batch, for Rust and Python clients.
    Ranking(ranking::Ranking),
    /// Compare lookups by key with Redis and Feast.
    Lookups(lookups::Lookups),
    /// Measure a batch queue under an open-loop load, for a grid of batch size, delay and load.
    Infer(infer::Infer),
    /// Find the settings of a batch queue for a target latency at a load.
    Tune(infer::Tune),
    /// Compare epochs from an S3 server, with and without additional latency, with local files.
    Remote(remote::Remote),
    /// Attack a server, and measure what a trainer, a caller of lookups and probes still get.
    Hostile(hostile::Hostile),
    /// Run many jobs with different views in little memory, some of them stalled: progress and peak memory.
    Soak(soak::Soak),
    /// Measure several servers with limited links, and the waits of ranks when one of them stops.
    Tier(tier::Tier),
    /// Generate the data of a scenario and print their path.
    Data(Source),
    /// Draw the chart of a result that was written with --json.
    Chart(output::DrawChart),
    /// The attacker of `hostile`.
    #[command(hide = true)]
    Attack(hostile::Attack),
    /// A consumer process for `peers`.
    #[command(hide = true)]
    Consume(consume::Consume),
    /// parquet-rs alone, for `cold`.
    #[command(hide = true)]
    Decode(cold::Decode),
    /// The copy-only baseline of `peers`.
    #[command(hide = true)]
    ServeCopyOnly(Source),
    /// The stock arrow-flight server of `peers`.
    #[command(hide = true)]
    ServeStock(peers::stock::ServeStock),
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
        Command::Hostile(hostile) => hostile.run(),
        Command::Attack(attack) => attack.run(),
        Command::Soak(soak) => soak.run(),
        Command::Tier(tier) => tier.run(),
        Command::Decode(decode) => decode.run(),
        Command::Data(source) => source.run(),
        Command::Chart(chart) => chart.run(),
        Command::Consume(consume) => consume.run(),
        Command::ServeCopyOnly(source) => peers::copy_only::run(&source),
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
