//! docs/metrics.md, from the tables.

use std::fmt::Write as _;

use super::{Absent, GROUPS, Kind, Label, Metric, Values, metrics};

const HEAD: &str = "# Metrics

`GET /metrics` is Prometheus text. This page is written by the test of the table that the server registers its metrics from
(`services/server/src/ops/catalog.rs`); `FOREBAY_BLESS=1 cargo test --release --workspace metrics_page` writes it again.

Units are seconds, bytes and rows. A name that ends in `_total` only grows; histograms have fixed buckets (`_bucket`, `_sum`,
`_count`), and `rate(NAME_sum[1m]) / rate(NAME_count[1m])` is their mean. No label carries a key, a file, a job or a session: the number of
series is bounded by the settings. Counters that are always there begin at 0, so that `increase` sees the first event.
";

/// The whole page.
pub(super) fn render() -> String {
    let mut page = HEAD.to_owned();
    for group in &GROUPS {
        let _ = write!(
            page,
            "\n## {}\n\n| metric | kind | labels | what | absent |\n|---|---|---|---|---|\n",
            group.title
        );
        for metric in group.metrics {
            let _ = writeln!(page, "{}", row(metric));
        }
    }
    page + &labels() + &buckets()
}

fn row(metric: &Metric) -> String {
    let Metric { name, kind, unit, labels, help, absent } = metric;
    let kind = match kind {
        Kind::Counter | Kind::FractionalCounter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    let kind = if unit.is_empty() { kind.to_owned() } else { format!("{kind}, {unit}") };
    let labels: Vec<String> = labels.iter().map(|label| format!("`{}`", label.key)).collect();
    let absent = match absent {
        Absent::Never => "never".to_owned(),
        Absent::Before(what) => format!("before {what}"),
        Absent::Without(what) => format!("without {what}"),
    };
    format!("| `{name}` | {kind} | {} | {help} | {absent} |", labels.join(", "))
}

/// Each label with its values; one key may have other values elsewhere.
fn labels() -> String {
    let mut text = "\n## Labels\n\n| label | of | values |\n|---|---|---|\n".to_owned();
    let mut seen: Vec<(Label, Vec<&str>)> = Vec::new();
    for metric in metrics() {
        for label in metric.labels {
            match seen.iter_mut().find(|(known, _)| known == label) {
                Some((_, names)) => names.push(metric.name),
                None => seen.push((*label, vec![metric.name])),
            }
        }
    }
    seen.sort_by_key(|(label, _)| label.key);
    for (Label { key, values }, names) in seen {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let values = match values {
            Values::OneOf(values) => {
                values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ")
            }
            Values::Of(what) => what.to_owned(),
        };
        let _ = writeln!(text, "| `{key}` | {} | {values} |", names.join(", "));
    }
    text
}

fn buckets() -> String {
    let mut text = "\n## Buckets\n\n| histogram | upper bounds |\n|---|---|\n".to_owned();
    let mut seen: Vec<(&[f64], Vec<&str>)> = Vec::new();
    for metric in metrics() {
        let Kind::Histogram(bounds) = metric.kind else { continue };
        match seen.iter_mut().find(|(known, _)| *known == bounds) {
            Some((_, names)) => names.push(metric.name),
            None => seen.push((bounds, vec![metric.name])),
        }
    }
    for (bounds, names) in seen {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let bounds: Vec<String> = bounds.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "| {} | {} |", names.join(", "), bounds.join(", "));
    }
    text
}
