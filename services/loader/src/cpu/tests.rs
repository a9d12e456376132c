use futures::{FutureExt, future::join_all};

use super::*;

fn closed() -> Error {
    Error::Internal("the gate is gone".into())
}

#[tokio::test]
async fn what_a_consumer_waits_for_overtakes_what_is_made_ahead() {
    let pool = Pool::new(1, Scheduling::Normal).unwrap();
    let (open, gate) = mpsc::channel::<()>();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut blocked = Box::pin(pool.run(Priority::Second, move || gate.recv().map_err(|_| closed())));
    assert!((&mut blocked).now_or_never().is_none());
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
    let (open, gate) = mpsc::channel::<()>();
    let mut blocked = Box::pin(pool.run(Priority::First, move || gate.recv().map_err(|_| closed())));
    assert!((&mut blocked).now_or_never().is_none());
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
    let (open, gate) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel::<()>();
    let blocked = pool.run(Priority::First, move || {
        begin.send(()).map_err(|_| closed())?;
        gate.recv().map_err(|_| closed())
    });
    begun.recv().unwrap();
    let waiting = pool.clone().run(Priority::First, || Ok(()));
    drop(pool);
    assert!(waiting.await.unwrap_err().to_string().contains("stopped"));
    open.send(()).unwrap();
    blocked.await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_threads_are_of_that_policy_and_others_are_not() {
    const SCHED_IDLE: &str = "5";
    for (scheduling, is_idle) in [(Scheduling::Normal, false), (Scheduling::Idle, true)] {
        let pool = Pool::new(1, scheduling).unwrap();
        let policy = pool.run(Priority::First, || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            // The 41st of proc(5); the third comes behind the name.
            Ok(stat.rsplit(')').next().unwrap().split_whitespace().nth(38).unwrap().to_owned())
        });
        assert_eq!(policy.await.unwrap() == SCHED_IDLE, is_idle);
    }
}
