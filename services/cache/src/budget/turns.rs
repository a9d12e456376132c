//! Turns of the flows of one tenant, in bytes, or of the tenants.
//!
//! This is start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queuing", 1997): a caller starts where its flow has
//! ended, but not before the present. The waiting caller that starts first is next.

use std::collections::HashMap;

/// Progress of the flows of one tenant, while callers of the tenant wait, or of the tenants.
#[derive(Default)]
pub(super) struct Turns {
    /// Start of the last caller that received its bytes.
    now: u64,
    /// End of each flow that is ahead of `now`.
    ends: HashMap<u64, u64>,
}

impl Turns {
    /// Start of the next caller of `flow`, given start and bytes of the last caller of the flow that waits, if any.
    pub(super) fn rank(&self, flow: u64, last_waiting: Option<(u64, u64)>) -> u64 {
        let end = last_waiting.map(end_of).or_else(|| self.ends.get(&flow).copied());
        end.unwrap_or(0).max(self.now)
    }

    /// Records that a caller of `flow` with this start received its bytes.
    pub(super) fn granted(&mut self, flow: u64, caller: (u64, u64)) {
        self.now = self.now.max(caller.0);
        self.ends.insert(flow, end_of(caller));
        self.ends.retain(|_, end| *end > self.now);
    }
}

/// End of a caller with this start and number of bytes.
fn end_of((start, bytes): (u64, u64)) -> u64 {
    start.saturating_add(bytes.max(1))
}
