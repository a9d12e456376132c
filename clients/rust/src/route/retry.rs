//! Retries with backoff, up to a deadline.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

use super::{
    notices::{Notices, Progress},
    servers::Servers,
};
use crate::Error;

/// Delays of 50 ms to 2.5 s, which double from round to round. The jitter adds up to the delay itself, so that no delay exceeds
/// 5 s.
const DELAYS: ExponentialBuilder = ExponentialBuilder::new()
    .with_jitter()
    .with_min_delay(Duration::from_millis(50))
    .with_max_delay(Duration::from_millis(2500))
    .without_max_times();

/// Time in place of one that the clock does not reach: 30 years.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
/// Number of batches after which the failure of a stream does not count as a repeated one.
const STABLE_BATCHES: u64 = 8;
/// Duration of a stream after which its failure does not count as a repeated one.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The attempts of one call or of successive calls, each until a deadline.
pub(crate) struct Attempts {
    began: Instant,
    /// Time after which no attempt of the call starts.
    pub(crate) deadline: Instant,
    /// Number of failed attempts of the call.
    failed: u32,
    last: Option<Error>,
    backoff: Backoff,
    /// Notices about a call that takes long; `None` without a choice of servers.
    notices: Option<Notices>,
    /// Number of successive attempts that found no server.
    absent: usize,
}

/// The delays between attempts. They grow until a server has served for long enough, also over successive calls.
struct Backoff {
    delays: ExponentialBackoff,
    /// Number of failed attempts in this round over the servers.
    failed: usize,
    /// Number of completed rounds over the servers.
    rounds: u32,
    /// Number of servers in succession that rejected the request because of a limit.
    rejected: usize,
}

impl Backoff {
    fn new() -> Self {
        Self { delays: DELAYS.build(), failed: 0, rounds: 0, rejected: 0 }
    }
}

impl Attempts {
    /// Starts the time of `timeout` for a call.
    pub(crate) fn new(timeout: Duration) -> Self {
        let began = Instant::now();
        let (notices, backoff) = (None, Backoff::new());
        Self { began, deadline: after(began, timeout), failed: 0, last: None, backoff, notices, absent: 0 }
    }

    /// Starts the time of `timeout` for a call of `servers` for `subject`. A call that takes long is reported, and fails at once if no
    /// server exists; see [`can_retry`](Self::can_retry).
    pub(crate) fn of(servers: &Servers, subject: impl Into<String>, timeout: Duration) -> Self {
        Self { notices: Some(Notices::new(servers, subject.into())), ..Self::new(timeout) }
    }

    /// Starts the time of `timeout` for the next call. The delays of the earlier calls continue to grow.
    pub(crate) fn restart(&mut self, timeout: Duration) {
        self.began = Instant::now();
        self.deadline = after(self.began, timeout);
        (self.failed, self.last) = (0, None);
        if let Some(notices) = &mut self.notices {
            notices.restart();
        }
    }

    /// Returns the progress of the call and its notices; `None` without a choice of servers.
    pub(crate) fn noticed(&self) -> Option<(Progress, Notices)> {
        Some((self.progress(), self.notices.clone()?))
    }

    /// Continues with the times of `notices`, which [`noticed`](Self::noticed) returned.
    pub(crate) fn reminded(&mut self, notices: Notices) {
        self.notices = Some(notices);
    }

    fn progress(&self) -> Progress {
        let Self { began, deadline, failed, last, .. } = self;
        Progress { began: *began, deadline: *deadline, failed: *failed, last: last.clone() }
    }

    /// Records that a stream that was opened at `opened` has delivered `batches` batches. If it has served for long enough, the
    /// next delays are short again. Returns true in this case.
    pub(crate) fn served(&mut self, opened: Instant, batches: u64) -> bool {
        let is_stable = batches >= STABLE_BATCHES || opened.elapsed() >= STABLE_AFTER;
        if is_stable {
            self.backoff = Backoff::new();
        }
        is_stable
    }

