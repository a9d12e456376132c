use std::path::{Path, PathBuf};

use super::*;

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("page")
}

fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
}

#[test]
fn the_embedded_page_is_built_from_the_current_sources() {
    let home = page();
    let files = [
        "index.html",
        "public/icon.svg",
        "package.json",
        "package-lock.json",
        "tsconfig.json",
        "vite.config.ts",
    ];
    let mut sources: Vec<PathBuf> = files.iter().map(|file| home.join(file)).collect();
    sources.extend(below(&home.join("src")));
    let relative = |path: &PathBuf| path.strip_prefix(&home).unwrap().to_str().unwrap().to_owned();
    sources.sort_by_key(relative);
    let mut hashed = ring::digest::Context::new(&SHA256);
    for path in &sources {
        let bytes = std::fs::read(path).unwrap();
        hashed.update(format!("{}\n{}\n", relative(path), bytes.len()).as_bytes());
        hashed.update(&bytes);
    }
    let found = hex::encode(hashed.finish());
    let built = std::fs::read_to_string(home.join("dist/SOURCES")).unwrap();
    assert_eq!(
        built,
        format!("{found}\n"),
        "the page is out of date: run npm run build in services/server/page"
    );
}

#[test]
fn the_page_obeys_its_security_policy_and_only_links_to_served_files() {
    let index = std::fs::read_to_string(page().join("dist/index.html")).unwrap();
    assert!(!index.contains(" style=") && !index.contains("<style"), "an inline style");
    for script in index.split("<script").skip(1) {
        assert!(script.contains("src=\"/page.js\"") && script.contains("></script>"), "an inline script");
    }
    let printed = format!("{:?}", routes());
    for reference in index.split("src=\"").chain(index.split("href=\"")).skip(1) {
        let target = reference.split('"').next().unwrap();
        if target.starts_with('/') && !target.starts_with("/api/") && target != "/metrics" {
            assert!(printed.contains(&format!("\"{target}\"")), "{target} is not served");
        }
    }
}

#[test]
fn a_cached_file_is_not_sent_again() {
    let tag = tag_of(b"x");
    let asked = |known: &str| {
        let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_str(known).unwrap())]);
        answer(&headers, "text/css", b"x", tag.clone()).status()
    };
    let own = tag.to_str().unwrap();
    for known in [own.to_owned(), format!("\"a\", W/{own}"), "*".to_owned()] {
        assert_eq!(asked(&known), StatusCode::NOT_MODIFIED, "{known}");
    }
    assert_eq!(asked("\"a\""), StatusCode::OK);
    assert_ne!(tag, tag_of(b"y"));
}
