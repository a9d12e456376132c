//! `forebay-load soak`: many concurrent jobs with different views in little memory, some of them stalled.

mod growth;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use clap::Args;
use forebay_client::{Client, Config};
use forebay_proto::v1;
use serde_json::json;
use tokio::{runtime::Runtime, task::JoinSet, time::Instant};

use growth::Samples;

use crate::{
    chart::{Bar, Chart},
    machine::Machine,
    output::Output,
    server::{self, Server, Transport},
    source::Source,
};

/// Flags of `forebay-load soak`.
#[derive(Debug, Args)]
pub(crate) struct Soak {
    #[command(flatten)]
    source: Source,
    /// Number of jobs, each with a different view: job i of n omits every n-th column, starting at column i.
    #[arg(long, default_value_t = 8)]
    jobs: usize,
    /// Number of jobs that read one batch and then stall.
    #[arg(long, default_value_t = 1)]
    stalled: usize,
    /// Duration in minutes.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// --cache-memory of the server.
    #[arg(long, default_value = "1GiB")]
    cache_memory: String,
    /// --cache-disk of the server.
    #[arg(long, default_value = "4GiB")]
    cache_disk: String,
    /// Rows per shuffle window.
    #[arg(long, default_value_t = 131_072)]
    window_rows: u64,
    #[command(flatten)]
    output: Output,
}

/// Interval of the checks of the jobs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the samples of the server's resources.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Longest pause of a job that is not stalled. A longer one fails the run.
const MAX_PAUSE_SECONDS: f64 = 60.0;

impl Soak {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        ensure!(self.stalled < self.jobs, "--stalled {}: expected fewer than --jobs", self.stalled);
        let (scenario, data) = self.source.load()?;
        let flags = ["--cache-memory", &self.cache_memory, "--cache-disk", &self.cache_disk];
        let path = data.path.display().to_string();
        let server = Server::start_with(&scenario.name, &path, Transport::Tcp, &flags, &[])?;
        let names: Vec<&str> = data.sizes.names().collect();
        let trains: Vec<v1::Train> = (0..self.jobs)
            .map(|job| v1::Train {
                columns: Vec::new(),
                tensors: vec![v1::Tensor {
                    name: "x".into(),
                    columns: (0..names.len())
                        .filter(|column| column % self.jobs != job)
                        .map(|column| names[column].to_owned())
                        .collect(),
                    ..v1::Tensor::default()
                }],
                seed: job as u64,
                shuffle: Some(v1::Shuffle { window_rows: Some(self.window_rows), ..v1::Shuffle::default() }),
                job_name: format!("soak-{job}"),
                ..scenario.train(0, 1_000_000)
            })
            .collect();
        let runtime = Runtime::new()?;
        let mut samples = Samples::default();
        let (rows, longest_pause) = runtime.block_on(self.stream(&server, &trains, &mut samples))?;
        let growth = samples.growth();
        let peak = server.usage()?.peak_rss_bytes as f64 / f64::from(1 << 30);
        let machine = Machine::this();
        println!("{}: {}\n{machine}", scenario.name, scenario.about);
        println!(
            "{} jobs with different views, {} of them stalled, {} minutes, --cache-memory {}, --cache-disk {}\n",
            self.jobs, self.stalled, self.minutes, self.cache_memory, self.cache_disk
        );
        println!("{:<8} {:>12} {:>18}", "job", "rows", "longest pause, s");
        for (job, (rows, pause)) in rows.iter().zip(&longest_pause).enumerate() {
            let note = if job < self.stalled { "  stalled" } else { "" };
            println!("{job:<8} {rows:>12} {pause:>18.1}{note}");
        }
        println!("\npeak RSS of the server: {peak:.2} GiB");
        for growth in &growth {
            println!("{growth}");
        }
        let bar = |(job, rows): (usize, &u64)| {
            let state = if job < self.stalled { "stalled" } else { "running" };
            Bar::of(format!("job {job}, {state}"), [*rows as f64 / 1e6], job >= self.stalled)
        };
        let bars = rows.iter().enumerate().map(bar);
        let chart = Chart::bars("Concurrent jobs in little memory", &machine, "M rows", bars);
        let measurements = json!({
            "rows": rows, "longest_pause_seconds": longest_pause, "peak_rss_gib": peak, "growth": growth
        });
        self.output.write("soak", &machine, &measurements, &chart)?;
        let longest = longest_pause[self.stalled..].iter().copied().fold(0.0, f64::max);
        ensure!(longest <= MAX_PAUSE_SECONDS, "a job received no batch for {longest:.0} s");
        Ok(())
    }

    /// Returns the rows that each job received, and its longest pause in seconds.
    async fn stream(
        &self,
        server: &Server,
        trains: &[v1::Train],
        samples: &mut Samples,
    ) -> anyhow::Result<(Vec<u64>, Vec<f64>)> {
        server::opened(server.url(), &trains[0]).await?;
        let rows: Vec<Arc<AtomicU64>> = trains.iter().map(|_| Arc::default()).collect();
        let mut jobs = JoinSet::new();
        for (index, (train, rows)) in trains.iter().zip(&rows).enumerate() {
            let client = Client::new([server.url()], Config::default())?;
            let (train, rows, stalls) = (train.clone(), Arc::clone(rows), index < self.stalled);
            jobs.spawn(async move {
                let mut batches = client.train(&train).await?;
                while let Some(batch) = batches.next().await {
                    rows.fetch_add(batch?.rows(), Ordering::Relaxed);
                    if stalls {
                        std::future::pending::<()>().await;
                    }
                }
                anyhow::Ok(())
            });
        }
        let start = Instant::now();
        let (end, mut next_sample) = (start + Duration::from_secs_f64(self.minutes * 60.0), start);
        let mut last = vec![(0, Instant::now()); trains.len()];
        let mut pauses = vec![0.0f64; trains.len()];
        while Instant::now() < end {
            tokio::select! {
                ended = jobs.join_next() => {
                    ended.context("there are no jobs")???;
                }
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            if Instant::now() >= next_sample {
                next_sample += SAMPLE_INTERVAL;
                samples.add(server, start.elapsed())?;
            }
            for ((last, pause), rows) in last.iter_mut().zip(&mut pauses).zip(&rows) {
                let now = rows.load(Ordering::Relaxed);
                *pause = pause.max(last.1.elapsed().as_secs_f64());
                if now != last.0 {
                    *last = (now, Instant::now());
                }
            }
        }
        Ok((rows.iter().map(|rows| rows.load(Ordering::Relaxed)).collect(), pauses))
    }
}
