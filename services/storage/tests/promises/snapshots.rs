//! Snapshots survive restarts, and a file that changed since the snapshot is never read.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{
    os::unix::fs::MetadataExt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use arrow_array::{Array, cast::AsArray, types::Int32Type};
use forebay_storage::{Error, Location, Reader, Snapshot, load_snapshot};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::common::{Fixture, http, parquet_bytes, read_all, rows, store::TestStore};

struct Remote {
    fixture: Fixture,
    store: Arc<TestStore>,
    location: Location,
}

impl Remote {
    async fn new() -> Self {
        let store = TestStore::with(&[("d/a.parquet", &parquet_bytes(&rows([1, 2]), None))]).await;
        let location = Location::with_store("mem://d", Arc::clone(&store) as _, "d");
        Self { fixture: Fixture::new(), store, location }
    }

    async fn take(&self) -> Arc<Snapshot> {
        self.fixture.take_at(&self.location).await.unwrap()
    }

    fn reader(&self, snapshot: &Arc<Snapshot>) -> Reader {
        let config = self.fixture.config.clone();
        Reader::new(Arc::clone(snapshot), self.location.clone(), &self.fixture.state, config)
    }
}

#[tokio::test]
async fn the_id_depends_on_the_files_and_their_versions() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    let first = fixture.take().await.unwrap();
    assert_eq!(first.id().len(), 32);
    assert_eq!(fixture.take().await.unwrap().id(), first.id());

    fixture.write("b.parquet", &rows([2]));
    let grown = fixture.take().await.unwrap();
    assert_ne!(grown.id(), first.id());

    std::fs::remove_file(fixture.data().join("b.parquet")).unwrap();
    assert_eq!(fixture.take().await.unwrap().id(), first.id());
    touch(&fixture, "a.parquet");
    assert_ne!(fixture.take().await.unwrap().id(), first.id());
}

fn touch(fixture: &Fixture, path: &str) {
    let file = std::fs::File::options().write(true).open(fixture.data().join(path)).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(1)).unwrap();
}

#[tokio::test]
async fn a_snapshot_survives_a_restart_and_new_files() {
    let mut fixture = Fixture::new();
    fixture.write("k=1/a.parquet", &rows([1, 2]));
    let taken = fixture.take().await.unwrap();
    fixture.write("k=2/b.parquet", &rows([3]));
    fixture.restart();

    let loaded = load_snapshot("test", taken.id(), &fixture.state).await.unwrap();
    assert_eq!(loaded.id(), taken.id());
    assert_eq!(loaded.schema(), taken.schema());
    assert_eq!(loaded.files(), taken.files());
    assert_eq!(loaded.blocks(), taken.blocks());
    assert_eq!(loaded.nulls(0), taken.nulls(0));
    assert_eq!(loaded.uncompressed_bytes(), taken.uncompressed_bytes());
    assert_eq!(read_all(&fixture.reader(&Arc::new(loaded))).await.unwrap().num_rows(), 2);
}

#[tokio::test]
async fn unknown_ids_and_damaged_manifests_are_different_errors() {
    let fixture = Fixture::new();
    for id in ["0123456789abcdef0123456789abcdef", "../../etc/passwd", "", "0123456789ABCDEF0123456789ABCDEF"]
    {
        let error = load_snapshot("test", id, &fixture.state).await.unwrap_err();
        assert!(matches!(&error, Error::UnknownSnapshot { dataset, .. } if dataset == "test"), "{error}");
    }
}

#[tokio::test]
async fn a_damaged_manifest_cannot_be_loaded_and_is_rebuilt_from_the_files() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    let snapshot = fixture.take().await.unwrap();
    let path = fixture.manifests().join(format!("{}.manifest", snapshot.id()));
    let sound = std::fs::read(&path).unwrap();

    let mut flipped = sound.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let future = String::from_utf8(sound.clone()).unwrap().replacen("manifest 1 ", "manifest 2 ", 1);
    for damaged in [&flipped[..], &sound[..sound.len() / 2], b"", b"{}", future.as_bytes()] {
        std::fs::write(&path, damaged).unwrap();
        let error = load_snapshot("test", snapshot.id(), &fixture.state).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");

        assert_eq!(fixture.take().await.unwrap().id(), snapshot.id());
        assert_eq!(std::fs::read(&path).unwrap(), sound);
    }
}

