//! The task that reads the member list, sends `hello` to each address, and publishes the view.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use forebay_placement::{Change, Hello, Members, RefusalReason};
use forebay_proto::v1::HelloResult;
use futures::FutureExt;
use metrics::counter;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    Settings,
    cluster::{Cluster, ClusterView},
    greeter::{Credentials, Greeter, Rejection, Running},
    identity::Identity,
    last_list::LastList,
    listing::{self, Listed},
    source::{self, Address, Source},
};
use crate::{
    drain::Drain,
    events::{Event, Events, Kind, Severity},
};

/// Interval at which the view is published even if no member has changed, because it contains the times of the last answers.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two attempts to read the id of the state.
const STATE_RETRY: Duration = Duration::from_secs(1);

/// The task that updates the view of the members.
pub(super) struct Watcher {
    config: Settings,
    setting: String,
    sources: Vec<Source>,
    greeter: Arc<Greeter>,
    credentials: Credentials,
    identity: Arc<Identity>,
    last_list: LastList,
    cluster: Arc<Cluster>,
    drain: Drain,
    events: Events,
    started: Instant,
    /// Calls of `hello` in progress, each with its address.
    greetings: JoinSet<(String, anyhow::Result<HelloResult>)>,
    permits: Arc<Semaphore>,
    /// The server that answers at each address, and that was found at its name, too.
    running: HashMap<String, Running>,
    /// Host names that the certificates of the servers must contain, by address.
    hosts: HashMap<String, String>,
    /// Scoped addresses of the last list. Each is logged when it appears.
    scoped: BTreeSet<SocketAddr>,
    list_error: Option<String>,
    /// True if the last read of the credentials failed.
    reload_failed: bool,
}

impl Watcher {
    /// # Errors
    /// If the sources, or a file with credentials, are malformed.
    pub(super) async fn new(
        settings: &crate::Settings,
        sources: &str,
        identity: Arc<Identity>,
        cluster: Arc<Cluster>,
        drain: Drain,
        events: Events,
    ) -> anyhow::Result<Self> {
        let greeter = Arc::new(Greeter::new(settings));
        let credentials = greeter.credentials().await?;
        let config = settings.membership.clone();
        Ok(Self {
            permits: Arc::new(Semaphore::new(config.max_concurrent_hellos.min(Semaphore::MAX_PERMITS))),
            config,
            setting: sources.to_owned(),
            sources: source::parse(sources)?,
            greeter,
            credentials,
            identity,
            last_list: LastList::new(&settings.cache_dir, sources),
            cluster,
            drain,
            events,
            started: Instant::now(),
            greetings: JoinSet::new(),
            running: HashMap::new(),
            hosts: HashMap::new(),
            scoped: BTreeSet::new(),
            list_error: None,
            reload_failed: false,
        })
    }

    /// Updates and publishes the view; never returns.
    pub(super) async fn run(mut self) {
        let confirmation = self.confirmation();
        let following = async {
            loop {
                let own = self.own_hello().await;
                self.follow(own).await;
            }
        };
        tokio::join!(confirmation, following);
    }

    /// Calls `hello` at the name of this server until this process answers there, or rejects the credentials. Until then, the server is
    /// not ready, because clients would not reach it.
    fn confirmation(&self) -> impl Future<Output = ()> + Send + use<> {
        let (greeter, identity) = (Arc::clone(&self.greeter), Arc::clone(&self.identity));
        let (events, pause) = (self.events.clone(), self.config.hello_interval);
        async move {
            let mut noted = None;
            while let Err(error) = confirm(&greeter, &identity).await {
                // The name leads to a server. Rejected credentials are an error of their own, which the views of the members show.
                if error.downcast_ref().is_some_and(Rejection::is_of_credentials) {
                    break;
                }
                let message = format!("this server is not ready, because clients can't reach it: {error:#}");
                if noted.as_ref() != Some(&message) {
                    events.note(Event::new(Kind::MemberRefused, &message));
                    noted = Some(message);
                }
                sleep(pause).await;
            }
            identity.set_confirmed();
        }
    }

    /// Returns the answer of this server to `hello`. Waits until the id of the state is known.
    async fn own_hello(&self) -> Hello {
        let mut noted = false;
        loop {
            match self.identity.hello(self.drain.is_leaving()).await {
                Ok(hello) => return placed(hello),
                Err(error) if !std::mem::replace(&mut noted, true) => {
                    let message = format!("this server can't join the cluster yet: {error}");
                    self.events.note(Event::new(Kind::MemberListFailed, &message));
                }
                Err(_) => {}
            }
            sleep(STATE_RETRY).await;
        }
    }