    /// Runs `attempt` until it succeeds, fails with a final error, or the deadline expires. `targets` returns the number of
    /// addresses of all servers. `attempt` receives the time after which it should ask another server; see
    /// [`limit`](Self::limit), to which `attempt_timeout` is an argument.
    pub(crate) async fn run<T, F: Future<Output = Result<T, Error>>>(
        mut self,
        attempt_timeout: Duration,
        targets: impl Fn() -> usize,
        attempt: impl Fn(Option<Duration>) -> F,
    ) -> Result<T, Error> {
        loop {
            let limit = self.limit(attempt_timeout, targets());
            let progress = self.progress();
            let done = match &mut self.notices {
                Some(notices) => notices.during(&progress, attempt(limit)).await,
                None => tokio::time::timeout_at(self.deadline, attempt(limit)).await.ok(),
            };
            let error = match done {
                Some(Err(error)) if self.can_retry(&error, targets()) => error,
                Some(done) => return done.map_err(|error| self.of_all(error)),
                None => return Err(self.deadline_exceeded()),
            };
            self.pause(error, targets()).await?;
        }
    }

    /// Records a failed attempt, and waits until the next one is due.
    ///
    /// # Errors
    /// [`Error::RetryDeadlineExceeded`] if no attempt may follow. An attempt that fails at once, before a timer of the runtime can end
    /// it, is therefore not repeated after the deadline.
    pub(crate) async fn pause(&mut self, error: Error, targets: usize) -> Result<(), Error> {
        let delay = tokio::time::sleep(self.delay_after(error, targets));
        let progress = self.progress();
        match &mut self.notices {
            Some(notices) => drop(notices.during(&progress, delay).await),
            None => delay.await,
        }
        if Instant::now() >= self.deadline {
            return Err(self.deadline_exceeded());
        }
        Ok(())
    }

    /// Runs a single `attempt`, until the deadline.
    pub(crate) async fn run_once<T>(
        mut self,
        attempt: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let done = tokio::time::timeout_at(self.deadline, attempt).await;
        done.unwrap_or_else(|_| Err(self.deadline_exceeded()))
    }

    /// Returns the time without data after which an attempt should ask another server; `None` for the time until the deadline.
    ///
    /// It doubles with each round over the servers, and is at least the time that the call has taken so far. After the first round
    /// it is not limited if the time would not suffice for a second attempt. A server that is stuck therefore does not use up the
    /// time of the others, and servers that all need long for their first byte are given the time.
    pub(crate) fn limit(&self, attempt_timeout: Duration, targets: usize) -> Option<Duration> {
        if targets < 2 {
            return None;
        }
        let factor = 1_u32.checked_shl(self.backoff.rounds).unwrap_or(u32::MAX);
        let limit = attempt_timeout.saturating_mul(factor).max(self.began.elapsed());
        let half = self.deadline.saturating_duration_since(Instant::now()) / 2;
        match limit <= half {
            true => Some(limit),
            false => (self.backoff.rounds == 0).then_some(half),
        }
    }

    /// Returns true if another attempt may succeed: after a transient error, and after an exceeded limit or an unknown field until
    /// each of `targets` has rejected the request, because servers can have different limits and versions.
    ///
    /// If no server exists at any of `targets`, another attempt may succeed only if the client was connected before, or within
    /// [`Config::wait_for_server`](crate::Config::wait_for_server).
    pub(crate) fn can_retry(&mut self, error: &Error, targets: usize) -> bool {
        if error.is_transient() {
            self.backoff.rejected = 0;
            self.absent = if error.is_absent() { self.absent + 1 } else { 0 };
            let waits = self.notices.as_ref().is_none_or(|notices| {
                let servers = notices.servers();
                servers.was_connected() || self.began.elapsed() < servers.config().wait_for_server
            });
            return waits || self.absent < targets;
        }
        self.backoff.rejected += 1;
        error.depends_on_server() && self.backoff.rejected < targets
    }

