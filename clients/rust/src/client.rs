//! A client of a cluster of servers.

use std::{sync::Arc, time::Duration};

use arrow_schema::Schema;
use bytes::Bytes;
use forebay_proto::{
    Encoding,
    v1::{Command, CountResult, DatasetInfo, Lookup, Train},
};

use crate::{
    Caller, Config, Device, DeviceBatch, Error, Lookups, Plan, Training, ValueSet, Worker, counting,
    datasets,
    route::{Attempts, Route, Servers, Transport, Waiting},
    training::plan,
};

/// A client of a cluster: servers that serve the same datasets. If one fails, another one continues its streams. Cheap to clone.
///
/// # Examples
/// ```no_run
/// use forebay_client::{Client, Config, Error, proto::v1::Train};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Error> {
/// let client = Client::new(["grpc://a:8815", "grpc://b:8815"], Config::default())?;
/// let train = Train { dataset: "lineitem".into(), batch_size: 4096, ..Train::default() };
/// let plan = client.plan(&train).await?;
/// println!("{} batches of {} rows", plan.batches(), train.batch_size);
///
/// let mut training = client.start(plan)?;
/// while let Some(batch) = training.next().await {
///     println!("{} rows", batch?.rows());
/// }
/// # Ok(())
/// # }
/// ```
///
/// Lookups by key:
///
/// ```no_run
/// use std::sync::Arc;
///
/// use arrow_array::{Int64Array, RecordBatch};
/// use forebay_client::{Client, Config, proto::v1::Lookup};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::new(["grpc://127.0.0.1:8815"], Config::default())?;
/// let lookup = Lookup { dataset: "users".into(), columns: vec!["age".into()], ..Lookup::default() };
/// let lookups = client.lookup(&lookup).await?;
///
/// let ids = Int64Array::from(vec![17, 4]);
/// let keys = RecordBatch::try_from_iter([("user_id", Arc::new(ids) as _)])?;
/// let found = lookups.get(&keys).await?;
/// println!("{} of {} keys exist", found.metadata.found, keys.num_rows());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    servers: Servers,
}

impl Client {
    /// Creates a client of the servers at `urls`, the preferred one first. For the format of the URLs, see
    /// [`Connection::open`](crate::Connection::open). Does not connect.
    ///
    /// # Errors
    /// [`Error::Request`] if `urls` is empty, or a URL or a setting is invalid.
    pub fn new(urls: impl IntoIterator<Item = impl Into<String>>, config: Config) -> Result<Self, Error> {
        let urls: Vec<String> = urls.into_iter().map(Into::into).collect();
        Ok(Self { servers: Servers::new(&urls, config)? })
    }

