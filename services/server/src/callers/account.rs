//! Handle with which the body and the answer of a request are charged to its caller.

use std::time::Duration;

use super::{Caller, Callers, Charge, Resource};
use crate::Error;

/// Charges what a request and its answer hold to its caller. It is an extension of every authenticated response. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Account {
    callers: Callers,
    caller: Caller,
}

impl Account {
    pub(crate) fn new(callers: &Callers, caller: Caller) -> Self {
        Self { callers: callers.clone(), caller }
    }

    /// As [`Callers::take`].
    ///
    /// # Errors
    /// As [`Callers::take`].
    pub(crate) fn take(&self, resource: Resource, amount: u64) -> Result<Charge, Error> {
        self.callers.take(&self.caller, resource, amount)
    }

    /// As [`Callers::take_small`].
    ///
    /// # Errors
    /// As [`Callers::take_small`].
    pub(crate) fn take_small(&self, bytes: u64) -> Result<Charge, Error> {
        self.callers.take_small(&self.caller, bytes)
    }

    /// As [`Callers::take_within`].
    ///
    /// # Errors
    /// As [`Callers::take_within`].
    pub(crate) async fn take_within(
        &self,
        limit: Duration,
        resource: Resource,
        amount: u64,
    ) -> Result<Charge, Error> {
        self.callers.take_within(limit, &self.caller, resource, amount).await
    }

    /// As [`Callers::charge`].
    pub(crate) fn charge(&self, resource: Resource, amount: u64) -> Charge {
        self.callers.charge(&self.caller, resource, amount)
    }
}
