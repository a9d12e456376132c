//! Amounts of resources that callers hold.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::{
    caller::Caller,
    held::HeldAmounts,
    resource::{Reserve, Resource},
};
use crate::Error;

/// Part of a resource that a caller holds. Dropping it returns it.
pub(crate) struct Charge {
    pub(super) held: Arc<HeldAmounts>,
    pub(super) caller: Caller,
    pub(super) resource: Resource,
    pub(super) amount: u64,
}

impl Charge {
    /// Held amount.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Changes the held amount to the actual one, without a check of the limits, because the bytes are already in use.
    pub(crate) fn resize(&mut self, amount: u64) {
        self.held.replace(&self.caller, self.resource, self.amount, amount);
        self.amount = amount;
    }

    /// Changes the held amount to `amount`, if the caller may hold it. Otherwise returns the error and ends the charge.
    ///
    /// # Errors
    /// As [`Callers::take`](super::Callers::take).
    pub(crate) fn resized(mut self, amount: u64) -> Result<Self, Error> {
        if amount > self.amount {
            // Requests the whole amount, not only the difference, so that the check finds an amount that one caller may never hold.
            self.resize(0);
            self.held.add_or_refuse(&self.caller, self.resource, amount, Reserve::Normal)?;
            self.amount = amount;
        } else {
            self.resize(amount);
        }
        Ok(self)
    }

    /// Converts the charge to one that several owners can hold, such as the extensions of a response.
    pub(crate) fn shared(self) -> SharedCharge {
        SharedCharge(Arc::new(Mutex::new(Some(self))))
    }

    /// Takes the charge out of the extensions of a request or a response.
    pub(crate) fn from_extension(extensions: &mut http::Extensions) -> Option<Self> {
        extensions.remove::<SharedCharge>()?.0.lock().take()
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.held.replace(&self.caller, self.resource, self.amount, 0);
    }
}

/// A [`Charge`] that all clones hold. It ends with the last of them.
#[derive(Clone)]
pub(crate) struct SharedCharge(Arc<Mutex<Option<Charge>>>);

impl SharedCharge {
    /// Returns a reference that does not hold the charge.
    pub(crate) fn downgrade(&self) -> WeakCharge {
        WeakCharge(Arc::downgrade(&self.0))
    }
}

/// A reference to a [`SharedCharge`] that does not hold it.
pub(crate) struct WeakCharge(Weak<Mutex<Option<Charge>>>);

impl WeakCharge {
    /// Takes the charge from its holders. Returns `None` if it has ended or was taken.
    pub(crate) fn take(&self) -> Option<Charge> {
        self.0.upgrade()?.lock().take()
    }
}

/// Charges of the messages of a streamed response. The stream and the extensions of the response share them.
#[derive(Clone, Default)]
pub(crate) struct MessageCharges(Arc<Mutex<Vec<Charge>>>);

impl MessageCharges {
    /// Makes the next message of the stream hold `charge` until it is sent.
    pub(crate) fn charge_next(&self, charge: Charge) {
        self.0.lock().push(charge);
    }

    /// Takes the charges of the messages since the last call.
    pub(crate) fn take(&self) -> Vec<Charge> {
        std::mem::take(&mut self.0.lock())
    }
}
