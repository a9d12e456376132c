use super::*;

type Numbers = Queue<u64, u64>;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A queue whose time passes.
fn queue(config: QueueConfig) -> (Numbers, tokio::task::JoinHandle<()>) {
    let queue = Numbers::new("ranker", config).expect("it can work so");
    let tended = tokio::spawn(queue.clone().tend());
    (queue, tended)
}

/// Answers every request with its payload plus 100, each batch after `takes`.
async fn serve(mut worker: Worker<u64, u64>, takes: Duration) -> Vec<u64> {
    let mut rows = vec![];
    while let Some(batch) = worker.next().await {
        worker.replies().gathered(batch.id);
        tokio::time::sleep(takes).await;
        rows.push(batch.rows);
        assert!(
            worker
                .replies()
                .reply(batch.id, Ok(batch.payloads.iter().map(|payload| payload + 100).collect()))
        );
    }
    rows
}

#[tokio::test(start_paused = true)]
async fn every_caller_gets_its_own_share_of_the_reply() {
    let (queue, _tended) =
        queue(QueueConfig { max_batch_rows: 8, slo: ms(10_000), ..QueueConfig::default() });
    let serving = [1, 3].map(|takes| tokio::spawn(serve(queue.work(2), ms(takes))));
    let asked =
        (0..500).map(|number| queue.ask(number, (1 + number % 3, 8, 8), None).expect("there is room"));
    let asked: Vec<_> = asked.collect();
    for (number, pending) in asked.into_iter().enumerate() {
        let answer = pending.answer().await.expect("it is computed");
        assert_eq!(answer.value, number as u64 + 100);
        assert!(answer.rows <= 8);
    }
    queue.drain();
    let batches = futures::future::join_all(serving).await;
    let rows: Vec<u64> = batches.into_iter().flat_map(Result::unwrap_or_default).collect();
    assert_eq!(rows.iter().sum::<u64>(), (0..500).map(|number| 1 + number % 3).sum::<u64>());
    assert_eq!(queue.status().outcomes.answered, 500);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_worker_expires_on_its_own_timer_and_says_why() {
    let (queue, _tended) = queue(QueueConfig::default());
    let began = Instant::now();
    let late = queue.ask(2, (1, 8, 8), None).expect("let in");
    let failure =
        queue.ask(1, (1, 8, 8), Some(ms(20))).expect("let in").answer().await.expect_err("nobody computes");
    assert!(began.elapsed() >= ms(20) && began.elapsed() < ms(25), "{:?}", began.elapsed());
    assert!(failure.to_string().contains("no worker serves the queue"), "{failure}");
    late.answer().await.expect_err("nobody computes");
    assert!(began.elapsed() >= ms(100) && began.elapsed() < ms(105), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_taken_back_is_not_computed() {
    let (queue, _tended) = queue(QueueConfig::default());
    let first = queue.ask(1, (1, 8, 8), None).expect("let in");
    drop(queue.ask(2, (1, 8, 8), None).expect("let in"));
    let mut worker = queue.work(1);
    let batch = worker.next().await.expect("there is one");
    assert_eq!(batch.payloads, [1]);
    worker.replies().reply(batch.id, Ok(vec![7]));
    assert_eq!(first.answer().await.expect("computed").value, 7);
    assert_eq!(queue.status().outcomes.cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_worker_had_is_computed_by_another_but_not_for_ever() {
    let (queue, _tended) = queue(QueueConfig { max_attempts: 2, slo: ms(1000), ..QueueConfig::default() });
    let asked = queue.ask(1, (1, 8, 8), None).expect("let in");
    let mut dying = queue.work(1);
    let batch = dying.next().await.expect("there is one");
    assert_eq!(batch.payloads, [1]);
    dying.replies().gathered(batch.id);
    let mut other = queue.work(1);
    drop(dying);
    let again = other.next().await.expect("it is given away again");
    assert_eq!((again.payloads.as_slice(), again.attempts), ([1].as_slice(), 1));
    other.replies().gathered(again.id);
    drop(other);
    let failure = asked.answer().await.expect_err("two workers died with it");
    assert_eq!(failure, Failure::Lost { attempts: 2 });
    assert_eq!(queue.status().load.batches, 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_or_sends_too_little_costs_its_own_batch_alone() {
    let (queue, _tended) = queue(QueueConfig { max_batch_rows: 2, ..QueueConfig::default() });
    let asked: Vec<_> = (0..3).map(|number| queue.ask(number, (1, 8, 8), None).expect("let in")).collect();
    let mut worker = queue.work(1);
    let first = worker.next().await.expect("there is one");
    worker.replies().reply(first.id, Err(Failure::Failed("out of memory".into())));
    let second = worker.next().await.expect("there is one");
    worker.replies().reply(second.id, Ok(vec![9]));
    assert!(!worker.replies().reply(second.id, Ok(vec![9])), "it was answered");
    let mut answers = vec![];
    for pending in asked {
        answers
            .push(pending.answer().await.map(|answer| answer.value).map_err(|failure| failure.to_string()));
    }
    let failed = || Err("the worker failed: out of memory".to_owned());
    assert_eq!(answers, [failed(), failed(), Ok(9)]);
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_comes_too_late_is_for_nobody_and_disturbs_nobody() {
    let (queue, _tended) = queue(QueueConfig::default());
    let asked = queue.ask(1, (1, 8, 8), Some(ms(10))).expect("let in");
    let mut worker = queue.work(1);
    let batch = worker.next().await.expect("there is one");
    asked.answer().await.expect_err("it is late");
    assert!(worker.replies().reply(batch.id, Ok(vec![5])));
    let next = queue.ask(2, (1, 8, 8), None).expect("let in");
    let batch = worker.next().await.expect("there is one");
    worker.replies().reply(batch.id, Ok(vec![6]));
    assert_eq!(next.answer().await.expect("computed").value, 6);
}

#[tokio::test(start_paused = true)]
async fn a_drained_queue_computes_what_it_has_takes_nothing_and_sends_its_workers_home() {
    let (queue, _tended) =
        queue(QueueConfig { idle: false, max_queue_delay: ms(50), ..QueueConfig::default() });
    let serving = tokio::spawn(serve(queue.work(1), ms(2)));
    let asked = queue.ask(1, (1, 8, 8), None).expect("let in");
    let began = Instant::now();
    queue.drain();
    assert_eq!(queue.ask(2, (1, 8, 8), None).err(), Some(Failure::Refused(Refusal::Draining)));
    assert_eq!(asked.answer().await.expect("computed").reason, Reason::Drain);
    assert!(began.elapsed() < ms(10), "it waits for nobody");
    assert_eq!(serving.await.unwrap_or_default(), [1]);
    assert_eq!(queue.work(1).next().await.map(|batch| batch.rows), None);
}

#[tokio::test(start_paused = true)]
async fn settings_change_while_it_runs_and_nonsense_changes_nothing() {
    let (queue, _tended) =
        queue(QueueConfig { idle: false, max_queue_delay: ms(80), slo: ms(1000), ..QueueConfig::default() });
    let mut worker = queue.work(1);
    let began = Instant::now();
    let _asked = queue.ask(1, (1, 8, 8), None).expect("let in");
    let why = queue
        .retune(|now| Ok(QueueConfig { max_batch_rows: 0, ..now.clone() }))
        .expect_err("no batch has 0 rows");
    assert_eq!(why, "max_batch_rows is 0, expected at least 1");
    assert_eq!(queue.config().max_batch_rows, 4096);
    queue.retune(|now| Ok(QueueConfig { max_queue_delay: ms(10), ..now.clone() })).expect("it can work so");
    assert_eq!(worker.next().await.expect("closed").reason, Reason::Delay);
    assert!(began.elapsed() >= ms(10) && began.elapsed() < ms(15), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_beyond_all_times_stops_no_timer() {
    let (queue, tended) = queue(QueueConfig::default());
    let endless = queue.ask(1, (1, 8, 8), Some(Duration::MAX)).expect("let in");
    tokio::time::sleep(ms(50)).await;
    queue.ask(2, (1, 8, 8), None).expect("let in").answer().await.expect_err("nobody computes");
    assert!(!tended.is_finished());
    drop(endless);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_hangs_up_while_the_queue_is_drained_holds_nobody_up() {
    let (queue, _tended) = queue(QueueConfig { slo: ms(60_000), ..QueueConfig::default() });
    let mut worker = queue.work(1);
    let asked = queue.ask(1, (1, 8, 8), None).expect("let in");
    assert!(worker.next().await.is_some());
    queue.drain();
    drop(asked);
    let began = Instant::now();
    assert!(worker.next().await.is_none());
    assert!(began.elapsed() < ms(10));
}

#[tokio::test(start_paused = true)]
async fn what_waits_takes_no_more_memory_than_it_may() {
    let (queue, _tended) = queue(QueueConfig { max_queue_bytes: 100, ..QueueConfig::default() });
    let first = queue.ask(1, (1, 8, 60), None).expect("there is room");
    let failure = queue.ask(2, (1, 8, 60), None).err().expect("there is none");
    assert!(matches!(failure, Failure::Refused(Refusal::Full { .. })), "{failure}");
    drop(first);
    queue.ask(3, (1, 8, 60), None).expect("there is room again");
}