    /// Returns the error with the URLs of all servers, if none of them exists.
    pub(crate) fn of_all(&self, error: Error) -> Error {
        let Some(notices) = &self.notices else { return error };
        let urls = notices.servers().urls();
        match error {
            Error::Connect { is_absent: true, source, .. } if urls.len() > 1 && self.absent >= urls.len() => {
                Error::Connect { url: urls.join(", "), is_absent: true, source }
            }
            error => error,
        }
    }

    /// Records a failed attempt and returns the delay before the next one.
    ///
    /// The delay is zero until each of `targets` has been tried. It then doubles for each round over them, with jitter, so that
    /// the ranks of a job do not reconnect at the same time. It includes the time that the server recommends, and never exceeds
    /// the remaining time.
    fn delay_after(&mut self, error: Error, targets: usize) -> Duration {
        let recommended = error.retry_after().unwrap_or_default();
        self.failed += 1;
        self.last = Some(error);
        self.backoff.failed += 1;
        if self.backoff.failed < targets {
            return Duration::ZERO;
        }
        self.backoff.failed = 0;
        self.backoff.rounds += 1;
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        let delay = self.backoff.delays.next().unwrap_or(remaining);
        delay.saturating_add(recommended).min(remaining)
    }

    /// Returns the final error after the deadline. Includes the error of the last attempt, if one failed.
    pub(crate) fn deadline_exceeded(&mut self) -> Error {
        let last = self.last.take().unwrap_or_else(|| Error::protocol("the server did not respond"));
        let last = self.of_all(last);
        Error::RetryDeadlineExceeded {
            waited: self.began.elapsed(),
            attempts: self.failed.max(1),
            last: Box::new(last),
        }
    }
}

