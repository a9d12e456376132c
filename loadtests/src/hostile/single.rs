//! Hostile messages one by one: the memory that each of them takes, and the time of the threads that receive it.
//!
//! Each message is sent alone, and then 16 times at once. The memory is the peak of the resident memory of the server until the answer, beyond
//! what it had before. The time is that of the threads that serve connections, which the probes and all other calls share.

use std::net::SocketAddr;

use anyhow::ensure;
use serde::Serialize;

use super::messages::{Hostile, family};
use crate::server::Server;

const MIB: u64 = 1 << 20;
/// Largest acceptable memory of a message beyond its own size, in bytes.
const MAX_GROWTH_BYTES: u64 = 64 * MIB;
/// Largest acceptable CPU time of the threads that receive a message, in seconds.
const MAX_IO_SECONDS: f64 = 0.05;
/// Number of copies of a message that are sent at once.
const AT_ONCE: usize = 16;
/// Number of times that each message is sent alone. Other processes of the machine also take memory bandwidth and CPU caches; the median
/// counts.
const TIMES: usize = 3;
/// Names of the threads that serve connections.
const IO_THREADS: [&str; 2] = ["forebay-io", "forebay-http"];

/// Cost of one message.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cost {
    /// Name of the message, and of the stream that it is sent to.
    name: String,
    /// Size of all messages of the stream.
    bytes: u64,
    /// Memory beyond the size of the message, in bytes.
    alone_bytes: u64,
    /// Memory of each of 16 messages beyond its size, in bytes.
    at_once_bytes: u64,
    /// Largest CPU time that one thread took for a message, in seconds.
    io_seconds: f64,
    /// Largest CPU time that one thread took for each of 16 messages, in seconds.
    at_once_io_seconds: f64,
}

/// Sends every message of the family with `token` to `server`, which has no other clients.
pub(super) async fn measure(server: &Server, dataset: &str, token: &str) -> anyhow::Result<Vec<Cost>> {
    let address = (server.url().trim_start_matches("http://").parse()?, token);
    let family = family(dataset);
    // The first messages also start threads and fill pools.
    for message in family.iter().take(AT_ONCE) {
        message.send(address.0, address.1).await;
    }
    let mut costs = Vec::new();
    for message in &family {
        let mut alone = Vec::new();
        for _ in 0..TIMES {
            alone.push(sent(server, message, address, 1).await?);
        }
        alone.sort_by(|one, other| one.1.total_cmp(&other.1));
        let at_once = sent(server, message, address, AT_ONCE).await?;
        costs.push(Cost {
            name: message.name.clone(),
            bytes: message.bytes(),
            alone_bytes: alone.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0),
            at_once_bytes: at_once.0,
            io_seconds: alone[TIMES / 2].1,
            at_once_io_seconds: at_once.1,
        });
    }
    Ok(costs)
}

/// Sends `count` copies at once. Returns the memory of each beyond its size, and the largest time of a thread for each.
async fn sent(
    server: &Server,
    message: &Hostile,
    (address, token): (SocketAddr, &str),
    count: usize,
) -> anyhow::Result<(u64, f64)> {
    let usage = server.threads();
    usage.reset_peak()?;
    let (before, times) = (usage.resident_bytes()?, usage.cpu_seconds(&IO_THREADS)?);
    futures::future::join_all((0..count).map(|_| message.send(address, token))).await;
    let grown = usage.peak_bytes()?.saturating_sub(before) / count as u64;
    let most = usage.cpu_seconds(&IO_THREADS)?.into_iter().map(|(thread, seconds)| {
        let before = times.get(&thread).copied().unwrap_or(0.0);
        seconds - before
    });
    Ok((grown.saturating_sub(message.bytes()), most.fold(0.0, f64::max) / count as f64))
}

/// Prints the costs, the largest ones of each kind first in the summary.
pub(super) fn print(costs: &[Cost]) {
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!(
        "\n{:<44}{:>10}{:>14}{:>14}{:>12}{:>12}",
        "message", "MiB", "more MiB", "16 at once", "I/O ms", "16 at once"
    );
    for cost in costs {
        println!(
            "{:<44}{:>10.1}{:>14.1}{:>14.1}{:>12.1}{:>12.1}",
            cost.name,
            mib(cost.bytes),
            mib(cost.alone_bytes),
            mib(cost.at_once_bytes),
            cost.io_seconds * 1e3,
            cost.at_once_io_seconds * 1e3
        );
    }
    let most_bytes = costs.iter().map(|cost| cost.alone_bytes.max(cost.at_once_bytes)).max().unwrap_or(0);
    let most_seconds =
        costs.iter().map(|cost| cost.io_seconds.max(cost.at_once_io_seconds)).fold(0.0, f64::max);
    println!(
        "{} messages; at most {:.1} MiB beyond the size of a message, and {:.1} ms of an I/O thread for one\n",
        costs.len(),
        mib(most_bytes),
        most_seconds * 1e3
    );
}

/// Compares the costs with the limits.
///
/// # Errors
/// The messages that take more.
pub(super) fn judge(costs: &[Cost]) -> anyhow::Result<()> {
    let over = |cost: &&Cost| {
        cost.alone_bytes.max(cost.at_once_bytes) > MAX_GROWTH_BYTES
            || cost.io_seconds.max(cost.at_once_io_seconds) > MAX_IO_SECONDS
    };
    let names: Vec<&str> = costs.iter().filter(over).map(|cost| cost.name.as_str()).collect();
    ensure!(
        names.is_empty(),
        "{} take more than {} MiB beyond their size, or more than {MAX_IO_SECONDS} s of an I/O thread",
        names.join(", "),
        MAX_GROWTH_BYTES / MIB
    );
    Ok(())
}
