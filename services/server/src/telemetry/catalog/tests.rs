mod sources;

use std::{collections::BTreeSet, path::Path};

use super::{Kind, markdown, metrics};
use sources::{Call, Macro, calls, mentioned, root};

#[test]
fn every_recorded_metric_is_in_the_catalog_with_its_kind_and_labels() {
    for Call { place, recorded, name, labels } in calls() {
        let metric = metrics().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{place}: {name} is not in the catalog"));
        let expected = match metric.kind {
            Kind::Counter => Macro::Counter,
            Kind::Gauge | Kind::FractionalCounter => Macro::Gauge,
            Kind::Histogram(_) => Macro::Histogram,
        };
        assert_eq!(recorded, expected, "{place}: {name} is a {:?}", metric.kind);
        let documented: BTreeSet<String> = metric.labels.iter().map(|label| label.key.to_owned()).collect();
        assert_eq!(labels, documented, "{place}: the labels of {name}");
    }
}

#[test]
fn every_metric_of_the_catalog_is_recorded() {
    let recorded: BTreeSet<String> = calls().into_iter().map(|call| call.name).collect();
    for metric in metrics() {
        assert!(recorded.contains(metric.name), "{}: nothing records it", metric.name);
    }
}

#[test]
fn pages_dashboards_and_alerts_only_name_existing_metrics() {
    let known = |name: &str| {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        let is_one = |metric: &super::Metric| {
            let is_part = matches!(metric.kind, Kind::Histogram(_)) && family == Some(metric.name);
            // `forebay_cache_*` refers to several metrics.
            metric.name == name || is_part || name.ends_with('_') && metric.name.starts_with(name)
        };
        metrics().any(is_one)
    };
    for (path, name) in mentioned() {
        assert!(known(&name), "{} names {name}, which is not a metric", path.display());
    }
}

#[test]
fn names_end_in_their_kind_and_unit() {
    let mut names = BTreeSet::new();
    for metric in metrics() {
        let name = metric.name;
        assert!(names.insert(name), "{name} is listed twice");
        assert!(name.starts_with("forebay_") || name.starts_with("process_"), "{name}");
        let grows = matches!(metric.kind, Kind::Counter | Kind::FractionalCounter);
        assert_eq!(grows, name.ends_with("_total"), "{name}");
        assert!(metric.help.ends_with('.'), "{name}");
        if let Kind::Histogram(bounds) = metric.kind {
            assert!(!metric.unit().is_empty(), "{name}");
            assert!(bounds.is_sorted_by(|one, next| one < next), "{name}");
        }
    }
}

#[test]
fn the_metrics_page_matches_the_catalog() {
    let path = root().join("docs/reference/metrics.md");
    let rendered = markdown::render();
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&path, &rendered).expect("docs/reference/metrics.md can be written");
    }
    let page = std::fs::read_to_string(Path::new(&path)).unwrap_or_default();
    assert!(page == rendered, "docs/reference/metrics.md is out of date: run this test with FOREBAY_BLESS=1");
}
