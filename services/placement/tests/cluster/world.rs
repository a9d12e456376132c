//! Servers, networks and ranks of one history, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_placement::{Hello, Members, Placement, Server, Streams};
use xxhash_rust::xxh3::xxh3_64;

use crate::checks;
use crate::history::{Event, Job, Kind, Lists, Scenario, scenario};
use crate::route::Route;

/// Time after which a hello without an answer has failed, in ms.
const HELLO_TIMEOUT: u64 = 2_000;
/// Time after which a read from an unreachable server has failed, in ms.
const READ_TIMEOUT: u64 = 5_000;
const FOREIGN: &str = "10.9.9.9:7050";

/// Counts over histories.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) events: u64,
    pub(crate) batches: u64,
    pub(crate) retries: u64,
    pub(crate) moves: u64,
    pub(crate) placements: u64,
    pub(crate) joined_or_left: u64,
    pub(crate) held_back: u64,
    pub(crate) refused: u64,
    /// Hash of all events, in order.
    pub(crate) trace: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.batches += other.batches;
        self.retries += other.retries;
        self.moves += other.moves;
        self.placements += other.placements;
        self.joined_or_left += other.joined_or_left;
        self.held_back += other.held_back;
        self.refused += other.refused;
    }
}

/// A server.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) is_running: bool,
    pub(crate) is_listed: bool,
    is_draining: bool,
    /// Number of starts.
    starts: u64,
    address: String,
    pub(crate) zone: Option<usize>,
    side: bool,
    /// Time to answer, in ms.
    latency: u64,
    /// Age of the lists that this server sees, in ms.
    list_delay: u64,
    /// Clock: an offset in ms, and a rate in thousandths.
    clock: (u64, u64),
    pub(crate) members: Option<Members>,
    /// View and its hash, by revision.
    view: Option<(u64, u64, Rc<Vec<Server>>)>,
    /// Blocks of jobs in the cache, and the number of caches that were lost.
    cache: BTreeSet<(usize, u64)>,
    cache_number: u64,
}

/// A rank of a job.
pub(crate) struct Rank {
    pub(crate) job: usize,
    pub(crate) rank: u64,
    side: bool,
    urls: Vec<usize>,
    pub(crate) route: Route,
    epoch: u64,
    step: u64,
    attempt: u64,
    pub(crate) moves: u64,
    /// Server of the last batch.
    last_server: Option<usize>,
    /// Number of events and the view of the last plan at the last move.
    moved_by: Option<(usize, Option<PlanSource>)>,
    plan: Option<PlanSource>,
    /// Number of events when the first failed attempt since the last batch began.
    failing_since: Option<usize>,
    /// Number of events when the attempt began, and one more if an event broke it.
    attempted_after: usize,
    /// Caches that decoded for this rank.
    pub(crate) caches: BTreeSet<(usize, u64)>,
    pub(crate) last_delivery: u64,
    /// Number of batches, and the hash of their bytes in order.
    pub(crate) batches: u64,
    pub(crate) digest: u64,
}

/// Server and revision of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PlanSource {
    server: usize,
    start: u64,
    revision: u64,
}

enum Task {
    Wake { node: usize, start: u64 },
    Poll { node: usize, start: u64 },
    HelloDone { node: usize, start: u64, address: String, answer: Option<Hello> },
    Step { rank: usize, attempt: u64 },
    Read { rank: usize, attempt: u64, server: usize, start: u64, bytes: u64 },
    Failed { rank: usize, attempt: u64, server: usize },
    History { index: usize },
    ViewsSettled,
    StreamsSettled,
}

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    rng: Rng,
    now: u64,
    tasks: BTreeMap<(u64, u64), Task>,
    next_task: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ranks: Vec<Rank>,
    by_address: BTreeMap<String, usize>,
    /// Right lists, by the time from which they hold.
    lists: Vec<(u64, Rc<BTreeSet<String>>)>,
    list_mode: (u64, Lists),
    is_foreign_listed: bool,
    /// Number of events so far.
    happened: usize,
    placements: BTreeMap<(u64, usize), Rc<Placement>>,
    /// Number of blocks decoded, by job.
    pub(crate) decoded: Vec<u64>,
    /// Moves of all ranks when the streams had settled.
    settled_moves: Option<Vec<u64>>,
    totals: Totals,
    prints: bool,
}

