//! The member list in use. A new list that lacks many addresses is adopted only after a delay.

use std::collections::BTreeSet;
use std::time::Duration;

use super::change::Change;

/// A new member list that is not adopted yet, because it lacks too many addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListHold {
    /// Number of addresses of the list in use that the latest list lacks.
    pub lost: usize,
    /// Number of addresses of the list in use.
    pub of: usize,
    /// Time at which the latest list will be adopted.
    pub until: Duration,
}

/// Addresses that the source listed.
#[derive(Debug, Default)]
pub(super) struct AddressList {
    adopted: BTreeSet<String>,
    hold: Option<Hold>,
    is_too_long: bool,
    source_failed: bool,
}

#[derive(Debug)]
struct Hold {
    /// Time at which `latest` replaces the list in use.
    until: Duration,
    latest: BTreeSet<String>,
    /// Addresses that were listed since the hold began and are not in `adopted`.
    added: BTreeSet<String>,
}

impl AddressList {
    /// Returns whether `address` is in the list in use. During a hold, these are the addresses of the previous list, and those that
    /// were listed since the hold began.
    pub(super) fn contains(&self, address: &str) -> bool {
        self.adopted.contains(address) || self.hold.as_ref().is_some_and(|hold| hold.added.contains(address))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &String> {
        self.adopted.iter().chain(self.hold.iter().flat_map(|hold| &hold.added))
    }

    pub(super) fn hold(&self) -> Option<ListHold> {
        let hold = self.hold.as_ref()?;
        let lost = self.adopted.difference(&hold.latest).count();
        Some(ListHold { lost, of: self.adopted.len(), until: hold.until })
    }

    /// Adopts a new list of the source. Rejects it if it is too long, and delays it if it lacks too many addresses.
    pub(super) fn offer(
        &mut self,
        now: Duration,
        list: BTreeSet<String>,
        max: usize,
        delay: Duration,
        changes: &mut Vec<Change>,
    ) {
        if std::mem::take(&mut self.source_failed) {
            changes.push(Change::SourceRecovered);
        }
        let was_too_long = std::mem::replace(&mut self.is_too_long, list.len() > max);
        if self.is_too_long {
            if !was_too_long {
                changes.push(Change::ListTooLong { listed: list.len(), max });
            }
            return;
        }
        let lost = self.adopted.difference(&list).count();
        let shrinks = !self.adopted.is_empty() && (list.is_empty() || 2 * lost > self.adopted.len());
        if !shrinks {
            if self.hold.take().is_some() {
                changes.push(Change::HoldEnded);
            }
            self.adopted = list;
            return;
        }
        let hold = self.hold.get_or_insert_with(|| {
            changes.push(Change::HeldBack { lost, of: self.adopted.len(), delay });
            Hold { until: now.saturating_add(delay), latest: BTreeSet::new(), added: BTreeSet::new() }
        });
        for address in list.difference(&self.adopted) {
            if hold.added.len() < max {
                hold.added.insert(address.clone());
            }
        }
        hold.latest = list;
        self.advance(now, changes);
    }

    /// Records that the source failed.
    pub(super) fn fail(&mut self, error: String, changes: &mut Vec<Change>) {
        if !std::mem::replace(&mut self.source_failed, true) {
            changes.push(Change::SourceFailed { error });
        }
    }

    /// Returns the time from which the delayed list is to be adopted. `None` without a delayed list, and while the source fails or
    /// its list is too long.
    pub(super) fn adoption_at(&self) -> Option<Duration> {
        let hold = self.hold.as_ref().filter(|_| !self.source_failed && !self.is_too_long)?;
        Some(hold.until)
    }

    /// Adopts the delayed list if its delay is over, and returns whether it did. While the source fails or its list is too long, no list
    /// is adopted.
    pub(super) fn advance(&mut self, now: Duration, changes: &mut Vec<Change>) -> bool {
        if self.adoption_at().is_none_or(|at| at > now) {
            return false;
        }
        let Some(hold) = self.hold.take() else { return false };
        let lost = self.adopted.difference(&hold.latest).count();
        changes.push(Change::ShrinkAdopted { lost });
        self.adopted = hold.latest;
        true
    }
}
