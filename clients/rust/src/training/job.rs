//! The parts of a training that its lanes and its reporter share.

use std::sync::{Arc, OnceLock};

use super::{meter::Meter, plan::Plan};
use crate::{
    Error,
    route::{Placement, Servers},
};

/// The servers, the plan, the placement and the meter of a training. Cheap to clone.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) servers: Servers,
    pub(super) placement: Placement,
    pub(super) plan: Arc<Plan>,
    pub(super) meter: Arc<Meter>,
    /// ID by which the server distinguishes trainers. Never 0, which stands for no trainer.
    pub(super) trainer: u64,
    /// Difference between the plan and a later answer of the servers.
    changed: Arc<OnceLock<Error>>,
}

impl Job {
    /// Creates the job of `plan`, with a random ID of the trainer.
    pub(super) fn new(servers: &Servers, plan: Plan) -> Self {
        let trainer = fastrand::u64(1..);
        let placement = Placement::new(servers, plan.own_locations(), plan.resolved.epoch);
        let (servers, meter) = (servers.clone(), Arc::new(Meter::default()));
        Self { servers, placement, plan: Arc::new(plan), meter, trainer, changed: Arc::default() }
    }

    /// Records that the servers answer with another plan, as `difference` describes.
    pub(super) fn plan_changed(&self, difference: Error) {
        // The first difference is the one that is reported.
        drop(self.changed.set(difference));
    }

    /// Returns the recorded difference between the plan and a later answer of the servers.
    pub(super) fn plan_change(&self) -> Option<Error> {
        self.changed.get().cloned()
    }
}
