//! Metrics recorded in the sources and mentioned in documents.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Macro {
    Counter,
    Gauge,
    Histogram,
}

/// Use of a metrics macro.
pub(super) struct Call {
    pub(super) place: String,
    pub(super) recorded: Macro,
    pub(super) name: String,
    /// Keys of the labels.
    pub(super) labels: BTreeSet<String>,
}

/// Returns the root of the repository.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns every use of a metrics macro in the crates, except in the catalog.
pub(super) fn calls() -> Vec<Call> {
    let folders = ["services", "clients/rust/src", "proto/src"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| files(folder, &["rs"]));
    let files = files.filter(|path| !path.to_string_lossy().contains("src/telemetry/catalog"));
    let calls: Vec<Call> = files.flat_map(|path| calls_in(&path)).collect();
    assert!(calls.len() > 40, "the sources were not found");
    calls
}

fn calls_in(path: &Path) -> Vec<Call> {
    let text = fs::read_to_string(path).expect("a source can be read");
    let mut calls = Vec::new();
    for (spelled, recorded) in
        [("counter!(", Macro::Counter), ("gauge!(", Macro::Gauge), ("histogram!(", Macro::Histogram)]
    {
        for (at, _) in text.match_indices(spelled) {
            if text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
                continue;
            }
            let place = format!("{}:{}", path.display(), text[..at].lines().count());
            let mut strings = strings(arguments(&text[at + spelled.len()..]));
            assert!(!strings.is_empty() && !strings[0].1, "{place}: the name is not spelled out");
            let (name, _) = strings.remove(0);
            let labels = strings.into_iter().filter(|(_, is_key)| *is_key).map(|(key, _)| key).collect();
            calls.push(Call { place, recorded, name, labels });
        }
    }
    calls
}

/// Returns the arguments of a macro, up to its closing parenthesis.
fn arguments(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    });
    &text[..end.expect("the macro is closed")]
}

/// Returns the string literals of the arguments; the flag is true if `=>` follows.
fn strings(arguments: &str) -> Vec<(String, bool)> {
    let pieces: Vec<&str> = arguments.split('"').collect();
    let literal = |pair: &[&str]| (pair[0].to_owned(), pair[1].trim_start().starts_with("=>"));
    pieces[1..].chunks_exact(2).map(literal).collect()
}

/// Returns names that look like metrics in documents, dashboards, alerts and the page, each with its file.
pub(super) fn mentioned() -> Vec<(PathBuf, String)> {
    let (root, crates) = (root(), crates());
    let mut found = Vec::new();
    let texts = ["docs", "deploy", "services/server/page/src", "README.md"].map(|place| root.join(place));
    let kinds = ["md", "json", "yml", "yaml", "rules", "ts", "tpl", "tf", "js", "py", "libsonnet"];
    for path in texts.iter().flat_map(|place| files(place, &kinds)) {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for word in text.split(|c| !is_part(c)) {
            let ours = word.starts_with("forebay_") && !crates.contains(word);
            // In documents, `process_` is also the start of other words.
            let standard = word.starts_with("process_") && !path.starts_with(root.join("docs"));
            if ours || standard {
                found.push((path.clone(), word.to_owned()));
            }
        }
    }
    found
}

/// Returns the names of crates and Python modules, which look like metrics.
fn crates() -> BTreeSet<String> {
    let services = fs::read_dir(root().join("services")).expect("the crates");
    let names = services.flatten().map(|entry| format!("forebay_{}", entry.file_name().to_string_lossy()));
    names.chain(["forebay_client", "forebay_proto", "forebay_load"].map(str::to_owned)).collect()
}

fn files(folder: &Path, kinds: &[&str]) -> Vec<PathBuf> {
    if folder.is_file() {
        return vec![folder.to_owned()];
    }
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && path.file_name().is_some_and(|name| name != "node_modules" && name != "target") {
            found.extend(files(&path, kinds));
        } else if path.extension().is_some_and(|kind| kinds.iter().any(|wanted| kind == *wanted)) {
            found.push(path);
        }
    }
    found
}
