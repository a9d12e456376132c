use super::*;

fn callers(max_streams: usize) -> Callers {
    Callers::new(Arc::new(Limits { max_streams, ..Limits::default() }))
}

fn token(name: &str) -> Caller {
    Caller::Token(name.to_owned())
}

#[test]
fn one_caller_leaves_an_eighth_to_callers_that_hold_nothing() {
    let callers = callers(16);
    let take = |name: &str| callers.take(&token(name), Resource::Streams, 1);
    let mut greedy: Vec<Charge> = (0..14).map(|_| take("greedy").unwrap()).collect();
    let refusal = take("greedy").err().unwrap();
    assert_eq!(
        refusal.message(),
        "14 streams are in use, 14 of them by token 'greedy', and 1 more exceed 14; limits.max_streams is 16; \
         2 are reserved for callers that use none"
    );
    let other = take("other").unwrap();
    assert!(take("other").is_err(), "the last place is for a third caller");
    let _third = take("third").unwrap();
    assert!(take("fourth").is_err());
    drop(other);
    greedy.pop();
    assert!(take("other").is_ok());
}

#[test]
fn a_small_limit_is_used_up_by_one_caller() {
    let callers = callers(4);
    let take = || callers.take(&Caller::Local, Resource::Streams, 1);
    let _held: Vec<_> = (0..4).map(|_| take().unwrap()).collect();
    assert!(take().is_err());
}

#[test]
fn nothing_is_left_of_released_charges_and_other_resources_are_apart() {
    let callers = callers(8);
    let caller = Caller::Address("10.0.0.1".parse().unwrap());
    let stream = callers.take(&caller, Resource::Streams, 1).unwrap();
    let bytes = callers.take(&caller, Resource::UnsentBytes, 10).unwrap();
    let usage = callers.usage();
    assert_eq!(usage.callers.len(), 1);
    assert_eq!(usage.callers[0].1[Resource::UnsentBytes as usize].1, 10);
    drop((stream, bytes));
    let usage = callers.usage();
    assert!(usage.callers.is_empty() && usage.totals.iter().all(|(_, total, _)| *total == 0));
}

#[test]
fn a_shared_charge_ends_with_its_last_owner_and_can_be_taken_once() {
    let callers = callers(16);
    let held = || callers.usage().totals[Resource::Streams as usize].1;
    let take = || callers.take(&Caller::Local, Resource::Streams, 3).unwrap().shared();
    let (first, second) = (take(), take());
    let (clone, weak) = (first.clone(), first.downgrade());
    drop(first);
    assert_eq!(held(), 6);
    drop(clone);
    assert_eq!(held(), 3);
    assert!(weak.take().is_none());
    let (weak, other) = (second.downgrade(), second.downgrade());
    let taken = weak.take().unwrap();
    assert!(other.take().is_none());
    drop(second);
    assert_eq!(held(), 3);
    drop(taken);
    assert_eq!(held(), 0);
}

#[test]
fn a_charge_grows_only_within_the_limits() {
    let callers = Callers::new(Arc::new(Limits { max_unsent_bytes: 80, ..Limits::default() }));
    let take = |amount| callers.take(&Caller::Local, Resource::UnsentBytes, amount).unwrap();
    let held = || callers.usage().totals[Resource::UnsentBytes as usize].1;
    let charge = take(40).resized(70).unwrap();
    assert_eq!(held(), 70, "7/8 of the limit");
    let charge = charge.resized(10).unwrap();
    assert_eq!(held(), 10);
    let refusal = charge.resized(71).err().unwrap();
    assert_eq!(refusal.retry_after_seconds(), None, "one caller can never hold so much");
    assert_eq!(held(), 0, "a charge that may not grow ends");
}

