//! `forebay-load infer` and `tune`: a batch queue under an open-loop load.
//!
//! Requests come when they come, whether or not earlier ones were answered, and latency counts from the moment at which a request
//! was due: a server that stalls is charged for all who wait meanwhile (no coordinated omission). The worker is an emulated
//! accelerator that takes `b + a * rows` for a batch.

mod frontier;
mod load;
mod model;

use std::{fmt, time::Duration};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    Source,
    machine::Machine,
    output::{Json, Plot},
    server::{Server, Transport},
};
use load::{Load, Measured};
use model::Model;

/// The queue's name.
const QUEUE: &str = "load";

/// What is asked, and of whom.
#[derive(Debug, Args)]
struct Setup {
    /// Rows of a request.
    #[arg(long, default_value_t = 10, value_name = "N")]
    rows: usize,
    /// Exchanges that the requests are spread over.
    #[arg(long, default_value_t = 4, value_name = "N")]
    callers: usize,
    /// What the emulated accelerator takes for a batch, ...
    #[arg(long, default_value = "2ms", value_name = "TIME", value_parser = humantime::parse_duration)]
    fixed: Duration,
    /// ... and beside that for a row.
    #[arg(long, default_value = "20us", value_name = "TIME", value_parser = humantime::parse_duration)]
    row: Duration,
    /// The time in which an answer is of use.
    #[arg(long, default_value = "200ms", value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Exponent of the popularity of keys (Zipf); 0 for all alike.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    zipf: f64,
    /// How requests come.
    #[arg(long, value_enum, default_value_t = Arrivals::Poisson)]
    arrivals: Arrivals,
    /// How long each setting is measured.
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Duration,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    plot: Plot,
}

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
enum Arrivals {
    /// Independent of each other.
    Poisson,
    /// Poisson, in bursts of eight.
    Bursts,
}

/// Flags of `forebay-load infer`.
#[derive(Debug, Args)]
pub(crate) struct Infer {
    /// `max_batch_rows` of the grid.
    #[arg(long, value_delimiter = ',', default_value = "10,64,256,1024", value_name = "N,...")]
    batch_rows: Vec<u64>,
    /// `max_queue_delay` of the grid, beside the idle rule.
    #[arg(long, value_delimiter = ',', default_value = "0ms,2ms,8ms", value_name = "TIME,...", value_parser = humantime::parse_duration)]
    delays: Vec<Duration>,
    /// Loads of the grid, as shares of what the accelerator can do in the largest batches.
    #[arg(long, value_delimiter = ',', default_value = "0.1,0.3,0.5,0.7,0.9,1.2", value_name = "X,...")]
    loads: Vec<f64>,
    #[command(flatten)]
    setup: Setup,
}

/// Flags of `forebay-load tune`.
#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// 99 of 100 answers are to come within this.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    slo: Duration,
    /// Requests a second.
    #[arg(long, value_name = "N")]
    rate: f64,
    #[command(flatten)]
    setup: Setup,
}

/// A point of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Setting {
    max_batch_rows: u64,
    /// Absent: the idle rule.
    delay: Option<Duration>,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.delay {
            Some(delay) => write!(f, "{} rows, {}", self.max_batch_rows, humantime::format_duration(delay)),
            None => write!(f, "{} rows, idle", self.max_batch_rows),
        }
    }
}

/// What was measured at a point.
#[derive(Debug, Clone, Serialize)]
struct Cell {
    setting: Setting,
    /// Requests a second that were due.
    rate: f64,
    measured: Measured,
    /// Of the queue's cost model: how far it was off, as a share of what batches took.
    model_error: f64,
}

