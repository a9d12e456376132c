//! Corrupt, not supported and unavailable are three different things: whether to restore a file, to convert it, or to try again.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::{path::Path, sync::atomic::Ordering};

use forebay_storage::{Error, Location, load_snapshot};
use parquet::file::metadata::{ColumnChunkMetaData, ColumnChunkMetaDataBuilder, RowGroupMetaDataBuilder};

use crate::{
    common::{Fixture, batch, http, integers, parquet_bytes, rows, store::TestStore, strings},
    datasets::with_footer,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Corrupt,
    Unsupported,
    Unavailable,
}

use Kind::{Corrupt, Unavailable, Unsupported};

#[track_caller]
fn check(error: &Error, kind: Kind, message: &str) {
    let found = match error {
        Error::Corrupt { .. } => Corrupt,
        Error::Unsupported { .. } => Unsupported,
        Error::Unavailable { .. } => Unavailable,
        other => panic!("{other:?}"),
    };
    let text = error.to_string();
    assert!(found == kind && text.contains(message), "{found:?}, expected {kind:?} with {message:?}: {text}");
}

/// Takes a snapshot of a dataset of one file and reads it.
async fn check_file(path: &str, bytes: &[u8], kind: Kind, message: &str) {
    let fixture = Fixture::new();
    fixture.write_bytes(path, bytes);
    let error = fixture.read().await.unwrap_err();
    check(&error, kind, message);
    assert!(error.to_string().contains(path), "the file is named: {error}");
}

fn sample() -> Vec<u8> {
    parquet_bytes(&batch([("x", integers([1, 2, 3, 4])), ("s", strings(["a", "b", "c", "d"]))]), None)
}

/// The sample with another footer length and magic at its end.
fn ending_in(length: u32, magic: [u8; 4]) -> Vec<u8> {
    let file = sample();
    [&file[..file.len() - 8], &length.to_le_bytes(), &magic].concat()
}

#[tokio::test]
async fn trailers_and_schemas() {
    let twice = {
        let mut file = parquet_bytes(&batch([("one", integers([1])), ("two", integers([2]))]), None);
        let places: Vec<usize> = (0..file.len() - 3).filter(|at| file[*at..].starts_with(b"two")).collect();
        places.iter().for_each(|at| file[*at..*at + 3].copy_from_slice(b"one"));
        file
    };
    // Version 1, a schema of a root without columns, no rows, no row groups.
    let footer = [0x15, 2, 0x19, 0x1c, 0x48, 1, b'm', 0x15, 0, 0, 0x16, 0, 0x19, 0x0c, 0];
    let empty = [&b"PAR1"[..], &footer, &(footer.len() as u32).to_le_bytes(), b"PAR1"].concat();
    for (path, bytes, kind, message) in [
        ("a.parquet", Vec::new(), Corrupt, "the file is empty"),
        ("a.parquet", b"PAR1PAR1".to_vec(), Corrupt, "8 bytes are too few for a Parquet file"),
        (
            "a.parquet",
            ending_in(1 << 20, *b"PAR1"),
            Corrupt,
            "the footer claims 1048576 bytes, but the file has",
        ),
        ("a.parquet", ending_in(9, *b"PAR2"), Corrupt, "the file ends in \"PAR2\", expected \"PAR1\""),
        ("a.parquet", ending_in(9, *b"PAR1"), Corrupt, "of the metadata"),
        ("a.parquet", ending_in(9, *b"PARE"), Unsupported, "the file is encrypted"),
        ("a.parquet", twice, Unsupported, "the file has 2 columns of the name one"),
        ("a.parquet", empty, Unsupported, "the file has no columns"),
        ("x=1/a.parquet", sample(), Unsupported, "column x is both a file column and a partition column"),
        ("_h=1/a.parquet", sample(), Unsupported, "_h=1"),
        ("y=1/y=2/a.parquet", sample(), Unsupported, "y"),
    ] {
        check_file(path, &bytes, kind, message).await;
    }
}

type EditChunk = fn(ColumnChunkMetaDataBuilder) -> ColumnChunkMetaDataBuilder;
type EditGroup = fn(RowGroupMetaDataBuilder) -> RowGroupMetaDataBuilder;

/// The sample with another description of its first column chunk and its row group.
fn described(chunk: EditChunk, group: EditGroup) -> Vec<u8> {
    with_footer(&sample(), |footer| {
        let mut builder = footer.into_builder();
        for found in builder.take_row_groups() {
            let mut columns: Vec<ColumnChunkMetaData> = found.columns().to_vec();
            columns[0] = chunk(columns[0].clone().into_builder()).build().unwrap();
            let found = group(found.into_builder()).set_column_metadata(columns).build().unwrap();
            builder = builder.add_row_group(found);
        }
        builder.build()
    })
}

