//! The choice of the server for the streams of one rank, with its connections and health checks.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{
    candidates::{Candidate, CandidateNumber, Candidates, Event, Intervals},
    servers::{Servers, Target},
    transport::Transport,
};
use crate::Error;

/// Location of Flight that stands for the connection on which the plan was received.
const REUSE_CONNECTION: &str = "arrow-flight-reuse-connection:";
/// Maximum number of skipped locations that are stored, so that each is logged only once.
const MAX_REFUSED: usize = 64;

/// The server for the streams of one rank: a location of its plan, or a URL of the client. If the plan has no locations,
/// [`Servers`] chooses the URL. Cheap to clone. Clones use the same server, so that the lanes of a rank read from the memory of one
/// server.
#[derive(Clone)]
pub(crate) struct Placement {
    servers: Servers,
    following: Option<Arc<Following>>,
}

/// State of a placement that follows the locations of its plan.
struct Following {
    candidates: Mutex<Candidates>,
    /// Locations to which the client does not connect.
    refused: Mutex<BTreeSet<String>>,
    /// Last epoch that a stream has reached.
    epoch: AtomicU64,
    /// Wakes [`Placement::replan_due`] when an event has changed its time.
    changed: Notify,
}

/// The server of a stream.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    candidate: Candidate,
    /// Address of a URL of the client.
    own: Option<Target>,
    /// Position in the list of candidates; see [`Candidates::number`]. `None` without locations.
    number: Option<CandidateNumber>,
}

impl Origin {
    /// Returns the position of the server, for the header of the request.
    pub(crate) fn number(&self) -> Option<CandidateNumber> {
        self.number
    }

    /// Returns true for a location, and false for a URL of the client.
    pub(crate) fn is_location(&self) -> bool {
        matches!(self.candidate, Candidate::Location(_))
    }

    /// Returns true if the server may redirect the client to the next one.
    pub(crate) fn may_redirect(&self) -> bool {
        matches!(self.number, Some(CandidateNumber::Number(_)))
    }
}

impl Placement {
    /// Creates the choice for a rank whose plan contains `locations`. Its streams begin in `epoch`.
    pub(crate) fn new(servers: &Servers, locations: &[String], epoch: u64) -> Self {
        let servers = servers.clone();
        // Without locations, the servers have no members, or are behind a proxy. A later plan has no locations either.
        if locations.iter().all(|location| location.starts_with(REUSE_CONNECTION)) {
            return Self { servers, following: None };
        }
        let config = servers.config();
        let intervals = Intervals { replan: config.replan_interval, failback: config.failback_interval };
        let refused = Mutex::default();
        let trusted = trusted(&servers, locations, &refused);
        let candidates = Candidates::new(Instant::now(), fastrand::f64(), trusted, intervals);
        let following = Following {
            candidates: Mutex::new(candidates),
            refused,
            epoch: AtomicU64::new(epoch),
            changed: Notify::new(),
        };
        Self { servers, following: Some(Arc::new(following)) }
    }

    /// Returns true if the plan has locations, so that a later plan can have other ones.
    pub(crate) fn is_following(&self) -> bool {
        self.following.is_some()
    }

    /// Returns the number of distinct locations that the client does not connect to.
    pub(crate) fn refused_locations(&self) -> u64 {
        self.following.as_ref().map_or(0, |following| following.refused.lock().len() as u64)
    }

    /// Returns the number of locations, plus the number of addresses of all URLs of the client.
    pub(crate) fn targets(&self) -> usize {
        let locations =
            self.following.as_ref().map_or(0, |following| following.candidates.lock().locations());
        locations + self.servers.targets()
    }

    /// Opens a connection to the candidate in use. After an error, the next candidate is in use.
    pub(crate) async fn connect(&self) -> Result<(Transport, Origin), Error> {
        let Some(following) = &self.following else {
            let (transport, target) = self.servers.connect().await?;
            return Ok((transport, Origin { candidate: Candidate::Own, own: Some(target), number: None }));
        };
        let (candidate, number) = {
            let candidates = following.candidates.lock();
            let current = candidates.current();
            let number = candidates.number(&current);
            (current, Some(number))
        };
        let opened = match &candidate {
            Candidate::Location(url) => self.servers.dial(url).await.map(|transport| (transport, None)),
            Candidate::Own => {
                self.servers.connect().await.map(|(transport, target)| (transport, Some(target)))
            }
        };
        match opened {
            Ok((transport, own)) => Ok((transport, Origin { candidate, own, number })),
            Err(error) => {
                following.on(Event::Failed(&candidate, self.servers.targets()));
                Err(error)
            }
        }
    }

