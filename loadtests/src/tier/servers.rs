//! Servers that know each other, each behind a link.

use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::server::{Server, Transport};

use super::link::Link;

/// Maximum time until every server knows all others.
const MEET_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Settings of the servers. They share one machine, whose load says nothing about any of them.
const CONFIG: &str = r#"
[membership]
poll_interval = "100ms"
hello_interval = "200ms"
overflow_demand = 1000
"#;

/// Servers of one dataset. The clients and the servers know the addresses of the links.
pub(super) struct Servers {
    dataset: String,
    url: String,
    members: PathBuf,
    rate: Option<u64>,
    links: Vec<Link>,
    servers: Vec<Server>,
    folder: TempDir,
}

impl Servers {
    /// Starts `count` servers for the data at `url`, named `dataset`, with a link of `rate` bytes per second each.
    pub(super) async fn start(
        dataset: &str,
        url: String,
        count: usize,
        rate: Option<u64>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("forebay.toml"), CONFIG)?;
        let members = folder.path().join("members");
        let mut started = Self {
            dataset: dataset.to_owned(),
            url,
            members,
            rate,
            links: Vec::new(),
            servers: Vec::new(),
            folder,
        };
        for _ in 0..count {
            started.links.push(Link::start(rate).await?);
        }
        started.list()?;
        for index in 0..count {
            let server = started.start_server(index)?;
            started.servers.push(server);
        }
        started.meet().await?;
        Ok(started)
    }

    /// Starts one more server. Returns when it is ready; the others may not know it yet.
    pub(super) async fn join(&mut self) -> anyhow::Result<()> {
        self.links.push(Link::start(self.rate).await?);
        self.list()?;
        let server = self.start_server(self.links.len() - 1)?;
        self.servers.push(server);
        Ok(())
    }

    /// Replaces the list of members by one of all links.
    fn list(&self) -> anyhow::Result<()> {
        let names: Vec<String> = self.links.iter().map(|link| link.address().to_string()).collect();
        // A server that reads the list at the same time must not find a part of it.
        let new = self.members.with_extension("new");
        std::fs::write(&new, names.join("\n"))?;
        Ok(std::fs::rename(new, &self.members)?)
    }

    /// URLs of the links.
    pub(super) fn urls(&self) -> Vec<String> {
        self.links.iter().map(|link| format!("http://{}", link.address())).collect()
    }

    /// Kills a server.
    pub(super) fn kill(&mut self, index: usize) {
        self.servers[index].stop();
    }

    /// Asks a server to end its streams and to stop.
    pub(super) fn drain(&mut self, index: usize) -> anyhow::Result<()> {
        self.servers[index].terminate()
    }

    /// Drops everything from and to a server.
    pub(super) fn disconnect(&self, index: usize) {
        self.links[index].set_flowing(false);
    }

    /// Ends [`disconnect`](Self::disconnect), and waits until all servers know each other. Returns the time that this took.
    pub(super) async fn reconnect(&self, index: usize) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.links[index].set_flowing(true);
        self.meet().await?;
        Ok(started.elapsed())
    }

    /// Starts a stopped server again, with an empty cache, and waits until all servers know each other.
    pub(super) async fn restart(&mut self, index: usize) -> anyhow::Result<()> {
        self.servers[index].stop();
        self.servers[index] = self.start_server(index)?;
        self.meet().await
    }

    /// Number of rows that each server has decoded.
    pub(super) fn decoded_rows(&self) -> anyhow::Result<Vec<f64>> {
        self.servers.iter().map(|server| server.counter("forebay_decode_rows_total")).collect()
    }

    /// Number of batch streams that are open at each server.
    pub(super) fn open_streams(&self) -> anyhow::Result<Vec<f64>> {
        self.servers.iter().map(|server| server.counter("forebay_streams")).collect()
    }

    fn start_server(&self, index: usize) -> anyhow::Result<Server> {
        let (members, advertise) =
            (format!("file:{}", self.members.display()), self.links[index].address().to_string());
        let config = self.folder.path().join("forebay.toml").display().to_string();
        let state = self.folder.path().join("state").display().to_string();
        let flags =
            ["--members", &members, "--advertise", &advertise, "--config", &config, "--state", &state];
        let server = Server::start_with(&self.dataset, &self.url, Transport::Tcp, &flags, &[])?;
        let address = server.url().trim_start_matches("http://");
        let address: SocketAddr = address.parse().with_context(|| format!("address {address}"))?;
        self.links[index].lead_to(address);
        server.ready()?;
        Ok(server)
    }

    /// Waits until every server knows all others.
    async fn meet(&self) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + MEET_TIMEOUT;
        for server in &self.servers {
            loop {
                let view = server.http("GET", "/api/v1/members", "")?;
                let known = view["members"]
                    .as_array()
                    .map_or(0, |members| members.iter().filter(|member| member["state"] == "ready").count());
                if known == self.links.len() {
                    break;
                }
                if tokio::time::Instant::now() > deadline {
                    bail!("{} knows {known} of {} servers: {view}", server.url(), self.links.len());
                }
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }
}
