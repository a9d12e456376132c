use std::sync::Arc;

use object_store::ObjectStoreExt;

use super::*;
use crate::{Config, Error, Location, State};

#[test]
fn an_object_is_on_disk_before_it_has_its_name_and_its_name_before_the_write_returns() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("some/folder/a.job");
    for (content, mode) in [("old", PutMode::Create), ("new one", PutMode::Overwrite)] {
        let before = fs::read(&path).ok();
        let mut steps = Vec::new();
        let observe = |step| {
            let named = fs::read(&path).ok();
            match step {
                Step::Content => assert_eq!(named, before),
                Step::Name | Step::Folder => assert_eq!(named.unwrap(), content.as_bytes()),
            }
            steps.push(step);
        };
        write(&path, content.as_bytes(), &mode, observe).unwrap();
        assert_eq!(steps, [Step::Content, Step::Name, Step::Folder]);
    }
    let names: Vec<_> =
        fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names, [path]);
}

#[test]
fn a_write_that_may_not_replace_keeps_the_object_and_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.manifest");
    write(&path, b"first", &PutMode::Create, |_| {}).unwrap();
    let error = write(&path, b"second", &PutMode::Create, |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"first");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn a_file_system_without_hard_links_creates_objects_and_keeps_existing_ones() {
    let unsupported: fn(&FilePath, &FilePath) -> io::Result<()> =
        |_, _| Err(io::Error::from_raw_os_error(95));
    let directory = tempfile::tempdir().unwrap();
    for missing in 0..NAMES.len() {
        let mut ways = NAMES;
        ways[..missing].fill(unsupported);
        let (from, to) = (directory.path().join("from"), directory.path().join(format!("{missing}.job")));
        fs::write(&from, b"first").unwrap();
        create_name(&ways, &from, &to).unwrap();
        // A linked file still has its first name.
        fs::remove_file(&from).ok();
        fs::write(&from, b"second").unwrap();
        let error = create_name(&ways, &from, &to).unwrap_err();
        assert_eq!((error.kind(), fs::read(&to).unwrap()), (ErrorKind::AlreadyExists, b"first".to_vec()));
    }
    let error = create_name(&[unsupported], FilePath::new("a"), FilePath::new("b")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(95));
}

#[tokio::test]
async fn old_files_of_interrupted_writes_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let state = state(directory.path(), &Config::default());
    let documents = state.documents("notes", "note", 1000);
    let hour = Duration::from_secs(3600);
    documents.remove_interrupted(hour).await.unwrap();
    documents.put("a", &1).await.unwrap();
    let path = directory.path().join("notes/a.note");
    let (old, old_name) = temporary_file(&path).unwrap();
    let (_, new_name) = temporary_file(&path).unwrap();
    let two_hours_ago = SystemTime::now().checked_sub(hour * 2).unwrap();
    old.set_modified(two_hours_ago).unwrap();
    // Not of an interrupted write.
    let others = ["a#1.note", "b.note#", "c#x"].map(|name| path.with_file_name(name));
    for other in others.iter().chain([&path]) {
        File::create(other).unwrap().set_modified(two_hours_ago).unwrap();
    }
    documents.remove_interrupted(hour).await.unwrap();
    assert!(!old_name.exists());
    assert!(others.iter().chain([&new_name, &path]).all(|file| file.exists()));
}

#[test]
fn a_file_that_cannot_be_removed_does_not_keep_others_from_being_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.note");
    let files: Vec<_> = (0..8).map(|_| temporary_file(&path).unwrap().1).collect();
    let now = SystemTime::now() + Duration::from_secs(60);
    let remove = |file: &FilePath| match file == files[2] || file == files[5] {
        true => Err(io::Error::from_raw_os_error(1)),
        false => fs::remove_file(file),
    };
    let error = remove_temporary(directory.path(), now, remove).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let message = error.to_string();
    assert!(
        [2, 5].iter().any(|number: &usize| message.contains(&*files[*number].to_string_lossy())),
        "{message}"
    );
    let kept: Vec<_> = files.iter().filter(|file| file.exists()).collect();
    assert_eq!(kept, [&files[2], &files[5]]);
}

