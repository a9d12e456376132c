//! Choices of a seed: the cluster, the jobs, and what happens to them.

use std::time::Duration;

use fastrand::Rng;
use forebay_placement::Config;

/// Cluster and jobs of a seed. Times are in ms.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) config: Config,
    /// Number of servers at the start. Those that join later have the next numbers.
    pub(crate) servers: usize,
    pub(crate) joiners: usize,
    /// Number of servers that keep a view and answer requests for plans.
    pub(crate) planners: usize,
    pub(crate) zones: usize,
    /// True if the list contains servers that do not run.
    pub(crate) is_static: bool,
    pub(crate) max_list_delay: u64,
    pub(crate) poll: u64,
    pub(crate) wake: u64,
    pub(crate) jobs: Vec<Job>,
    /// True if each rank asks the same server for all plans while it runs.
    pub(crate) is_sticky: bool,
    pub(crate) replan: u64,
    pub(crate) jobs_start: u64,
    pub(crate) history: Vec<(u64, Event)>,
    /// Kinds of the events.
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing happens.
    Calm,
    /// Lists flap for less than the delays.
    Flaps,
    /// Everything.
    Any,
}

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) dataset: String,
    pub(crate) partitions: u64,
    pub(crate) ranks: u64,
    pub(crate) blocks_per_rank: u64,
    pub(crate) zone: Option<usize>,
    /// Time between two batches of a rank.
    pub(crate) compute: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Kill {
        server: usize,
    },
    Start {
        server: usize,
        new_address: bool,
        keeps_cache: bool,
    },
    Drain {
        server: usize,
    },
    Unlist {
        server: usize,
    },
    Slow {
        server: usize,
        latency: u64,
    },
    Split {
        seed: u64,
    },
    Heal,
    /// Change of the lists that the sources of some servers show until the next such event.
    Lists {
        seed: u64,
        mode: Lists,
    },
    /// A server of another state is listed, or no longer.
    Foreign {
        is_listed: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    Right,
    Empty,
    Half,
    Error,
    Garbage,
}

pub(crate) fn scenario(seed: u64, is_large: bool) -> Scenario {
    let mut rng = Rng::with_seed(seed);
    let seconds = |rng: &mut Rng, range: std::ops::RangeInclusive<u64>| rng.u64(range) * 1_000;
    let is_wide = rng.u8(0..16) == 0;
    let servers = if is_large { 1_000 } else { rng.usize(1..=if is_wide { 30 } else { 8 }) };
    let joiners = rng.usize(0..=2);
    let kind = match rng.u8(0..8) {
        0 => Kind::Calm,
        1 => Kind::Flaps,
        _ => Kind::Any,
    };
    let config = Config {
        shrink_delay: Duration::from_secs(rng.u64(60..=70)),
        removal_delay: Duration::from_secs(rng.u64(60..=70)),
        unlisted_timeout: Duration::from_secs(rng.u64(80..=120)),
        silent_timeout: Duration::from_secs(rng.u64(80..=150)),
        hello_interval: Duration::from_secs(if is_large { 60 } else { rng.u64(3..=15) }),
        max_hello_backoff: Duration::from_secs(rng.u64(1..=30)),
        ..Config::default()
    };
    let zones = if rng.u8(0..4) == 0 { rng.usize(2..=3) } else { 0 };
    let jobs = (0..if is_large { 1 } else { rng.usize(1..=2) })
        .map(|number| {
            let ranks = if is_large { 16_384 } else { rng.u64(1..=if is_wide { 256 } else { 24 }) };
            let is_partitioned = is_large || rng.u8(0..4) > 0;
            Job {
                dataset: format!("dataset-{number}"),
                partitions: if is_partitioned { ranks * rng.u64(1..=4) } else { 1 },
                ranks,
                blocks_per_rank: rng.u64(1..=6),
                zone: (zones > 0 && rng.bool()).then(|| rng.usize(0..zones)),
                compute: if is_large { 60_000 } else { seconds(&mut rng, 3..=20) },
            }
        })
        .collect();
    let max_list_delay = if rng.bool() { seconds(&mut rng, 0..=60) } else { 0 };
    let mut scenario = Scenario {
        config,
        servers,
        joiners,
        planners: if is_large { 16 } else { servers + joiners },
        zones,
        is_static: rng.u8(0..3) == 0,
        max_list_delay,
        poll: seconds(&mut rng, 1..=8),
        wake: if is_large { 5_000 } else { 1_000 },
        jobs,
        is_sticky: rng.bool(),
        replan: seconds(&mut rng, 20..=120),
        jobs_start: 0,
        history: Vec::new(),
        kind,
    };
    let start = scenario.view_delay();
    // Jobs without events begin with equal views. So do large ones, because each different view takes long to place.
    let is_early = kind == Kind::Any && !is_large;
    scenario.jobs_start = if is_early { rng.u64(0..=start) } else { start };
    scenario.history = history(&mut rng, &scenario, start, is_large);
    scenario
}

