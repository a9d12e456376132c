//! `forebay-load cold`: a first epoch, compared with its necessary parts: decoding the same columns with parquet-rs alone, and
//! a warm epoch. A second cold epoch follows after `drop-cache`, in memory that the server has already touched. The
//! difference to the first one is the cost of page faults.

use std::{
    fs::File,
    hint::black_box,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use anyhow::{Context, ensure};
use clap::Args;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use serde::Serialize;
use serde_json::json;

use crate::{
    chart::{Bar, Chart},
    data::Dataset,
    interference::Patience,
    machine::Machine,
    output::Output,
    protocol::{RunResult, say},
    scenario::Scenario,
    session::Session,
    source::Source,
    table,
    turns::Turns,
    usage::Usage,
};

/// Rows per decoded batch, as in the server.
const DECODE_ROWS: usize = 4096;

/// Flags of `forebay-load cold`.
#[derive(Debug, Args)]
pub(crate) struct Cold {
    #[command(flatten)]
    source: Source,
    /// Turns. In each, the decoder runs once, and a new server streams one cold and one warm epoch.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    output: Output,
}

/// Wall and CPU time of one activity.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cost {
    seconds: f64,
    cpu_seconds: f64,
    first_batch_seconds: f64,
}

/// Measurements of one turn.
#[derive(Debug, Serialize)]
struct Turn {
    alone: Cost,
    /// parquet-rs alone, for the rows of one window.
    alone_window: Cost,
    cold: Cost,
    warm: Cost,
    /// A second cold epoch, after `drop-cache`.
    again: Cost,
}

impl Cold {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.load()?;
        let machine = Machine::this();
        let turns = Turns::measure(self.rounds, &self.patience, |_| self.turn(&scenario, &data))?;
        println!(
            "{}: {}\n{machine}\n{} rows; {} turns, medians\n",
            scenario.name,
            scenario.about,
            data.sizes.rows,
            turns.len()
        );
        report(&turns, machine.cores as f64);
        let bars = COSTS.map(|(name, cost)| {
            let is_forebay = name.contains("epoch") || name.contains("again");
            Bar::of(name, turns.values(|turn| cost(turn).seconds), is_forebay)
        });
        let chart = Chart::bars(&format!("Cold epochs: {}", scenario.name), &machine, "seconds", bars);
        self.output.write("cold", &machine, &json!({ "scenario": scenario, "turns": turns }), &chart)
    }

    fn turn(&self, scenario: &Scenario, data: &Dataset) -> anyhow::Result<(Turn, f64)> {
        let mut session = Session::start(scenario, &data.path, &scenario.train(0, 1))?;
        let epoch = |session: &mut Session, epoch: u64| {
            let (result, cpu_seconds) = session.run(scenario.train(epoch, 1), data.sizes.rows)?;
            let RunResult { seconds, first_batch_seconds, .. } = result;
            anyhow::Ok(Cost { seconds, cpu_seconds, first_batch_seconds })
        };
        let (cold, warm) = (epoch(&mut session, 0)?, epoch(&mut session, 1)?);
        session.drop_cache()?;
        let again = epoch(&mut session, 0)?;
        let (own_seconds, window_rows) = (session.cpu_seconds()?, session.plan().window_rows);
        drop(session);
        let (alone, alone_window) = (self.decode(None)?, self.decode(window_rows)?);
        let own_seconds = own_seconds + alone.cpu_seconds + alone_window.cpu_seconds;
        Ok((Turn { alone, alone_window, cold, warm, again }, own_seconds))
    }

    /// Runs the decoder in its own process.
    fn decode(&self, rows: Option<u64>) -> anyhow::Result<Cost> {
        let rows = rows.map(|rows| rows.to_string());
        let flags: Vec<&str> = rows.iter().flat_map(|rows| ["--rows", rows.as_str()]).collect();
        let process = self.source.spawn("decode", &flags)?;
        let seconds =
            |name: &str| process.ready[name].as_f64().with_context(|| format!("decode printed no {name}"));
        let (seconds, cpu_seconds) = (seconds("seconds")?, seconds("cpu_seconds")?);
        Ok(Cost { seconds, cpu_seconds, first_batch_seconds: seconds })
    }
}

