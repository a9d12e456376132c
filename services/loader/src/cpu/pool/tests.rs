use futures::{FutureExt, future::join_all};

use super::*;

/// Work that has started and is blocked until a message is sent.
fn blocked(pool: &Pool) -> (Submitted<()>, mpsc::Sender<()>) {
    let closed = |_| Error::Internal("the gate is gone".into());
    let (open, gate) = mpsc::channel();
    let (begin, begun) = mpsc::channel();
    let blocked = pool.run(Priority::Background, move || {
        begin.send(()).unwrap();
        gate.recv().map_err(closed)
    });
    begun.recv().unwrap();
    (blocked, open)
}

#[tokio::test]
async fn interactive_work_overtakes_background_work() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (blocked, open) = blocked(&pool);
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |priority, name: &'static str| {
        let order = Arc::clone(&order);
        pool.run(priority, move || {
            order.lock().push(name);
            Ok(())
        })
    };
    let mut runs = vec![
        Box::pin(note(Priority::Background, "decode 1")),
        Box::pin(note(Priority::Background, "decode 2")),
        Box::pin(note(Priority::Interactive, "gather 1")),
        Box::pin(note(Priority::Interactive, "gather 2")),
    ];
    for run in &mut runs {
        assert!(run.now_or_never().is_none());
    }
    open.send(()).unwrap();
    blocked.await.unwrap();
    assert!(join_all(runs).await.iter().all(Result::is_ok));
    // On a busy machine, gather 1 may take 10 ms. After that time, background work gets a turn, so a decode may run before gather 2.
    let order = order.lock();
    assert_eq!(order[0], "gather 1");
    let of = |kind| order.iter().copied().filter(|name| name.starts_with(kind)).collect::<Vec<_>>();
    assert_eq!(of("gather"), ["gather 1", "gather 2"]);
    assert_eq!(of("decode"), ["decode 1", "decode 2"]);
}

#[tokio::test]
async fn a_panic_is_returned_as_an_error_and_the_pool_continues() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let error =
        pool.run(Priority::Interactive, || -> Result<(), Error> { panic!("of course") }).await.unwrap_err();
    assert!(error.to_string().contains("of course"));
    assert_eq!(pool.run(Priority::Interactive, || Ok(3)).await.unwrap(), 3);
}

#[tokio::test]
async fn cancelled_work_is_not_started() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (blocked, open) = blocked(&pool);
    let started = Arc::new(Mutex::new(false));
    let flag = Arc::clone(&started);
    let set = move || {
        *flag.lock() = true;
        Ok(())
    };
    assert!(pool.run(Priority::Interactive, set).now_or_never().is_none());
    open.send(()).unwrap();
    blocked.await.unwrap();
    pool.run(Priority::Background, || Ok(())).await.unwrap();
    assert!(!*started.lock());
}

#[tokio::test]
async fn queued_work_of_a_dropped_pool_is_an_error_and_running_work_completes() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (blocked, open) = blocked(&pool);
    let waiting = pool.clone().run(Priority::Interactive, || Ok(()));
    drop(pool);
    assert!(waiting.await.unwrap_err().to_string().contains("stopped"));
    open.send(()).unwrap();
    blocked.await.unwrap();
}

/// True if the current thread has policy `SCHED_IDLE`, according to proc_pid_stat(5).
#[cfg(target_os = "linux")]
fn is_idle() -> Result<bool, Error> {
    const SCHED_IDLE: &str = "5";
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // Field 41; field 3 is the first one after the name.
    Ok(stat.rsplit(')').next().unwrap().split_whitespace().nth(38).unwrap() == SCHED_IDLE)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn only_idle_threads_have_the_idle_policy() {
    for (scheduling, expected) in [(Scheduling::Normal, false), (Scheduling::Idle, true)] {
        let pool = Pool::new(1, scheduling).unwrap();
        assert_eq!(pool.run(Priority::Interactive, is_idle).await.unwrap(), expected);
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("as announced");
    }
}

#[tokio::test]
async fn a_dropped_result_that_panics_does_not_stop_a_thread() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (begin, begun) = mpsc::channel();
    let (open, gate) = mpsc::channel();
    let unwanted = pool.run(Priority::Interactive, move || {
        begin.send(()).unwrap();
        gate.recv().unwrap();
        Ok(PanicsWhenDropped)
    });
    begun.recv().unwrap();
    drop(unwanted);
    open.send(()).unwrap();
    let next = pool.run(Priority::Interactive, || Ok(3));
    let next = tokio::time::timeout(Duration::from_secs(60), next).await.expect("a thread is left");
    assert_eq!(next.unwrap(), 3);
}
