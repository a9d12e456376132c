use std::{
    collections::VecDeque,
    sync::{
        OnceLock, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::*;

/// Forecast from a list of next uses; unknown beyond its end. Counts its calls.
#[derive(Default)]
struct Known {
    next_use: Mutex<Vec<u64>>,
    calls: AtomicU64,
}

impl Forecast<u32> for Known {
    fn next_use(&self, key: &u32) -> u64 {
        self.calls.fetch_add(1, Relaxed);
        self.next_use.lock().get(*key as usize).copied().unwrap_or(u64::MAX)
    }
}

fn known(next_use: Vec<u64>) -> (Arc<Known>, Policy<u32>) {
    let known = Arc::new(Known { next_use: Mutex::new(next_use), calls: AtomicU64::new(0) });
    let policy = Policy::new(Arc::clone(&known) as Arc<dyn Forecast<u32>>);
    (known, policy)
}

fn evict(policy: &Policy<u32>) -> Option<u32> {
    let victim = policy.eviction_scan().victim()?.key;
    assert!(policy.remove(&victim));
    Some(victim)
}

#[test]
fn the_entry_needed_last_is_evicted_first() {
    let (_, policy) = known(vec![30, 10, 50, 20, 40]);
    (0..5).for_each(|key| policy.insert(key));
    assert!(!policy.is_empty());
    let order: Vec<u32> = std::iter::from_fn(|| evict(&policy)).collect();
    assert_eq!(order, [2, 4, 0, 3, 1]);
    assert!(policy.is_empty());
}

#[test]
fn among_equals_the_least_recently_used_is_evicted_first_and_unknown_uses_are_the_farthest() {
    let (_, policy) = known(vec![7, 7, 7]);
    (0..5).for_each(|key| policy.insert(key));
    policy.touch(&0);
    policy.touch(&3);
    let order: Vec<u32> = std::iter::from_fn(|| evict(&policy)).collect();
    assert_eq!(order, [4, 3, 1, 2, 0]);
}

#[test]
fn entries_added_later_are_compared_to_queued_ones() {
    let (_, policy) = known((0..1000).map(|key| key * 10).collect());
    (0..900).for_each(|key| policy.insert(key));
    assert_eq!(evict(&policy), Some(899));
    policy.insert(999);
    policy.insert(1);
    assert_eq!(evict(&policy), Some(999));
    assert_eq!(evict(&policy), Some(898));
}

#[test]
fn an_entry_that_is_added_after_some_time_is_compared_to_the_current_forecasts_of_queued_ones() {
    let (known, policy) = known((0..1000).map(|key| 100_000 + key * 10).collect());
    (0..900).for_each(|key| policy.insert(key));
    assert_eq!(evict(&policy), Some(899));
    known.next_use.lock().iter_mut().for_each(|next_use| *next_use -= 5000);
    policy.insert(950);
    assert_eq!(evict(&policy), Some(950));
    assert_eq!(evict(&policy), Some(898));
}

#[test]
fn a_queued_entry_whose_next_use_came_nearer_is_skipped() {
    let (known, policy) = known((0..1000).collect());
    (0..1000).for_each(|key| policy.insert(key));
    assert_eq!(evict(&policy), Some(999));
    known.next_use.lock()[998] = 3;
    assert_eq!(evict(&policy), Some(997));
}

#[test]
fn passing_time_causes_no_refill() {
    let (known, policy) = known((0..100_000).map(|key| 1_000_000 + key).collect());
    (0..100_000).for_each(|key| policy.insert(key));
    evict(&policy);
    let before = known.calls.load(Relaxed);
    for left in 1..1000 {
        known.next_use.lock().iter_mut().for_each(|next_use| *next_use -= 100);
        assert_eq!(evict(&policy), Some(99_999 - left));
    }
    assert!(known.calls.load(Relaxed) - before < 4000);
}

#[test]
fn a_fluctuating_forecast_is_called_a_bounded_number_of_times() {
    const ENTRIES: u64 = 20_000;
    let (known, policy) = known((0..ENTRIES).map(|key| key * 1000).collect());
    (0..ENTRIES as u32).for_each(|key| policy.insert(key));
    for round in 0..2000 {
        let percent = 70 + round * 37 % 60;
        let mut next_use = known.next_use.lock();
        next_use.iter_mut().enumerate().for_each(|(key, next_use)| *next_use = key as u64 * 10 * percent);
        drop(next_use);
        let victim = evict(&policy).unwrap();
        assert!(u64::from(victim) > ENTRIES * 9 / 10 - round, "{victim} is not among the farthest");
        policy.insert(victim / 2 + round as u32);
    }
    assert!(known.calls.load(Relaxed) < 100 * 2000);
}

/// Forecast of a job that uses the keys below `keys` in order, again and again.
struct Cyclic {
    keys: u64,
    uses: AtomicU64,
}

impl Forecast<u32> for Cyclic {
    fn next_use(&self, key: &u32) -> u64 {
        (u64::from(*key) + self.keys - self.uses.load(Relaxed) % self.keys) % self.keys
    }
}

#[test]
fn the_queue_stays_short_while_entries_are_used_and_none_is_removed() {
    const ENTRIES: u32 = 64;
    let forecast = Arc::new(Cyclic { keys: ENTRIES.into(), uses: AtomicU64::new(0) });
    let policy = Policy::new(Arc::clone(&forecast) as Arc<dyn Forecast<u32>>);
    (0..ENTRIES).for_each(|key| policy.insert(key));
    for _ in 0..100 {
        for key in 0..ENTRIES {
            policy.touch(&key);
            forecast.uses.fetch_add(1, Relaxed);
            let victim = policy.eviction_scan().victim();
            assert!(victim.is_some());
            let queued = policy.queue.lock().farthest.len();
            assert!(queued <= 3 * ENTRIES as usize, "{queued} candidates of {ENTRIES} entries are queued");
        }
    }
}

#[test]
fn scans_without_a_victim_do_not_change_the_order() {
    let (_, policy) = known((0..100).collect());
    (0..100).for_each(|key| policy.insert(key));
    assert_eq!(evict(&policy), Some(99));
    for _ in 0..1000 {
        policy.touch(&90);
        drop(policy.eviction_scan());
        assert!(policy.queue.lock().farthest.len() <= 3 * 100);
    }
    let order: Vec<u32> = std::iter::from_fn(|| evict(&policy)).collect();
    assert_eq!(order, (0..99).rev().collect::<Vec<u32>>());
}

/// Forecast that decreases with each call.
struct Unsettled(AtomicU64);

impl Forecast<u32> for Unsettled {
    fn next_use(&self, _: &u32) -> u64 {
        self.0.fetch_sub(1, Relaxed)
    }
}

#[test]
fn a_forecast_that_never_settles_does_not_block_eviction() {
    let policy = Policy::new(Arc::new(Unsettled(AtomicU64::new(1 << 60))));
    (0..100).for_each(|key| policy.insert(key));
    (0..100).for_each(|_| assert!(evict(&policy).is_some()));
}

#[test]
fn an_entry_that_was_returned_but_not_removed_is_returned_again() {
    let (_, policy) = known((0..500).collect());
    (0..500).for_each(|key| policy.insert(key));
    let mut scan = policy.eviction_scan();
    let offered: Vec<u32> = std::iter::from_fn(|| scan.victim()).map(|victim| victim.key).collect();
    assert_eq!(offered, (0..500).rev().collect::<Vec<u32>>(), "each once, the farthest first");
    drop(scan);
    assert_eq!(evict(&policy), Some(499));
}

#[test]
fn evictions_among_two_hundred_thousand_entries_need_few_forecasts() {
    const ENTRIES: u32 = 200_000;
    const EVICTIONS: u32 = 20_000;
    // A multiplicative sequence, which is as scattered as a permutation.
    let next_use =
        (0..u64::from(ENTRIES + EVICTIONS)).map(|key| key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8);
    let (known, policy) = known(next_use.collect());
    (0..ENTRIES).for_each(|key| policy.insert(key));
    for key in ENTRIES..ENTRIES + EVICTIONS {
        evict(&policy).unwrap();
        policy.insert(key);
        policy.touch(&(key / 2));
    }
    let calls = known.calls.load(Relaxed) / u64::from(EVICTIONS);
    assert!(calls < 100, "{calls} forecasts per eviction");
}

#[test]
fn a_scan_over_entries_that_cannot_be_evicted_needs_few_forecasts_each() {
    let (known, policy) = known((0..10_000).collect());
    (0..10_000).for_each(|key| policy.insert(key));
    let mut scan = policy.eviction_scan();
    while scan.victim().is_some() {}
    drop(scan);
    assert!(known.calls.load(Relaxed) < 10 * 10_000);
}

/// Forecast that uses the policy during a call.
struct Reentrant(OnceLock<Weak<Policy<u32>>>);

impl Forecast<u32> for Reentrant {
    fn next_use(&self, key: &u32) -> u64 {
        if let Some(policy) = self.0.get().and_then(Weak::upgrade) {
            policy.touch(&(key / 2));
        }
        u64::from(*key)
    }
}

#[test]
fn entries_can_be_used_during_a_call_of_the_forecast() {
    let forecast = Arc::new(Reentrant(OnceLock::new()));
    let policy = Arc::new(Policy::new(Arc::clone(&forecast) as Arc<dyn Forecast<u32>>));
    forecast.0.set(Arc::downgrade(&policy)).ok().unwrap();
    (0..100).for_each(|key| policy.insert(key));
    assert_eq!(evict(&policy), Some(99));
}

proptest::proptest! {
    #[test]
    fn without_a_forecast_the_least_recently_used_is_evicted_first(
        actions in proptest::collection::vec((0u8..4, 0u32..40), 1..400)
    ) {
        let policy = Policy::new(Arc::new(NoForecast));
        let mut model = VecDeque::new();
        for (action, key) in actions {
            let known = model.iter().position(|&other| other == key);
            match (action, known) {
                (0, _) => {
                    proptest::prop_assert_eq!(evict(&policy), model.pop_front());
                }
                (1, Some(index)) => {
                    model.remove(index);
                    proptest::prop_assert!(policy.remove(&key));
                }
                (2, None) => policy.touch(&key),
                (2, Some(index)) => {
                    policy.touch(&key);
                    model.remove(index);
                    model.push_back(key);
                }
                (_, index) => {
                    policy.insert(key);
                    index.map(|index| model.remove(index));
                    model.push_back(key);
                }
            }
            proptest::prop_assert_eq!(policy.len(), model.len());
        }
    }

    #[test]
    fn with_a_constant_forecast_the_farthest_is_evicted_after_any_operations(
        next_use in proptest::collection::vec(0u64..1000, 200),
        actions in proptest::collection::vec((0u8..4, 0u32..200), 1..600)
    ) {
        let (_, policy) = known(next_use.clone());
        let mut model = std::collections::BTreeSet::new();
        for (action, key) in actions {
            match action {
                0 => {
                    let farthest = model.iter().map(|&key: &u32| next_use[key as usize]).max();
                    let victim = evict(&policy);
                    proptest::prop_assert_eq!(victim.map(|key| next_use[key as usize]), farthest);
                    victim.map(|key| model.remove(&key));
                }
                1 => {
                    policy.touch(&key);
                }
                2 => {
                    proptest::prop_assert_eq!(policy.remove(&key), model.remove(&key));
                }
                _ => {
                    policy.insert(key);
                    model.insert(key);
                }
            }
        }
    }
}
