//! The members of a cluster in the view of one server: a state machine without I/O and clock.

mod address_list;
mod admission;
mod change;
mod config;
mod contact;
mod hello;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use address_list::AddressList;
use contact::Contact;

pub use address_list::ListHold;
pub use change::{Change, LeaveReason, Refusal, RefusalReason};
pub use config::Config;
pub use hello::Hello;
pub use view::{Member, RefusedAddress, View};

/// Minimum interval between two hellos to an address, divided by the number of addresses.
const HELLO_SPACING: Duration = Duration::from_millis(20);
/// Maximum length of a stored error, in characters.
const MAX_ERROR_CHARS: usize = 500;

/// The members of a cluster, in the view of this server.
///
/// The inputs are member lists ([`on_list`](Self::on_list)) and results of `hello` ([`on_hello`](Self::on_hello)). The caller sends
/// `hello` to the addresses that [`due`](Self::due) returns, and sleeps until [`next_wake`](Self::next_wake).
///
/// - A server becomes a member when its address is in the member list and it answers. Its name identifies it. Its address may change.
/// - A new list that is empty, or lacks more than half of the previous addresses, is adopted after `shrink_delay`. Addresses that it
///   adds are used immediately.
/// - A member that is not in the list is removed after `removal_delay` if it does not answer, and after `unlisted_timeout` if it does.
///   A member that is in the list, but does not answer, is removed after `silent_timeout`. Until then, its streams use their next
///   candidates, and return to it when it answers again.
/// - A removed server can be a member again after `removal_delay`. A list that changes continually, or a server that restarts
///   continually, therefore moves a stream at most once in this time.
/// - A server with another `state`, or with the name of another running server, is refused.
/// - This server is always a member.
///
/// Times are durations since any fixed start, and must not decrease.
#[derive(Debug)]
pub struct Members {
    config: Config,
    own: Hello,
    list: AddressList,
    contacts: BTreeMap<String, Contact>,
    /// Members other than this server, by name.
    members: BTreeMap<String, Entry>,
    /// Times at which removed members may join again.
    removed: BTreeMap<String, Duration>,
    revision: u64,
}

/// A member other than this server.
#[derive(Debug)]
struct Entry {
    version: String,
    zone: Option<String>,
    is_draining: bool,
    last_heard: Duration,
    addresses: BTreeSet<String>,
    /// Time since which no address of the member is listed.
    unlisted_since: Option<Duration>,
}

impl Members {
    /// Creates a view with this server as the only member. `own` is its answer to `hello`.
    pub fn new(config: Config, own: Hello) -> Self {
        Self {
            config,
            own,
            list: AddressList::default(),
            contacts: BTreeMap::new(),
            members: BTreeMap::new(),
            removed: BTreeMap::new(),
            revision: 0,
        }
    }

    /// Returns this server's answer to `hello`.
    pub fn own(&self) -> &Hello {
        &self.own
    }

    /// Records that this server is draining, or no longer is.
    pub fn set_draining(&mut self, is_draining: bool) {
        if self.own.is_draining != is_draining {
            self.own.is_draining = is_draining;
            self.revision += 1;
        }
    }

    /// Records a new member list, or the error of its source. The first list can be one that an earlier process stored.
    pub fn on_list(
        &mut self,
        now: Duration,
        listed: Result<impl IntoIterator<Item = String>, String>,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        match listed {
            Ok(addresses) => {
                // One more than the limit is enough to see that the list is too long.
                let mut list = BTreeSet::new();
                for address in addresses {
                    list.insert(address);
                    if list.len() > self.config.max_members {
                        break;
                    }
                }
                let (max, delay) = (self.config.max_members, self.config.shrink_delay);
                self.list.offer(now, list, max, delay, &mut changes);
                self.apply_list(now, &mut changes);
            }
            Err(error) => self.list.fail(truncated(error), &mut changes),
        }
        changes
    }

    /// Records the result of a hello: the answer, or the error. Results for addresses that are no longer used are ignored.
    pub fn on_hello(&mut self, now: Duration, address: &str, result: Result<Hello, String>) -> Vec<Change> {
        let mut changes = Vec::new();
        let (interval, max_backoff) = (self.interval(address), self.max_backoff());
        let Some(contact) = self.contacts.get_mut(address) else { return changes };
        contact.is_greeted = false;
        match result {
            Err(error) => {
                contact.fail(now, truncated(error), max_backoff);
                let name = contact.name.clone();
                self.review_opt(now, name.as_deref(), &mut changes);
                self.forget_unneeded(address);
            }
            Ok(hello) => {
                contact.failures = 0;
                contact.error = None;
                contact.last_heard = Some(now);
                contact.next_hello = now.saturating_add(interval);
                self.answered(now, address, hello, &mut changes);
                self.forget_unneeded(address);
            }
        }
        changes
    }