/// Runs the history of a seed, and checks it.
pub(crate) fn run(seed: u64, is_large: bool) -> Totals {
    let scenario = scenario(seed, is_large);
    let last_event = scenario.history.iter().map(|(at, _)| *at).max().unwrap_or(0).max(scenario.jobs_start);
    let longest_step = scenario.jobs.iter().map(|job| job.compute).max().unwrap();
    let views_at = last_event + scenario.view_delay();
    let streams_at = views_at + scenario.replan + longest_step + 30_000;
    assert!(streams_at - last_event <= 2 * (scenario.view_delay() + scenario.replan));
    let end = streams_at + scenario.replan + 2 * longest_step + 30_000;

    let mut world = World::new(seed, scenario);
    world.schedule(views_at, Task::ViewsSettled);
    world.schedule(streams_at, Task::StreamsSettled);
    while let Some(((at, _), task)) = world.tasks.pop_first() {
        if at > end {
            break;
        }
        world.now = at;
        world.perform(task);
    }
    world.finish(end);
    world.totals
}

impl World {
    fn new(seed: u64, scenario: Scenario) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed_5eed);
        let all = scenario.servers + scenario.joiners;
        let nodes = (0..all)
            .map(|number| Node {
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
            })
            .collect();
        #[allow(clippy::disallowed_methods)] // Printing, not a decision.
        let prints = std::env::var_os("FOREBAY_SIMULATION_TRACE").is_some();
        let mut world = Self {
            rng,
            now: 0,
            tasks: BTreeMap::new(),
            next_task: 0,
            nodes,
            ranks: Vec::new(),
            by_address: BTreeMap::new(),
            lists: vec![(0, Rc::default())],
            list_mode: (0, Lists::Right),
            is_foreign_listed: false,
            happened: 0,
            placements: BTreeMap::new(),
            decoded: vec![0; scenario.jobs.len()],
            settled_moves: None,
            totals: Totals::default(),
            prints,
            scenario,
        };
        for server in 0..world.scenario.servers {
            world.start(server, false, true);
        }
        world.publish_list();
        for index in 0..world.scenario.history.len() {
            world.schedule(world.scenario.history[index].0, Task::History { index });
        }
        let planners = world.scenario.planners.min(world.scenario.servers);
        for job in 0..world.scenario.jobs.len() {
            for rank in 0..world.scenario.jobs[job].ranks {
                let mut urls: Vec<usize> = (0..planners).collect();
                world.rng.shuffle(&mut urls);
                let index = world.ranks.len();
                world.ranks.push(Rank {
                    job,
                    rank,
                    side: false,
                    route: Route::new(urls.clone(), world.scenario.replan),
                    urls,
                    epoch: 0,
                    step: 0,
                    attempt: 0,
                    moves: 0,
                    last_server: None,
                    moved_by: None,
                    plan: None,
                    failing_since: None,
                    attempted_after: 0,
                    caches: BTreeSet::new(),
                    last_delivery: 0,
                    batches: 0,
                    digest: 0,
                });
                let start = world.scenario.jobs_start + world.rng.u64(0..world.scenario.jobs[job].compute);
                world.schedule(start, Task::Step { rank: index, attempt: 0 });
            }
        }
        world
    }

    fn schedule(&mut self, at: u64, task: Task) {
        self.next_task += 1;
        self.tasks.insert((at, self.next_task), task);
    }

    /// Adds an event to the trace.
    fn trace(&mut self, what: &str, a: u64, b: u64) {
        let mut bytes = [0; 40];
        let numbers = [self.totals.trace, self.now, xxh3_64(what.as_bytes()), a, b];
        for (number, bytes) in numbers.iter().zip(bytes.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        self.totals.trace = xxh3_64(&bytes);
        self.totals.events += 1;
        if self.prints {
            println!("{:>8} {what} {a} {b}", self.now);
        }
    }

    fn perform(&mut self, task: Task) {
        match task {
            Task::Wake { node, start } if self.is_alive(node, start) => self.wake(node),
            Task::Poll { node, start } if self.is_alive(node, start) => self.poll(node),
            Task::HelloDone { node, start, address, answer } if self.is_alive(node, start) => {
                let result = answer.ok_or_else(|| "no answer".to_owned());
                let now = self.clock(node);
                let members = self.nodes[node].members.as_mut().expect("the caller greets");
                let changes = members.on_hello(now, &address, result);
                self.record(node, &changes);
            }
            Task::Wake { .. } | Task::Poll { .. } | Task::HelloDone { .. } => {}
            Task::Step { rank, attempt } if self.ranks[rank].attempt == attempt => self.step(rank),
            Task::Read { rank, attempt, server, start, bytes } if self.ranks[rank].attempt == attempt => {
                self.read(rank, server, start, bytes);
            }
            Task::Failed { rank, attempt, server } if self.ranks[rank].attempt == attempt => {
                self.fail(rank, server);
            }
            Task::Step { .. } | Task::Read { .. } | Task::Failed { .. } => {}
            Task::History { index } => self.happen(index),
            Task::ViewsSettled => checks::views_are_equal_and_right(self),
            Task::StreamsSettled => {
                self.trace("settled", 0, 0);
                self.settled_moves = Some(self.ranks.iter().map(|rank| rank.moves).collect());
                for rank in 0..self.ranks.len() {
                    let first = self.locations(0, rank).first().copied();
                    let current = self.ranks[rank].route.current;
                    assert_eq!(current, first, "rank {rank} is not at its server");
                }
            }
        }
    }

    fn is_alive(&self, node: usize, start: u64) -> bool {
        self.nodes[node].is_running && self.nodes[node].starts == start
    }

    /// Time of the clock of a server.
    fn clock(&self, node: usize) -> Duration {
        let (offset, rate) = self.nodes[node].clock;
        Duration::from_millis(offset + self.now * rate / 1_000)
    }

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

    fn start(&mut self, server: usize, new_address: bool, keeps_cache: bool) {
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

    fn publish_list(&mut self) {
        let listed = self.nodes.iter().filter(|node| node.is_listed).map(|node| node.address.clone());
        let mut list: BTreeSet<String> = listed.collect();
        if self.is_foreign_listed {
            list.insert(FOREIGN.to_owned());
        }
        self.lists.push((self.now, Rc::new(list)));
    }

    /// Returns the list that the source of a server shows now.
    fn source(&self, node: usize) -> Result<Vec<String>, String> {
        let seen = self.now.saturating_sub(self.nodes[node].list_delay);
        let (_, list) =
            self.lists.iter().rev().find(|(at, _)| *at <= seen).expect("the first list is of time 0");
        let (seed, mode) = self.list_mode;
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

    fn poll(&mut self, node: usize) {
        let (now, listed) = (self.clock(node), self.source(node));
        let members = self.nodes[node].members.as_mut().expect("the caller polls");
        let changes = members.on_list(now, listed);
        self.record(node, &changes);
        let start = self.nodes[node].starts;
        self.schedule(self.now + self.scenario.poll, Task::Poll { node, start });
    }

    fn wake(&mut self, node: usize) {
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

    fn record(&mut self, node: usize, changes: &[forebay_placement::Change]) {
        use forebay_placement::Change;
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

    fn happen(&mut self, index: usize) {
        self.happened += 1;
        let event = self.scenario.history[index].1.clone();
        if self.prints {
            println!("{:>8} {event:?}", self.now);
        }
        self.trace("event", index as u64, 0);
        match event {
            Event::Kill { server } => {
                self.nodes[server].is_running = false;
                self.nodes[server].members = None;
                self.nodes[server].is_listed &= self.scenario.is_static;
            }
            Event::Start { server, new_address, keeps_cache } => self.start(server, new_address, keeps_cache),
            Event::Drain { server } => {
                self.nodes[server].is_draining = true;
                if let Some(members) = &mut self.nodes[server].members {
                    members.set_draining(true);
                }
            }
            Event::Unlist { server } => self.nodes[server].is_listed = false,
            Event::Slow { server, latency } => self.nodes[server].latency = latency,
            Event::Split { seed } => {
                let mut sides = Rng::with_seed(seed);
                self.nodes.iter_mut().for_each(|node| node.side = sides.bool());
                self.ranks.iter_mut().for_each(|rank| rank.side = sides.bool());
            }
            Event::Heal => {
                self.nodes.iter_mut().for_each(|node| node.side = false);
                self.ranks.iter_mut().for_each(|rank| rank.side = false);
            }
            Event::Lists { seed, mode } => self.list_mode = (seed, mode),
            Event::Foreign { is_listed } => self.is_foreign_listed = is_listed,
        }
        self.publish_list();
    }

    /// Returns whether a rank can connect to a server, and the server accepts streams.
    fn serves(&self, rank: usize, server: usize) -> bool {
        let node = &self.nodes[server];
        node.is_running && !node.is_draining && node.side == self.ranks[rank].side
    }

    /// Asks a server for a plan.
    fn plan(&mut self, rank: usize) {
        let urls = self.ranks[rank].urls.clone();
        let first = if self.scenario.is_sticky { 0 } else { self.rng.usize(0..urls.len()) };
        let order = urls[first..].iter().chain(&urls[..first]);
        let Some(server) = order.copied().find(|server| self.serves(rank, *server)) else { return };
        let locations = self.locations(server, rank);
        let members = self.nodes[server].members.as_ref().expect("a planner that runs has a view");
        let source = PlanSource { server, start: self.nodes[server].starts, revision: members.revision() };
        self.trace("plan", rank as u64, source.revision << 32 | server as u64);
        let (now, rank) = (self.now, &mut self.ranks[rank]);
        rank.plan = Some(source);
        rank.route.planned(now, rank.epoch, locations);
    }

    /// Returns the first three candidates of a rank in the view of a server.
    fn locations(&mut self, server: usize, rank: usize) -> Vec<usize> {
        let (job, number) = (self.ranks[rank].job, self.ranks[rank].rank);
        let placement = self.placement(server, job);
        let candidates = placement.candidates(number);
        candidates.iter().take(3).map(|server| number_of(&server.name)).collect()
    }

    fn placement(&mut self, server: usize, job: usize) -> Rc<Placement> {
        let node = &self.nodes[server];
        let members = node.members.as_ref().expect("a planner that runs has a view");
        let revision = members.revision();
        let (digest, servers) = match &node.view {
            Some((of, digest, servers)) if *of == revision => (*digest, servers.clone()),
            _ => {
                let view = members.view();
                checks::view_contains_its_server_and_no_stranger(&view, &node.name);
                let servers = Rc::new(view.servers());
                let digest = xxh3_64(format!("{servers:?}").as_bytes());
                self.nodes[server].view = Some((revision, digest, servers.clone()));
                (digest, servers)
            }
        };
        if let Some(placement) = self.placements.get(&(digest, job)) {
            return placement.clone();
        }
        let Job { dataset, partitions, ranks, zone, .. } = &self.scenario.jobs[job];
        let streams = Streams { dataset, partitions: *partitions, ranks: *ranks };
        let zone = zone.map(|zone| zone.to_string());
        let placement = Rc::new(Placement::new(&servers, &streams, zone.as_deref()));
        checks::shares_are_even(&placement, &streams);
        if self.totals.placements.is_multiple_of(8) {
            let mut shuffled = servers.to_vec();
            self.rng.shuffle(&mut shuffled);
            checks::placements_are_equal(
                &placement,
                &Placement::new(&shuffled, &streams, zone.as_deref()),
                &streams,
            );
        }
        self.totals.placements += 1;
        self.placements.insert((digest, job), placement.clone());
        placement
    }

    /// Asks for the next batch of a rank.
    fn step(&mut self, rank: usize) {
        if self.ranks[rank].route.is_plan_due(self.now, self.ranks[rank].epoch) {
            self.plan(rank);
        }
        self.ranks[rank].attempted_after = self.happened;
        let answers: Vec<bool> = (0..self.nodes.len()).map(|server| self.serves(rank, server)).collect();
        let attempt = self.ranks[rank].attempt;
        let Some(server) = self.ranks[rank].route.next(|server| answers[server]) else {
            self.schedule(self.now + 1_000, Task::Step { rank, attempt });
            return;
        };
        if !answers[server] {
            let is_split = self.nodes[server].side != self.ranks[rank].side;
            let after = if is_split { READ_TIMEOUT } else { 10 };
            self.schedule(self.now + after, Task::Failed { rank, attempt, server });
            return;
        }
        self.decode(rank, server);
        let node = &self.nodes[server];
        let Rank { job, rank: number, epoch, step, .. } = self.ranks[rank];
        let bytes = batch(&self.scenario.jobs[job], number, epoch, step);
        let (start, arrival) = (node.starts, self.now + node.latency + 10);
        self.schedule(arrival, Task::Read { rank, attempt, server, start, bytes });
    }

    /// Decodes the block of the next batch, unless the server has it.
    fn decode(&mut self, rank: usize, server: usize) {
        let Rank { job, rank: number, step, .. } = self.ranks[rank];
        let blocks = self.scenario.jobs[job].blocks_per_rank;
        let is_partitioned = self.scenario.jobs[job].partitions > 1;
        let block = if is_partitioned { number * blocks + step } else { step };
        let node = &mut self.nodes[server];
        self.ranks[rank].caches.insert((server, node.cache_number));
        if node.cache.insert((job, block)) {
            self.decoded[job] += 1;
        }
    }

    /// A batch arrives, unless the connection broke.
    fn read(&mut self, rank: usize, server: usize, start: u64, bytes: u64) {
        if !self.is_alive(server, start) || !self.serves(rank, server) {
            // An event after the attempt began broke the connection.
            self.ranks[rank].attempted_after += 1;
            self.fail(rank, server);
            return;
        }
        let job = &self.scenario.jobs[self.ranks[rank].job];
        let (blocks, compute) = (job.blocks_per_rank, job.compute);
        self.trace("batch", rank as u64, server as u64);
        self.totals.batches += 1;
        let now = self.now;
        let state = &mut self.ranks[rank];
        // A stream that fails over moves because of what happened before it failed.
        let happened = state.failing_since.take().unwrap_or(self.happened);
        if state.last_server != Some(server) {
            let cause = (happened, state.plan);
            assert!(
                !self.scenario.is_sticky || state.moved_by != Some(cause),
                "rank {rank} moved twice without an event or a change of the view: {cause:?}"
            );
            if state.last_server.replace(server).is_some() {
                state.moves += 1;
                self.totals.moves += 1;
            }
            state.moved_by = Some(cause);
        }
        state.route.delivered(server);
        state.last_delivery = now;
        state.digest = digest(state.digest, bytes);
        state.batches += 1;
        state.attempt += 1;
        state.step += 1;
        if state.step == blocks {
            (state.epoch, state.step) = (state.epoch + 1, 0);
        }
        let attempt = state.attempt;
        self.schedule(now + compute, Task::Step { rank, attempt });
    }

    fn fail(&mut self, rank: usize, server: usize) {
        self.trace("failed", rank as u64, server as u64);
        self.totals.retries += 1;
        let state = &mut self.ranks[rank];
        state.failing_since.get_or_insert(state.attempted_after);
        state.route.failed(server);
        state.attempt += 1;
        let attempt = state.attempt;
        self.schedule(self.now + 50, Task::Step { rank, attempt });
    }

    fn finish(&mut self, end: u64) {
        let settled = self.settled_moves.take().expect("the history is longer");
        for (rank, moves) in self.ranks.iter().zip(settled) {
            assert_eq!(rank.moves, moves, "rank {} moved after it had settled", rank.rank);
            let late = 2 * self.scenario.jobs[rank.job].compute + READ_TIMEOUT;
            assert!(rank.last_delivery + late >= end, "rank {} stopped at {}", rank.rank, rank.last_delivery);
            assert!(
                self.scenario.kind == Kind::Any || rank.moves == 0,
                "rank {} moved without a cause",
                rank.rank
            );
        }
        checks::batches_are_complete_and_in_order(self);
        checks::blocks_are_decoded_once_per_cache(self);
    }
}

/// Bytes of a batch: a function of its ticket and its position.
pub(crate) fn batch(job: &Job, rank: u64, epoch: u64, step: u64) -> u64 {
    let numbers = [xxh3_64(job.dataset.as_bytes()), job.partitions, job.ranks, rank, epoch, step];
    numbers.into_iter().fold(0, digest)
}

/// Hash of a sequence and one more element.
pub(crate) fn digest(before: u64, next: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&before.to_le_bytes());
    bytes[8..].copy_from_slice(&next.to_le_bytes());
    xxh3_64(&bytes)
}

fn name(server: usize) -> String {
    format!("server-{server}:7050")
}

fn number_of(name: &str) -> usize {
    name.trim_start_matches("server-").trim_end_matches(":7050").parse().expect("a name of the simulation")
}
