//! Background writer of job records. Streams neither wait for it nor fail with it.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use forebay_proto::v1;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::{JobRecord, Jobs};
use crate::Error;

/// Maximum number of queued records; a dropped record is queued again when the next stream of the job starts.
const MAX_PENDING: usize = 1024;
/// Maximum total size of the requests of queued records, in bytes.
const MAX_PENDING_BYTES: usize = 8 << 20;
/// Total size of the requests of new records, in bytes, after which old records are removed.
const UNCHECKED_BYTES: usize = 4 << 20;
/// Interval after which a job is written again when one of its streams starts.
const WRITTEN_FOR: Duration = Duration::from_secs(3600);

/// Queue of job records to be written. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Notes {
    shared: Arc<Shared>,
}

struct Shared {
    max_jobs: usize,
    pending: mpsc::Sender<Queued>,
    count: watch::Sender<usize>,
    /// Room for the requests of further records, in bytes.
    room: Arc<Semaphore>,
    /// Time at which this server last queued each job.
    noted: Mutex<HashMap<String, Instant>>,
}

/// A queued record.
struct Queued {
    record: JobRecord,
    /// Size of its request, in bytes.
    bytes: usize,
    _room: OwnedSemaphorePermit,
}

impl Notes {
    /// Creates the queue, and the task that writes its records, which never ends.
    pub(crate) fn new(jobs: Jobs) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (pending, records) = mpsc::channel(MAX_PENDING);
        let shared = Arc::new(Shared {
            max_jobs: jobs.max_jobs,
            pending,
            count: watch::Sender::new(0),
            room: Arc::new(Semaphore::new(MAX_PENDING_BYTES)),
            noted: Mutex::default(),
        });
        (Self { shared: Arc::clone(&shared) }, shared.write(jobs, records))
    }

    /// Queues the job of a pinned request unless it was queued recently. Does not block.
    pub(crate) fn note(&self, train: &v1::Train) {
        if self.shared.max_jobs == 0 {
            return;
        }
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        let record = JobRecord::new(train, now);
        if !self.shared.is_due(&record.id, Instant::now()) {
            return;
        }
        let (id, bytes) = (record.id.clone(), train.encoded_len());
        let room = u32::try_from(bytes).ok();
        let room = room.and_then(|bytes| Arc::clone(&self.shared.room).try_acquire_many_owned(bytes).ok());
        // The count is incremented before sending, because the writer may decrement it at once.
        self.shared.count.send_modify(|count| *count += 1);
        let is_queued =
            room.is_some_and(|_room| self.shared.pending.try_send(Queued { record, bytes, _room }).is_ok());
        if !is_queued {
            self.shared.count.send_modify(|count| *count -= 1);
            self.shared.forget(&id);
        }
    }

    /// Waits until all queued records are written.
    pub(crate) async fn written(&self) {
        // The sender lives as long as `self`, so this ends only when the count is 0.
        drop(self.shared.count.subscribe().wait_for(|count| *count == 0).await);
    }
}

impl Shared {
    /// Returns true if a job is due to be written, and marks it as written.
    fn is_due(&self, id: &str, now: Instant) -> bool {
        let mut noted = self.noted.lock();
        if noted.get(id).is_some_and(|noted| now.duration_since(*noted) < WRITTEN_FOR) {
            return false;
        }
        if noted.len() >= self.max_jobs {
            // Jobs that are still running are written again, which is harmless.
            noted.clear();
        }
        noted.insert(id.to_owned(), now);
        true
    }

    /// Marks a job as not written.
    fn forget(&self, id: &str) {
        self.noted.lock().remove(id);
    }

    async fn write(self: Arc<Self>, jobs: Jobs, mut records: mpsc::Receiver<Queued>) {
        let (mut is_failing, mut unchecked) = (false, Unchecked { records: usize::MAX, bytes: 0 });
        while let Some(Queued { record, bytes, _room }) = records.recv().await {
            let written = write(&jobs, &record, bytes, &mut unchecked).await;
            if let Err(error) = &written {
                self.forget(&record.id);
                if !is_failing {
                    let job = &record.request.job_name;
                    tracing::warn!(%error, job, id = record.id, "cannot save job records; streams are not affected");
                }
            }
            is_failing = written.is_err();
            self.count.send_modify(|count| *count -= 1);
        }
    }
}

/// Number and size of the records that were written since old records were removed.
struct Unchecked {
    records: usize,
    bytes: usize,
}

/// Writes a record, and removes old records from time to time.
async fn write(
    jobs: &Jobs,
    record: &JobRecord,
    bytes: usize,
    unchecked: &mut Unchecked,
) -> Result<(), Error> {
    if jobs.keep(record).await? {
        unchecked.records = unchecked.records.saturating_add(1);
        unchecked.bytes = unchecked.bytes.saturating_add(bytes);
    }
    if unchecked.records > jobs.max_jobs / 16 || unchecked.bytes > UNCHECKED_BYTES {
        jobs.forget_old().await?;
        *unchecked = Unchecked { records: 0, bytes: 0 };
    }
    Ok(())
}
