//! The batch streams that are running.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use dashmap::DashMap;
use forebay_proto::v1::{BatchMetadata, ReportRequest, Train};
use tokio::sync::watch;
use tonic::Status;

/// The running streams of a server, bounded in number. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    shared: Arc<Shared>,
}

struct Shared {
    running: DashMap<u64, Arc<Session>>,
    next_id: AtomicU64,
    max_streams: usize,
    count: watch::Sender<usize>,
}

/// One running stream.
pub(crate) struct Session {
    pub(crate) train: Train,
    /// The id under which its trainer reports; 0 if it does not.
    trainer: u64,
    report: Mutex<Option<ReportRequest>>,
    pub(crate) started: Instant,
    /// Batches this stream will send in all.
    pub(crate) batches: u64,
    pub(crate) batches_sent: AtomicU64,
    pub(crate) rows_sent: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) epoch: AtomicU64,
    pub(crate) step: AtomicU64,
}

/// A session's place among the running ones; dropping it ends the session.
pub(crate) struct Running {
    id: u64,
    session: Arc<Session>,
    sessions: Sessions,
}

impl Sessions {
    pub(crate) fn new(max_streams: usize) -> Self {
        let count = watch::Sender::new(0);
        let shared = Shared { running: DashMap::new(), next_id: AtomicU64::new(0), max_streams, count };
        Self { shared: Arc::new(shared) }
    }

    /// Enters a stream.
    pub(crate) fn enter(&self, train: Train, batches: u64, trainer: u64) -> Result<Running, Status> {
        let limit = self.shared.max_streams;
        let entered = self.shared.count.send_if_modified(|count| {
            let free = *count < limit;
            *count += usize::from(free);
            free
        });
        if !entered {
            return Err(Status::resource_exhausted(format!(
                "{limit} streams are running, which is limits.max_streams; end some or raise it"
            )));
        }
        let session = Arc::new(Session {
            train,
            trainer,
            report: Mutex::default(),
            started: Instant::now(),
            batches,
            batches_sent: AtomicU64::new(0),
            rows_sent: AtomicU64::new(0),
            bytes_sent: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            step: AtomicU64::new(0),
        });
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        self.shared.running.insert(id, Arc::clone(&session));
        self.gauge();
        Ok(Running { id, session, sessions: self.clone() })
    }

    /// The running streams, the oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Session>> {
        let mut sessions: Vec<_> =
            self.shared.running.iter().map(|entry| (*entry.key(), Arc::clone(entry.value()))).collect();
        sessions.sort_by_key(|(id, _)| *id);
        sessions.into_iter().map(|(_, session)| session).collect()
    }

    /// Keeps what a trainer reports, with its streams.
    pub(crate) fn reported(&self, report: &ReportRequest) {
        let is_of = |session: &Session| {
            session.trainer == report.trainer
                && session.trainer != 0
                && session.train.dataset == report.dataset
        };
        for entry in self.shared.running.iter().filter(|entry| is_of(entry.value())) {
            *entry.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report.clone());
        }
    }

    /// Waits until no stream is running.
    pub(crate) async fn none_running(&self) {
        // The sender lives as long as `self`, so this ends only when the count is 0.
        drop(self.shared.count.subscribe().wait_for(|count| *count == 0).await);
    }

    fn gauge(&self) {
        metrics::gauge!("forebay_streams").set(*self.shared.count.borrow() as f64);
    }
}

impl Session {
    /// What its trainer reported last.
    pub(crate) fn report(&self) -> Option<ReportRequest> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Running {
    /// Counts a batch that is handed to the transport.
    pub(crate) fn sent(&self, batch: &BatchMetadata, bytes: u64) {
        let session = &self.session;
        session.batches_sent.fetch_add(1, Ordering::Relaxed);
        session.rows_sent.fetch_add(batch.rows, Ordering::Relaxed);
        session.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        session.epoch.store(batch.epoch, Ordering::Relaxed);
        session.step.store(batch.step, Ordering::Relaxed);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.sessions.shared.running.remove(&self.id);
        self.sessions.shared.count.send_modify(|count| *count -= 1);
        self.sessions.gauge();
    }
}
