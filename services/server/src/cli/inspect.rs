//! `forebay inspect`: contents of a dataset and the cost of streaming it.

use std::{fmt::Write as _, io::Write as _, sync::Arc, thread::available_parallelism};

use arrow_schema::Field;
use bytesize::ByteSize;
use clap::Args;
use forebay_loader::{self as loader, CountProgress, Job, Loader, Pool, Scheduling};
use forebay_proto::v1;
use forebay_storage::{Config, Location, Reader, Snapshot, State, take_snapshot};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use super::runtime::runtime;
use crate::printable::printable;

/// Memory for the columns that a filter reads, in bytes.
const MEMORY_BYTES: u64 = 1 << 30;

/// Flags of `forebay inspect`.
#[derive(Debug, Args)]
pub(super) struct Inspect {
    /// Path or URL of a Parquet file or of a folder of Parquet files.
    url: String,
    /// Number of rows per rank and step in the printed plan.
    #[arg(long, default_value_t = 4096)]
    batch_size: u64,
    /// Number of ranks in the printed plan.
    #[arg(long, default_value_t = 1)]
    world_size: u64,
    /// Number of rows per shuffle window in the printed plan. Rows are shuffled within windows [default: 1048576, or four steps of
    /// all ranks if that is more, but at most the rows that take 1GiB uncompressed].
    #[arg(long)]
    window_rows: Option<u64>,
    /// Number of partitions of the order in the printed plan. A rank reads the blocks of its own partitions only.
    #[arg(long, default_value_t = 1)]
    partitions: u64,
    /// SQL condition that selects rows, such as "price > 10"; prints the number of selected rows and of the blocks that an epoch
    /// reads [default: none].
    #[arg(long, value_name = "SQL", default_value = "", hide_default_value = true)]
    filter: String,
}

impl Inspect {
    /// Reads the footers and prints a summary.
    ///
    /// # Errors
    /// If the dataset can't be opened.
    pub(super) fn run(self) -> anyhow::Result<()> {
        const THREADS: usize = 4;
        let text = runtime(THREADS, THREADS, &Config::default())?.block_on(self.look())?;
        std::io::stdout().write_all(printable(&text).as_bytes())?;
        Ok(())
    }

    async fn look(self) -> anyhow::Result<String> {
        let config = Config::default();
        let location = Location::parse(&self.url, &config)?;
        let folder = tempfile::tempdir()?;
        let state = State::open(Location::parse(&folder.path().to_string_lossy(), &config)?, None, &config);
        let bar = ProgressBar::new(0)
            .with_style(ProgressStyle::with_template("reading footers {bar:40} {pos}/{len}")?);
        let progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        let snapshot = Arc::new(take_snapshot("inspected", &location, &state, &config, progress).await?);
        bar.finish_and_clear();
        let train = self.train();
        let reader = Reader::new(Arc::clone(&snapshot), location, &state, config);
        let counted = Mutex::new(CountProgress::default());
        let threads = available_parallelism().map_or(1, usize::from);
        let pool = Pool::new(threads, Scheduling::Normal)?;
        let loader = Loader::new(MEMORY_BYTES, loader::Config::default(), pool);
        let count = loader.count(&train, &reader, |done| *counted.lock() = done);
        let kept = count.await?;
        let job = Job::resolve(&train, reader, kept.as_deref())?;
        let mut text = String::new();
        describe(&mut text, &self.url, &snapshot)?;
        if !self.filter.is_empty() {
            kept_rows(&mut text, &job, &counted.into_inner())?;
        }
        plan(&mut text, &job.summary(), &snapshot, &self.filter)?;
        Ok(text)
    }

    fn train(&self) -> v1::Train {
        let shuffle = v1::Shuffle {
            window_rows: self.window_rows,
            partitions: Some(self.partitions),
            ..v1::Shuffle::default()
        };
        v1::Train {
            dataset: "inspected".to_owned(),
            batch_size: self.batch_size,
            world_size: Some(self.world_size),
            shuffle: Some(shuffle),
            filter: self.filter.clone(),
            ..v1::Train::default()
        }
    }
}

