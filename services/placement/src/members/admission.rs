//! The decision whether a server that answers is a member.

use std::time::Duration;

use super::Members;
use super::change::{Change, LeaveReason, Refusal, RefusalReason};
use super::contact::backoff;
use super::hello::Hello;

/// Maximum length of a name, a zone or a version, in bytes.
pub(super) const MAX_FIELD_BYTES: usize = 512;

impl Members {
    /// Processes the answer of the server at `address`: the server becomes or remains a member, waits, or is refused.
    pub(super) fn answered(&mut self, now: Duration, address: &str, hello: Hello, changes: &mut Vec<Change>) {
        if self.is_unchanged(address, &hello) {
            let entry = self.members.get_mut(&hello.name).expect("the answer equals a member's");
            entry.last_heard = now;
            return;
        }
        let contact = self.contacts.get_mut(address).expect("the caller looked it up");
        let previous = contact.name.take();
        contact.instance = Some(hello.instance);
        if hello.instance == self.own.instance {
            contact.refusal = None;
            self.detach(now, previous, address, None, changes);
            return;
        }
        let max_backoff = self.max_backoff();
        let refusal = self.refusal(&hello).or_else(|| self.duplicate(now, address, &hello));
        let contact = self.contacts.get_mut(address).expect("the caller looked it up");
        if let Some(reason) = refusal {
            let leaves =
                matches!(reason, RefusalReason::OtherState { .. }).then_some(LeaveReason::OtherState);
            let refusal = (hello.name.chars().take(MAX_FIELD_BYTES).collect::<String>(), reason);
            contact.next_hello = now.saturating_add(max_backoff);
            if contact.refusal.as_ref() != Some(&refusal) {
                let (name, reason) = refusal.clone();
                changes.push(Change::Refused(Refusal { name, address: address.to_owned(), reason }));
                contact.refusal = Some(refusal);
            }
            self.detach(now, previous, address, leaves, changes);
            return;
        }
        contact.refusal = None;
        let readmission = self.removed.get(&hello.name).copied().filter(|until| *until > now);
        // A server that is not listed can stay a member, but not become one.
        let is_new = !self.members.contains_key(&hello.name);
        let is_waiting = contact.conflict_since.is_some()
            || readmission.is_some()
            || (is_new && !self.list.contains(address));
        if is_waiting {
            let next = readmission.unwrap_or_else(|| now.saturating_add(backoff(1, max_backoff)));
            contact.next_hello = contact.next_hello.min(next);
            self.detach(now, previous, address, None, changes);
            return;
        }
        contact.name = Some(hello.name.clone());
        if previous.as_ref() != Some(&hello.name) {
            self.detach(now, previous, address, None, changes);
        }
        let name = hello.name.clone();
        self.join(now, address, hello, changes);
        self.review(now, &name, changes);
        for other in self.members.get(&name).map(|entry| entry.addresses.clone()).unwrap_or_default() {
            self.forget_unneeded(&other);
        }
    }

    /// Returns whether the answer is the same as the last one from this address.
    fn is_unchanged(&self, address: &str, hello: &Hello) -> bool {
        let contact = &self.contacts[address];
        let Some(entry) = self.members.get(&hello.name) else { return false };
        contact.name.as_ref() == Some(&hello.name)
            && contact.instance == Some(hello.instance)
            && hello.state == self.own.state
            && entry.zone == hello.zone
            && entry.version == hello.version
            && entry.is_draining == hello.is_draining
            && entry.unlisted_since.is_none()
    }

    /// Returns the reason why a server cannot be a member at any address; `None` if it can.
    fn refusal(&self, hello: &Hello) -> Option<RefusalReason> {
        let zone = hello.zone.as_deref();
        for (field, text) in
            [("name", Some(hello.name.as_str())), ("version", Some(&hello.version)), ("zone", zone)]
        {
            let Some(bytes) = text.map(str::len) else { continue };
            if bytes == 0 || bytes > MAX_FIELD_BYTES {
                return Some(RefusalReason::InvalidField { field, bytes, max: MAX_FIELD_BYTES });
            }
        }
        if hello.state != self.own.state {
            let theirs = hello.state.chars().take(MAX_FIELD_BYTES).collect();
            return Some(RefusalReason::OtherState { theirs, ours: self.own.state.clone() });
        }
        if hello.name == self.own.name {
            return Some(RefusalReason::DuplicateName { other: format!("{} (this server)", self.own.name) });
        }
        let max = self.config.max_members;
        let is_full = self.members.len().saturating_add(1) >= max && !self.members.contains_key(&hello.name);
        is_full.then_some(RefusalReason::TooManyMembers { max })
    }

    /// Returns a refusal if another process with the same name still answers.
    ///
    /// A server that restarts at another address has the same name as its former process, which may seem to run for a moment.
    /// Therefore, `hello` is first sent to the other address. Until its result is known, the new address waits, and its
    /// `conflict_since` is set.
    fn duplicate(&mut self, now: Duration, address: &str, hello: &Hello) -> Option<RefusalReason> {
        let entry = self.members.get(&hello.name);
        let rival = entry.into_iter().flat_map(|entry| &entry.addresses).find(|other| {
            let contact = &self.contacts[other.as_str()];
            *other != address && contact.answers() && contact.instance != Some(hello.instance)
        });
        let Some(rival) = rival.cloned() else {
            self.contacts.get_mut(address)?.conflict_since = None;
            return None;
        };
        let since = *self.contacts.get_mut(address)?.conflict_since.get_or_insert(now);
        let other = self.contacts.get_mut(&rival)?;
        if other.last_heard.is_some_and(|heard| heard > since) {
            return Some(RefusalReason::DuplicateName { other: rival });
        }
        other.next_hello = other.next_hello.min(now);
        None
    }
}
