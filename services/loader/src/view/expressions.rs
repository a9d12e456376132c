//! Compiled expressions of a request.

use std::{collections::HashMap, sync::Arc};

use forebay_proto::v1;
use forebay_sql::{Expression, MAX_COMPLEXITY};
use forebay_storage::Snapshot;

use crate::{Error, Flow, Pool, Priority, values::NamedSets};

/// Compilation of an expression over a snapshot, which may refer to sets of values.
type Compile = fn(&str, &Snapshot, &NamedSets) -> Option<Expression>;

/// Maximum number of expressions in `select`.
pub(super) const MAX_SELECTED: usize = 4096;

/// Expressions of a request over one snapshot that were compiled before the request is resolved.
///
/// Compiling a long expression takes seconds of CPU time. Each expression is one operation on the CPU threads, so that other tenants
/// have their turns in between, and the rest is not compiled for a caller that has left.
#[derive(Debug, Default)]
pub(crate) struct Expressions {
    filter: Option<(String, Arc<Expression>)>,
    /// Sets of values that filters refer to.
    sets: NamedSets,
    columns: HashMap<String, Arc<Expression>>,
}

impl Expressions {
    /// Compiles the filter and the selected expressions of `train`, one after the other. Invalid expressions are left out, and so are
    /// those after the limits of a request: resolving the request returns the error.
    ///
    /// # Errors
    /// [`Error::Internal`] if the pool has stopped.
    pub(crate) async fn compile(
        pool: &Pool,
        flow: Flow,
        snapshot: &Arc<Snapshot>,
        train: &v1::Train,
        sets: NamedSets,
    ) -> Result<Self, Error> {
        let run = async |compile: Compile, text: &str| {
            let (snapshot, text, sets) = (Arc::clone(snapshot), text.to_owned(), sets.clone());
            pool.run_for(flow, Priority::Interactive, move || {
                Ok(compile(&text, &snapshot, &sets).map(Arc::new))
            })
            .await
        };
        let mut compiled = Self::default();
        if train.select.len() > MAX_SELECTED {
            return Ok(compiled);
        }
        if !train.filter.is_empty() {
            let filter = run(
                |text, snapshot, sets| Expression::filter_with(text, snapshot.schema(), sets).ok(),
                &train.filter,
            );
            compiled.filter = filter.await?.map(|filter| (train.filter.clone(), filter));
        }
        let mut complexity = 0;
        for text in &train.select {
            let column = run(|text, snapshot, _| Expression::column(text, snapshot.schema()).ok(), text);
            let Some(column) = column.await? else { break };
            complexity += column.complexity();
            compiled.columns.insert(text.clone(), column);
            if complexity > MAX_COMPLEXITY {
                break;
            }
        }
        compiled.sets = sets;
        Ok(compiled)
    }

    /// The sets of a request, with the numbers of their values.
    pub(crate) fn counted(&self, values: &[v1::NamedValues]) -> Vec<v1::NamedValues> {
        let counted = |named: &v1::NamedValues| {
            let set = self.sets.iter().find(|(name, _)| *name == named.name);
            v1::NamedValues { count: set.map_or(named.count, |(_, set)| set.len() as u64), ..named.clone() }
        };
        values.iter().map(counted).collect()
    }

    /// Returns the filter `text`, which is compiled now unless it was compiled before.
    ///
    /// # Errors
    /// The errors of [`Expression::filter`].
    pub(super) fn filter(
        &self,
        text: &str,
        snapshot: &Snapshot,
    ) -> Result<Arc<Expression>, forebay_sql::Error> {
        match &self.filter {
            Some((compiled, filter)) if compiled == text => Ok(Arc::clone(filter)),
            Some(_) | None => Expression::filter_with(text, snapshot.schema(), &self.sets).map(Arc::new),
        }
    }

