//! `forebay-load infer` and `tune`: a batch queue under an open-loop load.
//!
//! Requests arrive independently of earlier answers, and latency is measured from the time at which a request was due.
//! Therefore, the delay of a stalled server counts for all requests that wait for it (no coordinated omission). The
//! worker is a simulated accelerator that takes `fixed + row * rows` per batch.

mod cell;
mod load;
mod setup;
mod worker;

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{
    machine::Machine,
    server::{Server, Transport},
    source::Source,
};
use cell::{Cell, Measured, Setting};
use load::Load;
use setup::{QUEUE, Setup};
use worker::Worker;

/// Flags of `forebay-load infer`.
#[derive(Debug, Args)]
pub(crate) struct Infer {
    /// Values of `max_batch_rows`.
    #[arg(long, value_delimiter = ',', default_value = "10,64,256,1024", value_name = "N,...")]
    batch_rows: Vec<u64>,
    /// Values of `max_batch_delay`. `eager_dispatch` is always measured, too.
    #[arg(long, value_delimiter = ',', default_value = "0ms,2ms,8ms", value_name = "TIME,...", value_parser = humantime::parse_duration)]
    delays: Vec<Duration>,
    /// Loads, as fractions of the accelerator's capacity with the largest batches.
    #[arg(long, value_delimiter = ',', default_value = "0.1,0.3,0.5,0.7,0.9,1.2", value_name = "X,...")]
    loads: Vec<f64>,
    #[command(flatten)]
    setup: Setup,
}

/// Flags of `forebay-load tune`.
#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// Target of the p99 latency.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    target_latency: Duration,
    /// Requests per second.
    #[arg(long, value_name = "N")]
    rate: f64,
    #[command(flatten)]
    setup: Setup,
}

impl Infer {
    /// Measures the grid and reports.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let bench = Bench::start(&self.setup)?;
        let largest = self.batch_rows.iter().copied().max().context("--batch-rows: expected a number")?;
        let capacity = self.setup.capacity(largest);
        let delays: Vec<Option<Duration>> = self.delays.iter().copied().map(Some).chain([None]).collect();
        let mut cells = Vec::new();
        for &max_batch_rows in &self.batch_rows {
            for &delay in &delays {
                for load in &self.loads {
                    let cell =
                        bench.measure(Setting { max_batch_rows, delay }, load * capacity, self.setup.time)?;
                    eprintln!("{cell}");
                    cells.push(cell);
                }
            }
        }
        report("infer", &self.setup, &cells, capacity)
    }
}

impl Tune {
    /// Measures a grid around the target and prints the best setting.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let bench = Bench::start(&self.setup)?;
        let target = self.target_latency;
        let mut cells = Vec::new();
        for max_batch_rows in [64, 256, 1024, 4096] {
            for delay in [Some(Duration::ZERO), Some(target / 8), Some(target / 3), None] {
                let cell = bench.measure(Setting { max_batch_rows, delay }, self.rate, self.setup.time)?;
                eprintln!("{cell}");
                cells.push(cell);
            }
        }
        report("tune", &self.setup, &cells, self.setup.capacity(4096))?;
        println!("\n{}", advice(&cells, target));
        Ok(())
    }
}

