use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, cast::AsArray, types::Int64Type};
use forebay_cache::Tenant;
use forebay_sql::Expression;
use futures::FutureExt;

use super::*;
use crate::{
    Flow, Pool, Priority,
    view::{
        compute,
        source::{Reads, Source},
    },
};

const SECOND: Duration = Duration::from_secs(1);
const ROWS: i64 = 200_000;

/// Pool with one worker, on which each operation takes a second, and the number of its operations.
fn counting_pool() -> (Pool, Arc<AtomicUsize>) {
    let operations = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&operations);
    let duration = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        SECOND
    };
    (Pool::simulated(1, duration), operations)
}

fn rows() -> RecordBatch {
    let x: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let y: ArrayRef = Arc::new(Float64Array::from_iter_values((0..ROWS).map(|row| row as f64)));
    RecordBatch::try_from_iter([("x", x), ("y", y)]).unwrap()
}

fn expression(text: &str) -> Source {
    Source::Computed(Arc::new(Expression::column(text, &rows().schema()).unwrap()))
}

/// Computes `columns` of [`rows`] on `pool` in turns, for a tenant of its own.
fn computed(pool: &Pool, columns: Vec<Source>) -> crate::cpu::pool::Submitted<Vec<ArrayRef>> {
    let work = async move {
        compute(&columns, &Reads::from_iter([0, 1]), &rows(), "a.parquet", &mut TurnClock::default()).await
    };
    pool.run_in_turns(Flow::of(Tenant::new(1, NonZeroU32::MIN)), Priority::Background, work)
}

/// Turns of another tenant that has one operation at a time, until `work` ends.
async fn turns_concurrent_with<T>(pool: &Pool, work: impl Future<Output = T>) -> (T, usize) {
    let other = Flow::of(Tenant::new(2, NonZeroU32::MIN));
    let mut turns = 0;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return (done, turns),
            ended = pool.run_for(other, Priority::Background, || Ok(())) => {
                ended.unwrap();
                turns += 1;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_tenant_has_its_turns_while_the_longest_expression_is_evaluated() {
    let (pool, operations) = counting_pool();
    // The longest sum that is permitted.
    let terms: usize = 706;
    assert!(Expression::column(&chain(terms + 1), &rows().schema()).is_err());
    let work = computed(&pool, vec![expression(&chain(terms))]);
    let (columns, turns) = turns_concurrent_with(&pool, work).await;
    let columns = columns.unwrap();
    let sums = columns[0].as_primitive::<Int64Type>();
    assert!(sums.iter().zip(0..).all(|(sum, row)| sum == Some(row * terms as i64)));
    // The cost of the rows, in turns.
    let least = (2 * terms - 1) * ROWS as usize / SLICE_COST as usize;
    let own = operations.load(Ordering::SeqCst) - turns;
    assert!(least > 50 && own > least, "{own} turns, at least {least}");
    assert!(turns + 2 >= own, "{turns} turns of the other tenant, {own} of the long work");
}

fn chain(terms: usize) -> String {
    format!("{} AS sum", vec!["x"; terms].join(" + "))
}

#[tokio::test(start_paused = true)]
async fn another_tenant_has_its_turns_between_many_short_expressions() {
    let (pool, operations) = counting_pool();
    let columns = (0..500).map(|number| expression(&format!("x + {number} AS c{number}"))).collect();
    let (columns, turns) = turns_concurrent_with(&pool, computed(&pool, columns)).await;
    let columns = columns.unwrap();
    assert!((0..500).all(|at| columns[at].as_primitive::<Int64Type>().value(7) == 7 + at as i64));
    let own = operations.load(Ordering::SeqCst) - turns;
    assert!(own > 50 && turns + 2 >= own, "{turns} turns of the other tenant, {own} of the long work");
}

#[tokio::test(start_paused = true)]
async fn small_work_is_one_operation() {
    let (pool, operations) = counting_pool();
    computed(&pool, vec![Source::Stored(0), expression("y * 2 AS z")]).await.unwrap();
    assert_eq!(operations.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn the_turns_of_a_caller_that_has_left_are_not_done() {
    let (pool, operations) = counting_pool();
    let work = computed(&pool, vec![expression(&chain(600))]);
    assert!(tokio::time::timeout(5 * SECOND / 2, work).await.is_err());
    tokio::time::sleep(100 * SECOND).await;
    // The last one finds that the caller has left.
    assert_eq!(operations.load(Ordering::SeqCst), 3);
    // Work without a waiting caller continues, because its turns queue each other.
    let work = computed(&pool, vec![expression(&chain(600))]);
    tokio::time::sleep(500 * SECOND).await;
    assert!(work.now_or_never().unwrap().is_ok());
}

#[tokio::test]
async fn a_panic_in_a_later_turn_is_an_error_and_the_pool_continues() {
    let pool = Pool::new(1, crate::Scheduling::Normal).unwrap();
    let work = async {
        let mut turn = TurnClock::default();
        for cost in [SLICE_COST, 1] {
            turn.spend(cost).await;
        }
        panic!("of course")
    };
    let error = pool.run_in_turns::<(), _>(Flow::new(), Priority::Interactive, work).await.unwrap_err();
    assert!(error.to_string().contains("of course"), "{error}");
    assert_eq!(pool.run(Priority::Interactive, || Ok(3)).await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_after_five_milliseconds() {
    let millisecond = Duration::from_millis(1);
    let mut turn = TurnClock::start();
    for _ in 0..3 {
        tokio::time::advance(4 * millisecond).await;
        assert!(turn.step().now_or_never().is_some(), "the turn has time left");
        tokio::time::advance(millisecond).await;
        let mut step = Box::pin(turn.step());
        assert!(futures::poll!(&mut step).is_pending(), "the turn has ended");
        assert!(futures::poll!(&mut step).is_ready(), "the next turn begins");
    }
    let mut stopped = TurnClock::stopped();
    tokio::time::advance(1000 * millisecond).await;
    assert!(stopped.step().now_or_never().is_some() && stopped.spend(u64::MAX).now_or_never().is_some());
    assert!(stopped.spend(1).now_or_never().is_some());
}

#[tokio::test(start_paused = true)]
async fn work_continues_before_the_other_work_of_its_flow() {
    let pool = Pool::simulated(1, || SECOND);
    let (flow, ended) = (Flow::new(), Arc::new(parking_lot::Mutex::new(Vec::new())));
    let work = |name: &'static str, turns: u64| {
        let ended = Arc::clone(&ended);
        pool.run_in_turns(flow, Priority::Background, async move {
            let mut turn = TurnClock::start();
            for _ in 0..turns {
                turn.spend(SLICE_COST).await;
            }
            ended.lock().push(name);
            Ok(())
        })
    };
    let works = [work("first block", 3), work("second block", 1), work("third block", 2)];
    futures::future::try_join_all(works).await.unwrap();
    assert_eq!(*ended.lock(), ["first block", "second block", "third block"]);
}