    /// Opens a connection to the server of the last stream, without any effect on the choice. Returns `None` if that server is a URL
    /// of the client, or if no stream was opened.
    pub(crate) async fn connect_to_location(&self) -> Option<Result<(Transport, Origin), Error>> {
        let serving = self.following.as_ref()?.candidates.lock().serving().cloned()?;
        let Candidate::Location(url) = &serving else { return None };
        let opened = self.servers.dial(url).await;
        Some(opened.map(|transport| (transport, Origin { candidate: serving, own: None, number: None })))
    }

    /// Returns true if the last stream was opened at `origin`, or if no stream was opened.
    pub(crate) fn is_serving(&self, origin: &Origin) -> bool {
        self.following.as_ref().is_none_or(|following| {
            following.candidates.lock().serving().is_none_or(|serving| *serving == origin.candidate)
        })
    }

    /// Returns true if the last stream was opened at a location.
    pub(crate) fn is_at_location(&self) -> bool {
        self.following.as_ref().is_some_and(|following| {
            matches!(following.candidates.lock().serving(), Some(Candidate::Location(_)))
        })
    }

    /// Records that a stream was opened at `origin`.
    pub(crate) fn opened(&self, origin: &Origin) {
        if let Some(following) = &self.following {
            following.on(Event::Opened(&origin.candidate));
        }
    }

    /// Records that an attempt at `origin` failed. The next stream is opened at the next candidate.
    pub(crate) fn failed(&self, origin: &Origin) {
        if let Some(target) = origin.own {
            self.servers.skip(target);
        }
        if let Some(following) = &self.following {
            following.on(Event::Failed(&origin.candidate, self.servers.targets()));
        }
    }

    /// Records that `origin` redirects the client to the next candidate.
    pub(crate) fn redirected(&self, origin: &Origin) {
        if let Some(following) = &self.following {
            following.on(Event::Redirected(&origin.candidate));
        }
    }

    /// Returns true if a stream from `origin` should continue at another server, because the first location or the preferred URL of
    /// the client is healthy again. Probes the preferred URL if a probe is due.
    pub(crate) fn has_moved_from(&self, origin: &Origin) -> bool {
        if let Some(following) = &self.following
            && following.candidates.lock().has_moved_from(&origin.candidate)
        {
            return true;
        }
        let Some(target) = origin.own else { return false };
        self.servers.probe_preferred();
        self.servers.has_returned_from(target)
    }

    /// Records that a stream has reached `epoch`. The first stream that reaches an epoch causes a new request for the plan.
    pub(crate) fn reached(&self, epoch: u64) {
        if let Some(following) = &self.following
            && following.epoch.fetch_max(epoch, Ordering::Relaxed) < epoch
        {
            following.on(Event::Epoch);
        }
    }

    /// Waits until the plan should be requested again. Never returns without locations.
    pub(crate) async fn replan_due(&self) {
        let Some(following) = &self.following else { return std::future::pending().await };
        loop {
            let changed = following.changed.notified();
            let due = following.candidates.lock().replan_at();
            tokio::select! {
                () = tokio::time::sleep_until(due) => return,
                () = changed => {}
            }
        }
    }

    /// Returns the URLs of the trusted locations.
    pub(crate) fn locations(&self) -> Vec<Arc<str>> {
        self.following.as_ref().map(|following| following.candidates.lock().urls()).unwrap_or_default()
    }

    /// Adopts the `locations` of a newer plan. `None` means that no server has answered the request for the plan.
    pub(crate) fn planned(&self, locations: Option<&[String]>) {
        let Some(following) = &self.following else { return };
        match locations {
            Some(locations) => {
                let trusted = trusted(&self.servers, locations, &following.refused);
                following.on(Event::Planned(trusted));
            }
            None => following.on(Event::NotPlanned),
        }
    }

    /// Probes the first location if the streams are at another server. If it is healthy, they move there with their next batch.
    pub(crate) async fn probe_first(&self) {
        let Some(following) = &self.following else { return };
        let Some(first) = following.candidates.lock().to_probe(Instant::now()).cloned() else { return };
        let check = async { self.servers.dial(&first).await?.check_health().await };
        match tokio::time::timeout(self.servers.config().connect_timeout, check).await {
            Ok(Ok(())) => {
                tracing::info!(
                    location = &*first,
                    "the first location is healthy; streams move to it with their next batch"
                );
                following.on(Event::Answered(&first));
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, location = &*first, "the first location is not healthy");
            }
            Err(_) => {
                tracing::debug!(location = &*first, "the first location did not answer a probe");
            }
        }
    }
}

