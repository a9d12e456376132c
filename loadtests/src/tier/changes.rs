//! Servers that stop, or join, while the ranks of a job read.

use std::time::{Duration, Instant};

use anyhow::ensure;
use forebay_client::Config;
use serde::Serialize;

use super::{job::Job, servers::Servers};

/// Maximum time until the streams of a job are spread over the servers.
const SPREAD_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Time that the epochs around a join take at least.
const JOIN_SECONDS: f64 = 10.0;

/// Waits of one number of ranks while a server stops.
#[derive(Debug, Serialize)]
pub(super) struct Stop {
    pub(super) how: How,
    /// Longest wait of any rank for a batch, in seconds.
    pub(super) longest_wait_seconds: f64,
    /// Time in seconds from the return of the network until all servers know each other. `None` if the network did not fail.
    pub(super) agreed_after_seconds: Option<f64>,
}

/// Way in which a server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    /// No server stops.
    Never,
    /// SIGKILL.
    Killed,
    /// SIGTERM.
    Drained,
    /// The network drops everything from and to the server.
    Unreachable,
}

/// Each way in which a server can fail, with its name in the report.
pub(super) const WAYS: [(How, &str); 4] = [
    (How::Never, "no server stops"),
    (How::Killed, "a server is killed"),
    (How::Drained, "a server drains"),
    (How::Unreachable, "the network of a server drops everything"),
];

/// A server that joins while the ranks read.
#[derive(Debug, Serialize)]
pub(super) struct Join {
    /// Time in seconds from the moment at which the server is ready until each server has its share of the streams.
    pub(super) seconds: f64,
    /// Longest wait of any rank for a batch, in seconds.
    pub(super) longest_wait_seconds: f64,
}

/// Returns the settings of clients inside a cluster: a server that does not answer is left after 10 s.
pub(super) fn config() -> Config {
    let keepalive = Duration::from_secs(5);
    Config { keepalive_interval: keepalive, keepalive_timeout: keepalive, ..Config::default() }
}

/// Stops each server in turn, in the middle of an epoch and in each way.
pub(super) fn stop_servers(job: &mut Job<'_>, mut servers: Servers, turns: u64) -> anyhow::Result<Vec<Stop>> {
    let pause = Duration::from_secs_f64(job.epoch(1, || Ok(()))?.seconds / 2.0);
    let mut stops = Vec::new();
    for turn in 0..turns as usize {
        for (how, name) in WAYS {
            eprintln!("turn {} of {turns}: {name}", turn + 1);
            let victim = turn % servers.urls().len();
            let run = job.epoch(2, || {
                std::thread::sleep(pause);
                match how {
                    How::Never => {}
                    How::Killed => servers.kill(victim),
                    How::Drained => servers.drain(victim)?,
                    How::Unreachable => servers.disconnect(victim),
                }
                Ok(())
            })?;
            let mut agreed_after = None;
            match how {
                How::Never => {}
                How::Killed | How::Drained => job.runtime().block_on(servers.restart(victim))?,
                How::Unreachable => agreed_after = Some(job.runtime().block_on(servers.reconnect(victim))?),
            }
            stops.push(Stop {
                how,
                longest_wait_seconds: run.longest_wait_seconds,
                agreed_after_seconds: agreed_after.map(|time| time.as_secs_f64()),
            });
            if how != How::Never {
                job.epoch(1, || Ok(()))?;
            }
        }
    }
    Ok(stops)
}

/// Starts one more server in the middle of an epoch.
pub(super) fn join_server(job: &mut Job<'_>, mut servers: Servers) -> anyhow::Result<Join> {
    let seconds = job.epoch(1, || Ok(()))?.seconds;
    let epochs = 2 + (JOIN_SECONDS / seconds).ceil() as u64;
    let (runtime, ranks) = (job.runtime(), job.ranks());
    let mut spread = Duration::ZERO;
    let run = job.epoch(epochs, || {
        std::thread::sleep(Duration::from_secs_f64(seconds / 2.0));
        runtime.block_on(servers.join())?;
        let ready = Instant::now();
        loop {
            let streams = servers.open_streams()?;
            spread = ready.elapsed();
            if is_even(&streams, ranks) {
                return Ok(());
            }
            ensure!(spread < SPREAD_TIMEOUT, "{ranks} streams are not spread over the servers: {streams:?}");
            std::thread::sleep(POLL);
        }
    })?;
    Ok(Join { seconds: spread.as_secs_f64(), longest_wait_seconds: run.longest_wait_seconds })
}

/// Returns true if all `ranks` have a stream, and each server has an equal share of them.
fn is_even(streams: &[f64], ranks: u64) -> bool {
    let (least, most) = (ranks / streams.len() as u64, ranks.div_ceil(streams.len() as u64));
    let has_share = |streams: &f64| (least as f64..=most as f64).contains(streams);
    streams.iter().sum::<f64>() == ranks as f64 && streams.iter().all(has_share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_even_if_no_server_has_more_than_its_share_or_less() {
        assert!(is_even(&[2.0, 1.0, 2.0, 1.0, 2.0], 8));
        assert!(!is_even(&[2.0, 2.0, 2.0, 2.0, 0.0], 8));
        assert!(!is_even(&[3.0, 1.0, 2.0, 1.0, 1.0], 8));
        assert!(!is_even(&[2.0, 1.0, 1.0, 1.0, 2.0], 8), "one rank has no stream");
    }
}
