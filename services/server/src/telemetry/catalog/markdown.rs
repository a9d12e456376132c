//! Generation of docs/reference/metrics.md.

use std::fmt::Write as _;

use super::{
    GROUPS,
    metric::{Kind, Label, Metric, Values},
    metrics,
};

const HEAD: &str = r#"# Metrics

`GET /metrics` returns all metrics in the Prometheus text format. This page is generated from the table in
`services/server/src/telemetry/catalog.rs`. To update it, run `FOREBAY_BLESS=1 cargo test --release -p forebay metrics_page`.

Names that end in `_total` are counters. Histograms have fixed buckets. No label carries a key, file, job or session, so the
configuration bounds the number of series. Counters that are never absent start at 0, so that `increase` includes the first event.

## Queries

| question | PromQL |
|---|---|
| Fraction of the time that training waits for the server or the network | `1 - sum(rate(forebay_session_seconds_total{activity=~"compute\|compute_or_network"}[5m])) / sum(rate(forebay_session_seconds_total[5m]))` |
| Current bottleneck | `forebay_bottleneck == 1` |
| Hit ratio of the memory cache | `rate(forebay_cache_hits_total{tier="memory"}[5m]) / (rate(forebay_cache_hits_total{tier="memory"}[5m]) + rate(forebay_cache_misses_total{tier="memory"}[5m]))` |
| Mean time to decode a block | `rate(forebay_decode_duration_seconds_sum[5m]) / rate(forebay_decode_duration_seconds_count[5m])` |
| 99th percentile of lookups | `histogram_quantile(0.99, sum by (le) (rate(forebay_lookup_duration_seconds_bucket[5m])))` |
"#;

/// Renders the page.
pub(super) fn render() -> String {
    let mut page = HEAD.to_owned();
    for group in GROUPS {
        let _ = write!(
            page,
            "\n## {}\n\n| metric | type | labels | description | absent |\n|---|---|---|---|---|\n",
            group.title
        );
        for metric in group.metrics {
            let _ = writeln!(page, "{}", row(metric));
        }
    }
    page + &labels() + &buckets()
}

fn row(metric: &Metric) -> String {
    let Metric { name, kind, labels, absent, help } = metric;
    let kind = match kind {
        Kind::Counter | Kind::FractionalCounter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    let unit = metric.unit();
    let kind = if unit.is_empty() { kind.to_owned() } else { format!("{kind}, {unit}") };
    let labels: Vec<String> = labels.iter().map(|label| format!("`{}`", label.key)).collect();
    let absent = if absent.is_empty() { "never" } else { *absent };
    format!("| `{name}` | {kind} | {} | {help} | {absent} |", labels.join(", "))
}

/// Renders the table of labels. A label key may have different values for different metrics.
fn labels() -> String {
    let mut text = "\n## Labels\n\n| label | metrics | values |\n|---|---|---|\n".to_owned();
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
    for (Label { key, values, meanings }, names) in seen {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let values = match values {
            Values::OneOf(values) => {
                let meanings = meanings.iter().copied().chain(std::iter::repeat(""));
                let described = values.iter().zip(meanings).map(|(value, meaning)| match meaning {
                    "" => format!("`{value}`"),
                    meaning => format!("`{value}` ({meaning})"),
                });
                described.collect::<Vec<_>>().join(", ")
            }
            Values::Of(what) => what.to_owned(),
        };
        let _ = writeln!(text, "| `{key}` | {} | {values} |", names.join(", "));
    }
    text
}

fn buckets() -> String {
    let mut text = "\n## Histogram buckets\n\n| histogram | upper bounds |\n|---|---|\n".to_owned();
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
