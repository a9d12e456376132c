//! Removal of unused sets.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, Utc};
use forebay_storage::DocumentMeta;
use futures::{StreamExt, stream};
use tokio::time::{Instant, MissedTickBehavior};

use super::{
    CONCURRENT_DELETES, KEPT_FOR, Values, delete_old, is_old, last_uses,
    tenants::{Listed, Listing},
};
use crate::Error;

/// Interval at which unused sets are removed, and the sets of all tenants are listed.
const SWEPT_EVERY: Duration = Duration::from_secs(600);

impl Values {
    /// Removes unused sets every ten minutes. Never returns.
    pub(crate) async fn run(self) {
        let mut interval = tokio::time::interval_at(Instant::now() + SWEPT_EVERY, SWEPT_EVERY);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            if let Err(error) = self.remove_unused(Utc::now()).await {
                tracing::warn!(%error, "unused sets of values could not be removed from the state");
            }
        }
    }

    /// Removes the charges that were written more than an hour before `now` and whose sets no job uses, and the sets without charges. Also removes
    /// the files of interrupted uploads.
    ///
    /// # Errors
    /// Returns an error if the state can't be read. What can't be removed is logged, and stays until the next sweep.
    pub(super) async fn remove_unused(&self, now: DateTime<Utc>) -> Result<(), Error> {
        if let Err(error) = self.sets.remove_interrupted(KEPT_FOR.to_std().unwrap_or_default()).await {
            tracing::warn!(%error, "files of interrupted uploads of values could not be removed from the state");
        }
        let listing = self.list().await?;
        self.tenants.update(&listing).await;
        let listed = listing.sets.values().flat_map(|listed| listed.charges.values().chain(&listed.set));
        let is_any_old = listed.map(|meta| meta.last_modified).any(|written| is_old(written, now));
        if is_any_old {
            let jobs = self.jobs.list().await?;
            self.sweep(listing, &last_uses(&jobs), now).await;
        }
        Ok(())
    }

    /// Removes what is listed and unused. `used` has the sets to which job records refer.
    pub(super) async fn sweep(&self, listing: Listing, used: &HashMap<&str, f64>, now: DateTime<Utc>) {
        let sweep = |(set, listed): (String, Listed)| {
            let is_recorded = used.contains_key(set.as_str());
            async move { self.sweep_set(&set, &listed, is_recorded, now).await }
        };
        stream::iter(listing.sets).for_each_concurrent(CONCURRENT_DELETES, sweep).await;
    }

    /// Removes the old charges of a set that no job uses. Then removes the set if it is old, charged to no tenant and not in use.
    async fn sweep_set(&self, set: &str, listed: &Listed, is_recorded: bool, now: DateTime<Utc>) {
        let is_old = |meta: &DocumentMeta| is_old(meta.last_modified, now);
        let is_in_use = || self.stored.is_in_use(set);
        let mut is_charged = false;
        for (owner, charge) in &listed.charges {
            let is_unused = listed.set.is_none() || !is_recorded && !is_in_use();
            is_charged |= !(is_old(charge) && is_unused && self.remove_charge(owner, set, now).await);
        }
        if !is_charged && listed.set.as_ref().is_some_and(is_old) && !is_in_use() {
            let _set = self.lock_set(set).await;
            if let Err(error) = delete_old(&self.sets, set, now).await {
                tracing::warn!(%error, "an unused set of values could not be removed from the state");
            }
        }
    }

    /// Deletes an old charge. Returns false if that fails, or if the tenant has sent the set again or is sending it.
    async fn remove_charge(&self, owner: &str, set: &str, now: DateTime<Utc>) -> bool {
        // Locked for each charge, so that uploads of the tenant can be done in between.
        let mut tenant = self.tenants.lock(owner).await;
        if tenant.is_writing(set) {
            return false;
        }
        let deleted = delete_old(&self.charges, &tenant.charge_of(set), now).await;
        tenant.changed = Some(Instant::now());
        if let Err(error) = &deleted {
            tracing::warn!(%error, "the charge of an unused set of values could not be removed from the state");
        }
        let is_deleted = matches!(deleted, Ok(true));
        if is_deleted {
            tenant.sets.remove(set);
        }
        is_deleted
    }
}
