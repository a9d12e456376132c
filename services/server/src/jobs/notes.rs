//! What a server notes of the jobs that it streams, beside its streams: none of them waits for it, or fails with it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use forebay_proto::v1;
use forebay_storage::Error;
use tokio::sync::{mpsc, watch};

use super::{Jobs, Record};

/// Jobs that wait to be written; what is more is noted when its next stream starts.
const MAX_PENDING: usize = 1024;
/// A job whose streams go on starting is written again after this.
const WRITTEN_FOR: Duration = Duration::from_secs(3600);

/// Notes jobs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Notes {
    shared: Arc<Shared>,
}

struct Shared {
    max_jobs: usize,
    pending: mpsc::Sender<Record>,
    count: watch::Sender<usize>,
    /// When each job was noted by this server.
    noted: Mutex<HashMap<String, Instant>>,
}

impl Notes {
    /// Notes for `jobs`, and what writes them down, which never ends.
    pub(crate) fn new(jobs: Jobs) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (pending, records) = mpsc::channel(MAX_PENDING);
        let shared = Arc::new(Shared {
            max_jobs: jobs.max_jobs,
            pending,
            count: watch::Sender::new(0),
            noted: Mutex::default(),
        });
        (Self { shared: Arc::clone(&shared) }, shared.write(jobs, records))
    }

    /// Remembers the job of a pinned request, if that was not done lately. Returns at once.
    pub(crate) fn note(&self, train: &v1::Train) {
        if self.shared.max_jobs == 0 {
            return;
        }
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        let record = Record::of(train, now);
        if !self.shared.is_due(&record.id, Instant::now()) {
            return;
        }
        // Before it is sent: or it might be counted as written first.
        self.shared.count.send_modify(|count| *count += 1);
        if let Err(error) = self.shared.pending.try_send(record) {
            self.shared.count.send_modify(|count| *count -= 1);
            self.shared.forget(&error.into_inner().id);
        }
    }

    /// Waits until everything is written that was noted so far.
    pub(crate) async fn written(&self) {
        // The sender lives as long as `self`, so this ends only when the count is 0.
        drop(self.shared.count.subscribe().wait_for(|count| *count == 0).await);
    }
}

impl Shared {
    /// Whether a job is to be written now, as it will be then.
    fn is_due(&self, id: &str, now: Instant) -> bool {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.get(id).is_some_and(|noted| now.duration_since(*noted) < WRITTEN_FOR) {
            return false;
        }
        if noted.len() >= self.max_jobs {
            // They are written once more, which changes nothing.
            noted.clear();
        }
        noted.insert(id.to_owned(), now);
        true
    }

    fn forget(&self, id: &str) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    async fn write(self: Arc<Self>, jobs: Jobs, mut records: mpsc::Receiver<Record>) {
        let (mut is_failing, mut unchecked) = (false, usize::MAX);
        while let Some(record) = records.recv().await {
            let written = write(&jobs, &record, &mut unchecked).await;
            if let Err(error) = &written {
                self.forget(&record.id);
                if !is_failing {
                    let job = &record.request.job;
                    tracing::warn!(%error, job, id = record.id, "jobs can't be remembered; their streams go on");
                }
            }
            is_failing = written.is_err();
            self.count.send_modify(|count| *count -= 1);
        }
    }
}

/// Writes one, and once in a while forgets old ones.
async fn write(jobs: &Jobs, record: &Record, unchecked: &mut usize) -> Result<(), Error> {
    let is_new = jobs.keep(record).await?;
    *unchecked = unchecked.saturating_add(usize::from(is_new));
    if *unchecked > jobs.max_jobs / 16 {
        jobs.forget_old().await?;
        *unchecked = 0;
    }
    Ok(())
}
