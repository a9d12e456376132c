use std::path::Path;

use super::*;
use crate::Config;

fn records(folder: &Path, max_bytes: u64) -> Records {
    let config = Config::default();
    let location = Location::parse(&folder.to_string_lossy(), &config).unwrap();
    State::open(location, None, &config).records("notes", "note", max_bytes)
}

fn names(found: &[Recorded]) -> Vec<&str> {
    found.iter().map(|found| found.name.as_str()).collect()
}

#[tokio::test]
async fn a_document_is_found_by_its_name_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let records = records(&folder.path().join("not-there-yet"), 100);
    assert_eq!(records.list().await.unwrap(), []);
    assert_eq!(records.find::<String>("a").await.unwrap(), None);
    records.keep("a", &"first").await.unwrap();
    records.keep("a", &"second").await.unwrap();
    records.keep("b", &7).await.unwrap();
    assert_eq!(records.find::<String>("a").await.unwrap().as_deref(), Some("second"));
    let mut found = records.list().await.unwrap();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(names(&found), ["a", "b"]);
    records.remove("a").await.unwrap();
    records.remove("a").await.unwrap();
    assert_eq!(names(&records.list().await.unwrap()), ["b"]);
}

#[tokio::test]
async fn what_is_damaged_or_too_long_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let records = records(folder.path(), 100);
    records.keep("a", &"whole").await.unwrap();
    let file = folder.path().join("notes/a.note");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let error = records.find::<String>("a").await.unwrap_err();
    assert!(matches!(&error, Error::Corrupt { file, .. } if file.ends_with("notes/a.note")), "{error}");

    let error = records.keep("b", &"x".repeat(100)).await.unwrap_err();
    assert!(matches!(&error, Error::Limit { limit: 100, .. }), "{error}");
    std::fs::write(&file, vec![b' '; 101]).unwrap();
    assert!(matches!(records.find::<String>("a").await, Err(Error::Limit { found: 101, .. })));
}

#[tokio::test]
async fn a_name_that_is_none_reaches_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let records = records(folder.path(), 100);
    for name in ["", "..", "../a", "a/b", "a.b"] {
        assert!(matches!(records.keep(name, &1).await, Err(Error::Invalid { .. })), "{name}");
        assert_eq!(records.find::<u32>(name).await.unwrap(), None, "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
