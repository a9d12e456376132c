//! Tenants of the service.

use std::num::NonZeroU32;

/// A tenant of the service. Tenants share CPU time and memory in proportion to their weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenant {
    id: u64,
    weight: NonZeroU32,
}

impl Tenant {
    /// Largest weight that a token file may contain.
    pub const MAX_WEIGHT: NonZeroU32 = NonZeroU32::new(1000).expect("1000 is not zero");

    /// The server itself, and all callers of a server without tokens. Its work, such as computing orders and counting rows, is
    /// in the interest of all tenants, so it has the maximum weight.
    pub const SERVER: Self = Self { id: 0, weight: Self::MAX_WEIGHT };

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
