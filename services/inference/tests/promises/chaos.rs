//! Workers that hang, are slow, die or get poison, for minutes of simulated time.

#![allow(clippy::disallowed_methods)] // The time is simulated.

use std::{
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    time::Duration,
};

use forebay_inference::queue::{Batch, Failure, Queue, QueueConfig, Refusal, Worker};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

/// Workers that never fail.
const HEALTHY: usize = 4;
/// Workers that fail at random.
const FAULTY: u64 = 3;
/// Requests per second that the healthy workers can compute in full batches.
const CAPACITY: f64 = 706.0;
/// Rows per request.
const ROWS: u64 = 20;

/// A request: its number, and what it does to its worker.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Request {
    Good(u64),
    /// A request whose batch fails.
    Poison,
    /// A request whose worker dies.
    Deadly,
}

type Requests = Queue<Request, u64>;

/// Number of requests by outcome.
#[derive(Debug, Default)]
struct Outcomes {
    answered: u64,
    refused: u64,
    expired: u64,
    failed: u64,
}

/// Time of a batch.
fn takes(batch: &Batch<Request>) -> Duration {
    Duration::from_millis(20) + Duration::from_micros(200) * batch.padded_rows as u32
}

/// Computes a batch. Returns false if the worker dies of it.
fn compute(worker: &Worker<Request, u64>, batch: &Batch<Request>, computed: &AtomicU64) -> bool {
    if batch.payloads.contains(&Request::Deadly) {
        return false;
    }
    let values = batch.payloads.iter().map(|request| match request {
        Request::Good(number) => Ok(number + 1_000_000),
        Request::Poison | Request::Deadly => Err(Failure::Failed("poison".to_owned())),
    });
    let values = values.collect::<Result<Vec<_>, _>>();
    computed.fetch_add(values.as_ref().map_or(0, |values| values.len() as u64), Ordering::Relaxed);
    worker.replies().reply(batch.id, values);
    true
}

/// Works without faults of its own, and is restarted when a request kills it.
async fn healthy(queue: Requests, computed: Arc<AtomicU64>) {
    loop {
        let mut worker = queue.add_worker(2);
        while let Some(batch) = worker.next().await {
            worker.replies().gathered(batch.id);
            sleep(takes(&batch)).await;
            if !compute(&worker, &batch, &computed) {
                break;
            }
        }
        drop(worker);
        sleep(Duration::from_secs(1)).await;
    }
}

/// Hangs for half a minute, is 2 to 30 times as slow, or dies, each with a chance of one in twenty per batch.
async fn faulty(queue: Requests, computed: Arc<AtomicU64>, mut random: fastrand::Rng) {
    loop {
        let mut worker = queue.add_worker(2);
        while let Some(batch) = worker.next().await {
            worker.replies().gathered(batch.id);
            match random.u32(0..20) {
                0 => {
                    sleep(Duration::from_secs(30)).await;
                    break;
                }
                1 => sleep(takes(&batch) * random.u32(2..30)).await,
                2 => {
                    sleep(takes(&batch) / 2).await;
                    break;
                }
                _ => sleep(takes(&batch)).await,
            }
            if !compute(&worker, &batch, &computed) {
                break;
            }
        }
        drop(worker);
        sleep(Duration::from_secs(2)).await;
    }
}

/// Sends one request and checks its outcome.
async fn ask(queue: Requests, request: Request, timeout: Duration, outcomes: Arc<Mutex<Outcomes>>) {
    let began = Instant::now();
    let answer = match queue.submit(request, (ROWS, ROWS * 100, 100), Some(timeout)) {
        Ok(pending) => pending.answer().await,
        Err(refused) => Err(refused),
    };
    // The timer of the runtime has a resolution of 1 ms.
    assert!(began.elapsed() <= timeout + Duration::from_millis(2), "{:?} of {timeout:?}", began.elapsed());
    let mut outcomes = outcomes.lock();
    match (answer, request) {
        (Ok(answer), Request::Good(number)) => {
            assert_eq!(answer.value, number + 1_000_000);
            outcomes.answered += 1;
        }
        (Ok(_), other) => panic!("{other:?} was answered"),
        (Err(Failure::Refused(Refusal::Late { .. } | Refusal::Full { .. })), _) => {
            assert!(began.elapsed().is_zero());
            outcomes.refused += 1;
        }
        (Err(Failure::Expired { .. }), _) => outcomes.expired += 1,
        (Err(Failure::Failed(_) | Failure::Lost), _) => outcomes.failed += 1,
        (Err(other), _) => panic!("{other}"),
    }
}