#[tokio::test]
async fn a_manifest_with_another_id_is_corrupt() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    let snapshot = fixture.take().await.unwrap();
    let other = "0123456789abcdef0123456789abcdef";
    let path = |id| fixture.manifests().join(format!("{id}.manifest"));
    std::fs::copy(path(snapshot.id()), path(other)).unwrap();
    assert!(matches!(load_snapshot("test", other, &fixture.state).await, Err(Error::Corrupt { .. })));
}

#[tokio::test]
async fn unchanged_files_are_pinned_without_reading_them() {
    let mut remote = Remote::new().await;
    remote.take().await;
    remote.fixture.restart();
    let before = remote.store.reads();
    remote.take().await;
    // The one read checks whether the location itself is an object.
    assert_eq!(remote.store.reads() - before, 1);
}

#[tokio::test]
async fn cached_footers_are_read_from_disk() {
    let mut remote = Remote::new().await;
    let snapshot = remote.take().await;
    for file in std::fs::read_dir(remote.fixture.manifests()).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    remote.fixture.restart();
    let before = remote.store.reads();
    assert_eq!(remote.take().await.id(), snapshot.id());
    assert_eq!(remote.store.reads() - before, 1);

    let before = remote.store.reads();
    read_all(&remote.reader(&snapshot)).await.unwrap();
    assert_eq!(remote.store.reads() - before, 1, "one coalesced read of both columns");
}

#[tokio::test]
async fn a_refresh_after_files_were_added_reads_only_their_footers_and_gives_the_same_snapshot() {
    let mut fixture = Fixture::new();
    for (name, value) in [("b", 2), ("d", 4), ("f", 6)] {
        fixture.write(&format!("{name}.parquet"), &rows([value]));
    }
    let before = fixture.take().await.unwrap();
    for (name, value) in [("c", 3), ("e", 5), ("g", 7)] {
        fixture.write(&format!("{name}.parquet"), &rows([value]));
    }
    // A file that was not changed is not read, so it can be damaged.
    let place = fixture.data().join("d.parquet");
    let (sound, modified) =
        (std::fs::read(&place).unwrap(), std::fs::metadata(&place).unwrap().modified().unwrap());
    let damage = |bytes: &[u8]| {
        std::fs::write(&place, bytes).unwrap();
        std::fs::File::options().write(true).open(&place).unwrap().set_modified(modified).unwrap();
    };
    damage(&vec![0; sound.len()]);
    std::fs::remove_dir_all(fixture.directory.path().join("footers")).unwrap();
    fixture.restart();
    let refreshed = fixture.refresh(&before).await.unwrap();
    damage(&sound);
    for manifest in std::fs::read_dir(fixture.manifests()).unwrap() {
        std::fs::remove_file(manifest.unwrap().path()).unwrap();
    }
    fixture.restart();
    let whole = fixture.take().await.unwrap();
    assert_eq!(format!("{refreshed:?}"), format!("{whole:?}"));
    assert_eq!(whole.rows(), 6);
    // After a file was removed, or the first one changed, everything is read.
    std::fs::remove_file(fixture.data().join("b.parquet")).unwrap();
    let rest = fixture.refresh(&whole).await.unwrap();
    assert_eq!((rest.rows(), rest.files()[0].path.as_str()), (5, "c.parquet"));
}

