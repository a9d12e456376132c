//! A new server, and a consumer process that receives from it.

use std::path::Path;

use anyhow::ensure;
use forebay_proto::v1;
use tokio::runtime::Runtime;

use crate::{
    process::Process,
    protocol::{RunRequest, RunResult},
    scenario::Scenario,
    server::{self, Server, Transport},
};

/// A server with an empty cache, and a consumer process that receives from it.
pub(crate) struct Session {
    // Fields are dropped in order: the consumer stops before the server.
    consumer: Process,
    server: Server,
    plan: v1::PlanSummary,
}

impl Session {
    /// Starts a server for the data at `path`, waits until it has opened the dataset of `train`, and starts a consumer.
    pub(crate) fn start(scenario: &Scenario, path: &Path, train: &v1::Train) -> anyhow::Result<Self> {
        let server = Server::start(&scenario.name, path, Transport::Tcp)?;
        let plan = Runtime::new()?.block_on(server::opened(server.url(), train))?;
        Ok(Self { consumer: Process::consumer("forebay", server.url())?, server, plan })
    }

    /// Streams `train` and verifies that it has `rows` rows. Returns the result and the CPU seconds of both processes.
    pub(crate) fn run(&mut self, train: v1::Train, rows: u64) -> anyhow::Result<(RunResult, f64)> {
        let before = self.cpu_seconds()?;
        let result = self.consumer.run(&RunRequest::of(train))?;
        ensure!(result.rows == rows, "received {} rows of {rows}", result.rows);
        Ok((result, self.cpu_seconds()? - before))
    }

    /// Returns the CPU seconds that both processes have used so far.
    pub(crate) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        Ok(self.server.usage()?.cpu_seconds + self.consumer.usage()?.cpu_seconds)
    }

    /// Returns the plan of the request that the session was started with.
    pub(crate) fn plan(&self) -> &v1::PlanSummary {
        &self.plan
    }

    /// Empties both cache tiers of the server.
    pub(crate) fn drop_cache(&self) -> anyhow::Result<()> {
        Runtime::new()?.block_on(async {
            let connection =
                forebay_client::Connection::open(self.server.url(), std::sync::Arc::default()).await?;
            connection.action("drop-cache", "{}").await?;
            anyhow::Ok(())
        })
    }
}