impl Scenario {
    /// Longest time from an event to equal views.
    pub(crate) fn view_delay(&self) -> u64 {
        let config = &self.config;
        let removal = config.removal_delay.max(config.unlisted_timeout).max(config.silent_timeout);
        let hello = config.hello_interval * 2 + config.max_hello_backoff;
        let members = config.shrink_delay + removal + config.removal_delay + hello;
        let source = self.max_list_delay + self.poll;
        let total = source + u64::try_from(members.as_millis()).unwrap() + 4 * self.wake + 10_000;
        total + total / 30 // clocks differ
    }
}

fn history(rng: &mut Rng, scenario: &Scenario, start: u64, is_large: bool) -> Vec<(u64, Event)> {
    let mut events = Vec::new();
    match scenario.kind {
        Kind::Calm => return events,
        Kind::Flaps => {
            let mut at = start + rng.u64(1_000..=30_000);
            for _ in 0..rng.usize(1..=20) {
                let mode = *rng.choice(&[Lists::Empty, Lists::Half, Lists::Error, Lists::Garbage]).unwrap();
                events.push((at, Event::Lists { seed: rng.u64(..), mode }));
                at += rng.u64(500..=40_000);
                events.push((at, Event::Lists { seed: 0, mode: Lists::Right }));
                at += rng.u64(500..=20_000) + scenario.poll;
            }
            return events;
        }
        Kind::Any => {}
    }
    let mut next_joiner = scenario.servers;
    // Servers with an event of their own, so that histories of one server do not overlap. Server 0 always runs.
    let mut busy = vec![false; scenario.servers];
    busy[0] = true;
    let mut at = if is_large || rng.bool() { start } else { 0 };
    for _ in 0..rng.usize(1..=8) {
        at += rng.u64(100..=40_000);
        let server = rng.usize(0..scenario.servers);
        let is_free = !busy[server];
        match rng.u8(0..10) {
            0..=2 if is_free => {
                busy[server] = true;
                events.push((at, Event::Kill { server }));
                if rng.u8(0..4) > 0 {
                    let back = at + rng.u64(1_000..=200_000);
                    let (new_address, keeps_cache) = (rng.bool(), rng.bool());
                    events.push((back, Event::Start { server, new_address, keeps_cache }));
                }
            }
            3 | 4 if is_free => {
                busy[server] = true;
                events.push((at, Event::Drain { server }));
                events.push((at + rng.u64(0..=10_000), Event::Unlist { server }));
                let dead = at + 10_000 + rng.u64(0..=30_000);
                events.push((dead, Event::Kill { server }));
                if rng.bool() {
                    let start = Event::Start { server, new_address: rng.bool(), keeps_cache: rng.bool() };
                    events.push((dead + rng.u64(1_000..=60_000), start));
                }
            }
            5 if next_joiner < scenario.servers + scenario.joiners => {
                let start = Event::Start { server: next_joiner, new_address: false, keeps_cache: false };
                events.push((at, start));
                next_joiner += 1;
            }
            6 => {
                events.push((at, Event::Split { seed: rng.u64(..) }));
                events.push((at + rng.u64(1_000..=300_000), Event::Heal));
            }
            7 => {
                events.push((at, Event::Slow { server, latency: rng.u64(200..=6_000) }));
                events.push((at + rng.u64(1_000..=100_000), Event::Slow { server, latency: 2 }));
            }
            8 => {
                let mode = *rng.choice(&[Lists::Empty, Lists::Half, Lists::Error, Lists::Garbage]).unwrap();
                events.push((at, Event::Lists { seed: rng.u64(..), mode }));
                events.push((at + rng.u64(500..=200_000), Event::Lists { seed: 0, mode: Lists::Right }));
            }
            _ => {
                events.push((at, Event::Foreign { is_listed: true }));
                events.push((at + rng.u64(1_000..=100_000), Event::Foreign { is_listed: false }));
            }
        }
    }
    events.sort_by_key(|(at, _)| *at);
    events
}
