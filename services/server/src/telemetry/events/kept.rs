//! The events that are kept.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use super::event::{Audience, Event};

/// The events that are kept, up to a number. Events of one audience, such as those of the sessions of a dataset, displace events of another
/// audience only if that one has more.
pub(super) struct Kept {
    max_events: usize,
    by_id: BTreeMap<u64, Arc<Event>>,
    /// Ids of the events of each audience, in ascending order.
    by_audience: HashMap<Audience, VecDeque<u64>>,
}

impl Kept {
    pub(super) fn new(max_events: usize) -> Self {
        Self { max_events, by_id: BTreeMap::new(), by_audience: HashMap::new() }
    }

    /// Adds an event with the greatest id. Returns the event that it displaces: the oldest one of the audience with the most events.
    pub(super) fn push(&mut self, event: Arc<Event>) -> Option<Arc<Event>> {
        self.by_audience.entry(event.audience.clone()).or_default().push_back(event.id);
        self.by_id.insert(event.id, event);
        if self.by_id.len() <= self.max_events {
            return None;
        }
        // Of several, the audience with the oldest event.
        let rank = |ids: &VecDeque<u64>| (ids.len(), std::cmp::Reverse(ids.front().copied()));
        let (audience, ids) = self.by_audience.iter_mut().max_by_key(|(_, ids)| rank(ids))?;
        let id = ids.pop_front();
        if ids.is_empty() {
            let audience = audience.clone();
            self.by_audience.remove(&audience);
        }
        self.by_id.remove(&id?)
    }

    /// The events with a greater id, oldest first.
    pub(super) fn after(&self, id: u64) -> Vec<Arc<Event>> {
        self.by_id.range(id.saturating_add(1)..).map(|(_, event)| Arc::clone(event)).collect()
    }
}