/// Returns the time `timeout` after `began`, or a time in the far future if the clock does not reach it.
fn after(began: Instant, timeout: Duration) -> Instant {
    began.checked_add(timeout).unwrap_or_else(|| began + FAR)
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::{Arc, Mutex},
    };

    use tonic::Status;

    use super::*;
    use crate::Config;

    fn down() -> Error {
        Error::protocol("down")
    }

    fn refused() -> Error {
        Error::connect("grpc://a", std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
    }

    fn of(url: &str, config: Config) -> Servers {
        Servers::new(&[url.to_owned()], config).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_that_fail_at_once_end_at_the_deadline() {
        let attempts = Attempts::new(Duration::from_secs(5));
        let began = Instant::now();
        let failing =
            attempts.run(Duration::MAX, || 1, |_| async { Err::<(), _>(Error::lost("grpc://a", "reset")) });
        let error =
            tokio::time::timeout(Duration::from_secs(60), failing).await.expect("it ends").unwrap_err();
        assert!(matches!(error, Error::RetryDeadlineExceeded { .. }), "{error}");
        assert_eq!(began.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_existed_is_an_error_at_once_and_a_lost_one_is_waited_for() {
        let refuse = |_| async { Err::<(), _>(refused()) };
        let servers = of("grpc://a", Config::default());
        let began = Instant::now();
        let error =
            Attempts::of(&servers, "x", Duration::from_secs(300)).run(Duration::MAX, || 1, refuse).await;
        assert!(error.unwrap_err().is_absent() && began.elapsed().is_zero());
        // Each server is asked once.
        let asked = Cell::new(0);
        let count = |_| {
            asked.set(asked.get() + 1);
            async { Err::<(), _>(refused()) }
        };
        Attempts::of(&servers, "x", Duration::from_secs(300))
            .run(Duration::MAX, || 3, count)
            .await
            .unwrap_err();
        assert_eq!(asked.get(), 3);
        let patient =
            of("grpc://a", Config { wait_for_server: Duration::from_secs(20), ..Config::default() });
        let error =
            Attempts::of(&patient, "x", Duration::from_secs(300)).run(Duration::MAX, || 1, refuse).await;
        assert!(error.unwrap_err().is_absent() && (20..26).contains(&began.elapsed().as_secs()));
        servers.connected();
        let error =
            Attempts::of(&servers, "x", Duration::from_secs(40)).run(Duration::MAX, || 1, refuse).await;
        assert!(matches!(error.unwrap_err(), Error::RetryDeadlineExceeded { .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_at_the_deadline_has_the_causes_of_the_last_one() {
        let reset = || Error::connect("grpc://a", Error::lost("grpc://a", "reset by peer"));
        let failing = Attempts::new(Duration::from_secs(5)).run(
            Duration::MAX,
            || 1,
            |_| async { Err::<(), _>(reset()) },
        );
        let words = failing.await.unwrap_err().to_string();
        assert!(words.contains("can't connect to grpc://a: ") && words.contains("reset by peer"), "{words}");
        let done = Attempts::new(Duration::MAX).run(Duration::MAX, || 1, |_| async { Ok(7) });
        assert_eq!(done.await.unwrap(), 7, "no timeout is too long");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_names_all_servers_if_none_of_them_exists() {
        let urls = ["grpc://a:1", "grpc://b:2"];
        let servers = Servers::new(&urls.map(str::to_owned), Config::default()).unwrap();
        let refuse = async |servers: &Servers| {
            let asked = Cell::new(0);
            let refuse = |_| {
                asked.set(asked.get() + 1);
                let url = urls[(asked.get() + 1) % 2];
                async move {
                    Err::<(), _>(Error::connect(
                        url,
                        std::io::Error::from(std::io::ErrorKind::ConnectionRefused),
                    ))
                }
            };
            let attempts = Attempts::of(servers, "x", Duration::from_secs(5));
            attempts.run(Duration::MAX, || 2, refuse).await.unwrap_err().to_string()
        };
        assert_eq!(refuse(&servers).await, "can't connect to grpc://a:1, grpc://b:2");
        // Both were there before.
        servers.connected();
        let error = refuse(&servers).await;
        assert!(error.contains("can't connect to grpc://a:1, grpc://b:2"), "{error}");
        // One of them is there, but it does not answer.
        let lose = |_| async { Err::<(), _>(Error::lost("grpc://b:2", "reset")) };
        let error = Attempts::of(&servers, "x", Duration::from_secs(5)).run(Duration::MAX, || 2, lose).await;
        assert!(error.unwrap_err().to_string().ends_with("lost the connection to grpc://b:2: reset"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_reported_after_three_seconds_and_then_every_thirty() {
        let servers = of("grpc://a:1", Config::default());
        let (notices, began) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
        let log = Arc::clone(&notices);
        servers.on_waiting(Arc::new(move |waiting| {
            log.lock().unwrap().push((began.elapsed().as_secs(), waiting.to_string()));
        }));
        let silent = |_| std::future::pending::<Result<(), Error>>();
        Attempts::of(&servers, "the plan of 'x'", Duration::from_secs(50))
            .run(Duration::MAX, || 1, silent)
            .await
            .unwrap_err();
        let given = std::mem::take(&mut *notices.lock().unwrap());
        assert_eq!(given.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [3, 33]);
        assert_eq!(
            given[0].1,
            "waiting for the plan of 'x' from grpc://a:1 for 3 s: no answer yet; giving up in 47 s"
        );
        let lose = |_| async { Err::<(), _>(Error::lost("grpc://a:1", "reset by peer")) };
        Attempts::of(&servers, "the plan of 'x'", Duration::from_secs(50))
            .run(Duration::MAX, || 1, lose)
            .await
            .unwrap_err();
        let given = notices.lock().unwrap();
        assert_eq!(given.len(), 2, "{given:?}");
        assert!(given[0].1.contains(
            "attempts failed, the last one with: lost the connection to grpc://a:1: reset by peer"
        ));
    }

    #[test]
    fn delays_double_up_to_the_maximum_with_jitter_of_one_half() {
        let mut attempts = Attempts::new(Duration::from_secs(3600));
        for longest in [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000] {
            let delay = attempts.delay_after(down(), 1).as_secs_f64() * 1e3;
            // The delays are doubled in single precision.
            let bounds = f64::from(longest) * 0.499..=f64::from(longest) * 1.001;
            assert!(bounds.contains(&delay), "{delay} ms is not in {bounds:?}");
        }
    }

    #[test]
    fn no_delay_exceeds_the_remaining_time() {
        let mut attempts = Attempts::new(Duration::from_millis(10));
        assert!(attempts.delay_after(down(), 1) <= Duration::from_millis(10));
    }

    #[test]
    fn every_server_is_tried_before_the_first_delay() {
        let mut attempts = Attempts::new(Duration::from_secs(60));
        let delays: Vec<_> = (0..6).map(|_| attempts.delay_after(down(), 3)).collect();
        assert!(delays.iter().enumerate().all(|(attempt, delay)| delay.is_zero() != (attempt % 3 == 2)));
    }

    #[test]
    fn delays_grow_over_successive_calls_until_a_server_has_recovered() {
        let mut attempts = Attempts::new(Duration::from_secs(60));
        let mut delay = || {
            attempts.restart(Duration::from_secs(60));
            attempts.delay_after(down(), 2) + attempts.delay_after(down(), 2)
        };
        let delays: Vec<_> = (0..8).map(|_| delay()).collect();
        assert!(delays[7] >= Duration::from_millis(2499), "{delays:?}");
        assert!(!attempts.served(Instant::now(), 1));
        assert!(attempts.delay_after(down(), 1) > Duration::from_secs(2));
        assert!(attempts.served(Instant::now(), STABLE_BATCHES));
        assert!(attempts.delay_after(down(), 1) <= Duration::from_millis(101));
    }

    #[test]
    fn an_attempt_has_a_limit_only_if_there_are_other_servers_and_the_limit_doubles_with_each_round() {
        let (mut attempts, minute) = (Attempts::new(Duration::from_secs(3600)), Duration::from_secs(60));
        assert_eq!(attempts.limit(minute, 1), None);
        for factor in [1, 1, 2, 2, 4] {
            assert_eq!(attempts.limit(minute, 2), Some(minute * factor));
            attempts.delay_after(down(), 2);
        }
        for _ in 0..100 {
            attempts.delay_after(down(), 1);
        }
        assert_eq!(attempts.limit(Duration::MAX, 2), None, "no overflow");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_attempt_of_slow_servers_has_the_remaining_time() {
        let second = Duration::from_secs(1);
        for (targets, expected) in [(2, vec![60, 60, 180]), (8, vec![60, 60, 90, 45, 22, 11, 5, 2])] {
            let (mut attempts, mut given) = (Attempts::new(300 * second), Vec::new());
            while Instant::now() < attempts.deadline && given.len() < 8 {
                let rest = attempts.deadline - Instant::now();
                let limit = attempts.limit(60 * second, targets).unwrap_or(rest);
                given.push(limit.as_secs());
                tokio::time::advance(limit).await;
                attempts.delay_after(down(), targets);
            }
            assert_eq!(given, expected, "{targets} targets");
        }
    }

    #[test]
    fn a_limit_is_final_after_every_server_has_reached_it_and_a_busy_server_never() {
        let mut attempts = Attempts::new(Duration::from_secs(3600));
        let limit = Error::from(Status::resource_exhausted("a window never fits"));
        assert!(!attempts.can_retry(&limit, 1));
        attempts.served(Instant::now(), STABLE_BATCHES);
        let answers = [&limit, &limit].map(|error| attempts.can_retry(error, 2));
        assert_eq!(answers, [true, false]);
        attempts.served(Instant::now(), STABLE_BATCHES);
        let down = Error::connect("grpc://a", "refused");
        let answers = [&limit, &down, &limit, &down].map(|error| attempts.can_retry(error, 2));
        assert_eq!(answers, [true; 4], "the other server may be the one that can serve it");
        let mut status = Status::resource_exhausted("limits.max_streams");
        status.metadata_mut().insert("retry-after", "3".parse().unwrap());
        let busy = Error::from(status);
        assert!((0..10).all(|_| attempts.can_retry(&busy, 1)));
        assert!(attempts.delay_after(busy, 1) >= Duration::from_secs(3));
        assert!(!attempts.can_retry(&Error::from(Status::invalid_argument("batch_size")), 5));
    }
}
