//! Order of the requests of several tenants, who share the workers by weight.

use std::{collections::BTreeMap, num::NonZeroU32};

use forebay_loader::Tenant;

/// Cost of a row for a tenant of weight 1.
const ROW_COST: u64 = 1 << 16;

/// Turns of queued requests: numbers in the order of service. The requests of one tenant have turns in the order of their
/// arrival. If several tenants always have requests, the rows that are sent are in proportion to their weights.
///
/// The turn is the start tag of start-time fair queueing (Goyal, Vin and Cheng, "Start-Time Fair Queueing", 1996).
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Tenants that have queued requests, or whose `end` exceeds `now`, by their ids.
    tenants: BTreeMap<u64, Queued>,
    /// Latest turn of a request that was sent to a worker.
    now: u64,
}

#[derive(Debug)]
struct Queued {
    weight: NonZeroU32,
    /// Turn of the last request.
    last: u64,
    /// Earliest turn of the next request: the last turn plus the cost of its request, less the costs of removed requests.
    end: u64,
    rows: u64,
    requests: usize,
}

impl Queued {
    /// Returns the turn of the next request.
    fn next_turn(&self, now: u64) -> u64 {
        // A refund for removed requests must not let a request overtake an earlier one of its tenant.
        let last = if self.requests > 0 { self.last } else { 0 };
        self.end.max(last).max(now)
    }
}

impl Turns {
    /// Returns the turn of a new request.
    pub(super) fn take(&mut self, tenant: Tenant, rows: u64) -> u64 {
        let now = self.now;
        self.tenants.retain(|_, queued| queued.requests > 0 || queued.end > now);
        let queued = self.entry(tenant);
        queued.weight = tenant.weight();
        let turn = queued.next_turn(now);
        queued.last = turn;
        queued.end = turn.saturating_add(cost(rows, queued.weight));
        turn
    }

    /// Records that a request was queued, for the first time or after a failed attempt.
    pub(super) fn queued(&mut self, tenant: Tenant, rows: u64) {
        let queued = self.entry(tenant);
        queued.rows += rows;
        queued.requests += 1;
    }

    /// Records that a request is no longer queued.
    pub(super) fn left(&mut self, tenant: Tenant, rows: u64) {
        if let Some(queued) = self.tenants.get_mut(&tenant.id()) {
            queued.rows -= rows;
            queued.requests -= 1;
        }
    }

    /// Records that a queued request was sent to a worker.
    pub(super) fn sent(&mut self, turn: u64) {
        self.now = self.now.max(turn);
    }

    /// Records that `tenant` used workers for the time of `rows` further rows.
    pub(super) fn charge(&mut self, tenant: Tenant, rows: u64) {
        if rows > 0 {
            let now = self.now;
            let queued = self.entry(tenant);
            queued.end = queued.end.max(now).saturating_add(cost(rows, queued.weight));
        }
    }

    /// Records that a request was removed before a worker received it.
    pub(super) fn unused(&mut self, tenant: Tenant, rows: u64) {
        if let Some(queued) = self.tenants.get_mut(&tenant.id()) {
            queued.end = queued.end.saturating_sub(cost(rows, queued.weight));
        }
    }

    /// Returns the number of queued rows that precede those of a new request of `tenant`.
    pub(super) fn rows_before(&self, tenant: Tenant, rows: u64) -> u64 {
        let own = self.tenants.get(&tenant.id());
        let ahead = own.map_or(0, |queued| queued.next_turn(self.now) - self.now);
        let before = |(id, queued): (&u64, &Queued)| {
            if *id == tenant.id() {
                return queued.rows;
            }
            let turns = ahead.saturating_add(cost(rows, tenant.weight()));
            queued.rows.min(turns.saturating_mul(queued.weight.get().into()) / ROW_COST)
        };
        self.tenants.iter().map(before).sum()
    }

    fn entry(&mut self, tenant: Tenant) -> &mut Queued {
        let now = self.now;
        self.tenants.entry(tenant.id()).or_insert_with(|| Queued {
            weight: tenant.weight(),
            last: now,
            end: now,
            rows: 0,
            requests: 0,
        })
    }

    /// Number of queued requests and rows of `tenant`.
    pub(super) fn of(&self, tenant: Tenant) -> (usize, u64) {
        self.tenants.get(&tenant.id()).map_or((0, 0), |queued| (queued.requests, queued.rows))
    }
}

fn cost(rows: u64, weight: NonZeroU32) -> u64 {
    (rows.saturating_mul(ROW_COST) / u64::from(weight.get())).max(1)
}

#[cfg(test)]
mod tests;