    /// Updates the view with `own` as the answer of this server. Returns if the id of its state has changed, for example because another
    /// server replaced it.
    async fn follow(&mut self, own: Hello) {
        let mut members = Members::new(self.config.config(), own);
        let mut changes = self.restored(&mut members).await;
        let mut saved = members.listed();
        let mut is_list_new = false;
        let mut published = None;
        let mut list = Box::pin(list(self.sources.clone(), self.config.clone(), Duration::ZERO));
        loop {
            let is_changed = !changes.is_empty();
            let is_other = changes.iter().any(is_other_state);
            self.note(std::mem::take(&mut changes));
            if is_other && self.has_other_state(&members.own().state).await {
                self.greetings.abort_all();
                return;
            }
            if std::mem::take(&mut is_list_new) && members.listed() != saved {
                saved = members.listed();
                self.save(&saved).await;
            }
            for address in members.due(self.now()) {
                self.greet(address);
            }
            let is_old = published.is_none_or(|at: Instant| at.elapsed() >= PUBLISH_INTERVAL);
            if is_changed || is_old {
                self.publish(&members);
                published = Some(Instant::now());
            }
            let wake = members.next_wake().map_or(PUBLISH_INTERVAL, |wake| wake.saturating_sub(self.now()));
            let draining = members.own().is_draining;
            tokio::select! {
                listed = &mut list => {
                    list.set(self::list(self.sources.clone(), self.config.clone(), self.config.poll_interval));
                    changes = self.listed(&mut members, listed).await;
                    is_list_new = true;
                }
                Some(greeted) = self.greetings.join_next() => {
                    // An aborted call has no result.
                    let Ok((address, result)) = greeted else { continue };
                    self.note_running(&address, &result);
                    let result = result.map(placed).map_err(|error| format!("{error:#}"));
                    changes = members.on_hello(self.now(), &address, result);
                }
                () = self.drain.left(), if !draining => {
                    members.set_draining(true);
                    published = None;
                }
                () = sleep(wake.min(PUBLISH_INTERVAL)) => {
                    changes = members.on_tick(self.now());
                    // A delayed list may have been adopted.
                    is_list_new = !changes.is_empty();
                }
            }
        }
    }

    /// Time since the start.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Passes the list that the previous process stored to `members`.
    async fn restored(&mut self, members: &mut Members) -> Vec<Change> {
        let last_list = self.last_list.clone();
        let loaded = tokio::task::spawn_blocking(move || last_list.load()).await.ok().flatten();
        let Some(loaded) = loaded else { return Vec::new() };
        self.remember(&loaded);
        members.on_list(self.now(), Ok(loaded.into_iter().map(|address| address.text)))
    }

    /// Passes a list, or the reason why it can't be read, to `members`.
    async fn listed(&mut self, members: &mut Members, listed: anyhow::Result<Listed>) -> Vec<Change> {
        // The files may have changed since the last list.
        match self.greeter.credentials().await {
            Ok(credentials) => {
                self.credentials = credentials;
                self.reload_failed = false;
            }
            Err(error) if !std::mem::replace(&mut self.reload_failed, true) => {
                let message = format!(
                    "the credentials for other servers can't be read, and the previous ones are used: {error:#}"
                );
                self.events.note(Event::new(Kind::ReloadFailed, &message));
            }
            Err(_) => {}
        }
        self.list_error = listed.as_ref().err().map(|error| format!("{error:#}"));
        let listed = match listed {
            Ok(Listed { addresses, scoped }) => {
                for address in scoped.difference(&self.scoped) {
                    tracing::warn!(
                        %address,
                        "skipped an address from DNS: it is a scoped IPv6 address, which other machines cannot use"
                    );
                }
                self.scoped = scoped;
                self.remember(&addresses);
                Ok(addresses.into_iter().map(|address| address.text))
            }
            Err(error) => {
                counter!("forebay_member_list_errors_total").increment(1);
                Err(format!("{error:#}"))
            }
        };
        members.on_list(self.now(), listed)
    }

    /// Stores the host names for certificates, including those of addresses that are no longer in the list.
    fn remember(&mut self, addresses: &[Address]) {
        if self.hosts.len() > 4 * self.config.max_members {
            self.hosts.clear();
        }
        self.hosts.extend(addresses.iter().map(|address| (address.text.clone(), address.host.clone())));
    }

