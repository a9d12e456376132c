//! Builds of lookup indexes at run time. A build belongs to the server: it continues when the calls that wait for it end, and later
//! calls join it.

use std::sync::Arc;

use dashmap::{DashMap, Entry};
use tokio::sync::watch;

use crate::Error;

/// The outcome of a build.
type Outcome = Result<(), Error>;

/// The running builds by dataset name, at most one of each dataset. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Builds {
    running: Arc<DashMap<String, Build>>,
}

struct Build {
    /// Columns of the key.
    key: Vec<String>,
    /// `None` until the build has ended.
    outcome: watch::Receiver<Option<Outcome>>,
}

/// A running build. Its drop ends the build for the calls that wait, also after a panic.
struct Running {
    builds: Builds,
    name: String,
    outcome: Option<Outcome>,
    waiting: watch::Sender<Option<Outcome>>,
}

impl Builds {
    /// Waits for the build of the index of dataset `name` by `key`: the one that is running, or else `build`, which is spawned. Waits
    /// for the end of a build by another key before. Dropping the returned future does not end the build.
    ///
    /// # Errors
    /// The error of the build.
    pub(super) async fn join<F>(&self, name: &str, key: &[String], build: impl Fn() -> F) -> Outcome
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        loop {
            let (is_same, mut outcome) = self.running_or_spawned(name, key, &build);
            let ended = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
            if is_same {
                let panicked =
                    || Err(Error::internal("the build of the lookup index ended without a result"));
                return ended.unwrap_or_else(panicked);
            }
        }
    }

    /// Returns the outcome of the running build of dataset `name`, or of the spawned `build`, and true if it is by `key`.
    fn running_or_spawned<F>(
        &self,
        name: &str,
        key: &[String],
        build: impl Fn() -> F,
    ) -> (bool, watch::Receiver<Option<Outcome>>)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let (waiting, outcome) = watch::channel(None);
        match self.running.entry(name.to_owned()) {
            Entry::Occupied(entry) => return (entry.get().key == key, entry.get().outcome.clone()),
            Entry::Vacant(entry) => {
                drop(entry.insert(Build { key: key.to_vec(), outcome: outcome.clone() }));
            }
        }
        // The map is not locked any more: a runtime that shuts down drops the task at once, and that removes the entry.
        let running = Running { builds: self.clone(), name: name.to_owned(), outcome: None, waiting };
        let building = build();
        tokio::spawn(async move { running.end(building.await) });
        (true, outcome)
    }
}

impl Running {
    fn end(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Before the outcome is known: a call that arrives afterwards does not join a build that has ended.
        self.builds.running.remove(&self.name);
        self.waiting.send_replace(self.outcome.take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::poll;
    use tokio::sync::Semaphore;

    use super::*;

    /// Builds that wait for a permit of the gate.
    #[derive(Clone)]
    struct Gated {
        gate: Arc<Semaphore>,
        started: Arc<AtomicUsize>,
    }

    impl Gated {
        fn new() -> Self {
            Self { gate: Arc::new(Semaphore::new(0)), started: Arc::default() }
        }

        fn build(&self, outcome: Outcome) -> impl Future<Output = Outcome> + Send + 'static {
            let Self { gate, started } = self.clone();
            async move {
                started.fetch_add(1, Ordering::Relaxed);
                gate.acquire().await.unwrap().forget();
                outcome
            }
        }

        fn started(&self) -> usize {
            self.started.load(Ordering::Relaxed)
        }
    }

    fn key(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    #[tokio::test]
    async fn a_build_continues_without_the_call_that_started_it_and_the_next_call_joins_it() {
        let (builds, gated, id) = (Builds::default(), Gated::new(), key("id"));
        for _ in 0..3 {
            let mut call = Box::pin(builds.join("users", &id, || gated.build(Ok(()))));
            assert!(poll!(&mut call).is_pending());
            drop(call);
            tokio::task::yield_now().await;
        }
        let mut last = Box::pin(builds.join("users", &id, || gated.build(Ok(()))));
        assert!(poll!(&mut last).is_pending());
        gated.gate.add_permits(1);
        assert_eq!(last.await, Ok(()));
        assert_eq!(gated.started(), 1);
        assert!(builds.running.is_empty());
    }

    #[tokio::test]
    async fn all_calls_have_the_error_of_their_build_and_a_later_call_builds_again() {
        let (builds, gated, id) = (Builds::default(), Gated::new(), key("id"));
        let failed = || gated.build(Err(Error::unavailable("the store does not answer")));
        let calls = futures::future::join_all((0..5).map(|_| builds.join("users", &id, failed)));
        gated.gate.add_permits(1);
        for outcome in calls.await {
            assert_eq!(outcome.unwrap_err().message(), "the store does not answer");
        }
        assert_eq!(gated.started(), 1);
        gated.gate.add_permits(1);
        assert_eq!(builds.join("users", &id, || gated.build(Ok(()))).await, Ok(()));
        assert_eq!(gated.started(), 2);
    }

    #[tokio::test]
    async fn a_call_with_another_key_waits_and_builds_itself() {
        let (builds, gated, id, name) = (Builds::default(), Gated::new(), key("id"), key("name"));
        let mut first = Box::pin(builds.join("users", &id, || gated.build(Ok(()))));
        assert!(poll!(&mut first).is_pending());
        let refused = || gated.build(Err(Error::invalid("lookups are by another key")));
        let mut second = Box::pin(builds.join("users", &name, refused));
        assert!(poll!(&mut second).is_pending());
        tokio::task::yield_now().await;
        assert_eq!(gated.started(), 1);
        gated.gate.add_permits(2);
        let (first, second) = tokio::join!(first, second);
        assert_eq!(first, Ok(()));
        assert_eq!(second.unwrap_err().message(), "lookups are by another key");
        assert_eq!(gated.started(), 2);
    }

    #[tokio::test]
    async fn a_build_that_panics_is_an_error_for_its_calls_and_not_joined_later() {
        let (builds, id) = (Builds::default(), key("id"));
        let panicked = builds.join("users", &id, || async { panic!("a defect") }).await;
        assert!(panicked.unwrap_err().message().contains("without a result"));
        assert_eq!(builds.join("users", &id, || async { Ok(()) }).await, Ok(()));
    }
}
