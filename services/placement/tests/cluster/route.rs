//! Model of a client: which server a rank asks for the next batch.

/// Servers of a rank.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// Locations of the last plan, the preferred one first.
    locations: Vec<usize>,
    /// Servers that the client was configured with.
    urls: Vec<usize>,
    /// Server of the last batch.
    pub(crate) current: Option<usize>,
    /// Servers that failed since the last batch.
    failed: Vec<usize>,
    planned_at: Option<u64>,
    planned_epoch: u64,
    replan_ms: u64,
}

impl Route {
    pub(crate) fn new(urls: Vec<usize>, replan_ms: u64) -> Self {
        Self { urls, replan_ms, ..Self::default() }
    }

    /// Whether to ask for a plan: at first, at an epoch, after a failure, and after the interval.
    pub(crate) fn is_plan_due(&self, now: u64, epoch: u64) -> bool {
        let Some(at) = self.planned_at else { return true };
        !self.failed.is_empty() || epoch != self.planned_epoch || now >= at + self.replan_ms
    }

    pub(crate) fn planned(&mut self, now: u64, epoch: u64, locations: Vec<usize>) {
        self.planned_at = Some(now);
        self.planned_epoch = epoch;
        self.locations = locations;
    }

    /// Returns the server for the next batch. `None`: all have failed, and the client pauses.
    ///
    /// `answers` tells whether a server accepts a connection. A stream leaves a server that works only for its first location.
    pub(crate) fn next(&mut self, answers: impl Fn(usize) -> bool) -> Option<usize> {
        let first =
            self.locations.first().copied().filter(|first| !self.failed.contains(first) && answers(*first));
        let current = self.current.filter(|current| !self.failed.contains(current));
        let next = first.or(current).or_else(|| {
            let mut others = self.locations.iter().chain(&self.urls).copied();
            others.find(|server| !self.failed.contains(server))
        });
        if next.is_none() {
            self.failed.clear();
            self.current = None;
        }
        next
    }

    pub(crate) fn failed(&mut self, server: usize) {
        self.failed.push(server);
    }

    pub(crate) fn delivered(&mut self, server: usize) {
        self.current = Some(server);
        self.failed.clear();
    }
}
