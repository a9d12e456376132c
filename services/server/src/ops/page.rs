//! The page for a person: datasets, streams and memory as they stand.

use std::{fmt::Write, sync::atomic::Ordering};

use axum::{
    Extension, Router,
    extract::State,
    http::header,
    response::{Html, IntoResponse},
    routing::get,
};
use bytesize::ByteSize;
use forebay_proto::v1::ReportRequest;

use super::Ops;
use crate::{Address, datasets::Phase, door::Access, sessions::Session};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}\
 table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .8rem .3rem 0;\
 border-bottom:1px solid #8884;vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}\
 code{font-size:.9em}.bad{color:#b00020}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}\
 .bad{color:#ff8a80}}";

pub(super) fn routes() -> Router<Ops> {
    Router::new().route("/", get(page))
}

async fn page(State(ops): State<Ops>, Extension(access): Extension<Access>) -> impl IntoResponse {
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(render(&ops, &access)))
}

/// The page as `access` may see it. It carries no script and refers to nothing.
fn render(ops: &Ops, access: &Access) -> String {
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Forebay</title><style>{STYLE}</style><h1>Forebay</h1>\
         <p>Arrow Flight at <code>{}</code> · {} of frames in memory · {} · <a href=/metrics>metrics</a> · \
         <a href=/readyz>readiness</a></p>",
        escape(&location(ops)),
        ByteSize(ops.loader.resident_bytes()),
        disk(ops),
    );
    datasets(ops, access, &mut page);
    streams(ops, access, &mut page);
    page
}

/// How a Flight client spells it.
fn location(ops: &Ops) -> String {
    match &ops.grpc {
        Address::Tcp(address) if ops.tls => format!("grpc+tls://{address}"),
        Address::Tcp(address) => format!("grpc://{address}"),
        Address::Unix(path) => format!("grpc+unix://{}", path.display()),
    }
}

fn disk(ops: &Ops) -> String {
    match ops.loader.disk_bytes() {
        Some((resident, capacity)) => format!("{} of {} on disk", ByteSize(resident), ByteSize(capacity)),
        None => "nothing on disk".to_owned(),
    }
}

fn datasets(ops: &Ops, access: &Access, page: &mut String) {
    page.push_str(
        "<h2>Datasets</h2><table><tr><th>Name<th>Where<th class=n>Files<th class=n>Blocks<th class=n>Rows\
         <th class=n>Decoded<th>Snapshot</tr>",
    );
    for dataset in ops.datasets.list(access) {
        let (name, url) = (escape(&dataset.name), escape(&dataset.url));
        let row = match &dataset.phase {
            Phase::Open(reader) => {
                let snapshot = reader.snapshot();
                format!(
                    "<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td><code>{}</code>",
                    snapshot.files().len(),
                    snapshot.blocks().len(),
                    snapshot.rows(),
                    ByteSize(snapshot.uncompressed_bytes()),
                    escape(snapshot.id()),
                )
            }
            Phase::Opening { files_done, files } => {
                format!("<td colspan=5>being opened, {files_done} of {files} files")
            }
            Phase::Failed(error) => format!("<td colspan=5 class=bad>{}", escape(&error.to_string())),
        };
        // Writing to a string can't fail.
        let _ = write!(page, "<tr><td>{name}<td><code>{url}</code>{row}</tr>");
    }
    page.push_str("</table>");
}

fn streams(ops: &Ops, access: &Access, page: &mut String) {
    let mut sessions = ops.sessions.list();
    sessions.retain(|session| access.may_read(&session.train.dataset));
    if sessions.is_empty() {
        page.push_str("<h2>Streams</h2><p>None is running.</p>");
        return;
    }
    page.push_str(
        "<h2>Streams</h2><table><tr><th>Job<th>Dataset<th class=n>Rank<th class=n>Lane<th class=n>Epoch\
         <th class=n>Step<th class=n>Batches<th class=n>Rows/s<th class=n>Bytes/s<th class=n>Waits<th class=n>Computes<th class=n>Copies</tr>",
    );
    for session in sessions {
        page.push_str(&stream(&session));
    }
    page.push_str("</table>");
}

fn stream(session: &Session) -> String {
    let seconds = session.started.elapsed().as_secs_f64().max(1e-3);
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let a_second = |total: u64| (total as f64 / seconds) as u64;
    let report = session.report();
    let share = |of: fn(&ReportRequest) -> f64| {
        let part = report.as_ref().map(|report| of(report) / report.seconds.max(1e-3));
        part.map_or_else(|| "not reported".to_owned(), |part| format!("{:.0} %", part * 100.0))
    };
    format!(
        "<tr><td>{}<td>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{} of {}\
         <td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}</tr>",
        escape(&session.train.job),
        escape(&session.train.dataset),
        session.train.rank(),
        session.train.lane(),
        count(&session.epoch),
        count(&session.step),
        count(&session.batches_sent),
        session.batches,
        a_second(count(&session.rows_sent)),
        ByteSize(a_second(count(&session.bytes_sent))),
        share(|report| report.wait_seconds),
        share(|report| report.compute_seconds),
        share(|report| report.copy_seconds),
    )
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
