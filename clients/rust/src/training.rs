//! The batches of one rank, in order, over several connections and servers.
//!
//! ```text
//! planner --Plan--> Training --next--> the trainer
//!                      |  \--> replanner: asks for the plan again, to follow its locations
//!                      |  \--> meter --> reporter: a report per second to the server
//!                    lanes: merges the lanes into the order of steps, through uploads for a device
//!                      |
//!                    lane: resumes at the next batch after a failure, verifies each batch
//!                      |
//!                    ticket_stream: one response
//! ```

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_schema::SchemaRef;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Batch, Config, Device, DeviceBatch, Error,
    batches::Item,
    memory::Slabs,
    route::{Placement, Servers},
};

mod job;
mod lane;
mod lanes;
mod meter;
mod plan;
mod planner;
mod replanner;
mod reporter;
mod ticket_stream;
mod uploads;

use job::Job;
use lanes::Lanes;
use meter::Meter;
pub use meter::{Counters, Failures, Loading, Stats, Utilization};
pub use plan::{Cursor, Plan};
pub(crate) use planner::plan;
pub(crate) use ticket_stream::{TicketStream, ticket};
use uploads::Uploads;

/// The batches of one rank in the order of its steps, with its lanes merged. Dropping it ends its streams.
///
/// A request with a `lane` delivers only the batches of that lane: with `lanes` k and `lane` l, numbers l, l + k, l + 2k and so
/// on, counted from the start of the request.
///
/// Each batch is delivered exactly once, also if connections are lost or servers restart. Each batch is verified against the
/// [`Plan`].
///
/// # Examples
/// A training that stops at step 10 and resumes there later:
///
/// ```no_run
/// use forebay_client::{Client, Config, Error, proto::v1::Train};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Error> {
/// let client = Client::new(["grpc://127.0.0.1:8815"], Config::default())?;
/// let train = Train { dataset: "lineitem".into(), batch_size: 4096, seed: 7, ..Train::default() };
///
/// let mut training = client.train(&train).await?;
/// while let Some(batch) = training.next().await {
///     let batch = batch?.record_batch()?;
///     println!("{} rows", batch.num_rows());
///     if training.cursor().step == 10 {
///         break;
///     }
/// }
///
/// // A checkpoint consists of the cursor and the snapshot.
/// let cursor = training.cursor();
/// let snapshot = training.plan().summary.snapshot.clone();
/// drop(training);
///
/// let resumed = Train { snapshot, epoch: cursor.epoch, start_step: cursor.step, ..train };
/// let mut training = client.train(&resumed).await?;
/// while let Some(batch) = training.next().await {
///     println!("{} rows", batch?.rows());
/// }
/// # Ok(())
/// # }
/// ```
pub struct Training<B = Batch> {
    plan: Arc<Plan>,
    lanes: Lanes<B>,
    ended: bool,
    meter: Arc<Meter>,
    /// Time of the last delivery.
    delivered: Option<Instant>,
    /// Time of the first request for the next batch.
    requested: Option<Instant>,
    placement: Placement,
    _reporter: Option<AbortOnDropHandle<()>>,
    _replanner: Option<AbortOnDropHandle<()>>,
}

impl Training {
    /// Starts to receive the batches of `plan` into host memory.
    pub(crate) fn start(servers: &Servers, plan: Plan) -> Self {
        let job = Job::new(servers, plan);
        let slabs = Slabs::new(servers.config().idle_slab_bytes);
        Self::new(Lanes::receive(&job, &slabs), job)
    }

    /// Starts to receive the batches of `plan` into host memory that is page-locked for `device`.
    pub(crate) fn start_pinned(servers: &Servers, plan: Plan, device: &Device) -> Self {
        let job = Job::new(servers, plan);
        let slabs = Slabs::pinned(servers.config().idle_slab_bytes, Arc::new(device.clone()));
        Self::new(Lanes::receive(&job, &slabs), job)
    }
}

