//! The batches of one rank.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arrow_schema::SchemaRef;
use forebay_proto::v1::ReportRequest;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    Batch, Batches, Config, Cursor, Error, Plan,
    client::Servers,
    lane::Lane,
    meter::{Meter, Stats},
    slabs::Slabs,
};

/// How often a trainer says how it fares.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The batches of one rank in the order of its steps, its lanes merged. Dropping it ends its streams.
pub struct Training {
    plan: Arc<Plan>,
    lanes: Vec<Batches>,
    /// The number of the next batch.
    next: u64,
    ended: bool,
    meter: Arc<Meter>,
    /// When the last batch was handed over.
    handed_over: Option<Instant>,
    /// When the next one was first asked for.
    asked: Option<Instant>,
    _reporter: Option<AbortOnDropHandle<()>>,
}

impl Training {
    pub(crate) fn start(servers: &Servers, plan: Plan) -> Self {
        let plan = Arc::new(plan);
        let config = servers.config();
        let slabs = Slabs::new(config.idle_slab_bytes);
        // 0 stands for none.
        let trainer = fastrand::u64(1..);
        let each = Config { prefetch_bytes: config.prefetch_bytes / plan.lanes(), ..(**config).clone() };
        let lanes = (0..plan.lanes()).map(|lane| {
            let lane = Lane::new(servers.clone(), Arc::clone(&plan), slabs.clone(), trainer, lane);
            Batches::receive(lane, SchemaRef::clone(&plan.schema), &each)
        });
        let lanes = lanes.collect();
        let meter = Arc::new(Meter::default());
        let reports =
            config.report.then(|| report(servers.clone(), Arc::clone(&plan), Arc::clone(&meter), trainer));
        let reporter = reports.map(|reports| AbortOnDropHandle::new(tokio::spawn(reports)));
        Self {
            plan,
            lanes,
            next: 0,
            ended: false,
            meter,
            handed_over: None,
            asked: None,
            _reporter: reporter,
        }
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
        self.plan.cursor(self.next)
    }

    /// The next batch; `None` after the last one. Cancel-safe. After an error it is over.
    pub async fn next(&mut self) -> Option<Result<Batch, Error>> {
        if self.ended {
            return None;
        }
        let asked = *self.asked.get_or_insert_with(Instant::now);
        if let Some(handed_over) = self.handed_over.take() {
            self.meter.computed(asked - handed_over);
        }
        let lane = (self.next % self.lanes.len() as u64) as usize;
        let mut next = self.lanes[lane].next().await;
        let now = Instant::now();
        self.asked = None;
        if next.is_none() && self.next < self.plan.batches() {
            // Its task is gone, and no error came: it panicked.
            next = Some(Err(Error::protocol(format!("receiving ended before batch {} came", self.next))));
        }
        match &next {
            Some(Ok(batch)) => {
                self.next += 1;
                self.handed_over = Some(now);
                self.meter.handed_over(now - asked, batch);
            }
            Some(Err(_)) | None => self.ended = true,
        }
        next
    }

    /// What was delivered so far, and what that took.
    pub fn stats(&self) -> Stats {
        self.meter.stats()
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
        let (now, stats) = (Instant::now(), meter.stats());
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