#[tokio::test]
async fn damaged_footers_on_disk_are_replaced() {
    let mut fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    let snapshot = fixture.take().await.unwrap();
    let footers = fixture.directory.path().join("footers");
    let folder = std::fs::read_dir(&footers).unwrap().next().unwrap().unwrap().path();
    let path = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let sound = std::fs::read(&path).unwrap();
    for damaged in [&sound[..sound.len() - 1], b"", b"foreign"] {
        std::fs::write(&path, damaged).unwrap();
        fixture.restart();
        assert_eq!(read_all(&fixture.reader(&snapshot)).await.unwrap().num_rows(), 1);
        assert_eq!(std::fs::read(&path).unwrap(), sound);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn footers_on_a_disk_that_hangs_are_read_from_their_files() {
    let mut fixture = Fixture::new();
    for number in 0..20 {
        fixture.write(&format!("{number}.parquet"), &rows([number]));
    }
    let snapshot = fixture.take().await.unwrap();
    // Opening a named pipe that has no writer hangs.
    let folders = std::fs::read_dir(fixture.directory.path().join("footers")).unwrap();
    let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    let pipes: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    assert_eq!(pipes.len(), 20);
    for pipe in &pipes {
        std::fs::remove_file(pipe).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    fixture.config.request_timeout = Duration::from_secs(2);
    fixture.restart();
    fixture.config.request_timeout = Duration::from_secs(60);
    let reader = fixture.reader(&snapshot);
    let read = tokio::time::timeout(Duration::from_secs(60), read_all(&reader)).await;
    assert_eq!(read.expect("a miss after the timeout").unwrap().num_rows(), 20);
    // Hanging threads would keep the test from ending. Opening a pipe here releases a thread that waits for it. The pipe is then
    // removed, so a thread that has not opened it yet fails instead of hanging.
    for pipe in &pipes {
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(pipe).unwrap();
        std::fs::remove_file(pipe).unwrap();
        drop(opened);
    }
}

#[tokio::test]
async fn datasets_are_read_without_a_footer_cache_on_disk() {
    let mut fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    // A file in place of the folder, so that no footer can be written.
    std::fs::write(fixture.directory.path().join("footers"), b"").unwrap();
    fixture.restart();
    assert_eq!(fixture.read().await.unwrap().num_rows(), 1);
}

#[tokio::test]
async fn datasets_are_read_without_a_footer_cache_in_memory() {
    let mut fixture = Fixture::new();
    fixture.config.footer_memory_bytes = 0;
    fixture.restart();
    for name in 0..5 {
        fixture.write(&format!("{name}.parquet"), &rows([name]));
    }
    assert_eq!(fixture.read().await.unwrap().num_rows(), 5);
}

#[tokio::test]
async fn concurrent_readers_share_one_read_of_a_footer() {
    let mut remote = Remote::new().await;
    let snapshot = remote.take().await;
    std::fs::remove_dir_all(remote.fixture.directory.path().join("footers")).unwrap();
    remote.fixture.restart();
    let reader = remote.reader(&snapshot);
    let before = remote.store.reads();
    let fetches = (0..20).map(|_| reader.fetch(0, &[0]));
    futures::future::try_join_all(fetches).await.unwrap();
    assert_eq!(remote.store.reads() - before, 21);
}

fn is_changed(outcome: Result<impl Sized, Error>) -> bool {
    matches!(outcome, Err(Error::Changed { file, .. }) if file.ends_with("/a.parquet"))
}

#[tokio::test]
async fn a_local_file_that_was_rewritten_touched_or_deleted_has_changed() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1, 2]));
    let snapshot = fixture.take().await.unwrap();
    let reader = fixture.reader(&snapshot);

    touch(&fixture, "a.parquet");
    assert!(is_changed(read_all(&reader).await));
    fixture.write("a.parquet", &rows(0..1000));
    assert!(is_changed(read_all(&reader).await));
    std::fs::remove_file(fixture.data().join("a.parquet")).unwrap();
    assert!(is_changed(read_all(&reader).await));
}

