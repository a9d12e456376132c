use crate::{
    callers::{Caller, Callers, Resource},
    settings::Limits,
};

use super::*;

/// Opens a stream of a trainer, 0 for one that does not report.
fn enter(sessions: &Sessions, trainer: u64) -> Running {
    let callers = Callers::new(Arc::new(Limits::default()));
    let charge = callers.take(&Caller::Local, Resource::Streams, 1).expect("one stream is below the limit");
    sessions.enter(Train { dataset: "clicks".into(), ..Train::default() }, (10, Weak::new()), trainer, charge)
}

#[test]
fn of_the_sessions_that_ended_the_last_thousand_are_kept_and_open_ones_always() {
    let sessions = Sessions::new();
    let open = enter(&sessions, 0);
    let ended: Vec<u64> = (0..MAX_ENDED + 5).map(|_| enter(&sessions, 0).session.id).collect();
    sessions.tick(Instant::now());
    let (old, recent) = ended.split_at(5);
    assert!(old.iter().all(|id| sessions.get(*id).is_none()));
    assert!(recent.iter().all(|id| sessions.get(*id).is_some()));
    sessions.tick(Instant::now() + REMOVED_AFTER + Duration::from_secs(1));
    let left: Vec<u64> = sessions.list(true).iter().map(|session| session.id).collect();
    assert_eq!(left, [open.session.id]);
}

#[test]
fn the_rate_sent_is_that_of_the_bytes_sent_while_sessions_come_and_go() {
    let (sessions, begin) = (Sessions::new(), Instant::now());
    let steady = enter(&sessions, 0);
    // A session ends every second; after a minute they are removed, and with them most of what the kept sessions have sent.
    for second in 1..=3 * REMOVED_AFTER.as_secs() {
        enter(&sessions, 0).count(Sent { batches: 1, rows: 10, bytes: 900 }, (0, 0), None);
        steady.count(Sent { batches: 1, rows: 1, bytes: 100 }, (0, second), None);
        sessions.tick(begin + Duration::from_secs(second));
        if second >= 2 {
            let (bytes, rows) = sessions.sent_per_second();
            assert!((950.0..1050.0).contains(&bytes), "{bytes} bytes per second after {second} s");
            assert!((10.4..11.6).contains(&rows), "{rows} rows per second after {second} s");
        }
    }
    assert!(sessions.list(true).len() < 3 * REMOVED_AFTER.as_secs() as usize, "no session was removed");
}

#[test]
fn a_report_counts_for_as_much_time_as_can_have_passed() {
    let (sessions, begin) = (Sessions::new(), Instant::now());
    let session = Arc::clone(&enter(&sessions, 7).session);
    let report = |seconds: f64| ReportRequest { seconds, wait_seconds: seconds, ..ReportRequest::default() };
    let credible = |seconds: u64, report: &ReportRequest| {
        let (_, _, credible) = session.report(begin + Duration::from_secs(seconds), report);
        credible * report.seconds
    };
    // One second, and five for a report that is late.
    let first = credible(1, &report(3600.0));
    assert!((4.99..6.01).contains(&first), "{first} of 3,600 seconds count");
    assert!(
        (credible(11, &report(3600.0)) - 10.0).abs() < 1e-6,
        "ten seconds have passed since the last report"
    );
    assert!((credible(12, &report(1.0)) - 1.0).abs() < 1e-6, "a report of the time that has passed counts");
    let of_moment: f64 = (0..500).map(|_| credible(22, &report(1.0))).sum();
    assert!((of_moment - 10.0).abs() < 1e-6, "{of_moment} of 500 seconds within a moment count");
    let wait_only = ReportRequest { wait_seconds: 1.0, ..ReportRequest::default() };
    let (_, _, part) = session.report(begin + Duration::from_secs(22), &wait_only);
    assert!(part < 1e-6, "{part} of a report whose parts exceed its time counts");
}

#[test]
fn the_metric_of_open_streams_is_correct_when_streams_begin_and_end_concurrently() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let (sessions, together) = (Sessions::new(), std::sync::Barrier::new(3));
    let change = || {
        metrics::with_local_recorder(&recorder, || {
            for _ in 0..2_000 {
                together.wait();
                drop(enter(&sessions, 0));
                together.wait();
            }
        });
    };
    let wrong = std::thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(change)));
        let rounds = (0..2_000).filter(|_| {
            together.wait();
            together.wait();
            !recorder.handle().render().contains("forebay_streams 0\n")
        });
        rounds.count()
    });
    assert_eq!(wrong, 0, "rounds in which the metric is not 0");
}