#[tokio::test]
async fn a_state_that_is_no_folder_is_unavailable_and_not_a_missing_dataset() {
    let directory = tempfile::tempdir().unwrap();
    let (file, of_loop) = (directory.path().join("file"), directory.path().join("loop"));
    File::create(&file).unwrap();
    std::os::unix::fs::symlink(&of_loop, &of_loop).unwrap();
    for path in [file, of_loop] {
        let documents = state(&path, &Config::default()).documents("notes", "note", 1000);
        let read = documents.get::<u64>("a").await.unwrap_err();
        let written = documents.put("a", &1).await.unwrap_err();
        for error in [read, written] {
            let is_unavailable = matches!(error, Error::Unavailable { .. });
            let expected = format!("the state at {} cannot be used", path.display());
            assert!(is_unavailable && error.to_string().contains(&expected), "{error}");
        }
    }
}

#[tokio::test]
async fn files_that_an_interrupted_write_left_are_not_listed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes/a.note");
    create_folders(path.parent().unwrap()).unwrap();
    drop(temporary_file(&path).unwrap());
    let state = state(directory.path(), &Config::default());
    let documents = state.documents("notes", "note", 1000);
    documents.put("a", &1).await.unwrap();
    let names: Vec<String> = documents.list().await.unwrap().into_iter().map(|meta| meta.name).collect();
    assert_eq!(names, ["a"]);
    assert_eq!(documents.get("a").await.unwrap(), Some(1));
}

fn state(directory: &FilePath, config: &Config) -> State {
    State::open(Location::parse(&directory.to_string_lossy(), config).unwrap(), None, config)
}

/// Replaces `path` by a named pipe. Opening a pipe that has no writer hangs.
#[cfg(unix)]
fn replace_by_pipe(path: &FilePath) {
    drop(fs::remove_file(path));
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[cfg(unix)]
#[tokio::test]
async fn requests_to_a_folder_that_hangs_end_and_take_a_limited_number_of_threads() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        request_timeout: Duration::from_millis(200),
        concurrent_local_reads: 2,
        ..Config::default()
    };
    let patient = Config { concurrent_local_reads: 2, ..Config::default() };
    let documents = state(directory.path(), &patient).documents("notes", "note", 1000);
    documents.put("a", &1).await.unwrap();
    documents.put("b", &2).await.unwrap();
    let documents = state(directory.path(), &config).documents("notes", "note", 1000);
    let pipe = directory.path().join("notes/a.note");
    replace_by_pipe(&pipe);
    for attempt in 0..3 {
        let Err(Error::Unavailable { source, .. }) = documents.get::<i32>("a").await else { panic!() };
        let expected =
            if attempt < 2 { "did not answer within" } else { "all requests to the folder are busy" };
        let source = source.to_string();
        assert!(source.contains(expected), "{attempt}: {source}");
    }
    // Other locations have their own permits.
    let other = tempfile::tempdir().unwrap();
    let other = state(other.path(), &patient).documents("notes", "note", 1000);
    other.put("b", &2).await.unwrap();
    assert_eq!(other.get("b").await.unwrap(), Some(2));
    // Once the disk answers, its permits are free again. A pipe that is open for both has a writer. It stays open, because an open
    // that has not begun yet would hang, and keep the test from ending.
    std::mem::forget(OpenOptions::new().read(true).write(true).open(&pipe).unwrap());
    let recovered = async { while documents.get::<i32>("b").await.is_err() {} };
    timeout(Duration::from_secs(60), recovered).await.expect("the folder answers again");
}

#[tokio::test]
async fn an_object_that_does_not_exist_is_not_found_whatever_the_request() {
    let directory = tempfile::tempdir().unwrap();
    let location = Location::parse(&directory.path().to_string_lossy(), &Config::default()).unwrap();
    let reads = location.local_reads().unwrap();
    let store = Arc::clone(location.store());
    let path = location.child("missing").unwrap().0;
    let found = in_time(reads, 0, async move { store.head(&path).await }).await;
    assert!(matches!(found, Err(object_store::Error::NotFound { .. })), "{found:?}");
}