    fn address(&self, text: &str) -> anyhow::Result<Address> {
        let parsed = Address::parse(text)?;
        Ok(Address { host: self.hosts.get(text).cloned().unwrap_or(parsed.host), text: parsed.text })
    }

    /// Notes which server answers at an address. After an error, its name is checked again.
    fn note_running(&mut self, address: &str, result: &anyhow::Result<HelloResult>) {
        match result {
            Ok(hello) => {
                if self.running.len() > 4 * self.config.max_members {
                    self.running.clear();
                }
                self.running.insert(address.to_owned(), (hello.name.clone(), hello.instance));
            }
            Err(_) => {
                counter!("forebay_hello_errors_total").increment(1);
                self.running.remove(address);
            }
        }
    }

    fn greet(&mut self, text: String) {
        let (address, credentials) = (self.address(&text), self.credentials.clone());
        let known = self.running.get(&text).cloned();
        let permits = Arc::clone(&self.permits);
        self.greetings.spawn(async move {
            let greeting = async {
                let _permit = permits.acquire().await.context("the server stops")?;
                credentials.greet(&address?, known.as_ref()).await
            };
            // Each call must have a result, because the next `hello` is sent to the address only after it.
            let result = AssertUnwindSafe(greeting).catch_unwind().await;
            (text, result.unwrap_or_else(|_| Err(anyhow!("the call of `hello` panicked"))))
        });
    }

    async fn save(&self, listed: &[String]) {
        let addresses: Vec<Address> = listed.iter().filter_map(|text| self.address(text).ok()).collect();
        let last_list = self.last_list.clone();
        let saved = tokio::task::spawn_blocking(move || last_list.save(&addresses)).await;
        if let Err(error) = saved.map_err(std::io::Error::from).flatten() {
            tracing::warn!(%error, "the member list could not be stored in the cache directory");
        }
    }

    /// Reads the id of the state again, and returns whether it differs from `known`.
    async fn has_other_state(&self, known: &str) -> bool {
        self.identity.forget_state();
        let state = timeout(self.config.hello_timeout, self.identity.state()).await;
        state.is_ok_and(|state| state.is_ok_and(|state| state != known))
    }

    fn publish(&self, members: &Members) {
        self.cluster.publish(ClusterView {
            sources: self.setting.clone(),
            view: Some(members.view()),
            held: members.held(),
            list_error: self.list_error.clone(),
            started: self.started,
        });
    }

    fn note(&self, changes: Vec<Change>) {
        for change in changes {
            let message = change.to_string();
            let event = |kind| Event::new(kind, &message);
            self.events.note(match &change {
                Change::Joined { .. } => event(Kind::MemberJoined),
                Change::Left { .. } => event(Kind::MemberLeft),
                Change::Draining { .. } => event(Kind::MemberDraining),
                Change::Refused(_) => event(Kind::MemberRefused),
                Change::HeldBack { .. } => event(Kind::MemberListHeld),
                Change::ShrinkAdopted { .. } => event(Kind::MemberListAdopted).severity(Severity::Warning),
                Change::HoldEnded | Change::SourceRecovered => event(Kind::MemberListAdopted),
                Change::ListTooLong { .. } | Change::SourceFailed { .. } => event(Kind::MemberListFailed),
                Change::Updated { .. } => {
                    tracing::info!("{message}");
                    continue;
                }
            });
        }
    }
}

/// Checks that this process answers at its name.
async fn confirm(greeter: &Greeter, identity: &Identity) -> anyhow::Result<()> {
    let name = identity.name().context("this server has no name")?;
    greeter.credentials().await?.confirm(name, identity.instance()).await
}

/// Reads the member list after `delay`.
async fn list(sources: Vec<Source>, config: Settings, delay: Duration) -> anyhow::Result<Listed> {
    sleep(delay).await;
    listing::list(&sources, config.hello_timeout, config.max_members).await
}

/// Converts the answer of a server to the type of the placement crate.
fn placed(hello: HelloResult) -> Hello {
    let HelloResult { name, version, state, zone, draining, instance } = hello;
    let zone = Some(zone).filter(|zone| !zone.is_empty());
    Hello { name, instance, version, state, zone, is_draining: draining }
}

fn is_other_state(change: &Change) -> bool {
    matches!(change, Change::Refused(refusal) if matches!(refusal.reason, RefusalReason::OtherState { .. }))
}