    /// Adopts a delayed list and removes members, if the time for this has come.
    pub fn on_tick(&mut self, now: Duration) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.list.advance(now, &mut changes) {
            self.apply_list(now, &mut changes);
        }
        let overdue: Vec<String> = (self.members.iter())
            .filter(|(_, entry)| self.removal_at(entry).is_some_and(|at| at <= now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in overdue {
            self.review(now, &name, &mut changes);
        }
        self.removed.retain(|_, until| *until > now);
        changes
    }

    /// Returns the addresses to which `hello` must be sent now, and schedules the next hello of each. The caller must report each result
    /// with [`on_hello`](Self::on_hello). An address is not returned again before the result is reported.
    pub fn due(&mut self, now: Duration) -> Vec<String> {
        let mut due = Vec::new();
        let addresses: Vec<String> = (self.contacts.iter())
            .filter(|(_, contact)| contact.next_hello <= now && !contact.is_greeted)
            .map(|(address, _)| address.clone())
            .collect();
        for address in addresses {
            let next = now.saturating_add(self.interval(&address));
            if let Some(contact) = self.contacts.get_mut(&address) {
                contact.next_hello = next;
                contact.is_greeted = true;
                due.push(address);
            }
        }
        due
    }

    /// Returns the time at which [`on_tick`](Self::on_tick) or [`due`](Self::due) must be called next; `None` if not before the next list
    /// or result.
    pub fn next_wake(&self) -> Option<Duration> {
        let waiting = self.contacts.values().filter(|contact| !contact.is_greeted);
        let hellos = waiting.map(|contact| contact.next_hello).min();
        let removals = self.members.values().filter_map(|entry| self.removal_at(entry)).min();
        let adoption = self.list.adoption_at();
        [hellos, removals, adoption].into_iter().flatten().min()
    }

    /// Returns the member list in use, to be stored for the next start.
    pub fn listed(&self) -> Vec<String> {
        self.list.iter().cloned().collect()
    }

    /// Returns the delayed list; `None` if no list is delayed.
    pub fn held(&self) -> Option<ListHold> {
        self.list.hold()
    }

    /// Returns the number of changes of names, zones and draining. Views of one process with equal revisions have equal placements.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the members in the order of their names, and the addresses at which no member has answered.
    pub fn view(&self) -> View {
        let mut members = vec![Member::own(&self.own)];
        members.extend(self.members.iter().map(|(name, entry)| Member {
            name: name.clone(),
            version: entry.version.clone(),
            zone: entry.zone.clone(),
            is_draining: entry.is_draining,
            is_own: false,
            addresses: entry.addresses.iter().cloned().collect(),
            last_heard: Some(entry.last_heard),
            answers: self.answers(entry),
            is_listed: entry.unlisted_since.is_none(),
        }));
        members.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let others = (self.contacts.iter())
            .filter(|(_, contact)| contact.name.is_none() && contact.instance != Some(self.own.instance))
            .map(|(address, contact)| RefusedAddress {
                address: address.clone(),
                refusal: (contact.refusal.clone()).map(|(name, reason)| Refusal {
                    name,
                    address: address.clone(),
                    reason,
                }),
                error: contact.error.clone(),
            })
            .collect();
        View { revision: self.revision, members, others }
    }

    /// Adds the server to the members, or updates its entry.
    fn join(&mut self, now: Duration, address: &str, hello: Hello, changes: &mut Vec<Change>) {
        let Hello { name, version, zone, is_draining, .. } = hello;
        let Some(entry) = self.members.get_mut(&name) else {
            let addresses = BTreeSet::from([address.to_owned()]);
            let entry =
                Entry { version, zone, is_draining, last_heard: now, addresses, unlisted_since: None };
            self.members.insert(name.clone(), entry);
            self.removed.remove(&name);
            self.revision += 1;
            changes.push(Change::Joined { name, address: address.to_owned() });
            return;
        };
        entry.last_heard = now;
        entry.addresses.insert(address.to_owned());
        if entry.is_draining != is_draining {
            entry.is_draining = is_draining;
            self.revision += 1;
            changes.push(Change::Draining { name: name.clone(), is_draining });
        }
        if entry.zone != zone || entry.version != version {
            self.revision += u64::from(entry.zone != zone);
            (entry.zone, entry.version) = (zone.clone(), version.clone());
            changes.push(Change::Updated { name, version, zone });
        }
    }

    /// Removes `address` from the member `name`. If `leaves` is a reason, a member without another address leaves immediately.
    fn detach(
        &mut self,
        now: Duration,
        name: Option<String>,
        address: &str,
        leaves: Option<LeaveReason>,
        changes: &mut Vec<Change>,
    ) {
        let Some(name) = name else { return };
        let Some(entry) = self.members.get_mut(&name) else { return };
        entry.addresses.remove(address);
        match leaves {
            Some(reason) if entry.addresses.is_empty() => self.remove(now, &name, reason, changes),
            _ => self.review(now, &name, changes),
        }
    }

    /// Schedules hellos to new addresses, and reviews the members after a change of the list.
    fn apply_list(&mut self, now: Duration, changes: &mut Vec<Change>) {
        for address in self.list.iter() {
            if !self.contacts.contains_key(address) {
                self.contacts.insert(address.clone(), Contact::new(now));
            }
        }
        let names: Vec<String> = self.members.keys().cloned().collect();
        for name in names {
            self.review(now, &name, changes);
        }
        let unlisted: Vec<String> =
            self.contacts.keys().filter(|address| !self.list.contains(address)).cloned().collect();
        for address in unlisted {
            self.forget_unneeded(&address);
        }
    }

    fn review_opt(&mut self, now: Duration, name: Option<&str>, changes: &mut Vec<Change>) {
        if let Some(name) = name {
            self.review(now, name, changes);
        }
    }

    /// Records whether the member is in the list, and removes it if its delay is over.
    fn review(&mut self, now: Duration, name: &str, changes: &mut Vec<Change>) {
        let Some(entry) = self.members.get_mut(name) else { return };
        let is_listed = entry.addresses.iter().any(|address| self.list.contains(address));
        if is_listed {
            entry.unlisted_since = None;
        } else if entry.unlisted_since.is_none() {
            entry.unlisted_since = Some(now);
            // Whether it still answers decides when it is removed.
            for address in &entry.addresses {
                let contact = self.contacts.get_mut(address).expect("addresses of members are greeted");
                contact.next_hello = contact.next_hello.min(now);
            }
        }
        let entry = &self.members[name];
        if self.removal_at(entry).is_some_and(|at| at <= now) {
            let reason = match (self.answers(entry), entry.unlisted_since) {
                (true, _) => LeaveReason::Unlisted,
                (false, Some(_)) => LeaveReason::Gone,
                (false, None) => LeaveReason::Silent,
            };
            self.remove(now, name, reason, changes);
        }
    }

    fn remove(&mut self, now: Duration, name: &str, reason: LeaveReason, changes: &mut Vec<Change>) {
        let Some(entry) = self.members.remove(name) else { return };
        for address in &entry.addresses {
            if let Some(contact) = self.contacts.get_mut(address) {
                contact.name = None;
            }
            self.forget_unneeded(address);
        }
        self.removed.insert(name.to_owned(), now.saturating_add(self.config.removal_delay));
        self.revision += 1;
        changes.push(Change::Left { name: name.to_owned(), reason });
    }

    /// Stops the hellos to an address that is not in the list, if no member needs it.
    fn forget_unneeded(&mut self, address: &str) {
        if self.list.contains(address) {
            return;
        }
        let Some(contact) = self.contacts.get(address) else { return };
        let Some(name) = contact.name.clone() else {
            self.contacts.remove(address);
            return;
        };
        let Some(entry) = self.members.get_mut(&name) else { return };
        let has_other = entry.addresses.iter().any(|other| {
            other != address && self.list.contains(other) && self.contacts[other.as_str()].answers()
        });
        if has_other {
            entry.addresses.remove(address);
            self.contacts.remove(address);
        }
    }

    /// Returns the time at which a member is removed unless something changes.
    fn removal_at(&self, entry: &Entry) -> Option<Duration> {
        let (since, delay) = match (self.answers(entry), entry.unlisted_since) {
            (true, None) => return None,
            (true, Some(since)) => (since, self.config.unlisted_timeout),
            (false, None) => (entry.last_heard, self.config.silent_timeout),
            (false, Some(since)) => {
                let silent = entry.last_heard.saturating_add(self.config.silent_timeout);
                return Some(since.saturating_add(self.config.removal_delay).min(silent.max(since)));
            }
        };
        Some(since.saturating_add(delay))
    }

    /// Returns whether an address of the member answered the last hello.
    fn answers(&self, entry: &Entry) -> bool {
        entry.addresses.iter().any(|address| self.contacts[address.as_str()].answers())
    }

    /// Returns the time between two hellos to an address. It differs by up to a quarter between addresses, so that the hellos are not sent
    /// at the same time.
    fn interval(&self, address: &str) -> Duration {
        let interval = self.config.hello_interval.max(self.spacing());
        let hash = xxh3_64(format!("{}\0{address}", self.own.name).as_bytes());
        interval - interval / 4 * u32::try_from(hash % 256).expect("a value below 256") / 256
    }

    /// Returns the maximum pause before the next hello to an address that does not answer or is refused.
    fn max_backoff(&self) -> Duration {
        self.config.max_hello_backoff.max(self.spacing())
    }

    /// Returns the minimum interval between two hellos to an address.
    fn spacing(&self) -> Duration {
        HELLO_SPACING.saturating_mul(u32::try_from(self.contacts.len()).unwrap_or(u32::MAX))
    }
}

fn truncated(text: String) -> String {
    match text.char_indices().nth(MAX_ERROR_CHARS) {
        None => text,
        Some((end, _)) => text[..end].to_owned(),
    }
}