/// Returns the recommended setting and the reason.
fn advice(cells: &[Cell], target: Duration) -> String {
    let meets_target =
        |cell: &&Cell| cell.measured.p99 <= target.as_secs_f64() && cell.measured.answered_fraction() > 0.99;
    let candidates: Vec<&Cell> = cells.iter().filter(meets_target).collect();
    let fastest = cells.iter().min_by(|one, other| one.measured.p99.total_cmp(&other.measured.p99));
    let (Some(fastest), target_ms) = (fastest, target.as_secs_f64() * 1e3) else {
        return "there are no measurements".into();
    };
    // The least busy worker has the most headroom for a higher load.
    let best = candidates.iter().min_by(|one, other| one.measured.busy.total_cmp(&other.measured.busy));
    let Some(best) = best else {
        return format!(
            "no setting meets {target_ms:.1} ms at {:.0} requests/s; the fastest is {} with a p99 of {:.1} ms and {:.1}% of \
             the requests answered: add a worker, or reduce the load",
            fastest.rate,
            fastest.setting,
            fastest.measured.p99 * 1e3,
            fastest.measured.answered_fraction() * 100.0
        );
    };
    format!(
        "use {}: p99 {:.1} ms for a target of {target_ms:.1} ms. Of the {} settings that meet the target, it keeps the worker \
         least busy ({:.0}% of the time), with {:.0} rows per batch",
        best.setting.as_toml(),
        best.measured.p99 * 1e3,
        candidates.len(),
        best.measured.busy * 100.0,
        best.measured.batch_rows
    )
}

fn report(command: &str, setup: &Setup, cells: &[Cell], capacity: f64) -> anyhow::Result<()> {
    let machine = Machine::this();
    let Setup { rows, fixed, row, .. } = setup;
    println!(
        "{machine}\n{rows} rows per request; the accelerator takes {fixed:?} + {row:?} per row: at most {capacity:.0} requests/s\n"
    );
    println!("{}", Cell::HEAD);
    cells.iter().for_each(|cell| println!("{cell}"));
    let chart = cell::throughput_latency(machine.to_string(), cells);
    setup.output.write(command, &machine, &json!({ "capacity": capacity, "cells": cells }), &chart)
}

/// A server with its worker and its callers.
struct Bench<'a> {
    load: Load<'a>,
    worker: Worker,
    server: Server,
    runtime: Runtime,
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        // The thread of the worker uses the runtime, and must end before it.
        self.server.stop();
        self.worker.join();
    }
}

impl<'a> Bench<'a> {
    fn start(setup: &'a Setup) -> anyhow::Result<Self> {
        ensure!(setup.rows > 0 && setup.callers > 0, "--rows and --callers: expected at least 1");
        let (scenario, data) = Source::built_in("users").load()?;
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
        // Without --insecure, the settings of a queue cannot be changed over HTTP.
        let flags = ["--config", &file, "--insecure"];
        let server = Server::start_with(name, &path, Transport::Tcp, &flags, &[])?;
        server.ready()?;
        let runtime = Runtime::new()?;
        let worker = Worker::start(runtime.handle(), server.url(), setup)?;
        let load = Load::new(setup, server.url(), data.sizes.rows);
        let bench = Self { load, worker, server, runtime };
        // Warm-up: opens the exchanges and trains the cost model of the queue.
        let setting = Setting { max_batch_rows: 1024, delay: None };
        for fraction in [0.05, 0.3, 0.8] {
            bench.measure(setting, fraction * setup.capacity(1024), Duration::from_millis(700))?;
        }
        Ok(bench)
    }

    fn measure(&self, setting: Setting, rate: f64, time: Duration) -> anyhow::Result<Cell> {
        let delay = setting.delay.unwrap_or(Duration::from_secs(1));
        let batching = json!({
            "max_batch_rows": setting.max_batch_rows,
            "max_batch_delay": humantime::format_duration(delay).to_string(),
            "eager_dispatch": setting.delay.is_none(),
        });
        let path = format!("/api/v1/queues/{QUEUE}");
        self.server.http("PATCH", &path, &batching.to_string())?;
        self.worker.take_totals();
        let measured = self.load.measure(&self.runtime, rate, time)?;
        let totals = self.worker.take_totals();
        let status = self.server.http("GET", &path, "")?;
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let batches = totals.batches.max(1) as f64;
        let model_error = number(&status["model_error"]) / (totals.busy_seconds / batches);
        let busy = totals.busy_seconds / time.as_secs_f64();
        let batch_rows = totals.rows as f64 / batches;
        Ok(Cell { setting, rate, measured: Measured { busy, batch_rows, ..measured }, model_error })
    }
}