#[tokio::test]
async fn a_file_that_shrank_has_changed() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows((0..100_000).map(|row: i32| row.wrapping_mul(0x9e37_79b1_u32 as i32))));
    let snapshot = fixture.take().await.unwrap();
    let last = snapshot.files()[0].size() - 1;
    // Shorter than the offset of the footer and, once the footer is cached, than that of the first page.
    for length in [last, 10_000, 1, 0] {
        let file = std::fs::File::options().write(true).open(fixture.data().join("a.parquet")).unwrap();
        file.set_len(length).unwrap();
        assert!(is_changed(read_all(&fixture.reader(&snapshot)).await), "{length}");
    }
}

#[tokio::test]
async fn a_remote_file_that_was_replaced_or_deleted_has_changed() {
    let remote = Remote::new().await;
    let snapshot = remote.take().await;
    let reader = remote.reader(&snapshot);
    // The same bytes get a new ETag when they are written again.
    remote.store.write("d/a.parquet", &parquet_bytes(&rows([1, 2]), None)).await;
    assert!(is_changed(read_all(&reader).await));

    let current = remote.take().await;
    assert_ne!(current.id(), snapshot.id());
    assert_eq!(read_all(&remote.reader(&current)).await.unwrap().num_rows(), 2);

    use object_store::ObjectStoreExt;
    remote.store.inner.delete(&"d/a.parquet".into()).await.unwrap();
    assert!(is_changed(read_all(&remote.reader(&current)).await));
}

#[tokio::test]
async fn a_file_with_a_weak_etag_or_none_is_still_pinned() {
    for none in [false, true] {
        let remote = Remote::new().await;
        remote.store.weak.store(true, Ordering::SeqCst);
        remote.store.without_etags.store(none, Ordering::SeqCst);
        let snapshot = remote.take().await;
        let reader = remote.reader(&snapshot);
        assert_eq!(read_all(&reader).await.unwrap().num_rows(), 2);
        remote.store.write("d/a.parquet", &parquet_bytes(&rows(0..1000), None)).await;
        assert!(is_changed(read_all(&reader).await));
    }
}

#[tokio::test]
async fn a_store_whose_listings_have_no_etags_can_be_read() {
    let remote = Remote::new().await;
    remote.store.listed_without_etags.store(true, Ordering::SeqCst);
    let snapshot = remote.take().await;
    let reader = remote.reader(&snapshot);
    assert_eq!(read_all(&reader).await.unwrap().num_rows(), 2);
    // The file is pinned by size and modification time.
    remote.store.write("d/a.parquet", &parquet_bytes(&rows(0..1000), None)).await;
    assert!(is_changed(read_all(&reader).await));
}

#[tokio::test]
async fn a_store_that_is_down_is_unavailable_and_recovers() {
    let remote = Remote::new().await;
    let snapshot = remote.take().await;
    let reader = remote.reader(&snapshot);
    remote.store.down.store(true, Ordering::SeqCst);
    let error = read_all(&reader).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("the store is down"), "{error}");
    assert!(matches!(remote.fixture.take_at(&remote.location).await, Err(Error::Unavailable { .. })));
    remote.store.down.store(false, Ordering::SeqCst);
    assert_eq!(read_all(&reader).await.unwrap().num_rows(), 2);
}

#[tokio::test]
async fn long_column_chunks_are_read_in_parts() {
    let mut remote = Remote::new().await;
    remote.store.write("d/a.parquet", &parquet_bytes(&rows(0..10_000), None)).await;
    remote.fixture.config.max_request_bytes = 1000;
    let snapshot = remote.take().await;
    let before = remote.store.reads();
    let read = read_all(&remote.reader(&snapshot)).await.unwrap();
    assert!(remote.store.reads() - before > 10);
    assert_eq!(read.column(0).as_primitive::<Int32Type>().values(), &(0..10_000).collect::<Vec<_>>()[..]);
}

#[tokio::test]
async fn a_fetch_can_be_cancelled_at_any_time() {
    let remote = Remote::new().await;
    let snapshot = remote.take().await;
    let reader = remote.reader(&snapshot);
    for polls in 0..5 {
        let mut fetch = Box::pin(reader.fetch(0, &[0]));
        for _ in 0..polls {
            if futures::poll!(&mut fetch).is_ready() {
                break;
            }
        }
    }
    assert_eq!(read_all(&reader).await.unwrap().num_rows(), 2);
}