fn describe(text: &mut String, url: &str, snapshot: &Snapshot) -> std::fmt::Result {
    let stored: u64 = snapshot.files().iter().map(forebay_storage::File::size).sum();
    let mut rows: Vec<u32> = snapshot.blocks().iter().map(|block| block.rows).collect();
    rows.sort_unstable();
    let middle = |part: usize| rows.get((rows.len().saturating_sub(1)) * part / 2).copied().unwrap_or(0);
    writeln!(text, "dataset      {url}")?;
    writeln!(text, "snapshot     {}", snapshot.id())?;
    writeln!(text, "files        {} ({} stored)", snapshot.files().len(), ByteSize(stored))?;
    writeln!(
        text,
        "blocks       {} of {} to {} rows, median {}",
        snapshot.blocks().len(),
        middle(0),
        middle(2),
        middle(1)
    )?;
    writeln!(text, "rows         {}", snapshot.rows())?;
    writeln!(text, "decoded      {}", ByteSize(snapshot.decoded_bytes()))?;
    writeln!(text)?;
    let name = |field: &Field| printable(field.name()).replace('\n', "\\n");
    let widest = snapshot.schema().fields().iter().map(|field| name(field).len()).max().unwrap_or(0).max(6);
    writeln!(text, "{:<widest$}  {:>10}  {:>12}  type", "column", "decoded", "nulls")?;
    for (column, field) in snapshot.schema().fields().iter().enumerate() {
        let nulls = snapshot.nulls(column).map_or("unknown".to_owned(), |nulls| nulls.to_string());
        let bytes = ByteSize(snapshot.column_decoded_bytes(column)).to_string();
        writeln!(text, "{:<widest$}  {bytes:>10}  {nulls:>12}  {}", name(field), field.data_type())?;
    }
    writeln!(text)
}

fn kept_rows(text: &mut String, job: &Job, counted: &CountProgress) -> std::fmt::Result {
    let blocks = job.snapshot().blocks().len() as u64;
    let needed = (0..blocks as u32).filter(|block| job.is_needed(*block)).count() as u64;
    writeln!(text, "kept         {} of {} rows by the filter", job.epoch_rows(), job.snapshot().rows())?;
    writeln!(
        text,
        "             {needed} of {blocks} blocks are read for an epoch; to know that, {} of them were read once,\n             \
         folder names, footers and indexes told of the others",
        counted.blocks_read
    )?;
    writeln!(text)
}

fn plan(text: &mut String, plan: &v1::PlanSummary, snapshot: &Snapshot, filter: &str) -> std::fmt::Result {
    writeln!(
        text,
        "an epoch     {} steps of {} rows for each of {} ranks",
        plan.steps, plan.batch_size, plan.world_size
    )?;
    writeln!(
        text,
        "a window     {} rows, mixing {} or more of {} blocks; {} of memory",
        plan.window_rows(),
        plan.blocks_per_window,
        snapshot.blocks().len(),
        ByteSize(plan.window_bytes)
    )?;
    if let (Some(partitions), Some(blocks)) = (plan.partitions, plan.rank_blocks) {
        writeln!(
            text,
            "partitions   {partitions}, each with windows of its own; a batch of a rank mixes rows of {blocks:.1} blocks on \
             average, and\n             a rank reads the same blocks in every epoch"
        )?;
    } else if plan.windows > 1 {
        writeln!(
            text,
            "             {} windows: data that is sorted by its label varies from window to window like\n             \
             samples of {} blocks; a larger --window-rows mixes more",
            plan.windows, plan.blocks_per_window
        )?;
    }
    let names: Vec<&str> =
        snapshot.schema().fields().iter().map(|field| field.name().as_str()).take(8).collect();
    let mut request = serde_json::json!({"train": {
        "dataset": "NAME", "columns": names, "batch_size": plan.batch_size, "world_size": plan.world_size, "seed": 0,
        "shuffle": {"window_rows": plan.window_rows()},
    }});
    if let Some(partitions) = plan.partitions {
        request["train"]["shuffle"]["partitions"] = partitions.into();
    }
    if !filter.is_empty() {
        request["train"]["filter"] = filter.into();
    }
    writeln!(text, "\na request    {request}")
}
