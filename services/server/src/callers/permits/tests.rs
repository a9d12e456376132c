use futures::{FutureExt, poll};
use tokio::sync::oneshot::error::TryRecvError;

use super::*;

fn token(name: &str) -> Caller {
    Caller::Token(name.to_owned())
}

/// State of a request that was not received before.
fn state(request: &mut oneshot::Receiver<()>) -> &'static str {
    match request.try_recv() {
        Ok(()) => "granted",
        Err(TryRecvError::Empty) => "queued",
        Err(TryRecvError::Closed) => "rejected",
    }
}

fn running(queue: &Queue, name: &str) -> usize {
    queue.callers.get(&token(name)).map_or(0, |requests| requests.running.len())
}

/// Ends the operation that began first of those that hold a permit, and returns its caller.
fn end_first(queue: &mut Queue) -> Caller {
    let all = queue.callers.iter();
    let running =
        all.flat_map(|(caller, requests)| requests.running.iter().map(move |number| (*number, caller)));
    let (number, caller) = running.min().unwrap();
    let caller = caller.clone();
    queue.end(&caller, number);
    caller
}

#[test]
fn the_operations_of_one_caller_leave_a_permit_to_others() {
    let mut queue = Queue::new(4, 1000);
    for _ in 0..200 {
        queue.push(&token("greedy"));
    }
    assert_eq!(running(&queue, "greedy"), 3);
    queue.push(&token("other"));
    assert_eq!(running(&queue, "other"), 1);
}

#[test]
fn one_caller_can_hold_all_permits_but_one_and_at_least_one() {
    let most = [1, 2, 3, 4].map(|permits| Permits::new(permits, 10).max_of_caller());
    assert_eq!(most, [1, 1, 2, 3]);
}

#[test]
fn every_caller_gets_a_permit_before_one_gets_another() {
    let mut queue = Queue::new(1, 1000);
    let names = ["greedy", "greedy", "greedy", "second", "third", "second"];
    for name in names {
        queue.push(&token(name));
    }
    let order = ["greedy", "second", "third", "greedy", "second", "greedy"];
    assert_eq!([(); 6].map(|()| end_first(&mut queue)), order.map(token));
    assert!(queue.callers.is_empty());
}

#[test]
fn with_several_permits_the_caller_with_the_fewest_is_next() {
    let mut queue = Queue::new(3, 1000);
    for name in ["greedy", "greedy", "greedy", "second", "second", "third"] {
        queue.push(&token(name));
    }
    assert_eq!(["greedy", "second", "third"].map(|name| running(&queue, name)), [2, 1, 0]);
    assert_eq!(end_first(&mut queue), token("greedy"));
    assert_eq!(["greedy", "second", "third"].map(|name| running(&queue, name)), [1, 1, 1]);
}

#[test]
fn new_callers_do_not_starve_one_that_is_queued() {
    let mut queue = Queue::new(1, 1000);
    for _ in 0..3 {
        queue.push(&token("busy"));
    }
    let names = ["new 1", "new 2", "new 3", "new 4"];
    let mut order = Vec::new();
    for name in names {
        queue.push(&token(name));
        order.push(end_first(&mut queue));
    }
    assert_eq!(order, ["busy", "new 1", "busy", "new 2"].map(token));
}

#[test]
fn above_the_limit_the_newest_request_of_the_caller_with_the_most_is_rejected() {
    let mut queue = Queue::new(1, 3);
    let mut greedy = [(); 5].map(|()| queue.push(&token("greedy")).1);
    assert_eq!(greedy.each_mut().map(state), ["granted", "queued", "queued", "queued", "rejected"]);
    let (_, mut other) = queue.push(&token("other"));
    assert_eq!((state(&mut other), state(&mut greedy[3])), ("queued", "rejected"));
    let (_, mut fewer) = queue.push(&token("third"));
    assert_eq!((state(&mut fewer), state(&mut greedy[2])), ("queued", "rejected"));
    let (_, mut equal) = queue.push(&token("other"));
    assert_eq!(state(&mut equal), "rejected", "no caller has more queued requests");
}

#[tokio::test]
async fn nothing_is_left_of_calls_that_end_before_or_after_they_get_a_permit() {
    let (permits, one, two) = (Permits::new(1, 10), token("one"), token("two"));
    let held = permits.acquire(&one).await.unwrap();
    assert!(permits.acquire(&two).now_or_never().is_none());
    assert_eq!(permits.queue.lock().callers.keys().collect::<Vec<_>>(), [&one]);
    let mut waiting = Box::pin(permits.acquire(&two));
    assert!(poll!(&mut waiting).is_pending());
    drop(held);
    assert_eq!(running(&permits.queue.lock(), "two"), 1);
    // The call has a permit, but ends before it is polled again.
    drop(waiting);
    assert!(permits.queue.lock().callers.is_empty());
    assert!(permits.acquire(&one).await.is_some());
}

#[tokio::test]
async fn a_rejected_call_returns_nothing_and_leaves_nothing() {
    let (permits, one) = (Permits::new(1, 0), token("one"));
    let held = permits.acquire(&one).await.unwrap();
    assert!(permits.acquire(&one).await.is_none());
    assert!(permits.acquire(&token("two")).await.is_none());
    drop(held);
    assert!(permits.queue.lock().callers.is_empty());
}
