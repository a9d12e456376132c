use std::time::Instant;

use futures::{FutureExt, future::join_all};

use super::*;

/// Work that has begun, and goes on once something is sent.
fn blocked(pool: &Pool) -> (Submitted<()>, mpsc::Sender<()>) {
    let closed = |_| Error::Internal("the gate is gone".into());
    let (open, gate) = mpsc::channel();
    let (begin, begun) = mpsc::channel();
    let blocked = pool.run(Priority::Second, move || {
        begin.send(()).unwrap();
        gate.recv().map_err(closed)
    });
    begun.recv().unwrap();
    (blocked, open)
}

#[tokio::test]
async fn what_a_consumer_waits_for_overtakes_what_is_made_ahead() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (blocked, open) = blocked(&pool);
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |priority, name| {
        let order = Arc::clone(&order);
        pool.run(priority, move || {
            order.lock().unwrap().push(name);
            Ok(())
        })
    };
    let mut runs = vec![
        Box::pin(note(Priority::Second, "decode 1")),
        Box::pin(note(Priority::Second, "decode 2")),
        Box::pin(note(Priority::First, "gather 1")),
        Box::pin(note(Priority::First, "gather 2")),
    ];
    for run in &mut runs {
        assert!(run.now_or_never().is_none());
    }
    open.send(()).unwrap();
    blocked.await.unwrap();
    assert!(join_all(runs).await.iter().all(Result::is_ok));
    assert_eq!(*order.lock().unwrap(), ["gather 1", "gather 2", "decode 1", "decode 2"]);
}

#[tokio::test]
async fn a_panic_is_an_error_and_the_pool_goes_on() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let error = pool.run(Priority::First, || -> Result<(), Error> { panic!("of course") }).await.unwrap_err();
    assert!(error.to_string().contains("of course"));
    assert_eq!(pool.run(Priority::First, || Ok(3)).await.unwrap(), 3);
}

#[tokio::test]
async fn work_whose_caller_has_gone_is_not_started() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (blocked, open) = blocked(&pool);
    let started = Arc::new(Mutex::new(false));
    let flag = Arc::clone(&started);
    let set = move || {
        *flag.lock().unwrap() = true;
        Ok(())
    };
    assert!(pool.run(Priority::First, set).now_or_never().is_none());
    open.send(()).unwrap();
    blocked.await.unwrap();
    pool.run(Priority::Second, || Ok(())).await.unwrap();
    assert!(!*started.lock().unwrap());
}

#[tokio::test]
async fn work_that_waits_when_the_pool_is_dropped_is_an_error_and_what_runs_ends() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (blocked, open) = blocked(&pool);
    let waiting = pool.clone().run(Priority::First, || Ok(()));
    drop(pool);
    assert!(waiting.await.unwrap_err().to_string().contains("stopped"));
    open.send(()).unwrap();
    blocked.await.unwrap();
}

/// As proc_pid_stat(5) has it of the thread that asks.
#[cfg(target_os = "linux")]
fn is_idle() -> Result<bool, Error> {
    const SCHED_IDLE: &str = "5";
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The 41st field; the third comes behind the name.
    Ok(stat.rsplit(')').next().unwrap().split_whitespace().nth(38).unwrap() == SCHED_IDLE)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_threads_are_of_that_policy_and_others_are_not() {
    for (scheduling, expected) in [(Scheduling::Normal, false), (Scheduling::Idle, true)] {
        let pool = Pool::new(1, scheduling).unwrap();
        assert_eq!(pool.run(Priority::First, is_idle).await.unwrap(), expected);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn normal_threads_stand_in_for_idle_ones_that_starve_and_no_work_is_lost() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    // All threads of this test share one processor; those of others keep theirs.
    let allowed = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap());
    sched_setaffinity(None, &one).unwrap();

    let rests = Rests { first: Duration::from_secs(2), longest: Duration::from_secs(2) };
    let pool = Pool::with_rests(2, Scheduling::Idle, rests).unwrap();
    let until_one_is_idle = async |expected: bool| {
        let one_is = async || {
            let works = || {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(20) {}
                is_idle()
            };
            let pieces = (0..6).map(|_| pool.run(Priority::First, works));
            join_all(pieces).await.into_iter().map(Result::unwrap).any(|is_idle| is_idle == expected)
        };
        let wait = async { while !one_is().await {} };
        tokio::time::timeout(Duration::from_secs(120), wait).await.expect("they are replaced");
    };
    let has_ended = Arc::new(AtomicBool::new(false));
    for _ in 0..2 {
        let has_ended = Arc::clone(&has_ended);
        thread::spawn(move || while !has_ended.load(Ordering::Relaxed) {});
    }
    until_one_is_idle(false).await;
    has_ended.store(true, Ordering::Relaxed);
    until_one_is_idle(true).await;
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("as announced");
    }
}

#[tokio::test]
async fn a_result_that_nobody_wants_and_that_panics_costs_no_thread() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (begin, begun) = mpsc::channel();
    let (open, gate) = mpsc::channel();
    let unwanted = pool.run(Priority::First, move || {
        begin.send(()).unwrap();
        gate.recv().unwrap();
        Ok(PanicsWhenDropped)
    });
    begun.recv().unwrap();
    drop(unwanted);
    open.send(()).unwrap();
    let next = pool.run(Priority::First, || Ok(3));
    let next = tokio::time::timeout(Duration::from_secs(60), next).await.expect("a thread is left");
    assert_eq!(next.unwrap(), 3);
}