    /// Returns this client with sets of values that the filters of its requests refer to. It sends a set to a server that does not have
    /// it, also when a stream continues at another server.
    ///
    /// # Examples
    /// ```no_run
    /// use arrow_array::Int64Array;
    /// use forebay_client::{Client, Config, Error, ValueSet, proto::v1::Train};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Error> {
    /// let ids = ValueSet::new(&Int64Array::from_iter_values((0..100_000).map(|id| 3 * id)))?;
    /// let train = Train {
    ///     dataset: "lineitem".into(),
    ///     batch_size: 4096,
    ///     filter: "l_orderkey IN (:ids)".into(),
    ///     values: vec![ids.named("ids")],
    ///     ..Train::default()
    /// };
    /// let client = Client::new(["grpc://127.0.0.1:8815"], Config::default())?.with_values([ids]);
    /// let mut training = client.train(&train).await?;
    /// while let Some(batch) = training.next().await {
    ///     println!("{} rows", batch?.rows());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_values(&self, values: impl IntoIterator<Item = ValueSet>) -> Self {
        Self { servers: self.servers.with_values(values) }
    }

    /// Passes notices about calls and streams that wait for a server to `hook`, instead of logging them as warnings: the first one
    /// after 3 s, then every 30 s. Clones of the client share the hook.
    #[must_use]
    pub fn on_waiting(self, hook: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.servers.on_waiting(Arc::new(hook));
        self
    }

    /// Returns true if a server has accepted a connection of this client or one of its clones.
    pub fn was_connected(&self) -> bool {
        self.servers.was_connected()
    }

    /// Requests the plan of `train` from any server.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the request; [`Error::RetryDeadlineExceeded`] if no server answered in time.
    pub async fn plan(&self, train: &Train) -> Result<Plan, Error> {
        self.plan_watched(train, |_| {}).await
    }

    /// As [`plan`](Self::plan). If the server counts the rows of a filter or of groups for more than three seconds, calls `progress`
    /// with what it has counted so far.
    ///
    /// # Errors
    /// The errors of [`plan`](Self::plan).
    pub async fn plan_watched(
        &self,
        train: &Train,
        progress: impl Fn(CountResult) + Send + Sync,
    ) -> Result<Plan, Error> {
        let (train, progress) = (&self.without_unused_hashes(train), &progress);
        let ask = |transport: Transport, limit: Option<Duration>| async move {
            let planned = async {
                let planned = plan(&transport, train);
                match limit {
                    Some(limit) => {
                        let planned = tokio::time::timeout(limit, planned).await;
                        planned.unwrap_or_else(|_| Err(Error::silent(transport.url(), limit)))
                    }
                    None => planned.await,
                }
            };
            if !counting::is_counted(train) {
                return planned.await;
            }
            tokio::select! {
                planned = planned => planned,
                never = counting::watch(&transport, train, progress) => match never {},
            }
        };
        self.call(format!("the plan of '{}'", train.dataset), ask).await
    }

    /// Lists the datasets that the client may read, sorted by name, with their numbers of rows. Those that cannot be opened have an
    /// `error`.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the request; [`Error::RetryDeadlineExceeded`] if no server answered in time.
    pub async fn datasets(&self) -> Result<Vec<DatasetInfo>, Error> {
        self.call("the list of datasets", |transport, _| async move { datasets::list(&transport).await })
            .await
    }

    /// Describes the dataset `name`: its current snapshot, its number of rows and its size.
    ///
    /// # Errors
    /// The errors of [`datasets`](Self::datasets).
    pub async fn dataset(&self, name: &str) -> Result<DatasetInfo, Error> {
        self.call(format!("dataset '{name}'"), |transport, _| async move {
            datasets::describe(&transport, name).await
        })
        .await
    }

    /// Receives the batches of one rank, in the order of its steps and each exactly once. Lost connections and restarted servers
    /// only delay them. `train` must select the rank if there are several. Its lanes are merged,
    /// unless it selects one.
    ///
    /// # Errors
    /// The errors of [`plan`](Self::plan); [`Error::Request`] if the rank is missing.
    pub async fn train(&self, train: &Train) -> Result<Training, Error> {
        let plan = self.plan(train).await?;
        self.start(plan)
    }

    /// Receives the batches of a plan of any server of the cluster.
    ///
    /// # Errors
    /// [`Error::Request`] if the plan has several ranks and selects none.
    pub fn start(&self, plan: Plan) -> Result<Training, Error> {
        require_rank(&plan)?;
        Ok(Training::start(&self.servers, plan))
    }

    /// Receives the batches of a plan into host memory that is page-locked for `device`, for a consumer that copies them itself. A
    /// copy that does not block reads the memory later: keep the batch until the copy has completed. If the memory can't be
    /// page-locked, a warning is logged once.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start).
    pub fn start_pinned(&self, plan: Plan, device: &Device) -> Result<Training, Error> {
        require_rank(&plan)?;
        Ok(Training::start_pinned(&self.servers, plan, device))
    }

    /// Receives the batches of a plan into the memory of `device`. One batch is copied ahead, or as many as
    /// [`Device::with_prefetch`] says.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start); [`Error::Device`] if the device cannot create a stream.
    pub fn start_on(&self, plan: Plan, device: &Device) -> Result<Training<DeviceBatch>, Error> {
        require_rank(&plan)?;
        Training::start_on(&self.servers, plan, device)
    }

    /// Opens lookups by key on any server.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the lookup; [`Error::RetryDeadlineExceeded`] if no server answered in time.
    pub async fn lookup(&self, lookup: &Lookup) -> Result<Lookups, Error> {
        Lookups::open(self.route(), lookup).await
    }

    /// Creates lookups by key that connect with their first request.
    pub fn lookups(&self, lookup: &Lookup) -> Lookups {
        Lookups::new(self.route(), lookup)
    }

    /// Opens a caller of the batch queue `queue` on any server.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup).
    pub async fn infer(&self, queue: &str) -> Result<Caller, Error> {
        Caller::open(self.route(), queue).await
    }

    /// Creates a caller of the batch queue `queue` that connects with its first request.
    pub fn caller(&self, queue: &str) -> Caller {
        Caller::new(self.route(), queue)
    }

    /// Opens a worker of the batch queue `queue` on any server. `credits` is the number of batches in flight; 0 selects 2. The
    /// worker reconnects after lost connections and restarts.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup).
    pub async fn worker(&self, queue: &str, credits: u64) -> Result<Worker, Error> {
        Worker::open(self.route(), queue, credits).await
    }

    /// Requests the schema of the batches of keys that the exchange of `command`, a lookup or a caller of a queue, expects.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup). Servers of earlier versions reject the request.
    pub async fn key_schema(&self, command: &Command) -> Result<Schema, Error> {
        let command = &Bytes::from(Encoding::Protobuf.encode(command));
        let schema = |transport: Transport, _| async move { transport.schema(command.clone()).await };
        self.call("the types of the keys", schema).await
    }

    /// Runs an action on the server in use and returns the bodies of all results. A transient error is retried on the next
    /// server.
    ///
    /// # Errors
    /// [`Error::Status`] if the server rejects the action; [`Error::RetryDeadlineExceeded`] if no server answered in time.
    pub async fn action(&self, kind: &str, body: &[u8]) -> Result<Vec<Bytes>, Error> {
        // The duration of an action is not limited: it may wait for the storage.
        let run = |transport: Transport, _| async move { transport.action(kind, body.to_vec()).await };
        self.call(format!("the action '{kind}'"), run).await
    }

    /// Returns `train` without content hashes if this client does not verify them.
    fn without_unused_hashes(&self, train: &Train) -> Train {
        let content_hash = train.content_hash.or((!self.servers.config().verify_hash).then_some(false));
        Train { content_hash, ..train.clone() }
    }

    fn route(&self) -> Route {
        Route::Any(self.servers.clone())
    }

    async fn call<T, F: Future<Output = Result<T, Error>>>(
        &self,
        subject: impl Into<String>,
        call: impl Fn(Transport, Option<Duration>) -> F,
    ) -> Result<T, Error> {
        let call = &call;
        let attempt = |limit| async move {
            let (transport, target) = self.servers.connect().await?;
            let mut done = call(transport.clone(), limit).await;
            if let Err(error) = &done {
                match self.servers.supply(&transport, error).await {
                    Ok(true) => done = call(transport, limit).await,
                    Ok(false) => {}
                    Err(error) => done = Err(error),
                }
            }
            if done.as_ref().is_err_and(|error| error.is_transient() || error.depends_on_server()) {
                self.servers.skip(target);
            }
            done
        };
        let config = self.servers.config();
        let attempts = Attempts::of(&self.servers, subject, config.retry_deadline);
        attempts.run(config.attempt_timeout, || self.servers.targets(), attempt).await
    }
}

/// Verifies that the plan selects one rank.
fn require_rank(plan: &Plan) -> Result<(), Error> {
    if plan.resolved.rank.is_none() && plan.summary.world_size > 1 {
        return Err(Error::Request(format!(
            "rank: is missing, expected 0 to {}, because world_size is {}",
            plan.summary.world_size - 1,
            plan.summary.world_size
        )));
    }
    Ok(())
}
