//! `forebay-load soak`: many concurrent jobs with different views in little memory, some of them stalled, while files change and
//! the store fails at random.

mod changes;
mod faults;
mod growth;
mod job;

use std::{
    net::SocketAddr,
    path::Path,
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

use changes::Changing;
use growth::Samples;
use job::{Counts, Job};

use crate::{
    chart::{Bar, Chart},
    data::Dataset,
    machine::Machine,
    output::Output,
    scenario::Scenario,
    server::{self, Server, Transport},
    source::Source,
    store::{self, StoreServer},
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
    /// Duration in minutes. In a run of at least 30 minutes, growth of the server's memory, open files, threads or tasks is an error.
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
    /// Pause of a job after each batch, which stands for its computation.
    #[arg(long, default_value = "0ms", value_parser = humantime::parse_duration)]
    compute: Duration,
    /// Interval between changes: two files exchange their contents, or a file is added or removed. The server then refreshes the
    /// dataset. Default: no changes.
    #[arg(long, value_parser = humantime::parse_duration)]
    changes: Option<Duration>,
    /// Fraction of the requests to the store that are disturbed: an answer of 503, a delay, a truncated answer or no answer. If it
    /// is above 0, every second job reads from the S3 server.
    #[arg(long, default_value_t = 0.0)]
    faults: f64,
    #[command(flatten)]
    store: StoreServer,
    #[command(flatten)]
    output: Output,
}

/// Interval of the checks of the jobs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the samples of the server's resources.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Longest pause of a job that is not stalled. A longer one fails the run.
const MAX_PAUSE_SECONDS: f64 = 60.0;
/// Shortest run whose growth of resources is judged. Shorter ones have steep slopes by chance.
const MIN_JUDGED_MINUTES: f64 = 30.0;
/// Name of the dataset in the store, and of its bucket.
const STORED: &str = "stored";

impl Soak {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        ensure!(self.stalled < self.jobs, "--stalled {}: expected fewer than --jobs", self.stalled);
        ensure!((0.0..1.0).contains(&self.faults), "--faults {}: expected 0 to below 1", self.faults);
        let (scenario, data) = self.source.load()?;
        let runtime = Runtime::new()?;
        // The folder is on the file system of the data, because the local files are hard links.
        let parent = data.path.parent().context("the data have no parent folder")?;
        let folder = tempfile::Builder::new().prefix("soak").tempdir_in(parent)?;
        let local = folder.path().join("local");
        let mut files = vec![(scenario.name.clone(), Changing::folder(&data.path, &local)?)];
        let (mut store, mut disturbed) = (None, Arc::default());
        let mut flags = vec!["--cache-memory", &self.cache_memory, "--cache-disk", &self.cache_disk];
        let mut variables = Vec::new();
        let stored_flag = format!("{STORED}=s3://{STORED}");
        if self.faults > 0.0 {
            std::fs::create_dir(folder.path().join(STORED))?;
            let (process, address) = self.store.start(folder.path())?;
            // The store keeps the ETag of an object that it received. It hashes any other file for every request.
            let filled = Changing::bucket(&data.path, store::bucket(address, STORED)?);
            files.push((STORED.to_owned(), runtime.block_on(filled)?));
            let proxy: SocketAddr;
            (proxy, disturbed) = runtime.block_on(faults::start(address, self.faults))?;
            store = Some(process);
            flags.extend(["--dataset", &stored_flag]);
            variables.extend(store::variables(proxy));
        }
        let server = self.start_server(&scenario, &local, &flags, &variables)?;
        let trains = self.trains(&scenario, &data);
        let counts: Vec<Arc<Counts>> = trains.iter().map(|_| Arc::default()).collect();
        let mut samples = Samples::default();
        let soaked = self.soak(&server, &trains, files, &counts, &mut samples);
        let (longest_pause, changes) = runtime.block_on(soaked)?;
        drop(store);
        self.report(&Soaked {
            scenario: &scenario,
            server: &server,
            counts: &counts,
            longest_pause,
            samples,
            changes,
            disturbed: disturbed.load(Ordering::Relaxed),
        })
    }

    fn start_server(
        &self,
        scenario: &Scenario,
        local: &Path,
        flags: &[&str],
        variables: &[(&str, String)],
    ) -> anyhow::Result<Server> {
        Server::start_with(&scenario.name, &local.display().to_string(), Transport::Tcp, flags, variables)
    }

    /// Returns the request of each job.
    fn trains(&self, scenario: &Scenario, data: &Dataset) -> Vec<v1::Train> {
        let names: Vec<&str> = data.sizes.names().collect();
        let columns = |job: usize| {
            let kept = (0..names.len()).filter(move |column| column % self.jobs != job);
            kept.map(|column| names[column].to_owned()).collect()
        };
        let train = |job: usize| {
            let is_stored = self.faults > 0.0 && job % 2 == 1;
            v1::Train {
                dataset: if is_stored { STORED.to_owned() } else { scenario.name.clone() },
                columns: Vec::new(),
                tensors: vec![v1::Tensor {
                    name: "x".into(),
                    columns: columns(job),
                    ..v1::Tensor::default()
                }],
                seed: job as u64,
                shuffle: Some(v1::Shuffle { window_rows: Some(self.window_rows), ..v1::Shuffle::default() }),
                job_name: format!("soak-{job}"),
                content_hash: Some(true),
                ..scenario.train(0, 1_000_000)
            }
        };
        (0..self.jobs).map(train).collect()
    }

    /// Runs the jobs. Returns the longest pause of each in seconds, and the number of changes of files.
    async fn soak(
        &self,
        server: &Server,
        trains: &[v1::Train],
        mut files: Vec<(String, Changing)>,
        counts: &[Arc<Counts>],
        samples: &mut Samples,
    ) -> anyhow::Result<(Vec<f64>, u64)> {
        for train in trains {
            server::opened(server.url(), train).await?;
        }
        let mut jobs = JoinSet::new();
        for (index, (train, counts)) in trains.iter().zip(counts).enumerate() {
            let client = Client::new([server.url()], Config::default())?;
            let job = Job {
                client,
                train: train.clone(),
                files_change: self.changes.is_some(),
                compute: self.compute,
            };
            let (counts, stalls) = (Arc::clone(counts), index < self.stalled);
            jobs.spawn(async move {
                let ended = if stalls { job.stall(&counts).await } else { job.run(&counts).await };
                ended.with_context(|| format!("job {index}"))
            });
        }
        let changes = Arc::new(AtomicU64::new(0));
        if let Some(interval) = self.changes {
            let (client, changes) = (Client::new([server.url()], Config::default())?, Arc::clone(&changes));
            jobs.spawn(async move {
                loop {
                    tokio::time::sleep(interval).await;
                    for (dataset, files) in &mut files {
                        files.change().await?;
                        changes.fetch_add(1, Ordering::Relaxed);
                        let body = json!({ "dataset": dataset }).to_string();
                        let refreshed = client.action("refresh", body.as_bytes()).await;
                        refreshed.with_context(|| format!("refresh of {dataset}"))?;
                    }
                }
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
            for ((last, pause), counts) in last.iter_mut().zip(&mut pauses).zip(counts) {
                let now = counts.rows.load(Ordering::Relaxed);
                *pause = pause.max(last.1.elapsed().as_secs_f64());
                if now != last.0 {
                    *last = (now, Instant::now());
                }
            }
        }
        Ok((pauses, changes.load(Ordering::Relaxed)))
    }

    fn report(&self, soaked: &Soaked<'_>) -> anyhow::Result<()> {
        let Soaked { scenario, server, counts, longest_pause, samples, changes, disturbed } = soaked;
        let of = |counter: fn(&Counts) -> &AtomicU64| -> Vec<u64> {
            counts.iter().map(|counts| counter(counts).load(Ordering::Relaxed)).collect()
        };
        let rows = of(|counts| &counts.rows);
        let compared = of(|counts| &counts.compared);
        let ended: u64 = of(|counts| &counts.ended_by_changes).iter().sum();
        let growth = samples.growth();
        let peak = server.usage()?.peak_rss_bytes as f64 / f64::from(1 << 30);
        let machine = Machine::this();
        println!("{}: {}\n{machine}", scenario.name, scenario.about);
        println!(
            "{} jobs with different views, {} of them stalled, {} minutes, --cache-memory {}, --cache-disk {}\n",
            self.jobs, self.stalled, self.minutes, self.cache_memory, self.cache_disk
        );
        println!("{:<8} {:>12} {:>18} {:>18}", "job", "rows", "batches compared", "longest pause, s");
        for (job, ((rows, compared), pause)) in rows.iter().zip(&compared).zip(longest_pause).enumerate() {
            let note = if job < self.stalled { "  stalled" } else { "" };
            println!("{job:<8} {rows:>12} {compared:>18} {pause:>18.1}{note}");
        }
        println!("\n{changes} changes of files, which ended {ended} runs; {disturbed} disturbed requests");
        println!("peak RSS of the server: {peak:.2} GiB");
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
            "rows": rows, "batches_compared": compared, "longest_pause_seconds": longest_pause, "peak_rss_gib": peak,
            "growth": growth, "changes": changes, "runs_ended_by_changes": ended, "disturbed_requests": disturbed
        });
        self.output.write("soak", &machine, &measurements, &chart)?;
        let longest = longest_pause[self.stalled..].iter().copied().fold(0.0, f64::max);
        ensure!(longest <= MAX_PAUSE_SECONDS, "a job received no batch for {longest:.0} s");
        let excesses: Vec<String> = growth.iter().filter_map(growth::Growth::excess).collect();
        ensure!(
            self.minutes < MIN_JUDGED_MINUTES || excesses.is_empty(),
            "resources of the server grow: {}",
            excesses.join("; ")
        );
        Ok(())
    }
}

/// Measurements of a run.
struct Soaked<'a> {
    scenario: &'a Scenario,
    server: &'a Server,
    counts: &'a [Arc<Counts>],
    longest_pause: Vec<f64>,
    samples: Samples,
    /// Number of changes of files.
    changes: u64,
    /// Number of disturbed requests to the store.
    disturbed: u64,
}
