//! Shares of tenants in CPU time.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use forebay_cache::Tenant;

/// CPU time of each tenant in relation to its weight. The tenant with the least time is next.
///
/// This is start-time fair queueing (Goyal, Vin and Cheng, "Start-Time Fair Queueing", 1996) with the measured time of each
/// operation. Idle time gives a tenant no credit.
#[derive(Default)]
pub(super) struct Shares {
    /// Tenants that have work, or more time than `floor`. Empty if no tenant has work.
    tenants: BTreeMap<u64, Share>,
    /// Largest relative time at which an operation was started, in nanoseconds.
    floor: u64,
    /// Number of operations that are queued or running.
    operations: usize,
}

struct Share {
    weight: NonZeroU32,
    /// CPU time divided by the weight, in nanoseconds.
    relative: u64,
    queued: usize,
    running: usize,
}

impl Shares {
    /// Records that an operation of `tenant` was queued.
    pub(super) fn queued(&mut self, tenant: Tenant) {
        let floor = self.floor;
        let share = self.tenants.entry(tenant.id()).or_insert_with(|| Share {
            weight: tenant.weight(),
            relative: floor,
            queued: 0,
            running: 0,
        });
        // A weight can change while the server runs.
        share.weight = tenant.weight();
        if share.queued == 0 {
            share.relative = share.relative.max(floor);
        }
        share.queued += 1;
        self.operations += 1;
    }

    /// Returns the position of a tenant in the order of service: its time in relation to its weight.
    pub(super) fn rank(&self, tenant: u64) -> (u64, u64) {
        (self.tenants.get(&tenant).map_or(self.floor, |share| share.relative), tenant)
    }

    /// Records that an operation of a tenant was started.
    pub(super) fn started(&mut self, tenant: u64) {
        self.floor = self.floor.max(self.rank(tenant).0);
        if let Some(share) = self.tenants.get_mut(&tenant) {
            share.queued = share.queued.saturating_sub(1);
            share.running += 1;
        }
        let floor = self.floor;
        self.tenants.retain(|_, share| share.queued + share.running > 0 || share.relative > floor);
    }

    /// Records that an operation of a tenant has ended after `took`.
    pub(super) fn ended(&mut self, tenant: u64, took: Duration) {
        let Some(share) = self.tenants.get_mut(&tenant) else { return };
        share.running = share.running.saturating_sub(1);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        share.relative = share.relative.saturating_add(nanoseconds.div_ceil(share.weight.get().into()));
        self.operations = self.operations.saturating_sub(1);
        if self.operations == 0 {
            self.tenants.clear();
        }
    }

    /// Number of tenants that are known.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tenants.len()
    }
}
