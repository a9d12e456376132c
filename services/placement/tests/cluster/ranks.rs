//! Ranks of jobs: their plans, their batches, and the blocks that servers decode for them.

use std::{collections::BTreeSet, rc::Rc};

use forebay_placement::{Placement, Streams};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    checks,
    history::Job,
    network::number_of,
    route::Route,
    world::{Task, World},
};

/// Time after which a read from an unreachable server has failed, in ms.
pub(crate) const READ_TIMEOUT: u64 = 5_000;

/// A rank of a job.
pub(crate) struct Rank {
    pub(crate) job: usize,
    pub(crate) rank: u64,
    pub(crate) side: bool,
    pub(crate) urls: Vec<usize>,
    pub(crate) route: Route,
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) attempt: u64,
    pub(crate) moves: u64,
    /// Server of the last batch.
    pub(crate) last_server: Option<usize>,
    /// Number of events and the view of the last plan at the last move.
    pub(crate) moved_by: Option<(usize, Option<PlanSource>)>,
    pub(crate) plan: Option<PlanSource>,
    /// Number of events when the first failed attempt since the last batch began.
    pub(crate) failing_since: Option<usize>,
    /// Number of events when the attempt began, and one more if an event broke it.
    pub(crate) attempted_after: usize,
    /// Caches that decoded for this rank.
    pub(crate) caches: BTreeSet<(usize, u64)>,
    pub(crate) last_delivery: u64,
    /// Number of batches, and the hash of their bytes in order.
    pub(crate) batches: u64,
    pub(crate) digest: u64,
}

/// Server and revision of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlanSource {
    server: usize,
    start: u64,
    revision: u64,
}

impl Rank {
    /// Creates a rank that asks `urls` for its plans, every `replan_ms`.
    pub(crate) fn new(job: usize, rank: u64, urls: Vec<usize>, replan_ms: u64) -> Self {
        Self {
            job,
            rank,
            side: false,
            route: Route::new(urls.clone(), replan_ms),
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
        }
    }
}

impl World {
    /// Returns whether a rank can connect to a server, and the server accepts streams.
    pub(crate) fn serves(&self, rank: usize, server: usize) -> bool {
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
    pub(crate) fn locations(&mut self, server: usize, rank: usize) -> Vec<usize> {
        let (job, number) = (self.ranks[rank].job, self.ranks[rank].rank);
        let placement = self.placement(server, job);
        let candidates = placement.candidates(number);
        candidates.iter().take(3).map(|server| number_of(&server.name)).collect()
    }

    /// Returns the placement of a job in the view of a server, and checks it.
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
        checks::shares_without_a_server_are_even(&placement, &streams);
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
    pub(crate) fn step(&mut self, rank: usize) {
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
    pub(crate) fn read(&mut self, rank: usize, server: usize, start: u64, bytes: u64) {
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

    /// Records that an attempt of a rank failed. The next one follows soon.
    pub(crate) fn fail(&mut self, rank: usize, server: usize) {
        self.trace("failed", rank as u64, server as u64);
        self.totals.retries += 1;
        let state = &mut self.ranks[rank];
        state.failing_since.get_or_insert(state.attempted_after);
        state.route.failed(server);
        state.attempt += 1;
        let attempt = state.attempt;
        self.schedule(self.now + 50, Task::Step { rank, attempt });
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