impl Following {
    fn on(&self, event: Event<'_>) {
        self.candidates.lock().on(Instant::now(), fastrand::f64(), event);
        self.changed.notify_one();
    }
}

/// Returns the locations to which the client may connect, without duplicates, in their order. Locations after
/// `arrow-flight-reuse-connection` are not used. Logs each location once that is not trusted.
fn trusted(servers: &Servers, locations: &[String], refused: &Mutex<BTreeSet<String>>) -> Vec<Arc<str>> {
    let limit = usize::try_from(servers.config().max_locations).unwrap_or(usize::MAX);
    let named = locations.iter().take_while(|location| !location.starts_with(REUSE_CONNECTION));
    let mut trusted: Vec<Arc<str>> = Vec::new();
    for location in named.take(limit) {
        let Err(reason) = servers.admits(location) else {
            if !trusted.iter().any(|known| **known == **location) {
                trusted.push(location.as_str().into());
            }
            continue;
        };
        let mut refused = refused.lock();
        if refused.len() < MAX_REFUSED && refused.insert(location.clone()) {
            tracing::warn!(?location, reason, "the client skips a location of the plan that is not trusted");
        }
    }
    trusted
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Config;

    fn placement(locations: &[&str], config: Config) -> Placement {
        let servers = Servers::new(&["grpc://127.0.0.1:1".into()], config).unwrap();
        let locations: Vec<_> = locations.iter().map(|location| (*location).to_owned()).collect();
        Placement::new(&servers, &locations, 3)
    }

    fn urls(placement: &Placement) -> Vec<String> {
        placement.locations().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn locations_are_used_up_to_the_limit_without_duplicates_and_before_the_reused_connection() {
        let named = ["grpc://127.0.0.1:2", "grpc://10.0.0.1:2", "grpc://127.0.0.1:2", "grpc://[::1]:3"];
        let all = placement(&named, Config::default());
        assert_eq!(urls(&all), ["grpc://127.0.0.1:2", "grpc://[::1]:3"]);
        assert_eq!((all.refused_locations(), all.targets()), (1, 3));
        let few = placement(&named, Config { max_locations: 3, ..Config::default() });
        assert_eq!(urls(&few), ["grpc://127.0.0.1:2"]);
        let reused = placement(&[named[0], "arrow-flight-reuse-connection://?", named[3]], Config::default());
        assert_eq!(urls(&reused), [named[0]]);
        let refused = placement(&[named[1]], Config::default());
        assert!(refused.is_following() && urls(&refused).is_empty(), "a later plan may name others");
        for _ in 0..3 {
            refused.planned(Some(&[named[1].to_owned()]));
        }
        assert_eq!(refused.refused_locations(), 1, "counted and logged once");
        let many: Vec<_> = (0..200).map(|port| format!("grpc://10.0.0.1:{port}")).collect();
        for locations in many.chunks(10) {
            refused.planned(Some(locations));
        }
        assert_eq!(refused.refused_locations(), MAX_REFUSED as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn the_plan_is_asked_for_again_after_the_interval_and_soon_after_the_start_of_an_epoch() {
        let placement = placement(&["grpc://127.0.0.1:2"], Config::default());
        let waited = async |placement: &Placement| {
            let began = Instant::now();
            placement.replan_due().await;
            placement.planned(None);
            began.elapsed()
        };
        let (half, whole) = (Duration::from_secs(150), Duration::from_secs(301));
        assert!((half..whole).contains(&waited(&placement).await));
        // The epoch of the request is not a new one.
        placement.reached(3);
        assert!((half..whole).contains(&waited(&placement).await));
        placement.reached(4);
        assert!(waited(&placement).await <= Duration::from_secs(21));
        placement.reached(4);
        assert!((half..whole).contains(&waited(&placement).await));
        // An event during the wait shortens it.
        let other = placement.clone();
        let (waited, ()) = tokio::join!(waited(&placement), async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            other.reached(5);
        });
        assert!((Duration::from_secs(60)..Duration::from_secs(71)).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_locations_the_plan_is_never_due() {
        let placement = placement(&["arrow-flight-reuse-connection://?"], Config::default());
        placement.reached(9);
        let due = tokio::time::timeout(Duration::from_secs(1 << 20), placement.replan_due());
        assert!(due.await.is_err() && !placement.is_following());
    }
}
