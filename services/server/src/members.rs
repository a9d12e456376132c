//! The members of a cluster in the view of this server, and the placement of streams on them.
//!
//! ```text
//! source, listing: member list +                                       +--> locations: URIs for GetFlightInfo
//!                              +--> watcher: forebay_placement::Members +
//! greeter: answers to `hello` -+         |             |               +--> cluster: view, placements, load
//!                                        v             v
//!                                   last_list        events
//! ```
//!
//! - [`Settings`]: limits and policies.
//! - `source`, `listing`: the setting `members`, and the member list that is read from it.
//! - `identity`: the answer of this server to `hello`; `greeter`: sends `hello` to other servers.
//! - `watcher`: the task that reads the member list, sends `hello` to each address, and publishes the view.
//! - `cluster`: the published view, and the placements of streams.
//! - `load`: the thresholds at which this server redirects new streams to the next server.
//!
//! The members determine only which server a client tries first. They have no influence on the bytes of a ticket: every server
//! serves every ticket.

mod cluster;
mod greeter;
mod host_port;
mod identity;
mod last_list;
mod listing;
mod load;
mod locations;
mod request_headers;
mod settings;
mod source;
mod watcher;

use std::sync::Arc;

use anyhow::Context;
use forebay_proto::v1::{HelloResult, Train};
use forebay_storage::State;
use metrics::counter;

use crate::{Error, drain::Drain, events::Events, partitions::partitions, sessions::Sessions};

use cluster::Cluster;
pub(crate) use cluster::{ClusterView, MemberState};
use identity::Identity;
use load::Load;
pub(crate) use locations::Locations;
pub(crate) use request_headers::{Candidate, candidate, zone};
pub use settings::Settings;
pub(crate) use settings::check_names;
use watcher::Watcher;

/// The members of a cluster. Without the setting `members`, there are none. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Members {
    identity: Arc<Identity>,
    joint: Option<Joint>,
}

/// The parts of a server with the setting `members`.
#[derive(Clone)]
struct Joint {
    cluster: Arc<Cluster>,
    load: Load,
    /// The task. The first call of [`Members::run`] takes it.
    watcher: Arc<parking_lot::Mutex<Option<Watcher>>>,
}

impl Members {
    /// Reads the credentials.
    ///
    /// # Errors
    /// If a setting or a file is malformed.
    pub(crate) async fn new(
        settings: &crate::Settings,
        state: &State,
        sessions: &Sessions,
        drain: &Drain,
        events: Events,
    ) -> anyhow::Result<Self> {
        let identity = Arc::new(Identity::new(settings, state)?);
        let Some(sources) = &settings.members else { return Ok(Self { identity, joint: None }) };
        let cluster = Arc::new(Cluster::new(settings, identity.zone()));
        let load = Load::new(settings, sessions.clone());
        let watcher = Watcher::new(
            settings,
            sources,
            Arc::clone(&identity),
            Arc::clone(&cluster),
            drain.clone(),
            events,
        );
        let watcher = watcher.await.context("--members")?;
        let watcher = Arc::new(parking_lot::Mutex::new(Some(watcher)));
        Ok(Self { identity, joint: Some(Joint { cluster, load, watcher }) })
    }

    /// Updates the view of the members; never returns.
    pub(crate) async fn run(self) {
        let Some(Joint { watcher, .. }) = self.joint else { return };
        let watcher = watcher.lock().take();
        let Some(watcher) = watcher else { return };
        watcher.run().await;
    }

    /// True if clients reach this server at its name. Always true without the setting `members`.
    pub(crate) fn is_reachable(&self) -> bool {
        self.joint.is_none() || self.identity.is_confirmed()
    }

    /// Returns the answer of this server to `hello`.
    ///
    /// # Errors
    /// Precondition without the setting `advertise`; unavailable if the state can't be read.
    pub(crate) async fn hello(&self, draining: bool) -> Result<HelloResult, Error> {
        self.identity.hello(draining).await
    }

    /// Returns the locations of the streams of `train`: of `rank`, or of all ranks. Without the setting `members` there are none.
    ///
    /// # Errors
    /// Internal, if the computation panicked.
    pub(crate) async fn locations(
        &self,
        train: &Train,
        rank: Option<u64>,
        zone: Option<String>,
    ) -> Result<Locations, Error> {
        match &self.joint {
            Some(Joint { cluster, .. }) => cluster.locations(train, rank, zone).await,
            None => Ok(Locations::default()),
        }
    }

    /// Admits a new stream of `train`, or redirects it if the load has reached a threshold. `candidate` is the position of this server
    /// in the caller's list of servers. A caller without a list, or whose list ends here, is not redirected.
    ///
    /// Streams with partitions are always admitted. The placement has distributed them evenly, and another server would decode their
    /// blocks again.
    ///
    /// # Errors
    /// Redirect: an error that refers the caller to the next server in its list.
    pub(crate) fn admit(&self, train: &Train, candidate: Option<Candidate>) -> Result<(), Error> {
        let (Some(Joint { cluster, load, .. }), Some(Candidate::Number(_))) = (&self.joint, candidate) else {
            return Ok(());
        };
        if partitions(train) > 1 || !cluster.has_others() {
            return Ok(());
        }
        let Some(bound) = load.exceeded() else { return Ok(()) };
        counter!("forebay_streams_redirected_total").increment(1);
        Err(Error::next(format!("this server has a high load ({bound}); call the next server of the list")))
    }

    /// Counts a new stream of `rank`, by the server that the placement assigns to it.
    pub(crate) fn note_stream(&self, train: &Train, rank: u64) {
        let Some(Joint { cluster, .. }) = &self.joint else { return };
        let (cluster, train) = (Arc::clone(cluster), train.clone());
        let name = self.identity.name().unwrap_or_default().to_owned();
        // A placement of many streams takes a while.
        tokio::spawn(async move {
            let Ok(Some(is_first)) = cluster.is_first(&name, &train, rank).await else { return };
            let candidate = if is_first { "first" } else { "other" };
            counter!("forebay_streams_placed_total", "candidate" => candidate).increment(1);
        });
    }

    /// Returns the view of this server; `None` without the setting `members`.
    pub(crate) fn view(&self) -> Option<Arc<ClusterView>> {
        self.joint.as_ref().map(|joint| joint.cluster.view())
    }
}
