use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

fn described() -> Value {
    serde_json::from_str(document()).unwrap()
}

fn paths(document: &Value) -> BTreeSet<String> {
    document["paths"].as_object().unwrap().keys().cloned().collect()
}

/// The routes of a router, as axum prints them; it has no other list of them.
fn routed(router: &Router<Ops>) -> BTreeSet<String> {
    let printed = format!("{router:?}");
    let texts = printed.split('"').skip(1).step_by(2);
    // "/" and a private name are those of its fallback; the page, which is at "/", is not among these.
    let paths = texts.filter(|text| text.starts_with('/') && *text != "/" && !text.contains("__private__"));
    paths.map(str::to_owned).collect()
}

#[test]
fn every_route_is_in_the_document_and_the_other_way_round() {
    let Routes { probes, api, .. } = routes();
    let routed: BTreeSet<String> = routed(&probes).union(&routed(&api)).cloned().collect();
    assert!(
        routed.contains("/api/v1/queues/{name}/frontier"),
        "axum prints routers in another way: {routed:?}"
    );
    assert_eq!(routed, paths(&described()));
}

#[test]
fn what_changes_something_is_a_patch_and_a_long_question_a_post() {
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
fn every_reference_has_something_behind_it_and_every_operation_a_name_of_its_own() {
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
fn the_operators_page_lists_every_route_of_the_api() {
    let docs = include_str!("../../../../../docs/operations.md");
    for path in paths(&described()) {
        let path = path.replace("{name}", "NAME").replace("{id}", "ID");
        assert!(docs.contains(&path), "{path} is not in docs/operations.md");
    }
}
