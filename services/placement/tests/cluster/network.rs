//! Servers, what they see of each other, and the network between them.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use fastrand::Rng;
use forebay_placement::{Change, Hello, Members, Server};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    history::{Lists, Scenario},
    world::{Task, World},
};

/// Time after which a hello without an answer has failed, in ms.
const HELLO_TIMEOUT: u64 = 2_000;
/// Address of a server of another state.
const FOREIGN: &str = "10.9.9.9:7050";

/// A server.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) is_running: bool,
    pub(crate) is_listed: bool,
    pub(crate) is_draining: bool,
    /// Number of starts.
    pub(crate) starts: u64,
    pub(crate) address: String,
    pub(crate) zone: Option<usize>,
    pub(crate) side: bool,
    /// Time to answer, in ms.
    pub(crate) latency: u64,
    /// Age of the lists that this server sees, in ms.
    pub(crate) list_delay: u64,
    /// Clock: an offset in ms, and a rate in thousandths.
    pub(crate) clock: (u64, u64),
    pub(crate) members: Option<Members>,
    /// View and its hash, by revision.
    pub(crate) view: Option<(u64, u64, Rc<Vec<Server>>)>,
    /// Blocks of jobs in the cache, and the number of caches that were lost.
    pub(crate) cache: BTreeSet<(usize, u64)>,
    pub(crate) cache_number: u64,
}

impl Node {
    /// Creates server number `number`, which does not run.
    pub(crate) fn new(rng: &mut Rng, scenario: &Scenario, number: usize) -> Self {
        Self {
            name: name(number),
            is_running: false,
            is_listed: false,
            is_draining: false,
            starts: 0,
            address: String::new(),
            zone: (scenario.zones > 0).then(|| number % scenario.zones),
            side: false,
            latency: 2,
            list_delay: rng.u64(0..=scenario.max_list_delay),
            clock: (rng.u64(0..1_000_000), rng.u64(980..=1_020)),
            members: None,
            view: None,
            cache: BTreeSet::new(),
            cache_number: 0,
        }
    }
}

/// The lists of servers.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Right lists, by the time from which they hold.
    lists: Vec<(u64, Rc<BTreeSet<String>>)>,
    /// Change of the lists that the sources of some servers show.
    pub(crate) mode: (u64, Lists),
    pub(crate) is_foreign_listed: bool,
}

impl Default for Directory {
    fn default() -> Self {
        Self { lists: vec![(0, Rc::default())], mode: (0, Lists::Right), is_foreign_listed: false }
    }
}

impl World {
    /// Returns true if a server runs and has not started again since its start number `start`.
    pub(crate) fn is_alive(&self, node: usize, start: u64) -> bool {
        self.nodes[node].is_running && self.nodes[node].starts == start
    }

    /// Time of the clock of a server.
    fn clock(&self, node: usize) -> Duration {
        let (offset, rate) = self.nodes[node].clock;
        Duration::from_millis(offset + self.now * rate / 1_000)
    }

    /// Returns what a server says about itself.
    fn hello(&self, node: usize) -> Hello {
        let server = &self.nodes[node];
        Hello {
            name: server.name.clone(),
            instance: (node as u64) << 32 | server.starts,
            version: "1".into(),
            state: "state".into(),
            zone: server.zone.map(|zone| zone.to_string()),
            is_draining: server.is_draining,
        }
    }

    /// Starts a server. It gets a new address, and loses its cache, if it should.
    pub(crate) fn start(&mut self, server: usize, new_address: bool, keeps_cache: bool) {
        let node = &mut self.nodes[server];
        node.starts += 1;
        if new_address || node.address.is_empty() {
            self.by_address.remove(&node.address);
            node.address = format!("10.0.{server}.{}:7050", node.starts);
            self.by_address.insert(node.address.clone(), server);
        }
        if !keeps_cache {
            node.cache.clear();
            node.cache_number += 1;
        }
        (node.is_running, node.is_listed, node.is_draining, node.view) = (true, true, false, None);
        let start = node.starts;
        if server < self.scenario.planners {
            let own = self.hello(server);
            self.nodes[server].members = Some(Members::new(self.scenario.config.clone(), own));
            self.schedule(self.now, Task::Poll { node: server, start });
            let first = self.now + self.rng.u64(0..self.scenario.wake);
            self.schedule(first, Task::Wake { node: server, start });
        }
    }