impl Infer {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let bench = Bench::start(&self.setup)?;
        let largest = self.batch_rows.iter().copied().max().context("batch_rows names none")?;
        let capacity = self.setup.capacity(largest);
        let delays: Vec<Option<Duration>> = self.delays.iter().copied().map(Some).chain([None]).collect();
        let mut cells = Vec::new();
        for &max_batch_rows in &self.batch_rows {
            for &delay in &delays {
                for load in &self.loads {
                    let setting = Setting { max_batch_rows, delay };
                    cells.push(bench.measure(setting, load * capacity)?);
                    eprintln!("{}", cells.last().context("one")?);
                }
            }
        }
        self.setup.report(&cells, capacity)
    }
}

impl Tune {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let bench = Bench::start(&self.setup)?;
        let mut cells = Vec::new();
        for max_batch_rows in [64, 256, 1024, 4096] {
            for delay in [Some(Duration::ZERO), Some(self.slo / 8), Some(self.slo / 3), None] {
                cells.push(bench.measure(Setting { max_batch_rows, delay }, self.rate)?);
                eprintln!("{}", cells.last().context("one")?);
            }
        }
        self.setup.report(&cells, self.setup.capacity(4096))?;
        println!("\n{}", advice(&cells, self.slo));
        Ok(())
    }
}

/// Which setting to take, and why.
fn advice(cells: &[Cell], slo: Duration) -> String {
    let is_kept =
        |cell: &&Cell| cell.measured.p99 <= slo.as_secs_f64() && cell.measured.answered_share() > 0.99;
    let kept: Vec<&Cell> = cells.iter().filter(is_kept).collect();
    let of_all = cells.iter().min_by(|one, other| one.measured.p99.total_cmp(&other.measured.p99));
    let (Some(fastest), slo_ms) = (of_all, slo.as_secs_f64() * 1e3) else {
        return "nothing was measured".into();
    };
    // What leaves the worker the most time: the load may grow most before it is saturated.
    let best = kept.iter().min_by(|one, other| one.measured.busy.total_cmp(&other.measured.busy));
    let Some(best) = best else {
        return format!(
            "no setting keeps {slo_ms:.1} ms at {:.0} requests a second; the nearest is {} with a p99 of {:.1} ms and {:.1} % of \
             the requests answered: add a worker, or ask for less",
            fastest.rate,
            fastest.setting,
            fastest.measured.p99 * 1e3,
            fastest.measured.answered_share() * 100.0
        );
    };
    format!(
        "use {}: p99 {:.1} ms of {slo_ms:.1} ms, and of the {} settings that keep it the worker is the least busy, {:.0} % of the \
         time, with {:.0} rows a batch",
        best.setting.in_words(),
        best.measured.p99 * 1e3,
        kept.len(),
        best.measured.busy * 100.0,
        best.measured.batch_rows
    )
}

impl Setting {
    fn in_words(self) -> String {
        let rows = self.max_batch_rows;
        match self.delay {
            Some(delay) => {
                let delay = humantime::format_duration(delay);
                format!("max_batch_rows = {rows}, max_queue_delay = \"{delay}\", idle = false")
            }
            None => format!("max_batch_rows = {rows}, idle = true"),
        }
    }
}

impl Setup {
    fn model(&self) -> Model {
        Model { fixed: self.fixed, row: self.row }
    }

    /// Requests a second that the accelerator can do in batches of at most so many rows.
    fn capacity(&self, max_batch_rows: u64) -> f64 {
        let rows = (max_batch_rows as usize / self.rows).max(1) * self.rows;
        rows as f64 / self.model().takes(rows as u64).as_secs_f64() / self.rows as f64
    }

    fn report(&self, cells: &[Cell], capacity: f64) -> anyhow::Result<()> {
        let machine = Machine::this();
        let Model { fixed, row } = self.model();
        println!(
            "{machine}\n{} rows a request; the accelerator takes {fixed:?} + {row:?} a row: {capacity:.0} requests/s at most\n",
            self.rows
        );
        println!("{}", Cell::HEAD);
        cells.iter().for_each(|cell| println!("{cell}"));
        self.json.write(&json!({ "machine": machine, "capacity": capacity, "cells": cells }))?;
        self.plot.write(|| frontier::svg(&machine.to_string(), cells))
    }
}