/// The requests of a run.
#[derive(Clone, Copy)]
struct Arrivals {
    /// Rate as a multiple of [`CAPACITY`].
    load: f64,
    minutes: u32,
}

/// Runs the load, with or without faults. Returns the outcomes and the number of computed requests.
async fn run(seed: u64, arrivals: Arrivals, has_faults: bool) -> (Outcomes, u64) {
    let config = QueueConfig { max_batch_rows: 256, ..QueueConfig::default() };
    let queue = Requests::new("chaos", config).unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let (computed, outcomes) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Outcomes::default())));
    let (mut tasks, mut callers) = (JoinSet::new(), JoinSet::new());
    tasks.spawn(queue.clone().run());
    for _ in 0..HEALTHY {
        tasks.spawn(healthy(queue.clone(), Arc::clone(&computed)));
    }
    for number in 0..if has_faults { FAULTY } else { 0 } {
        let random = fastrand::Rng::with_seed(seed * 100 + number);
        tasks.spawn(faulty(queue.clone(), Arc::clone(&computed), random));
    }
    let (began, mut at) = (Instant::now(), 0.0);
    for number in 0.. {
        at -= random.f64().max(1e-12).ln() / (arrivals.load * CAPACITY);
        if at > f64::from(arrivals.minutes * 60) {
            break;
        }
        sleep_until(began + Duration::from_secs_f64(at)).await;
        let request = match random.u32(0..5000) {
            0 if has_faults => Request::Deadly,
            1..=3 if has_faults => Request::Poison,
            _ => Request::Good(number),
        };
        let timeout = Duration::from_millis(random.u64(500..2000));
        callers.spawn(ask(queue.clone(), request, timeout, Arc::clone(&outcomes)));
        while callers.try_join_next().is_some_and(|ended| ended.map(|()| true).unwrap()) {}
    }
    while callers.join_next().await.is_some_and(|ended| ended.map(|()| true).unwrap()) {}
    let load = queue.status().load;
    assert_eq!((load.queued_requests, load.queued_rows), (0, 0));
    (std::mem::take(&mut *outcomes.lock()), computed.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn workers_that_hang_slow_down_die_or_get_poison_cost_little_for_ten_minutes() {
    let arrivals = Arrivals { load: 0.7, minutes: 10 };
    for seed in 0..2 {
        let (healthy, _) = run(seed, arrivals, false).await;
        let (chaos, computed) = run(seed, arrivals, true).await;
        println!("{healthy:?}; with faults: {chaos:?}, computed {computed}");
        assert!(
            chaos.answered as f64 >= 0.9 * healthy.answered as f64,
            "{chaos:?}, without faults {healthy:?}"
        );
        // Nearly all requests are computed once.
        assert!(computed as f64 <= 1.02 * chaos.answered as f64, "{computed} computed, {chaos:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn faulty_workers_take_little_from_the_answers_of_overloaded_healthy_ones() {
    let arrivals = Arrivals { load: 1.3, minutes: 3 };
    let (healthy, _) = run(3, arrivals, false).await;
    let (chaos, _) = run(3, arrivals, true).await;
    println!("{healthy:?}; with faults: {chaos:?}");
    let asked = healthy.answered + healthy.refused + healthy.expired + healthy.failed;
    assert!(healthy.refused > asked / 10, "the healthy workers are not overloaded: {healthy:?}");
    assert!(chaos.answered as f64 >= 0.9 * healthy.answered as f64, "{chaos:?}, without faults {healthy:?}");
}