/// A name, and the cost of a turn that it denotes.
type NamedCost = (&'static str, fn(&Turn) -> Cost);

const COSTS: [NamedCost; 5] = [
    ("parquet-rs alone", |turn| turn.alone),
    ("parquet-rs alone, one window", |turn| turn.alone_window),
    ("cold epoch", |turn| turn.cold),
    ("warm epoch", |turn| turn.warm),
    ("cold again, after drop-cache", |turn| turn.again),
];

fn report(turns: &Turns<Turn>, cores: f64) {
    println!("{:<28} {:>9} {:>9} {:>16}", "", "wall, s", "CPU, s", "first batch, s");
    for (name, cost) in COSTS {
        let of = |of: fn(Cost) -> f64| turns.median(|turn| of(cost(turn)));
        let (wall, cpu) = (of(|cost| cost.seconds), of(|cost| cost.cpu_seconds));
        println!("{name:<28} {wall:>9.3} {cpu:>9.2} {:>16.3}", of(|cost| cost.first_batch_seconds));
    }
    let median = |value: fn(&Turn) -> f64| turns.median(value);
    let ratio = median(|turn| turn.cold.cpu_seconds / (turn.alone.cpu_seconds + turn.warm.cpu_seconds));
    println!("\ncold CPU / (parquet-rs alone + warm)          {ratio:.2}");
    let ratio = median(|turn| turn.again.cpu_seconds / (turn.alone.cpu_seconds + turn.warm.cpu_seconds));
    println!("cold again, CPU / (parquet-rs alone + warm)   {ratio:.2}");
    let busy = median(|turn| turn.cold.cpu_seconds / turn.cold.seconds) / cores;
    println!("cores busy during the cold epoch              {:.0}%", busy * 100.0);
    let first = median(|turn| turn.cold.first_batch_seconds / turn.alone_window.seconds);
    println!("first batch / parquet-rs alone, one window    {first:.2}");
    let first = median(|turn| turn.again.first_batch_seconds / turn.alone_window.seconds);
    println!("cold again, first batch / one window         {first:.2}");
    println!("CPU share of other processes                      {:.1}%", turns.foreign_percent());
}

/// Flags of `forebay-load decode`.
#[derive(Debug, Args)]
pub(crate) struct Decode {
    #[command(flatten)]
    source: Source,
    /// Number of rows after which decoding stops [default: all].
    #[arg(long)]
    rows: Option<u64>,
}

impl Decode {
    /// Decodes the columns of the scenario with one thread per core and prints the time.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (scenario, data) = self.source.load()?;
        let mut groups: Vec<(PathBuf, ArrowReaderMetadata, usize)> = Vec::new();
        let mut rows = 0;
        'files: for file in table::files(&data.path)? {
            let footer = ArrowReaderMetadata::load(&File::open(&file)?, ArrowReaderOptions::default())?;
            for (group, metadata) in footer.metadata().row_groups().iter().enumerate() {
                if self.rows.is_some_and(|limit| rows >= limit) {
                    break 'files;
                }
                rows += metadata.num_rows() as u64;
                groups.push((file.clone(), footer.clone(), group));
            }
        }
        let (before, started, next) = (Usage::own()?, Instant::now(), AtomicUsize::new(0));
        let decode = || -> anyhow::Result<u64> {
            let mut rows = 0;
            while let Some((file, footer, group)) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                let reader =
                    ParquetRecordBatchReaderBuilder::new_with_metadata(File::open(file)?, footer.clone());
                let (reader, _) = table::projected(reader, &scenario.request)?;
                for batch in reader.with_row_groups(vec![*group]).with_batch_size(DECODE_ROWS).build()? {
                    rows += black_box(batch?).num_rows() as u64;
                }
            }
            Ok(rows)
        };
        let threads = std::thread::available_parallelism()?.get();
        let decoded = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(decode)).collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).sum::<anyhow::Result<u64>>()
        })?;
        ensure!(decoded == rows, "decoded {decoded} rows of {rows}");
        let seconds = started.elapsed().as_secs_f64();
        let cpu_seconds = Usage::own()?.cpu_seconds - before.cpu_seconds;
        say(&json!({ "seconds": seconds, "cpu_seconds": cpu_seconds, "rows": rows }))
    }
}
