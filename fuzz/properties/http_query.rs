//! Property of HTTP requests: any request target is answered, or rejected with a reason.

use std::{fs, sync::LazyLock};

use bytes::Bytes;
use forebay::{
    Settings,
    fuzzing::{Answer, Routes},
};
use forebay_proto::v1;
use tempfile::TempDir;

/// A file of three rows with one column, `x`.
const FILE: &[u8] = include_bytes!("three_rows.parquet");

/// Settings of the server. The limit of subscribers is not reached by those of earlier inputs, which leave later.
const SETTINGS: &str = r#"
    cache_memory = "16MiB"
    cache_disk = 0
    cpu_threads = 1
    lookup_threads = 1

    [limits]
    max_live_subscribers = 100000

    [online.rows]
    key = ["x"]

    [queues.doubled.features]
    dataset = "rows"
    select = ["2 * x AS y"]
"#;

/// Path of the route whose responses depend on nothing but the request.
const EXPLAIN: &[u8] = b"/api/v1/explain?";
/// Path of the route that has a limit on its callers.
const LIVE: &[u8] = b"/api/v1/live";
/// Path of the probe that fails until every queue has a worker.
const READY: &[u8] = b"/readyz";
/// Maximum size of an error response that quotes nothing of the request, in bytes.
const MAX_ERROR_BYTES: usize = 4096;

struct Server {
    routes: Routes,
    _folder: TempDir,
}

static SERVER: LazyLock<Server> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, settings) = (folder.path().join("rows.parquet"), folder.path().join("forebay.toml"));
    fs::write(&file, FILE).expect("the folder is writable");
    let paths = format!("cache_dir = {:?}\ndatasets = {{ rows = {file:?} }}\n", folder.path().join("cache"));
    fs::write(&settings, paths + SETTINGS).expect("the folder is writable");
    let settings = Settings::read(&settings).expect("valid settings");
    let train =
        v1::Train { dataset: "rows".into(), job_name: "job".into(), batch_size: 2, ..Default::default() };
    let routes = Routes::start(&settings, train).expect("the dataset can be opened");
    Server { routes, _folder: folder }
});

/// Sends `data` as the target of requests with each method. The same query with other percent-encoding must have the same answer.
pub(crate) fn check(data: &[u8]) {
    let routes = &SERVER.routes;
    let encoded = percent_encoded(data);
    for (method, body) in [
        ("GET", Bytes::new()),
        ("POST", routes.job().clone()),
        ("PATCH", Bytes::from_static(br#"{"max_batch_rows": 8}"#)),
    ] {
        let Some(answer) = routes.answer(method, data, body.clone()) else { continue };
        check_answer(data, &answer);
        let Some(again) = routes.answer(method, &encoded, body) else {
            // The longer target exceeds the limit on the size of a target.
            continue;
        };
        let (status, query) = (answer.status, data.escape_ascii());
        assert_eq!(again.status, status, "{method} {query}: another percent-encoding has another status");
        if data.starts_with(EXPLAIN) && status == 200 {
            assert_eq!(
                again.body, answer.body,
                "{method} {query}: another percent-encoding has another answer"
            );
        }
    }
}

fn check_answer(target: &[u8], answer: &Answer) {
    let Answer { status, body } = answer;
    let may_be_unavailable = target.starts_with(LIVE) || target.starts_with(READY);
    assert!(*status < 500 || *status == 503 && may_be_unavailable, "{status}: {}", body.escape_ascii());
    if *status < 400 || target.starts_with(READY) {
        return;
    }
    let text = std::str::from_utf8(body).expect("an error is text");
    let reason = text.strip_prefix(r#"{"error":""#).and_then(|rest| rest.strip_suffix(r#""}"#));
    assert!(reason.is_some_and(|reason| !reason.is_empty()), "{status} without a reason: {text}");
    // A quoted character becomes at most six, as \u escape.
    assert!(text.len() <= MAX_ERROR_BYTES + 6 * target.len(), "{status}: {} bytes", text.len());
}

/// Encodes every character of the query that can be encoded without a change of its meaning.
fn percent_encoded(target: &[u8]) -> Vec<u8> {
    let Some(start) = target.iter().position(|byte| *byte == b'?') else { return target.to_vec() };
    let end = target.iter().position(|byte| *byte == b'#').unwrap_or(target.len()).max(start + 1);
    let (path, query, fragment) = (&target[..=start], &target[start + 1..end], &target[end..]);
    let mut encoded = path.to_vec();
    for (at, byte) in query.iter().enumerate() {
        let is_escape = |at: usize| {
            query.get(at) == Some(&b'%')
                && query[at + 1..].iter().take(2).filter(|digit| digit.is_ascii_hexdigit()).count() == 2
        };
        let is_in_escape = (at.saturating_sub(2)..=at).any(is_escape);
        if is_in_escape || matches!(byte, b'&' | b'=' | b'+') {
            encoded.push(*byte);
        } else {
            encoded.extend(format!("%{byte:02X}").bytes());
        }
    }
    encoded.extend(fragment);
    encoded
}
