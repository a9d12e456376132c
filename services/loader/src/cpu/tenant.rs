//! Tenants: groups of flows that share CPU time by weight.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

/// A tenant of the service, whose flows together get CPU time in proportion to its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenant {
    id: u64,
    weight: NonZeroU32,
}

/// Maximum weight of a tenant.
const MAX_WEIGHT: NonZeroU32 = NonZeroU32::new(1000).expect("1000 is not zero");

impl Tenant {
    /// The server itself, and all callers of a server without tokens. Its work, such as computing orders and counting rows, is
    /// in the interest of all tenants, so it has the maximum weight.
    pub const SERVER: Self = Self { id: 0, weight: MAX_WEIGHT };

    /// Creates the tenant `id` with a weight.
    pub fn new(id: u64, weight: NonZeroU32) -> Self {
        Self { id, weight }
    }

    /// Identifies the tenant.
    pub fn id(self) -> u64 {
        self.id
    }

    /// Share of the tenant, in relation to the weights of the others.
    pub fn weight(self) -> NonZeroU32 {
        self.weight
    }
}

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
        let share = self.tenants.entry(tenant.id).or_insert_with(|| Share {
            weight: tenant.weight,
            relative: floor,
            queued: 0,
            running: 0,
        });
        // A weight can change while the server runs.
        share.weight = tenant.weight;
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