#[tokio::test]
async fn a_file_is_read_over_http() {
    let fixture = Fixture::new();
    let server = http::serve(parquet_bytes(&rows(0..100), None)).await;
    let location = Location::parse(&server.url("data%20set.parquet"), &fixture.config).unwrap();
    let snapshot = fixture.take_at(&location).await.unwrap();
    assert_eq!(snapshot.files()[0].path, "data set.parquet");
    let reader = Reader::new(snapshot, location, &fixture.state, fixture.config.clone());
    assert_eq!(read_all(&reader).await.unwrap().column(0).len(), 100);

    server.replace(parquet_bytes(&rows(0..101), None));
    assert!(matches!(read_all(&reader).await, Err(Error::Changed { .. })));

    let missing = Location::parse(&server.url("missing"), &fixture.config).unwrap();
    assert!(matches!(fixture.take_at(&missing).await, Err(Error::NotFound { .. })));
}

/// Serves a file over HTTP like `server`, but with `header` in place of the ETag. Conditions of requests are ignored.
async fn without_etag(server: http::Server, header: Arc<Mutex<String>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/a.parquet", listener.local_addr().unwrap());
    let upstream = server.url("").replace("http://", "").replace('/', "");
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let (upstream, header) = (upstream.clone(), Arc::clone(&header));
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    if connection.read_buf(&mut request).await.unwrap() == 0 {
                        return;
                    }
                }
                let mut forwarded = TcpStream::connect(&upstream).await.unwrap();
                forwarded.write_all(&request).await.unwrap();
                let mut response = Vec::new();
                forwarded.read_to_end(&mut response).await.unwrap();

                let etag = response.windows(6).position(|window| window == b"etag: ").unwrap();
                let end = etag + response[etag..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
                response.splice(etag..end, header.lock().bytes());
                connection.write_all(&response).await.unwrap();
            });
        }
    });
    url
}

#[tokio::test]
async fn a_file_over_http_without_etag_and_modification_time_is_rejected() {
    let fixture = Fixture::new();
    let server = http::serve(parquet_bytes(&rows([1, 2]), None)).await;
    let url = without_etag(server, Arc::default()).await;
    let location = Location::parse(&url, &fixture.config).unwrap();
    let error = fixture.take_at(&location).await.unwrap_err();
    assert!(matches!(&error, Error::Unsupported { location, .. } if *location == url), "{error}");
    assert!(error.to_string().contains("expected one of them"), "{error}");
}

#[tokio::test]
async fn a_file_over_http_without_etag_is_pinned_by_its_modification_time() {
    let fixture = Fixture::new();
    let modified = |second| format!("last-modified: Mon, 02 Jun 2025 10:00:0{second} GMT\r\n");
    let header = Arc::new(Mutex::new(modified(1)));
    let server = http::serve(parquet_bytes(&rows([1, 2]), None)).await;
    let url = without_etag(server, Arc::clone(&header)).await;
    let location = Location::parse(&url, &fixture.config).unwrap();
    let snapshot = fixture.take_at(&location).await.unwrap();
    let reader = Reader::new(snapshot, location, &fixture.state, fixture.config.clone());
    assert_eq!(read_all(&reader).await.unwrap().num_rows(), 2);

    // The size stays the same. The file may become older, too: a copy that replaces it keeps its date.
    for other in [modified(2), modified(0), String::new()] {
        *header.lock() = other;
        assert!(is_changed(read_all(&reader).await), "{}", header.lock());
    }
    *header.lock() = modified(1);
    assert_eq!(read_all(&reader).await.unwrap().num_rows(), 2);
}

