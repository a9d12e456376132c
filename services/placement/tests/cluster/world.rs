//! One history, in virtual time: the tasks that are due, and the events that happen to servers and ranks.

use std::{collections::BTreeMap, rc::Rc};

use fastrand::Rng;
use forebay_placement::{Hello, Placement};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    checks,
    history::{Event, Scenario, scenario},
    network::{Directory, Node},
    ranks::Rank,
    totals::Totals,
};

/// Action of a server or a rank, or a check, at a time.
pub(crate) enum Task {
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

/// Servers and ranks of a history, at a time.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) rng: Rng,
    /// Time since the start of the history, in ms.
    pub(crate) now: u64,
    /// Tasks by their time and number.
    tasks: BTreeMap<(u64, u64), Task>,
    next_task: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) by_address: BTreeMap<String, usize>,
    pub(crate) directory: Directory,
    /// Number of events so far.
    pub(crate) happened: usize,
    /// Placements, by the hash of the view and by job.
    pub(crate) placements: BTreeMap<(u64, usize), Rc<Placement>>,
    /// Number of blocks decoded, by job.
    pub(crate) decoded: Vec<u64>,
    /// Moves of all ranks when the streams had settled.
    settled_moves: Option<Vec<u64>>,
    pub(crate) totals: Totals,
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
    let settled_moves = world.settled_moves.take().expect("the history is longer");
    checks::streams_have_settled(&world, &settled_moves, end);
    checks::batches_are_complete_and_in_order(&world);
    checks::blocks_are_decoded_once_per_cache(&world);
    world.totals
}

impl World {
    fn new(seed: u64, scenario: Scenario) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed_5eed);
        let all = scenario.servers + scenario.joiners;
        let nodes = (0..all).map(|number| Node::new(&mut rng, &scenario, number)).collect();
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
            directory: Directory::default(),
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
                world.ranks.push(Rank::new(job, rank, urls, world.scenario.replan));
                let start = world.scenario.jobs_start + world.rng.u64(0..world.scenario.jobs[job].compute);
                world.schedule(start, Task::Step { rank: index, attempt: 0 });
            }
        }
        world
    }

    /// Schedules `task` at the time `at`.
    pub(crate) fn schedule(&mut self, at: u64, task: Task) {
        self.next_task += 1;
        self.tasks.insert((at, self.next_task), task);
    }

    /// Adds an event to the trace.
    pub(crate) fn trace(&mut self, what: &str, a: u64, b: u64) {
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
                self.greeted(node, &address, answer);
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
                checks::streams_are_at_their_servers(self);
            }
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
            Event::Lists { seed, mode } => self.directory.mode = (seed, mode),
            Event::Foreign { is_listed } => self.directory.is_foreign_listed = is_listed,
        }
        self.publish_list();
    }
}
