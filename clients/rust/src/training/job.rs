//! The parts of a training that its lanes and its reporter share.

use std::sync::Arc;

use super::{meter::Meter, plan::Plan};
use crate::route::Servers;

/// The servers, the plan and the meter of a training. Cheap to clone.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) servers: Servers,
    pub(super) plan: Arc<Plan>,
    pub(super) meter: Arc<Meter>,
    /// ID by which the server distinguishes trainers. Never 0, which stands for no trainer.
    pub(super) trainer: u64,
}

impl Job {
    /// Creates the job of `plan`, with a random ID of the trainer.
    pub(super) fn new(servers: &Servers, plan: Plan) -> Self {
        let trainer = fastrand::u64(1..);
        Self { servers: servers.clone(), plan: Arc::new(plan), meter: Arc::default(), trainer }
    }
}