impl Cell {
    const HEAD: &str = "setting             requests/s   answered    p50 ms    p99 ms   max ms  rows/batch  busy  wire+gather  refused  expired  model";
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, rate, measured: m, model_error } = self;
        write!(
            f,
            "{:<19} {rate:>10.0} {:>10.0} {:>9.2} {:>9.2} {:>8.1} {:>11.0} {:>4.0}% {:>11.0}% {:>8} {:>8} {:>5.0}%",
            setting.to_string(),
            m.answers_per_second,
            m.p50 * 1e3,
            m.p99 * 1e3,
            m.most * 1e3,
            m.batch_rows,
            m.busy * 100.0,
            m.overhead_share * 100.0,
            m.refused,
            m.expired,
            model_error * 100.0,
        )
    }
}

/// A server, its worker and its callers.
struct Bench {
    load: Load,
    worker: model::Worker,
    server: Server,
    runtime: Runtime,
}

impl Drop for Bench {
    fn drop(&mut self) {
        // The worker's thread ends before the runtime on which it waits.
        self.server.stop();
        self.worker.join();
    }
}

impl Bench {
    fn start(setup: &Setup) -> anyhow::Result<Self> {
        ensure!(setup.rows > 0 && setup.callers > 0, "rows and callers are at least 1");
        let source = Source { scenario: "users".into(), data: None };
        let (scenario, data) = source.prepared()?;
        let features = json!({ "dataset": scenario.name, "tensors": scenario.request.tensors });
        let config = json!({
            "online": { "users": { "key": ["id"] } },
            "queues": { QUEUE: { "features": features } },
            "lookup_memory": "1GiB",
        });
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("forebay.toml");
        std::fs::write(&file, toml::to_string(&config)?)?;
        let file = file.display().to_string();
        let (name, path) = (&scenario.name, data.path.display().to_string());
        // Whoever measures tunes the queue.
        let flags = ["--config", &file, "--insecure"];
        let server = Server::start_with(name, &path, Transport::Tcp, &flags, &[])?;
        server.ready()?;
        let runtime = Runtime::new()?;
        let worker = model::Worker::start(runtime.handle(), server.url(), setup.model())?;
        let load = Load::new(setup, server.url(), data.sizes.rows);
        let bench = Self { load, worker, server, runtime };
        // The first requests open exchanges and teach the model.
        let setting = Setting { max_batch_rows: 1024, delay: None };
        for share in [0.05, 0.3, 0.8] {
            bench.measure_for(setting, share * setup.capacity(1024), Duration::from_millis(700))?;
        }
        Ok(bench)
    }

    fn measure(&self, setting: Setting, rate: f64) -> anyhow::Result<Cell> {
        self.measure_for(setting, rate, self.load.time)
    }

    fn measure_for(&self, setting: Setting, rate: f64, time: Duration) -> anyhow::Result<Cell> {
        let delay = setting.delay.unwrap_or(Duration::from_secs(1));
        let batching = json!({
            "max_batch_rows": setting.max_batch_rows,
            "max_queue_delay": humantime::format_duration(delay).to_string(),
            "idle": setting.delay.is_none(),
        });
        let path = format!("/api/v1/queues/{QUEUE}");
        self.server.http("PATCH", &path, &batching.to_string())?;
        self.worker.forget();
        let measured = self.load.measure(&self.runtime, rate, time)?;
        let done = self.worker.done();
        let status = self.server.http("GET", &path, "")?;
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let took = done.seconds / done.batches.max(1) as f64;
        let model_error = number(&status["model_error"]) / took;
        let busy = done.seconds / time.as_secs_f64();
        let batch_rows = done.rows as f64 / done.batches.max(1) as f64;
        Ok(Cell { setting, rate, measured: Measured { busy, batch_rows, ..measured }, model_error })
    }
}
