//! Names of files and folders: which files are skipped, and what is said of them.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, os::unix::fs::symlink};

use forebay_storage::{Error, Location};

use crate::common::{Fixture, parquet_bytes, rows};

/// Writes a file whose name need not be UTF-8.
fn write_raw(fixture: &Fixture, name: &[u8], bytes: &[u8]) {
    fs::write(fixture.data().join(OsStr::from_bytes(name)), bytes).unwrap();
}

#[tokio::test]
async fn other_files_with_unusual_names_are_skipped() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    for name in [&b"Icon\r"[..], b"x\ty.txt", b"\xff.txt", b"_\x01.parquet"] {
        write_raw(&fixture, name, b"not Parquet");
    }
    assert_eq!(fixture.take().await.unwrap().rows(), 1);
}

#[tokio::test]
async fn a_parquet_file_with_an_unusual_name_is_an_error_with_its_escaped_name() {
    let file = parquet_bytes(&rows([1]), None);
    for (name, shown) in [
        (&b"x\ty.parquet"[..], "x\\ty.parquet"),
        (b"caf\xe9.parquet", "caf\\xe9.parquet"),
        (b"\x1b[31m.PARQUET", "\\u{1b}[31m.PARQUET"),
    ] {
        let fixture = Fixture::new();
        fixture.write("a.parquet", &rows([1]));
        write_raw(&fixture, name, &file);
        let error = fixture.take().await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(shown) && !text.contains(char::is_control), "{text:?}");
    }
}

#[tokio::test]
async fn a_table_in_a_folder_with_an_unusual_name_is_rejected() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    fixture.write_bytes("x\ty/_delta_log/0.json", b"{}");
    let text = fixture.take().await.unwrap_err().to_string();
    assert!(text.contains("x\\ty is a Delta Lake table"), "{text}");
}

#[tokio::test]
async fn links_that_lead_in_a_circle_or_nowhere_are_skipped() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    fixture.write("b/c.parquet", &rows([2]));
    symlink(fixture.data(), fixture.data().join("b/up")).unwrap();
    symlink("itself", fixture.data().join("itself")).unwrap();
    symlink("missing.parquet", fixture.data().join("dangling.parquet")).unwrap();
    let snapshot = fixture.take().await.unwrap();
    let paths: Vec<&str> = snapshot.files().iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["a.parquet", "b/c.parquet"]);
}

#[tokio::test]
async fn linked_files_and_folders_are_read() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    let other = fixture.directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::copy(fixture.data().join("a.parquet"), other.join("b.parquet")).unwrap();
    symlink(&other, fixture.data().join("folder")).unwrap();
    symlink(other.join("b.parquet"), fixture.data().join("c.parquet")).unwrap();
    let snapshot = fixture.take().await.unwrap();
    let paths: Vec<&str> = snapshot.files().iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["a.parquet", "c.parquet", "folder/b.parquet"]);
}

#[tokio::test]
async fn the_extension_counts_in_upper_and_lower_case() {
    let fixture = Fixture::new();
    for path in ["A.PARQUET", "b.Parquet", "k.parquet"] {
        fixture.write(path, &rows([1]));
    }
    fixture.write_bytes("parquet", b"not Parquet");
    assert_eq!(fixture.take().await.unwrap().rows(), 3);
}

#[tokio::test]
async fn files_that_are_skipped_because_of_their_names_are_named_if_there_are_no_others() {
    let fixture = Fixture::new();
    for path in ["d.pq", "c", "b.parq", "x/e.parquet.gz", "_f.parquet", ".git/g"] {
        fixture.write(path, &rows([1]));
    }
    let error = fixture.take().await.unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    let text = error.to_string();
    let expected = "skipped because their names do not end in .parquet: b.parq, c, d.pq and 1 more; or begin with _ or .: \
                    .git/g, _f.parquet";
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("globs"), "{text}");
}

#[tokio::test]
async fn a_glob_is_not_found_and_the_error_says_that_globs_are_not_supported() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    for glob in ["*.parquet", "a?parquet", "[ab].parquet", "{a,b}.parquet"] {
        let url = fixture.data().join(glob);
        let location = Location::parse(url.to_str().unwrap(), &fixture.config).unwrap();
        let error = fixture.take_at(&location).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
        assert!(error.to_string().contains("globs are not supported"), "{error}");
    }
    // A file can have such a name.
    fixture.write("[a]*.parquet", &rows([1]));
    let location = fixture.data().join("[a]*.parquet");
    let location = Location::parse(location.to_str().unwrap(), &fixture.config).unwrap();
    assert_eq!(fixture.take_at(&location).await.unwrap().rows(), 1);
}

#[tokio::test]
async fn a_socket_or_a_device_is_refused_without_waiting_for_it() {
    let fixture = Fixture::new();
    let socket = fixture.data().join("rows.parquet");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [socket.to_str().unwrap(), "/dev/null"] {
        let location = Location::parse(path, &fixture.config).unwrap();
        let error = fixture.take_at(&location).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("expected a file or a folder"), "{error}");
    }
}