#[tokio::test]
async fn descriptions_of_row_groups_and_column_chunks() {
    let same: EditGroup = |group| group;
    let chunks: [(EditChunk, Kind, &str); 7] = [
        (|chunk| chunk.set_num_values(5), Corrupt, "(row group 0, column x): 5 values for 4 rows"),
        (|chunk| chunk.set_num_values(-1), Corrupt, "(row group 0, column x): -1 values for 4 rows"),
        (|chunk| chunk.set_total_uncompressed_size(-1), Corrupt, "column x): uncompressed size of -1"),
        (
            |chunk| chunk.set_dictionary_page_offset(None).set_data_page_offset(1 << 40),
            Corrupt,
            "are outside of 4..",
        ),
        (|chunk| chunk.set_total_compressed_size(1 << 40), Corrupt, "are outside of 4.."),
        (|chunk| chunk.set_total_compressed_size(-1), Corrupt, "are outside of 4.."),
        // Files of metadata alone name the files of the data.
        (
            |chunk| chunk.set_file_path("b.parquet".to_owned()),
            Unsupported,
            "column x: its data is in another file",
        ),
    ];
    for (chunk, kind, message) in chunks {
        check_file("a.parquet", &described(chunk, same), kind, message).await;
    }
    let groups: [(EditGroup, &str); 3] = [
        (|group| group.set_num_rows(-1), "(row group 0): -1 rows in"),
        (|group| group.set_total_byte_size(-1), "(row group 0): 4 rows in -1 bytes"),
        (|group| group.set_num_rows(3), "values for 3 rows"),
    ];
    for (group, message) in groups {
        check_file("a.parquet", &described(|chunk| chunk, group), Corrupt, message).await;
    }
    let total = with_footer(&sample(), |footer| footer);
    let at = total.windows(4).position(|window| window == [0x16, 4 << 1, 0x19, 0x1c]).unwrap() + 1;
    let claimed = [&total[..at], &[5 << 1], &total[at + 1..]].concat();
    check_file("a.parquet", &claimed, Corrupt, "the footer claims 5 rows, but the row groups have 4").await;
}

#[tokio::test]
async fn pages() {
    let sample = sample();
    let footer =
        sample.len() - 8 - u32::from_le_bytes(sample[sample.len() - 8..][..4].try_into().unwrap()) as usize;
    let mut zeroed = sample.clone();
    zeroed[4..footer].fill(0);
    check_file("a.parquet", &zeroed, Corrupt, "(row group 0, column x)").await;
    // A page type of a later version of the format.
    let mut cut = sample.clone();
    cut[4..12].fill(0xff);
    check_file("a.parquet", &cut, Corrupt, "(row group 0, column x)").await;
}

#[tokio::test]
async fn manifests_and_stores() {
    let fixture = Fixture::new();
    fixture.write("a.parquet", &rows([1]));
    let first = fixture.take().await.unwrap();
    fixture.write("b.parquet", &rows([2]));
    let second = fixture.take().await.unwrap();
    let path = |id: &str| fixture.manifests().join(format!("{id}.manifest"));
    let load = async || load_snapshot("test", first.id(), &fixture.state).await.unwrap_err();
    std::fs::write(path(first.id()), b"not a manifest\n").unwrap();
    check(&load().await, Corrupt, "header line is \"not a manifest\"");
    std::fs::copy(path(second.id()), path(first.id())).unwrap();
    check(&load().await, Corrupt, &format!("it contains snapshot {}, expected {}", second.id(), first.id()));

    let store = TestStore::with(&[("d/a.parquet", &parquet_bytes(&rows([1, 2]), None))]).await;
    let location = Location::with_store("mem://d", std::sync::Arc::clone(&store) as _, "d");
    store.down.store(true, Ordering::SeqCst);
    check(&fixture.take_at(&location).await.unwrap_err(), Unavailable, "the store is down");
}

#[tokio::test]
async fn answers_of_a_server() {
    for (status, kind, message) in [
        ("503 Slow Down", Unavailable, "503"),
        ("500 Internal Server Error", Unavailable, "500"),
        ("501 Not Implemented", Unsupported, "the store does not support the request"),
    ] {
        let server = http::serve(parquet_bytes(&rows([1]), None)).await;
        let mut fixture = Fixture::new();
        fixture.config.max_retries = 0;
        let location = Location::parse(&server.url("a.parquet"), &fixture.config).unwrap();
        server.fail([status; 10]);
        check(&fixture.take_at(&location).await.unwrap_err(), kind, message);
    }
    // A table is named, wherever a file of it is found.
    let fixture = Fixture::new();
    fixture.write_bytes(&Path::new("_delta_log").join("0.json").to_string_lossy(), b"{}");
    fixture.write("a.parquet", &rows([1]));
    check(&fixture.take().await.unwrap_err(), Unsupported, "Delta");
}