    /// Returns the selected expression `text`, which is compiled now unless it was compiled before.
    ///
    /// # Errors
    /// The errors of [`Expression::column`].
    pub(super) fn column(
        &self,
        text: &str,
        snapshot: &Snapshot,
    ) -> Result<Arc<Expression>, forebay_sql::Error> {
        match self.columns.get(text) {
            Some(column) => Ok(Arc::clone(column)),
            None => Expression::column(text, snapshot.schema()).map(Arc::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use arrow_array::{Int64Array, RecordBatch};

    use super::*;
    use crate::test_data;

    /// Snapshot of a dataset with an integer column `x`.
    async fn snapshot() -> Arc<Snapshot> {
        let column: arrow_array::ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        Arc::clone(test_data::reader("d", [batch]).await.snapshot())
    }

    /// Pool with one worker, on which each operation takes a second, and the number of its operations.
    fn counting_pool() -> (Pool, Arc<AtomicUsize>) {
        let operations = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&operations);
        let duration = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Duration::from_secs(1)
        };
        (Pool::simulated(1, duration), operations)
    }

    fn request(select: usize) -> v1::Train {
        let select = (0..select).map(|number| format!("x + {number} AS y{number}")).collect();
        v1::Train { select, filter: "x > 1".into(), ..v1::Train::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn each_expression_is_an_operation_and_another_tenant_has_its_turn_in_between() {
        let (snapshot, (pool, operations)) = (snapshot().await, counting_pool());
        let compiled = {
            let (pool, snapshot) = (pool.clone(), Arc::clone(&snapshot));
            let request = request(20);
            tokio::spawn(async move {
                Expressions::compile(&pool, Flow::new(), &snapshot, &request, Vec::new()).await
            })
        };
        tokio::time::sleep(Duration::from_millis(2500)).await;
        pool.run(Priority::Interactive, || Ok(())).await.unwrap();
        assert!(!compiled.is_finished() && operations.load(Ordering::SeqCst) <= 5);
        let compiled = compiled.await.unwrap().unwrap();
        assert_eq!((compiled.columns.len(), compiled.filter.is_some()), (20, true));
        assert_eq!(operations.load(Ordering::SeqCst), 22);
        let known = compiled.column("x + 3 AS y3", &snapshot).unwrap();
        assert!(Arc::ptr_eq(&known, &compiled.columns["x + 3 AS y3"]));
        assert!(Arc::ptr_eq(
            &compiled.filter("x > 1", &snapshot).unwrap(),
            &compiled.filter.as_ref().unwrap().1
        ));
        assert!(compiled.filter("x > 2", &snapshot).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_more_is_compiled_for_a_caller_that_has_left() {
        let (snapshot, (pool, operations)) = (snapshot().await, counting_pool());
        let request = request(20);
        let compiling = Expressions::compile(&pool, Flow::new(), &snapshot, &request, Vec::new());
        assert!(tokio::time::timeout(Duration::from_millis(3500), compiling).await.is_err());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(operations.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn expressions_after_an_invalid_one_and_beyond_the_limit_are_left_out() {
        let (snapshot, (pool, operations)) = (snapshot().await, counting_pool());
        let mut request = request(3);
        request.select.insert(1, "unknown + 1 AS z".into());
        let compiled =
            Expressions::compile(&pool, Flow::new(), &snapshot, &request, Vec::new()).await.unwrap();
        assert_eq!((compiled.columns.len(), operations.load(Ordering::SeqCst)), (1, 3));
        // Two of these exceed the complexity of a request.
        let long = |name: &str| format!("{} AS {name}", vec!["x"; 650].join(" + "));
        let complex = (0..5).map(|number| long(&format!("z{number}"))).collect();
        let request = v1::Train { select: complex, ..v1::Train::default() };
        let compiled =
            Expressions::compile(&pool, Flow::new(), &snapshot, &request, Vec::new()).await.unwrap();
        assert!(compiled.columns.len() < 5, "{}", compiled.columns.len());
        // A request with too many expressions is refused, so that none is compiled.
        let before = operations.load(Ordering::SeqCst);
        let request = self::request(MAX_SELECTED + 1);
        let compiled = Expressions::compile(&pool, Flow::new(), &snapshot, &request, Vec::new());
        assert!(compiled.await.unwrap().columns.is_empty() && operations.load(Ordering::SeqCst) == before);
    }
}
