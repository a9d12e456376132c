//! The batches of one rank.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_schema::SchemaRef;
use forebay_proto::v1::ReportRequest;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Batch, Batches, Config, Cursor, Device, DeviceBatch, Error, Plan,
    batches::Item,
    client::Servers,
    device::Uploads,
    lane::Lane,
    meter::{Failures, Meter, Stats, Utilization},
    slabs::Slabs,
};

/// How often a trainer says how it fares.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The batches of one rank in the order of its steps, its lanes merged. Dropping it ends its streams.
pub struct Training<B = Batch> {
    plan: Arc<Plan>,
    lanes: Lanes<B>,
    ended: bool,
    meter: Arc<Meter>,
    /// When the last batch was handed over.
    handed_over: Option<Instant>,
    /// When the next one was first asked for.
    asked: Option<Instant>,
    _reporter: Option<AbortOnDropHandle<()>>,
}

/// Streams that bring the batches of one rank in turn.
pub(crate) struct Lanes<B> {
    lanes: Vec<Batches<B>>,
    /// The number of the next batch.
    next: u64,
}

impl<B: Item> Lanes<B> {
    /// The next batch of all; `None` after the last one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Result<B, Error>> {
        let lane = (self.next % self.lanes.len() as u64) as usize;
        let next = self.lanes[lane].next().await;
        if let Some(Ok(_)) = next {
            self.next += 1;
        }
        next
    }
}

impl Lanes<Batch> {
    /// Begins to receive.
    fn receive(servers: &Servers, plan: &Arc<Plan>, slabs: &Slabs, meter: &Arc<Meter>, trainer: u64) -> Self {
        let config = servers.config();
        let each = Config { prefetch_bytes: config.prefetch_bytes / plan.lanes(), ..(**config).clone() };
        let lanes = (0..plan.lanes()).map(|lane| {
            let meter = Arc::clone(meter);
            let lane = Lane::new(servers.clone(), Arc::clone(plan), slabs.clone(), meter, trainer, lane);
            Batches::receive(lane, SchemaRef::clone(&plan.schema), &each)
        });
        Self { lanes: lanes.collect(), next: 0 }
    }
}

impl Training {
    pub(crate) fn start(servers: &Servers, plan: Plan) -> Self {
        let (plan, meter, trainer) = (Arc::new(plan), Arc::default(), trainer());
        let slabs = Slabs::new(servers.config().idle_slab_bytes, Device::host());
        let lanes = Lanes::receive(servers, &plan, &slabs, &meter, trainer);
        Self::over(lanes, servers, plan, meter, trainer)
    }
}

impl Training<DeviceBatch> {
    pub(crate) fn start_on(servers: &Servers, plan: Plan, device: &Device) -> Result<Self, Error> {
        let (plan, meter, trainer) = (Arc::new(plan), Arc::default(), trainer());
        let slabs = Slabs::new(servers.config().idle_slab_bytes, device.clone());
        let received = Lanes::receive(servers, &plan, &slabs, &meter, trainer);
        // With the one in use that makes two buffers in turn.
        let ahead = Config { prefetch_batches: 1, ..(**servers.config()).clone() };
        let uploads = Uploads::new(received, device)?;
        let lanes =
            Lanes { lanes: vec![Batches::receive(uploads, SchemaRef::clone(&plan.schema), &ahead)], next: 0 };
        Ok(Self::over(lanes, servers, plan, meter, trainer))
    }
}

/// A number by which servers tell trainers apart; 0 stands for none.
fn trainer() -> u64 {
    fastrand::u64(1..)
}

#[allow(private_bounds)] // Batches of other kinds there are not.
impl<B: Item> Training<B> {
    fn over(lanes: Lanes<B>, servers: &Servers, plan: Arc<Plan>, meter: Arc<Meter>, trainer: u64) -> Self {
        let config = servers.config();
        let reports =
            config.report.then(|| report(servers.clone(), Arc::clone(&plan), Arc::clone(&meter), trainer));
        let reporter = reports.map(|reports| AbortOnDropHandle::new(tokio::spawn(reports)));
        Self { plan, lanes, ended: false, meter, handed_over: None, asked: None, _reporter: reporter }
    }

    /// What was planned.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The schema of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.plan.schema
    }

    /// Where to go on: the place of the batch that [`next`](Self::next) hands over next.
    pub fn cursor(&self) -> Cursor {
        self.plan.cursor(self.lanes.next)
    }

    /// The next batch; `None` after the last one. Cancel-safe. After an error it is over.
    pub async fn next(&mut self) -> Option<Result<B, Error>> {
        if self.ended {
            return None;
        }
        let asked = match self.asked {
            Some(asked) => asked,
            None => {
                let asked = Instant::now();
                self.meter.asked(asked, self.handed_over.take().map(|handed_over| asked - handed_over));
                *self.asked.insert(asked)
            }
        };
        let mut next = self.lanes.next().await;
        let now = Instant::now();
        self.asked = None;
        if next.is_none() && self.lanes.next < self.plan.batches() {
            // Its task is gone, and no error came: it panicked.
            next =
                Some(Err(Error::protocol(format!("receiving ended before batch {} came", self.lanes.next))));
        }
        match &next {
            Some(Ok(batch)) => {
                self.handed_over = Some(now);
                self.meter.handed_over(now, now - asked, batch);
            }
            Some(Err(_)) | None => {
                self.ended = true;
                self.meter.ended();
            }
        }
        next
    }

    /// What was delivered so far, and what that took.
    pub fn stats(&self) -> Stats {
        self.meter.stats()
    }

    /// What went wrong so far though the stream goes on, to be looked at while it is awaited.
    pub fn failures(&self) -> Failures {
        Failures(Arc::clone(&self.meter))
    }

    /// Where to note how busy the device is that the trainer computes on; the server is told.
    pub fn utilization(&self) -> Utilization {
        Utilization(Arc::downgrade(&self.meter))
    }

    /// Notes time that was spent copying a batch elsewhere, to a device say; it is not counted as computing.
    pub fn copied(&self, time: Duration) {
        self.meter.copied(time);
    }
}

/// Tells the server once a second what the trainer did meanwhile, until the trainer is gone.
async fn report(servers: Servers, plan: Arc<Plan>, meter: Arc<Meter>, trainer: u64) {
    let mut before = (Instant::now(), meter.stats());
    let mut connection = None;
    loop {
        tokio::time::sleep(REPORT_INTERVAL).await;
        let now = Instant::now();
        let stats = meter.stats_until(now);
        let since = |of: fn(&Stats) -> Duration| of(&stats).saturating_sub(of(&before.1)).as_secs_f64();
        let report = ReportRequest {
            dataset: plan.resolved.dataset.clone(),
            trainer,
            rank: plan.rank(),
            seconds: (now - before.0).as_secs_f64(),
            wait_seconds: since(|stats| stats.wait),
            compute_seconds: since(|stats| stats.compute),
            copy_seconds: since(|stats| stats.copy),
            steps: stats.batches - before.1.batches,
            rows: stats.rows - before.1.rows,
            gpu_utilization: meter.utilization(now),
        };
        before = (now, stats);
        let opened = match connection.take() {
            Some(opened) => opened,
            None => match servers.connection().await {
                Ok((opened, _)) => opened,
                Err(_) => continue,
            },
        };
        match opened.report(&report).await {
            Ok(()) => connection = Some(opened),
            // The stream's own attempts say more about it.
            Err(error) if error.is_transient() => {}
            Err(error) => {
                tracing::debug!(%error, "the server takes no reports");
                return;
            }
        }
    }
}
