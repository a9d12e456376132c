use std::path::Path;

use super::*;
use crate::Config;

fn documents(folder: &Path, max_bytes: u64) -> Documents {
    let config = Config::default();
    let location = Location::parse(&folder.to_string_lossy(), &config).unwrap();
    State::open(location, None, &config).documents("notes", "note", max_bytes)
}

fn names(found: &[DocumentMeta]) -> Vec<&str> {
    found.iter().map(|found| found.name.as_str()).collect()
}

#[tokio::test]
async fn a_document_can_be_read_until_it_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let documents = documents(&folder.path().join("missing"), 100);
    assert_eq!(documents.list().await.unwrap(), []);
    assert_eq!(documents.get::<String>("a").await.unwrap(), None);
    documents.put("a", &"first").await.unwrap();
    documents.put("a", &"second").await.unwrap();
    documents.put("b", &7).await.unwrap();
    assert_eq!(documents.get::<String>("a").await.unwrap().as_deref(), Some("second"));
    let mut found = documents.list().await.unwrap();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(names(&found), ["a", "b"]);
    assert_eq!(documents.head("a").await.unwrap().as_ref(), found.first());
    documents.delete("a").await.unwrap();
    documents.delete("a").await.unwrap();
    assert_eq!(documents.head("a").await.unwrap(), None);
    assert_eq!(names(&documents.list().await.unwrap()), ["b"]);
}

#[tokio::test]
async fn concurrent_creators_of_a_document_get_the_same_one() {
    let folder = tempfile::tempdir().unwrap();
    let documents = documents(folder.path(), 100);
    let created = (0..16).map(|number| {
        let documents = documents.clone();
        tokio::spawn(async move { documents.get_or_create("a", &number).await.unwrap() })
    });
    let created: Vec<u64> =
        futures::future::join_all(created).await.into_iter().map(Result::unwrap).collect();
    assert!(created.iter().all(|document| *document == created[0]), "{created:?}");
    assert_eq!(documents.get_or_create("a", &99).await.unwrap(), created[0]);
}

#[tokio::test]
async fn a_damaged_or_oversized_document_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let documents = documents(folder.path(), 100);
    documents.put("a", &"whole").await.unwrap();
    let file = folder.path().join("notes/a.note");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let error = documents.get::<String>("a").await.unwrap_err();
    assert!(matches!(&error, Error::Corrupt { file, .. } if file.ends_with("notes/a.note")), "{error}");

    let error = documents.put("b", &"x".repeat(100)).await.unwrap_err();
    assert!(matches!(&error, Error::Limit { limit: 100, .. }), "{error}");
    std::fs::write(&file, vec![b' '; 101]).unwrap();
    assert!(matches!(documents.get::<String>("a").await, Err(Error::Limit { found: 101, .. })));
}

#[tokio::test]
async fn an_invalid_name_never_reaches_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let documents = documents(folder.path(), 100);
    for name in ["", "..", "../a", "a/b", "a.b"] {
        assert!(matches!(documents.put(name, &1).await, Err(Error::Invalid { .. })), "{name}");
        assert_eq!(documents.get::<u32>(name).await.unwrap(), None, "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
