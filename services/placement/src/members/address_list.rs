//! The list of addresses in use, which protects itself from lists that shrink suddenly.

use std::collections::BTreeSet;
use std::time::Duration;

use super::change::Change;

/// A list that is not adopted yet, because it lacks too many addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListHold {
    /// Number of addresses that the latest list lacks.
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
    /// Until when `adopted` is kept.
    until: Duration,
    latest: BTreeSet<String>,
    /// Addresses that were listed since the hold began and are not in `adopted`.
    added: BTreeSet<String>,
}

impl AddressList {
    /// Whether `address` is listed. During a hold, addresses that were listed before or since count.
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

    /// Considers a list of the source.
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

    /// Adopts a list that was held back for long enough. Returns whether it did. A source that fails adopts nothing.
    pub(super) fn advance(&mut self, now: Duration, changes: &mut Vec<Change>) -> bool {
        if self.source_failed || self.is_too_long {
            return false;
        }
        let Some(hold) = self.hold.take_if(|hold| hold.until <= now) else { return false };
        let lost = self.adopted.difference(&hold.latest).count();
        changes.push(Change::ShrinkAdopted { lost });
        self.adopted = hold.latest;
        true
    }
}