#[tokio::test]
async fn the_oldest_counts_of_a_dataset_are_removed_and_manifests_stay() {
    let mut fixture = Fixture::new();
    fixture.config.max_counts = 16;
    fixture.restart();
    fixture.write("a.parquet", &rows([1]));
    let snapshot = fixture.take().await.unwrap();
    let stored = || {
        let names = std::fs::read_dir(fixture.manifests()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let (counts, others): (Vec<_>, Vec<_>) = names.partition(|name| name.ends_with(".counts"));
        (counts.len(), others.len())
    };
    for selection in 0..40_u32 {
        fixture.state.save_counts("test", &snapshot, selection.into(), Arc::new([selection])).await.unwrap();
        let bounded = async {
            while stored().0 > 16 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), bounded).await.expect("old counts are removed");
        // The clock of the file system may be as coarse as several milliseconds.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(stored(), (16, 1));
    let load = |selection: u32| {
        let (state, snapshot) = (fixture.state.clone(), Arc::clone(&snapshot));
        async move { state.load_counts::<[u32; 1]>("test", &snapshot, selection.into()).await.unwrap() }
    };
    assert_eq!((load(39).await, load(0).await), (Some([39]), None));
}

#[tokio::test]
async fn a_state_that_is_no_folder_anymore_is_unavailable_for_snapshots_and_counts() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    let snapshot = fixture.take().await.unwrap();
    let state = fixture.directory.path().join("state");
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::write(&state, "").unwrap();
    for error in [
        fixture.refresh(&snapshot).await.unwrap_err(),
        load_snapshot("test", snapshot.id(), &fixture.state).await.unwrap_err(),
        fixture.state.load_counts::<u32>("test", &snapshot, 1).await.unwrap_err(),
        fixture.state.save_counts("test", &snapshot, 1, Arc::new(1)).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        let expected = format!("the state at {} cannot be used", state.display());
        assert!(error.to_string().contains(&expected), "{error}");
    }
}

/// Replaces `a.parquet` by another file with the same size and modification time.
fn replace_unnoticeably(fixture: &Fixture, values: [i32; 3], in_place: bool) {
    let path = fixture.data().join("a.parquet");
    let before = std::fs::metadata(&path).unwrap();
    let other = if in_place { path.clone() } else { fixture.directory.path().join("other") };
    let changed = |path: &std::path::Path| {
        let found = std::fs::metadata(path).unwrap();
        (found.ctime(), found.ctime_nsec())
    };
    // The clock of the file system may be as coarse as several milliseconds.
    loop {
        std::fs::write(&other, parquet_bytes(&rows(values), None)).unwrap();
        let file = std::fs::File::options().write(true).open(&other).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        if changed(&other) != (before.ctime(), before.ctime_nsec()) {
            break;
        }
    }
    if !in_place {
        std::fs::rename(&other, &path).unwrap();
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), before.len());
}

#[tokio::test]
async fn a_local_file_that_is_replaced_at_equal_size_and_time_is_never_mixed_with_its_predecessor() {
    for in_place in [false, true] {
        let fixture = Fixture::new();
        fixture.write("a.parquet", &rows([1, 2, 3]));
        let before = fixture.take().await.unwrap();
        let reader = fixture.reader(&before);
        assert_eq!(read_all(&reader).await.unwrap(), rows([1, 2, 3]));
        assert!(reader.reads_current_files().await);

        replace_unnoticeably(&fixture, [4, 5, 6], in_place);
        let after = fixture.take().await.unwrap();
        assert_eq!(after.id(), before.id(), "a snapshot does not record inodes");
        let error = read_all(&reader).await.unwrap_err();
        let expected =
            if in_place { "a file that was written or whose mode" } else { "a file that replaced it" };
        assert!(matches!(&error, Error::Changed { found, .. } if found.contains(expected)), "{error}");
        assert!(!reader.reads_current_files().await);

        let current = fixture.reader(&after);
        assert_eq!(read_all(&current).await.unwrap(), rows([4, 5, 6]));
        assert_ne!(
            current.block_ids().id(0),
            reader.block_ids().id(0),
            "what is cached of one is not used for the other"
        );
    }
}