#[test]
fn requests_of_low_priority_leave_half_to_the_others() {
    let callers = callers(16);
    let take = |priority| callers.take_for(priority, &token("one"), Resource::Streams, 1);
    let mut held: Vec<Charge> = (0..7).map(|_| take(Priority::Low).unwrap()).collect();
    let refusal = take(Priority::Low).err().unwrap();
    assert!(
        refusal.message().contains("requests of low priority may use half of it"),
        "{}",
        refusal.message()
    );
    held.extend((0..7).map(|_| take(Priority::Normal).unwrap()));
    assert!(take(Priority::Normal).is_err());
}

#[test]
fn a_charge_can_be_corrected_to_the_actual_amount() {
    let callers = callers(16);
    let held = || callers.usage().totals[Resource::UnsentBytes as usize].1;
    let mut charge = callers.take(&Caller::Local, Resource::UnsentBytes, 100).unwrap();
    charge.resize(1 << 40);
    assert_eq!(held(), 1 << 40);
    assert!(callers.take(&token("other"), Resource::UnsentBytes, 1).is_err());
    charge.resize(7);
    assert_eq!(held(), 7);
    drop(charge);
    assert_eq!((held(), callers.usage().callers.len()), (0, 0));
}

#[test]
fn an_amount_that_no_caller_may_hold_is_refused_without_a_time_to_retry() {
    let callers = callers(16);
    let take = |amount| callers.take(&Caller::Local, Resource::Streams, amount).err().unwrap();
    assert_eq!(
        take(15).message(),
        "15 streams exceed 14, which is what one caller may use; limits.max_streams is 16"
    );
    assert_eq!(take(15).retry_after_seconds(), None);
    let _held = callers.take(&Caller::Local, Resource::Streams, 1).unwrap();
    assert!(take(14).retry_after_seconds().is_some());
}

#[test]
fn small_answers_use_half_of_the_reserve_and_large_ones_none_of_it() {
    let mib = 1 << 20;
    let callers = Callers::new(Arc::new(Limits { max_unsent_bytes: 32 * mib, ..Limits::default() }));
    let (one, other) = (token("one"), token("other"));
    let _held = callers.take(&one, Resource::UnsentBytes, 28 * mib).unwrap();
    assert!(callers.take_small(&one, mib + 1).is_err());
    let _small = [callers.take_small(&one, mib).unwrap(), callers.take_small(&one, mib).unwrap()];
    assert!(callers.take_small(&one, 1).is_err());
    assert!(callers.take(&other, Resource::UnsentBytes, 2 * mib).is_ok(), "a sixteenth remains");
}

#[test]
fn what_is_held_already_is_charged_without_a_limit_and_counts_for_what_follows() {
    let callers = callers(16);
    let held = callers.charge(&token("one"), Resource::Streams, 100);
    assert!(callers.take(&token("other"), Resource::Streams, 1).is_err());
    drop(held);
    assert!(callers.take(&token("other"), Resource::Streams, 1).is_ok());
    assert!(callers.usage().callers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_for_what_is_in_use_and_not_for_what_it_can_never_get() {
    let callers = callers(16);
    let minute = Duration::from_secs(60);
    let take = |amount| callers.take_within(minute, &Caller::Local, Resource::Streams, amount);
    let held = take(10).await.unwrap();
    let began = Instant::now();
    assert!(take(15).await.is_err() && began.elapsed().is_zero());
    assert!(take(5).await.is_err() && began.elapsed() == minute);
    let (charge, ()) = tokio::join!(take(14), async {
        tokio::time::sleep(minute / 2).await;
        drop(held);
    });
    assert!(charge.is_ok() && began.elapsed() == minute + minute / 2);
}

#[tokio::test]
async fn the_end_of_all_calls_is_noticed() {
    let callers = callers(8);
    let _stream = callers.take(&Caller::Local, Resource::Streams, 1).unwrap();
    callers.none_running().await;
    let call = callers.take(&Caller::Local, Resource::Calls, 1).unwrap();
    let waiting = {
        let callers = callers.clone();
        tokio::spawn(async move { callers.none_running().await })
    };
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    drop(call);
    waiting.await.unwrap();
}
