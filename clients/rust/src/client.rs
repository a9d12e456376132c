//! Several servers that serve the same datasets.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use forebay_proto::v1::{Lookup, Train};

use crate::{
    Caller, Config, Connection, Device, DeviceBatch, Error, Lookups, Plan, Training, Worker, lane::Attempts,
    route::Route,
};

/// One tier: several servers, any of which can go on where another left off. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    servers: Servers,
}

/// The servers, and which of them is asked. Cheap to clone; clones move on together, so that the ranks and lanes of a
/// process find each other's windows in one server's memory.
#[derive(Clone)]
pub(crate) struct Servers {
    shared: Arc<Shared>,
}

struct Shared {
    urls: Vec<String>,
    config: Arc<Config>,
    current: AtomicUsize,
}

impl Client {
    /// A client of the servers at `urls`, the preferred one first; see [`Connection::open`] for how they are spelled.
    /// Nothing is connected yet.
    ///
    /// # Errors
    /// [`Error::Request`] when there is no URL.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>, config: Config) -> Result<Self, Error> {
        let urls: Vec<String> = urls.into_iter().map(Into::into).collect();
        if urls.is_empty() {
            return Err(Error::Request("there is no server, expected at least one URL".into()));
        }
        let shared = Shared { urls, config: Arc::new(config), current: AtomicUsize::new(0) };
        Ok(Self { servers: Servers { shared: Arc::new(shared) } })
    }

    /// Asks what `train` would deliver: the first server that answers, until the deadline.
    ///
    /// # Errors
    /// The server's own, by their status; [`Error::GaveUp`] when none could be reached.
    pub async fn plan(&self, train: &Train) -> Result<Plan, Error> {
        let train = &self.asked(train);
        self.call(|connection| async move { connection.plan(train).await }).await
    }

    /// The batches of one rank, in the order of its steps, each of them once: over lost connections, restarts and drains,
    /// from whichever server answers. `train` names the rank unless there is only one; its lanes are merged.
    ///
    /// # Errors
    /// As [`Client::plan`]; [`Error::Request`] when the rank is missing.
    pub async fn train(&self, train: &Train) -> Result<Training, Error> {
        let plan = self.plan(&Train { lane: None, ..train.clone() }).await?;
        self.start(plan)
    }

    /// The batches of a plan that was made before, by any server of the tier.
    ///
    /// # Errors
    /// [`Error::Request`] when the plan names no rank and there are several.
    pub fn start(&self, plan: Plan) -> Result<Training, Error> {
        one_rank(&plan)?;
        Ok(Training::start(&self.servers, plan))
    }

    /// The batches of a plan in the memory of `device`, copied there ahead of their consumer.
    ///
    /// # Errors
    /// As [`Client::start`]; [`Error::Device`] when the device has no room for a stream of copies.
    pub fn start_on(&self, plan: Plan, device: &Device) -> Result<Training<DeviceBatch>, Error> {
        one_rank(&plan)?;
        Training::start_on(&self.servers, plan, device)
    }

    /// Looks up rows by their keys, on whichever server answers.
    ///
    /// # Errors
    /// The server's own, by their status; [`Error::GaveUp`] when none could be reached.
    pub async fn lookup(&self, wanted: &Lookup) -> Result<Lookups, Error> {
        Lookups::open(Route::Any(self.servers.clone()), wanted).await
    }

    /// The caller's side of the batch queue `queue`, on whichever server answers.
    ///
    /// # Errors
    /// As [`Client::lookup`].
    pub async fn infer(&self, queue: &str) -> Result<Caller, Error> {
        Caller::open(Route::Any(self.servers.clone()), queue).await
    }

    /// As [`Client::infer`], but no server is asked before the first request.
    pub fn caller(&self, queue: &str) -> Caller {
        Caller::new(Route::Any(self.servers.clone()), queue)
    }

    /// The worker's side of the batch queue `queue`, with `credits` batches at a time (0: 2): over lost connections, restarts
    /// and drains, for whichever server answers.
    ///
    /// # Errors
    /// As [`Client::lookup`].
    pub async fn serve(&self, queue: &str, credits: u64) -> Result<Worker, Error> {
        Worker::open(Route::Any(self.servers.clone()), queue, credits).await
    }

    /// Runs one action to its end on the server that is asked now, and returns the bodies of its results.
    ///
    /// # Errors
    /// The server's own, by their status; [`Error::GaveUp`] when none could be reached.
    pub async fn action(&self, kind: &str, body: &[u8]) -> Result<Vec<bytes::Bytes>, Error> {
        self.call(|connection| async move { connection.action(kind, body.to_vec()).await }).await
    }

    /// `train`, without hashes if nobody looks at them.
    fn asked(&self, train: &Train) -> Train {
        let hash = train.hash.or((!self.servers.config().verify_hash).then_some(false));
        Train { hash, ..train.clone() }
    }

    async fn call<T, F: Future<Output = Result<T, Error>>>(
        &self,
        call: impl Fn(Connection) -> F,
    ) -> Result<T, Error> {
        let attempt = || async {
            let (connection, server) = self.servers.connection().await?;
            let done = call(connection).await;
            if done.as_ref().is_err_and(Error::is_transient) {
                self.servers.leave(server);
            }
            done
        };
        Attempts::new(self.servers.len(), self.servers.config().deadline).run(attempt).await
    }
}

/// A trainer is one rank.
fn one_rank(plan: &Plan) -> Result<(), Error> {
    if plan.resolved.rank.is_none() && plan.summary.world_size > 1 {
        return Err(Error::Request(format!(
            "rank: is missing; with world_size {} a trainer is one of them",
            plan.summary.world_size
        )));
    }
    Ok(())
}

impl Servers {
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.shared.config
    }

    pub(crate) fn len(&self) -> usize {
        self.shared.urls.len()
    }

    /// A new connection to the server that is asked now, and which one that is.
    pub(crate) async fn connection(&self) -> Result<(Connection, usize), Error> {
        let server = self.shared.current.load(Ordering::Relaxed);
        let opened = Connection::open(&self.shared.urls[server], Arc::clone(&self.shared.config)).await;
        Ok((opened.inspect_err(|_| self.leave(server))?, server))
    }

    /// From now on the one behind `server` is asked, if `server` still is.
    pub(crate) fn leave(&self, server: usize) {
        let next = (server + 1) % self.len();
        // Another lane may have left it already.
        let _ = self.shared.current.compare_exchange(server, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}
