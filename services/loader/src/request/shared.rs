//! Jobs that are shared by the streams of all ranks and lanes.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use forebay_proto::{Encoding, v1};
use forebay_storage::Reader;
use parking_lot::Mutex;

use super::job::Job;
use crate::{Error, Tenant};

/// Jobs that are in use, by tenant and request. Cheap to clone; clones share the jobs.
#[derive(Clone, Default)]
pub(crate) struct SharedJobs {
    known: Arc<Mutex<HashMap<Vec<u8>, Arc<Slot>>>>,
}

/// Job of one request. Locked while the job is being resolved, so that concurrent requests resolve it once.
type Slot = tokio::sync::Mutex<Weak<Job>>;

impl SharedJobs {
    /// Returns the job of `tenant` for `train`, which names no rank and no lane, and for the snapshots of `readers`. If no such job is
    /// in use, calls `resolve` to create it. If that call fails or is cancelled, the next waiting caller calls its own
    /// `resolve`.
    ///
    /// # Errors
    /// Errors of `resolve`.
    pub(crate) async fn get_or_resolve<F>(
        &self,
        tenant: Tenant,
        train: &v1::Train,
        readers: &[Reader],
        resolve: impl FnOnce() -> F,
    ) -> Result<Arc<Job>, Error>
    where
        F: Future<Output = Result<Job, Error>>,
    {
        let mut key = tenant.id().to_le_bytes().to_vec();
        key.extend(Encoding::Protobuf.encode(train));
        for reader in readers {
            key.extend_from_slice(reader.snapshot().id().as_bytes());
        }
        let slot = {
            let mut known = self.known.lock();
            if !known.contains_key(&key) {
                known.retain(|_, slot| is_used(slot));
            }
            Arc::clone(known.entry(key).or_default())
        };
        let mut job = slot.lock().await;
        // A dataset that was removed and registered again, or whose local file was replaced by one of equal size and time, can have an
        // equal snapshot and another reader.
        if let Some(job) = job.upgrade().filter(|job| has_readers(job, readers)) {
            return Ok(job);
        }
        let resolved = Arc::new(resolve().await?);
        *job = Arc::downgrade(&resolved);
        Ok(resolved)
    }
}

/// True if a job is held or being resolved.
fn is_used(slot: &Arc<Slot>) -> bool {
    let is_held = || slot.try_lock().map_or(true, |job| job.strong_count() > 0);
    Arc::strong_count(slot) > 1 || is_held()
}

fn has_readers(job: &Job, readers: &[Reader]) -> bool {
    let same = |(own, other): (&Reader, &Reader)| {
        Arc::ptr_eq(own.snapshot(), other.snapshot()) && own.shares_pins_with(other)
    };
    job.parts().map(Job::reader).zip(readers).all(same)
}
