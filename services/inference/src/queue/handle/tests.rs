use tokio::time::Instant;

use super::{super::Refusal, *};
use crate::queue::{CloseReason, Notice};

mod demand;

type Numbers = Queue<u64, u64>;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Starts a queue and its timer.
fn queue(config: QueueConfig) -> (Numbers, tokio::task::JoinHandle<()>) {
    let queue = Numbers::new("ranker", config).expect("the settings are valid");
    let timer = tokio::spawn(queue.clone().run());
    (queue, timer)
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
    let (queue, _timer) =
        queue(QueueConfig { max_batch_rows: 8, default_timeout: ms(10_000), ..QueueConfig::default() });
    let serving = [1, 3].map(|takes| tokio::spawn(serve(queue.add_worker(2), ms(takes))));
    let request = (0..500)
        .map(|number| queue.submit(number, (1 + number % 3, 8, 8), None).expect("the queue has room"));
    let request: Vec<_> = request.collect();
    for (number, pending) in request.into_iter().enumerate() {
        let answer = pending.answer().await.expect("computed");
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
async fn a_request_without_a_worker_fails_after_half_of_its_time_with_the_reason() {
    let (queue, _timer) = queue(QueueConfig::default());
    let began = Instant::now();
    let late = queue.submit(2, (1, 8, 8), None).expect("admitted");
    let failure = queue
        .submit(1, (1, 8, 8), Some(ms(20)))
        .expect("admitted")
        .answer()
        .await
        .expect_err("there is no worker");
    assert!(began.elapsed() >= ms(10) && began.elapsed() < ms(15), "{:?}", began.elapsed());
    assert!(failure.to_string().contains("no worker serves the queue"), "{failure}");
    assert!(
        matches!(failure, Failure::Unserved { .. }) && failure.retry_after() == Some(ms(0)),
        "{failure:?}"
    );
    late.answer().await.expect_err("there is no worker");
    assert!(began.elapsed() >= ms(50) && began.elapsed() < ms(55), "{:?}", began.elapsed());
    assert_eq!(queue.status().outcomes.expired, 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_lost_its_worker_waits_for_another_one_for_half_of_the_time_that_is_left() {
    let (queue, _timer) = queue(QueueConfig { max_batch_rows: 1, ..QueueConfig::default() });
    let began = Instant::now();
    let mut worker = queue.add_worker(1);
    let [first, second] =
        [1, 2].map(|payload| queue.submit(payload, (1, 8, 8), Some(ms(1000))).expect("admitted"));
    let batch = worker.next().await.expect("a batch is due");
    worker.replies().gathered(batch.id);
    tokio::time::sleep(ms(600)).await;
    drop(worker);
    // A worker that connects in time answers.
    tokio::time::sleep(ms(100)).await;
    let mut worker = queue.add_worker(1);
    let batch = worker.next().await.expect("a batch is due");
    worker.replies().gathered(batch.id);
    assert!(worker.replies().reply(batch.id, Ok(vec![101])));
    assert_eq!(first.answer().await.expect("computed").value, 101);
    drop(worker);
    let failure = second.answer().await.expect_err("there is no worker");
    assert!(matches!(failure, Failure::Unserved { .. }), "{failure}");
    assert!((850..855).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_too_large_halves_its_batch_and_is_no_fault_of_the_worker() {
    let (queue, _timer) = queue(QueueConfig { default_timeout: ms(1000), ..QueueConfig::default() });
    let requests: Vec<_> =
        (0..8).map(|number| queue.submit(number, (1, 8, 8), None).expect("admitted")).collect();
    let mut workers = [queue.add_worker(1), queue.add_worker(1)];
    let mut sizes = Vec::new();
    let serving = async {
        loop {
            let [one, other] = &mut workers;
            let (batch, replies) = tokio::select! {
                Some(batch) = one.next() => (batch, one.replies()),
                Some(batch) = other.next() => (batch, other.replies()),
                else => return,
            };
            sizes.push(batch.payloads.len());
            replies.gathered(batch.id);
            // The reply has room for two requests. That of request 5 is too large by itself.
            let fits = batch.payloads.len() <= 2 && !batch.payloads.contains(&5);
            replies.reply(
                batch.id,
                match fits {
                    true => Ok(batch.payloads.clone()),
                    false => Err(Failure::TooLarge("the reply has 17 bytes".into())),
                },
            );
        }
    };
    let answers = async {
        for (number, request) in requests.into_iter().enumerate() {
            match request.answer().await {
                Ok(answer) => assert_eq!(answer.value, number as u64),
                Err(failure) => {
                    assert_eq!((number, failure), (5, Failure::TooLarge("the reply has 17 bytes".into())));
                }
            }
        }
        queue.drain();
    };
    tokio::join!(serving, answers);
    assert_eq!(sizes.iter().filter(|size| **size == 8).count(), 1, "{sizes:?}");
    assert_eq!(sizes.iter().filter(|size| **size == 1).count(), 2, "{sizes:?}");
    assert_eq!(queue.status().load.suspended_workers, 0);
}

#[tokio::test(start_paused = true)]
async fn a_canceled_request_is_not_computed() {
    let (queue, _timer) = queue(QueueConfig::default());
    let first = queue.submit(1, (1, 8, 8), None).expect("admitted");
    drop(queue.submit(2, (1, 8, 8), None).expect("admitted"));
    let mut worker = queue.add_worker(1);
    let batch = worker.next().await.expect("a batch is due");
    assert_eq!(batch.payloads, [1]);
    worker.replies().reply(batch.id, Ok(vec![7]));
    assert_eq!(first.answer().await.expect("computed").value, 7);
    assert_eq!(queue.status().outcomes.cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn batches_of_a_disconnected_worker_are_retried_up_to_max_attempts() {
    let (queue, _timer) =
        queue(QueueConfig { max_attempts: 2, default_timeout: ms(1000), ..QueueConfig::default() });
    let request = queue.submit(1, (1, 8, 8), None).expect("admitted");
    let mut dying = queue.add_worker(1);
    let batch = dying.next().await.expect("a batch is due");
    assert_eq!(batch.payloads, [1]);
    dying.replies().gathered(batch.id);
    let mut other = queue.add_worker(1);
    drop(dying);
    let again = other.next().await.expect("the batch is sent again");
    assert_eq!((again.payloads.as_slice(), again.previous_attempts), ([1].as_slice(), 1));
    other.replies().gathered(again.id);
    drop(other);
    let failure = request.answer().await.expect_err("two workers disconnected");
    assert_eq!(failure, Failure::Lost);
    assert_eq!(queue.status().load.batches, 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_or_short_reply_affects_only_its_own_batch() {
    let (queue, _timer) = queue(QueueConfig { max_batch_rows: 2, ..QueueConfig::default() });
    let request: Vec<_> =
        (0..3).map(|number| queue.submit(number, (1, 8, 8), None).expect("admitted")).collect();
    let mut worker = queue.add_worker(1);
    for (batch, payloads) in [[0, 1].as_slice(), &[0], &[1]].into_iter().enumerate() {
        let failing = worker.next().await.expect("a batch is due");
        assert_eq!(failing.payloads, payloads, "batch {batch}");
        worker.replies().gathered(failing.id);
        worker.replies().reply(failing.id, Err(Failure::Failed("out of memory".into())));
    }
    let last = worker.next().await.expect("a batch is due");
    worker.replies().reply(last.id, Ok(vec![9]));
    assert!(!worker.replies().reply(last.id, Ok(vec![9])), "the batch was answered before");
    let mut answers = vec![];
    for pending in request {
        answers
            .push(pending.answer().await.map(|answer| answer.value).map_err(|failure| failure.to_string()));
    }
    let failed = || Err("the worker failed: out of memory".to_owned());
    assert_eq!(answers, [failed(), failed(), Ok(9)]);
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_worker_that_hangs_are_answered_by_another_one() {
    let (queue, _timer) = queue(QueueConfig { default_timeout: ms(60_000), ..QueueConfig::default() });
    let warm = tokio::spawn(serve(queue.add_worker(1), ms(2)));
    for number in 0..3 {
        queue.submit(number, (1, 8, 8), None).expect("admitted").answer().await.expect("computed");
    }
    warm.abort();
    drop(warm.await);
    let mut hanging = queue.add_worker(1);
    for number in 0..3 {
        let request = queue.submit(number, (1, 8, 8), None).expect("admitted");
        let batch = hanging.next().await.expect("a batch is due");
        hanging.replies().gathered(batch.id);
        assert!(hanging.replies().reply(batch.id, Ok(vec![number])));
        request.answer().await.expect("computed");
    }
    let began = Instant::now();
    let request = queue.submit(7, (1, 8, 8), None).expect("admitted");
    let held = hanging.next().await.expect("a batch is due");
    hanging.replies().gathered(held.id);
    let _serving = tokio::spawn(serve(queue.add_worker(1), ms(2)));
    assert_eq!(request.answer().await.expect("computed by another worker").value, 107);
    assert!(began.elapsed() >= ms(1000) && began.elapsed() < ms(1020), "{:?}", began.elapsed());
    let status = queue.status();
    assert_eq!(status.load.overdue_workers, 1);
    let [silent] = status.silent_workers[..] else { panic!("{:?}", status.silent_workers) };
    assert_eq!((silent.worker, silent.silence), (hanging.id(), began.elapsed()));
    let mut notices = hanging.notices();
    let Ok(Notice::Overdue { silence }) = notices.try_recv() else { panic!("no notice") };
    assert!(silence >= ms(1000) && silence < ms(1020), "{silence:?}");
    tokio::time::sleep(ms(500)).await;
    assert!(hanging.replies().reply(held.id, Ok(vec![0])));
    assert_eq!(notices.try_recv(), Ok(Notice::Answering { silence: began.elapsed() }));
    let status = queue.status();
    assert_eq!((status.load.overdue_workers, status.silent_workers), (0, vec![]));
    assert_eq!(queue.status().outcomes.answered, 7);
}

#[tokio::test(start_paused = true)]
async fn a_late_reply_is_dropped_without_side_effects() {
    let (queue, _timer) = queue(QueueConfig::default());
    let request = queue.submit(1, (1, 8, 8), Some(ms(10))).expect("admitted");
    let mut worker = queue.add_worker(1);
    let batch = worker.next().await.expect("a batch is due");
    request.answer().await.expect_err("the deadline passes first");
    assert!(worker.replies().reply(batch.id, Ok(vec![5])));
    let next = queue.submit(2, (1, 8, 8), None).expect("admitted");
    let batch = worker.next().await.expect("a batch is due");
    worker.replies().reply(batch.id, Ok(vec![6]));
    assert_eq!(next.answer().await.expect("computed").value, 6);
}

#[tokio::test(start_paused = true)]
async fn a_draining_queue_computes_admitted_requests_refuses_new_ones_and_ends_its_workers() {
    let (queue, _timer) =
        queue(QueueConfig { eager_dispatch: false, max_batch_delay: ms(50), ..QueueConfig::default() });
    let serving = tokio::spawn(serve(queue.add_worker(1), ms(2)));
    let request = queue.submit(1, (1, 8, 8), None).expect("admitted");
    let began = Instant::now();
    queue.drain();
    assert_eq!(queue.submit(2, (1, 8, 8), None).err(), Some(Failure::Refused(Refusal::Draining)));
    assert_eq!(request.answer().await.expect("computed").close_reason, CloseReason::Drain);
    assert!(began.elapsed() < ms(10), "draining does not wait for further requests");
    assert_eq!(serving.await.unwrap_or_default(), [1]);
    assert_eq!(queue.add_worker(1).next().await.map(|batch| batch.rows), None);
}

#[tokio::test(start_paused = true)]
async fn settings_change_at_run_time_and_invalid_settings_change_nothing() {
    let (queue, _timer) = queue(QueueConfig {
        eager_dispatch: false,
        max_batch_delay: ms(80),
        default_timeout: ms(1000),
        ..QueueConfig::default()
    });
    let mut worker = queue.add_worker(1);
    let began = Instant::now();
    let _request = queue.submit(1, (1, 8, 8), None).expect("admitted");
    let why = queue
        .update_config(|now| Ok(QueueConfig { max_batch_rows: 0, ..now.clone() }))
        .expect_err("0 is out of range");
    assert_eq!(why, "max_batch_rows is 0, expected at least 1");
    assert_eq!(queue.config().max_batch_rows, 4096);
    queue
        .update_config(|now| Ok(QueueConfig { max_batch_delay: ms(10), ..now.clone() }))
        .expect("the settings are valid");
    assert_eq!(worker.next().await.expect("closed").close_reason, CloseReason::Delay);
    assert!(began.elapsed() >= ms(10) && began.elapsed() < ms(15), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_enormous_timeout_does_not_stop_the_timer() {
    let (queue, timer) = queue(QueueConfig::default());
    let endless = queue.submit(1, (1, 8, 8), Some(Duration::MAX)).expect("admitted");
    tokio::time::sleep(ms(50)).await;
    queue.submit(2, (1, 8, 8), None).expect("admitted").answer().await.expect_err("there is no worker");
    assert!(!timer.is_finished());
    drop(endless);
}

#[tokio::test(start_paused = true)]
async fn a_canceled_request_does_not_delay_draining() {
    let (queue, _timer) = queue(QueueConfig { default_timeout: ms(60_000), ..QueueConfig::default() });
    let mut worker = queue.add_worker(1);
    let request = queue.submit(1, (1, 8, 8), None).expect("admitted");
    assert!(worker.next().await.is_some());
    queue.drain();
    drop(request);
    let began = Instant::now();
    assert!(worker.next().await.is_none());
    assert!(began.elapsed() < ms(10));
}

#[tokio::test(start_paused = true)]
async fn requests_of_low_priority_give_their_memory_to_others() {
    let (queue, _timer) = queue(QueueConfig { max_queue_bytes: 100, ..QueueConfig::default() });
    let low = Class { tenant: Tenant::SERVER, priority: crate::queue::Priority::Low };
    let first = queue.submit_for(low, 1, (1, 8, 40), None).expect("the queue has room");
    let second = queue.submit_for(low, 2, (1, 8, 40), None).expect("the queue has room");
    let _urgent = queue.submit(3, (1, 8, 80), None).expect("the others make room");
    for displaced in [second.answer().await, first.answer().await] {
        let failure = displaced.expect_err("it made room");
        assert!(matches!(failure, Failure::Refused(Refusal::Displaced { .. })), "{failure}");
        assert_eq!(failure.retry_after(), Some(ms(50)));
    }
    assert!(queue.submit(4, (1, 8, 60), None).is_err());
    assert_eq!(queue.status().outcomes.displaced, 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_may_take_all_memory_if_the_other_requests_of_its_tenant_make_room() {
    let (queue, _timer) = queue(QueueConfig { max_queue_bytes: 100, ..QueueConfig::default() });
    let tenant = Tenant::new(1, std::num::NonZeroU32::MIN);
    let low = Class { tenant, priority: crate::queue::Priority::Low };
    let first = queue.submit_for(low, 1, (1, 8, 40), None).expect("the queue has room");
    let _second = queue.submit_for(tenant.into(), 2, (1, 8, 100), None).expect("the first one makes room");
    let failure = first.answer().await.expect_err("it made room");
    assert!(matches!(failure, Failure::Refused(Refusal::Displaced { .. })), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_told_the_deadline_of_the_most_urgent_request_of_a_batch() {
    let (queue, _timer) = queue(QueueConfig { max_batch_rows: 2, ..QueueConfig::default() });
    tokio::time::advance(ms(10)).await;
    let submitted = Instant::now();
    let _requests = [700, 300].map(|timeout| queue.submit(1, (1, 8, 8), Some(ms(timeout))));
    let batch = queue.add_worker(1).next().await.expect("a batch");
    assert_eq!(batch.deadline, submitted + ms(300));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_leaves_memory_of_the_queue_to_others() {
    let (queue, _timer) = queue(QueueConfig { max_queue_bytes: 800, ..QueueConfig::default() });
    let tenant = |id| Tenant::new(id, std::num::NonZeroU32::MIN).into();
    let mut held = Vec::new();
    while let Ok(request) = queue.submit_for(tenant(1), 1, (1, 8, 10), Some(ms(1000))) {
        held.push(request);
    }
    assert_eq!(held.len(), 70);
    held.push(queue.submit_for(tenant(2), 1, (1, 8, 10), None).expect("room is left for others"));
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_limited_by_their_memory() {
    let (queue, _timer) = queue(QueueConfig { max_queue_bytes: 100, ..QueueConfig::default() });
    let first = queue.submit(1, (1, 8, 60), None).expect("the queue has room");
    let failure = queue.submit(2, (1, 8, 60), None).err().expect("the queue is full");
    assert!(matches!(failure, Failure::Refused(Refusal::Full { .. })), "{failure}");
    assert_eq!(failure.retry_after(), Some(ms(50)), "half of the default timeout");
    drop(first);
    queue.submit(3, (1, 8, 60), None).expect("the queue has room again");
}

#[tokio::test(start_paused = true)]
async fn the_status_counts_batches_by_the_name_of_the_rule_that_closed_them() {
    let (queue, _timer) = queue(QueueConfig { max_batch_rows: 8, ..QueueConfig::default() });
    let serving = tokio::spawn(serve(queue.add_worker(1), ms(1)));
    queue.submit(1, (8, 8, 8), None).expect("the queue has room").answer().await.expect("computed");
    assert_eq!(queue.status().close_reasons, [("rows", 1)].into());
    queue.drain();
    serving.await.expect("the worker ends");
}