    /// Changes the right list to the addresses of the listed servers.
    pub(crate) fn publish_list(&mut self) {
        let listed = self.nodes.iter().filter(|node| node.is_listed).map(|node| node.address.clone());
        let mut list: BTreeSet<String> = listed.collect();
        if self.directory.is_foreign_listed {
            list.insert(FOREIGN.to_owned());
        }
        self.directory.lists.push((self.now, Rc::new(list)));
    }

    /// Returns the list that the source of a server shows now.
    fn source(&self, node: usize) -> Result<Vec<String>, String> {
        let seen = self.now.saturating_sub(self.nodes[node].list_delay);
        let (_, list) = self
            .directory
            .lists
            .iter()
            .rev()
            .find(|(at, _)| *at <= seen)
            .expect("the first list is of time 0");
        let (seed, mode) = self.directory.mode;
        let hash = |text: &str| xxh3_64(format!("{seed}{text}").as_bytes());
        // Of some events all servers see the wrong list, of others a half of them.
        if hash("all") % 2 == 0 && hash(&node.to_string()) % 2 == 0 {
            return Ok(list.iter().cloned().collect());
        }
        match mode {
            Lists::Right => Ok(list.iter().cloned().collect()),
            Lists::Empty => Ok(Vec::new()),
            Lists::Error => Err("the source failed".into()),
            Lists::Half => Ok(list.iter().filter(|address| hash(address) % 2 == 0).cloned().collect()),
            Lists::Garbage => Ok((0..5).map(|number| format!("garbage-{number}:1")).collect()),
        }
    }

    /// Reads the list of a server.
    pub(crate) fn poll(&mut self, node: usize) {
        let (now, listed) = (self.clock(node), self.source(node));
        let members = self.nodes[node].members.as_mut().expect("the caller polls");
        let changes = members.on_list(now, listed);
        self.record(node, &changes);
        let start = self.nodes[node].starts;
        self.schedule(self.now + self.scenario.poll, Task::Poll { node, start });
    }

    /// Lets time pass for the members of a server, and greets those that are due.
    pub(crate) fn wake(&mut self, node: usize) {
        let now = self.clock(node);
        let members = self.nodes[node].members.as_mut().expect("the caller wakes");
        let changes = members.on_tick(now);
        let due = members.due(now);
        self.record(node, &changes);
        let start = self.nodes[node].starts;
        for address in due {
            let (after, answer) = self.greet(node, &address);
            self.schedule(self.now + after, Task::HelloDone { node, start, address, answer });
        }
        self.schedule(self.now + self.scenario.wake, Task::Wake { node, start });
    }

    /// Returns when a hello ends, and its answer.
    fn greet(&self, node: usize, address: &str) -> (u64, Option<Hello>) {
        if address == FOREIGN {
            let hello = Hello { state: "other".into(), name: "foreign:7050".into(), ..self.hello(0) };
            return (3, Some(Hello { instance: u64::MAX, ..hello }));
        }
        let Some(&other) = self.by_address.get(address) else { return (HELLO_TIMEOUT, None) };
        let server = &self.nodes[other];
        if server.side != self.nodes[node].side || server.latency > HELLO_TIMEOUT {
            return (HELLO_TIMEOUT, None);
        }
        if !server.is_running {
            return (1, None);
        }
        (server.latency, Some(self.hello(other)))
    }

    /// Records the answer to a hello of a server.
    pub(crate) fn greeted(&mut self, node: usize, address: &str, answer: Option<Hello>) {
        let result = answer.ok_or_else(|| "no answer".to_owned());
        let now = self.clock(node);
        let members = self.nodes[node].members.as_mut().expect("the caller greets");
        let changes = members.on_hello(now, address, result);
        self.record(node, &changes);
    }

    /// Adds the changes of a view to the trace and to the counts.
    fn record(&mut self, node: usize, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Joined { .. } | Change::Left { .. } => self.totals.joined_or_left += 1,
                Change::HeldBack { .. } => self.totals.held_back += 1,
                Change::Refused(_) => self.totals.refused += 1,
                _ => {}
            }
            self.trace(&change.to_string(), node as u64, 0);
        }
    }
}

fn name(server: usize) -> String {
    format!("server-{server}:7050")
}

/// Returns the number of the server `name`.
pub(crate) fn number_of(name: &str) -> usize {
    name.trim_start_matches("server-").trim_end_matches(":7050").parse().expect("a name of the simulation")
}
