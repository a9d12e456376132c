use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

fn described() -> Value {
    serde_json::from_str(document()).unwrap()
}

fn paths(document: &Value) -> BTreeSet<String> {
    document["paths"].as_object().unwrap().keys().cloned().collect()
}

/// Returns the paths of a router from its debug output; axum has no other list of them.
fn routed(router: &Router<Arc<Context>>) -> BTreeSet<String> {
    let printed = format!("{router:?}");
    let texts = printed.split('"').skip(1).step_by(2);
    // "/" and the private name belong to the fallback. The page at "/" is not part of these routers.
    let paths = texts.filter(|text| text.starts_with('/') && *text != "/" && !text.contains("__private__"));
    paths.map(str::to_owned).collect()
}

#[test]
fn the_document_describes_exactly_the_routes_of_the_server() {
    let Routes { probes, api, .. } = routes();
    let routed: BTreeSet<String> = routed(&probes).union(&routed(&api)).cloned().collect();
    assert!(
        routed.contains("/api/v1/queues/{name}/throughput-latency"),
        "the debug output of axum routers has changed: {routed:?}"
    );
    assert_eq!(routed, paths(&described()));
}

#[test]
fn only_queue_settings_and_explain_requests_have_other_methods_than_get() {
    let others: Vec<(String, String)> = described()["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(|method| (method.clone(), path.clone()))
        })
        .filter(|(method, _)| method != "get")
        .collect();
    let expected = [("post", "/api/v1/explain"), ("patch", "/api/v1/queues/{name}")];
    assert_eq!(others, expected.map(|(method, path)| (method.to_owned(), path.to_owned())));
}

#[test]
fn all_references_resolve_and_operation_ids_are_unique() {
    let document = described();
    let text = document.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
    let operations = document["paths"].as_object().unwrap().values().flat_map(|item| {
        let operations = item.as_object().unwrap().values();
        operations.map(|operation| operation["operationId"].as_str().unwrap().to_owned())
    });
    let all: Vec<String> = operations.collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
}

#[test]
fn the_documentation_lists_every_route() {
    let docs = include_str!("../../../../../docs/reference/http.md");
    for path in paths(&described()) {
        let path = path.replace("{name}", "NAME").replace("{id}", "ID");
        assert!(docs.contains(&path), "{path} is not in docs/reference/http.md");
    }
}

#[test]
fn the_committed_document_matches_the_routes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/page/openapi.json");
    let generated = format!("{:#}\n", described());
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(path, &generated).expect("openapi.json is writable");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == generated,
        "{path} is out of date: run this test with FOREBAY_BLESS=1, then `npm run types && npm run build` in services/server/page"
    );
}