impl Training<DeviceBatch> {
    /// Starts to receive the batches of `plan` into the memory of `device`.
    pub(crate) fn start_on(servers: &Servers, plan: Plan, device: &Device) -> Result<Self, Error> {
        let job = Job::new(servers, plan);
        let slabs = Slabs::pinned(servers.config().idle_slab_bytes, Arc::new(device.clone()));
        let received = Lanes::receive(&job, &slabs);
        // The depth is that of the device. The limit of bytes is for the host memory of the lanes.
        let config = Config {
            prefetch_batches: device.prefetch() as u64,
            prefetch_bytes: u64::MAX,
            ..(**servers.config()).clone()
        };
        let uploads = Uploads::new(received, device)?;
        let lanes = Lanes::single(uploads, &job.plan, &config);
        Ok(Self::new(lanes, job))
    }
}

#[allow(private_bounds)] // The trait is sealed.
impl<B: Item> Training<B> {
    fn new(lanes: Lanes<B>, job: Job) -> Self {
        let reports = || AbortOnDropHandle::new(tokio::spawn(reporter::report(job.clone())));
        let reporter = job.servers.config().report.then(reports);
        let follows = || AbortOnDropHandle::new(tokio::spawn(replanner::follow(job.clone())));
        let replanner = job.placement.is_following().then(follows);
        let Job { plan, placement, meter, .. } = job;
        Self {
            plan,
            lanes,
            ended: false,
            meter,
            delivered: None,
            requested: None,
            placement,
            _reporter: reporter,
            _replanner: replanner,
        }
    }

    /// Returns the plan of the training.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.plan.schema
    }

    /// Returns the position of the batch that [`next`](Self::next) delivers next. A training that starts there continues
    /// without a gap.
    pub fn cursor(&self) -> Cursor {
        self.plan.cursor(self.lanes.next_number())
    }

    /// Returns the next batch; `None` after the last one and after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<B, Error>> {
        if self.ended {
            return None;
        }
        // A cancelled call has set `requested` before.
        let requested = match self.requested {
            Some(requested) => requested,
            None => {
                let requested = Instant::now();
                let computed = self.delivered.take().map(|delivered| requested - delivered);
                self.meter.requested(requested, computed);
                *self.requested.insert(requested)
            }
        };
        let mut next = self.lanes.next().await;
        let now = Instant::now();
        self.requested = None;
        let number = self.lanes.next_number();
        if next.is_none() && number < self.plan.batches() {
            // The task of the lane ended without an error, so it panicked.
            next = Some(Err(Error::protocol(format!("receiving ended before batch {number}"))));
        }
        match &next {
            Some(Ok(batch)) => {
                self.delivered = Some(now);
                self.meter.delivered(now, now - requested, batch);
            }
            Some(Err(_)) | None => {
                self.ended = true;
                self.meter.ended();
            }
        }
        next
    }

    /// Returns the counters of the training.
    pub fn stats(&self) -> Stats {
        self.meter.stats()
    }

    /// Returns the number of distinct locations of the plan that were skipped, because their host is not trusted or they lack TLS;
    /// see [`Config::trusted_hosts`].
    pub fn skipped_locations(&self) -> u64 {
        self.placement.refused_locations()
    }

    /// Returns a handle to the counters. It can be read while a batch is awaited.
    pub fn counters(&self) -> Counters {
        self.meter.counters()
    }

    /// Returns a handle to the failed attempts after which streams were resumed. It can be read while a batch is awaited.
    pub fn failures(&self) -> Failures {
        self.meter.failures()
    }

    /// Returns a handle to what the server loads for the training. It can be read while a batch is awaited.
    pub fn loading(&self) -> Loading {
        self.meter.loading()
    }

    /// Returns a handle that reports the utilization of the trainer's device to the server.
    pub fn utilization(&self) -> Utilization {
        self.meter.utilization_handle()
    }

    /// Records time that the trainer spent on copying a batch to a device. It counts as [`Stats::copy`] instead of
    /// [`Stats::compute`].
    pub fn copied(&self, time: Duration) {
        self.meter.copied(time);
    }
}
